"""MettaGrid's engine behind the contract: planes, ends, seeds and states."""

import importlib.metadata
import logging
import sys
from typing import Any

import numpy as np
import pytest
import torch

from ludus.envs import mettagrid
from ludus.envs.check import check_env
from ludus.envs.config import MettagridConfig
from ludus.envs.mettagrid import TASKS, MettagridVecEnv, Planes, make_mettagrid
from ludus.envs.vec import Step, VecEnv
from ludus.errors import CheckpointError, ConfigError
from ludus.presets import mettagrid as presets
from ludus.ranges import check_fields


def _is_installed() -> bool:
    try:
        return importlib.metadata.version("mettagrid") == mettagrid.VERSION
    except importlib.metadata.PackageNotFoundError:
        return False


needs_package = pytest.mark.skipif(
    not _is_installed(), reason=f"mettagrid {mettagrid.VERSION} is not installed: pip install 'ludus[mettagrid]'"
)


def make(task: str = "navigation", num_envs: int = 3, **settings: object) -> MettagridVecEnv:
    env = make_mettagrid(MettagridConfig(task, **settings), num_envs)  # type: ignore[arg-type]
    assert isinstance(env, MettagridVecEnv)
    return env


def play(env: VecEnv, steps: int, seed: int = 0) -> list[Step]:
    generator = torch.Generator().manual_seed(seed)
    n = int(env.action_space.n)  # type: ignore[union-attr]
    return [env.step(torch.randint(n, (env.num_rows,), generator=generator)) for _ in range(steps)]


def walk_to_heart(plane: np.ndarray) -> int:
    """The move towards the nearest heart in a 9 × 9 plane, else east: north, south, west, east are 1 to 4."""
    places = (np.argwhere(plane) - 4).tolist()
    y, x = min(places, key=lambda place: abs(place[0]) + abs(place[1]), default=(0, 1))
    return (1 if y < 0 else 2) if abs(y) >= abs(x) else (3 if x < 0 else 4)


@needs_package
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("observation", ["planes", "tokens"])
def test_keeps_the_contract(task: str, observation: str) -> None:
    config = MettagridConfig(task, agents=2, max_steps=20, observation=observation)  # type: ignore[arg-type]
    findings = check_env(lambda n: make_mettagrid(config, n), num_envs=3, steps=60)
    bad = [finding for finding in findings if finding.level == "error" or "resumed" in finding.what]
    assert not bad


@needs_package
def test_rows_are_worlds_times_agents() -> None:
    env = make(num_envs=3, agents=2)
    assert (env.num_rows, env.agents_per_env) == (6, 2)
    assert env.reset(0).shape == (6, *env.obs_space.shape)
    assert make("arena", num_envs=1).num_rows == TASKS["arena"].agents


@needs_package
@pytest.mark.parametrize("task", TASKS)
def test_planes_are_what_a_slow_loop_makes_of_the_tokens(task: str) -> None:
    raw, decoded = make(task, observation="tokens"), make(task)
    game = raw.world.game
    features = {feature.id: feature.name for feature in game.id_map().features()}
    names, tags = Planes(game).names, game.id_map().tag_names()
    tokens, planes = raw.reset(5), decoded.reset(5)
    for before, after in zip(play(raw, 40), play(decoded, 40), strict=True):
        slow = torch.zeros_like(planes)
        for row, row_tokens in enumerate(tokens.tolist()):
            for position, feature, value in row_tokens:
                if position == 255:
                    break
                y, x = (4, 4) if position == 254 else (position // 16, position % 16)
                name = tags[value] if features[feature] == "tag" else features[feature]
                if name not in names:
                    continue
                if name.startswith("type:"):
                    level = 255
                elif name.startswith("inv:"):
                    level = round(255 * np.log2(1 + value) / 8)
                else:
                    level = value
                slow[row, names.index(name), y, x] = level
        assert torch.equal(planes, slow)
        assert slow.any()
        tokens, planes = before.obs, after.obs


@needs_package
def test_an_agent_that_walks_to_hearts_gathers_them() -> None:
    env = make(num_envs=4, agents=1)
    env.world.game.map_builder.objects = {"altar": 10}  # no walls to get stuck at
    altar = Planes(env.world.game).names.index("type:altar")
    env.reset(0)
    random_return = sum(float(step.reward.mean()) for step in play(env, 40))
    obs, walker_return = env.reset(0), 0.0
    for _ in range(40):
        step = env.step(torch.tensor([walk_to_heart(row[altar].numpy()) for row in obs]))
        obs, walker_return = step.obs, walker_return + float(step.reward.mean())
    assert walker_return > random_return + 3


@needs_package
def test_time_running_out_truncates_and_restarts_in_the_same_step() -> None:
    env = make(max_steps=10)
    env.reset(0)
    over = Planes(env.world.game).names.index("episode_completion_pct")
    steps = play(env, 20)
    for number, step in enumerate(steps, 1):
        assert not step.terminated.any()
        assert step.truncated.all() == step.truncated.any() == (number % 10 == 0)
    last = steps[9]
    assert (last.final_obs[:, over, 4, 4] == 255).all()
    assert (last.obs[:, over, 4, 4] == 0).all()
    assert (steps[10].final_obs[:, over, 4, 4] > 0).all()


@needs_package
def test_what_the_engine_terminates_is_terminated() -> None:
    env = make(max_steps=5)
    env.world.game.episode_truncates = False
    env.reset(0)
    last = play(env, 5)[-1]
    assert last.terminated.all()
    assert not last.truncated.any()


@needs_package
def test_metrics_add_up_to_the_return() -> None:
    env = make("arena", max_steps=60)
    env.reset(0)
    steps = play(env, 60)
    total = torch.stack([step.reward for step in steps]).sum(0)
    metrics = steps[-1].metrics
    assert total.any()
    assert torch.equal(metrics["heart_gained"] - metrics["heart_lost"], total)
    assert (metrics["cells_visited"] > 1).all()
    assert all(step.metrics.keys() == metrics.keys() for step in steps)


@needs_package
def test_a_laser_robs_another_agent_of_a_heart() -> None:
    """Cornered in a world of two cells, so that every move meets the other agent."""
    env = make("arena", num_envs=1, agents=2)
    game = env.world.game
    game.map_builder.width, game.map_builder.height, game.map_builder.objects = 4, 3, {}
    env.reset(0)
    for agent in env.sims[0].agents():
        agent.set_inventory({"heart": 2, "laser": 1})
    env.step(torch.zeros(2))  # the hearts just given are counted here
    moves = [env.step(torch.tensor([move, 0])).reward.tolist() for move in (3, 4, 3, 4)]
    assert sorted(moves) == [[0.0, 0.0]] * 3 + [[1.0, -1.0]]  # only one of the directions, and one laser


@needs_package
def test_episodes_differ_but_a_seed_repeats_them() -> None:
    one, two = make(max_steps=8), make(max_steps=8)
    first = one.reset(3)
    assert torch.equal(first, two.reset(3))
    steps, again = play(one, 30), play(two, 30)
    assert all(
        torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward) for a, b in zip(steps, again, strict=True)
    )
    assert not torch.equal(first, steps[7].obs)  # the next episode has another room
    assert not torch.equal(first, one.reset(4))
    assert torch.equal(first, one.reset(3))


@needs_package
def test_resumes_exactly_in_the_middle_of_later_episodes() -> None:
    env, other = make("assembly", max_steps=12), make("assembly", max_steps=12)
    env.reset(7)
    play(env, 29)
    state = env.state()
    expected = play(env, 20, seed=1)
    other.load_state(state)
    for a, b in zip(expected, play(other, 20, seed=1), strict=True):
        assert torch.equal(a.obs, b.obs)
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.truncated, b.truncated)


@needs_package
def test_episodes_that_cannot_be_played_again_restart_with_a_warning() -> None:
    env = make(max_steps=12)
    env.reset(7)
    play(env, 5)
    state = env.state()
    state["obs"][0] += 1
    env.name = "mettagrid:restarting"  # a name is warned of once
    with pytest.warns(RuntimeWarning, match="episodes restart on resume"):
        env.load_state(state)
    assert [sim.current_step for sim in env.sims] == [0, 5, 5]
    play(env, 20)


@needs_package
def test_a_state_of_other_rows_or_longer_episodes_is_refused() -> None:
    env = make(max_steps=12)
    env.reset(0)
    play(env, 10)
    with pytest.raises(CheckpointError, match="holds 12"):
        make(num_envs=2).load_state(env.state())
    with pytest.raises(CheckpointError, match="max-steps"):
        make(max_steps=5).load_state(env.state())


@needs_package
def test_many_agents_find_room() -> None:
    env = make("assembly", num_envs=1, agents=60)
    assert env.reset(0).shape[0] == 60


@needs_package
def test_the_import_leaves_logging_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mettagrid.part("types")
    package = sys.modules["mettagrid"]
    for name in ("mettagrid", "mettagrid.types"):  # so that the package itself is imported again
        monkeypatch.delitem(sys.modules, name)
    level, handlers = logging.root.level, list(logging.root.handlers)
    mettagrid.part("types")
    assert sys.modules["mettagrid"] is not package
    assert (logging.root.level, logging.root.handlers) == (level, handlers)


@needs_package
def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mettagrid, "VERSION", "0.1")
    with pytest.raises(ConfigError, match=r"works with 0\.1"):
        make()


def test_without_the_package_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mettagrid.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mettagrid", None)
    with pytest.raises(ConfigError, match=r"pip install 'ludus\[mettagrid\]'"):
        make()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'navigation'\? There are navigation, assembly, arena"):
        make("navigatoin")
    with pytest.raises(ConfigError, match="no mettagrid task"):
        presets.preset_for("chess")


@pytest.mark.parametrize("settings", [{"num_envs": 0}, {"agents": -1}, {"max_steps": -1}])
def test_senseless_numbers_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least"):
        check_fields(MettagridConfig("navigation", **settings))


@pytest.mark.parametrize("task", TASKS)
def test_presets_name_their_task(task: str) -> None:
    preset = presets.preset_for(task)
    assert preset.name == f"mettagrid:{task}"
    assert preset.config.env == MettagridConfig(task, num_envs=256 // TASKS[task].agents)
