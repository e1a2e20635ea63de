"""PettingZoo parallel environments behind the contract, in this process and in workers."""

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

pytest.importorskip("pettingzoo", reason="PettingZoo is not installed")

import pettingzoo_test_envs
from ludus.envs.check import check_env
from ludus.envs.gym.config import PettingZooConfig
from ludus.envs.gym.finding import find_factory
from ludus.envs.gym.pettingzoo import make_pettingzoo
from ludus.envs.gym.state import restore, snapshot
from ludus.envs.vec import State, Step, VecEnv, derive_seed
from ludus.errors import CheckpointError, ConfigError, EnvError
from ludus.presets.pettingzoo import preset_for
from test_check import Counting, problems
from test_gym_env import through_files

ANN, BOB, CLEO, DAN = range(4)  # rows of the first environment


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[VecEnv] = []

    def make_one(name: str, num_envs: int = 2, workers: int = 0, max_steps: int = 0, **kwargs: Any) -> Any:
        env_id = f"pettingzoo_test_envs:{name}" if hasattr(pettingzoo_test_envs, name) else name
        config = PettingZooConfig(env_id, workers=workers, max_steps=max_steps, kwargs=kwargs)
        made.append(make_pettingzoo(config, num_envs))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def no_op(env: VecEnv) -> Tensor:
    """The first of every row's choices."""
    first = int(env.action_space.start) if isinstance(env.action_space, gym.spaces.Discrete) else 0
    return torch.full((env.num_rows,), first)


def random_actions(env: VecEnv, steps: int) -> list[Tensor]:
    env.action_space.seed(0)
    samples = [[env.action_space.sample() for _ in range(env.num_rows)] for _ in range(steps)]
    return [torch.from_numpy(np.stack(rows)) for rows in samples]


def assert_same(one: Step, other: Step) -> None:
    for name, a, b in zip(Step._fields[:4], one[:4], other[:4], strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(one.final_obs[one.done], other.final_obs[one.done])


class SlowLoop:
    """The same rows from raw environments, agent by agent, as the rules say it."""

    def __init__(self, env_id: str, num_envs: int, max_steps: int = 0, **kwargs: Any) -> None:
        self.envs = [find_factory(env_id)(**kwargs) for _ in range(num_envs)]
        self.agents = self.envs[0].possible_agents
        self.space = self.envs[0].observation_space(self.agents[0])
        self.max_steps = max_steps or 10**9

    def reset(self, seed: int) -> list[list[Any]]:
        self.seed, self.tick, self.begun = seed, 0, [0] * len(self.envs)
        return [self._begin(i, derive_seed(seed, i)) for i in range(len(self.envs))]

    def step(self, action: Tensor) -> list[list[dict[str, Any]]]:
        """What each agent of each environment should see."""
        self.tick += 1
        numbers = action.reshape(len(self.envs), len(self.agents)).tolist()
        return [self._step(i, dict(zip(self.agents, n, strict=True))) for i, n in enumerate(numbers)]

    def _step(self, i: int, actions: dict[str, Any]) -> list[dict[str, Any]]:
        env, acting, before = self.envs[i], list(self.envs[i].agents), self.seen[i]
        chosen = {agent: actions[agent] for agent in acting}
        obs, rewards, terminated, truncated, infos = env.step(chosen)
        obs = {agent: self._flat(value) for agent, value in obs.items()}
        time_out = self.tick - self.begun[i] >= self.max_steps
        ends = {}
        for agent in acting:
            if terminated.get(agent) or (agent not in env.agents and not truncated.get(agent)):
                ends[agent] = "terminated"
            elif truncated.get(agent) or time_out:
                ends[agent] = "truncated"
        finals = {agent: obs.get(agent, before.get(agent)) for agent in ends}
        if time_out or not env.agents:
            self.begun[i] = self.tick
            obs = dict(zip(self.agents, self._begin(i, derive_seed(self.seed, i, self.tick)), strict=True))
        self.seen[i] = {agent: obs[agent] for agent in env.agents}
        return [
            {
                "present": agent in env.agents,
                "obs": self.seen[i].get(agent, 0.0),
                "reward": rewards.get(agent, 0.0) if agent in acting else 0.0,
                "end": ends.get(agent),
                "final": finals.get(agent),
                "success": infos.get(agent, {}).get("is_success"),
            }
            for agent in self.agents
        ]

    def _begin(self, i: int, seed: int) -> list[Any]:
        obs, _ = self.envs[i].reset(seed=seed % 2**31)
        self.seen = getattr(self, "seen", {})
        self.seen[i] = {agent: self._flat(value) for agent, value in obs.items()}
        return [self.seen[i].get(agent, 0.0) for agent in self.agents]

    def _flat(self, obs: Any) -> np.ndarray:
        if self.space.dtype == np.uint8:
            return np.asarray(obs)
        return np.asarray(gym.spaces.flatten(self.space, obs), np.float32)


def assert_rows(env: VecEnv, step: Step, expected: list[list[dict[str, Any]]]) -> int:
    """Row by row; the number of ends."""
    assert env.present is not None
    ends = 0
    for row, wanted in enumerate(agent for agents in expected for agent in agents):
        assert bool(env.present[row]) == wanted["present"]
        assert (step.obs[row].numpy() == wanted["obs"]).all()
        assert step.reward[row] == np.float32(wanted["reward"])
        assert bool(step.terminated[row]) == (wanted["end"] == "terminated")
        assert bool(step.truncated[row]) == (wanted["end"] == "truncated")
        if wanted["end"]:
            ends += 1
            assert (step.final_obs[row].numpy() == wanted["final"]).all()
            if wanted["success"] is not None:
                assert step.metrics["success"][row] == float(wanted["success"])
    return ends


def compare(env: VecEnv, slow: SlowLoop, steps: int) -> int:
    first = env.reset(7)
    expected = [obs for agents in slow.reset(7) for obs in agents]
    assert all((one.numpy() == other).all() for one, other in zip(first, expected, strict=True))
    return sum(assert_rows(env, env.step(a), slow.step(a)) for a in random_actions(env, steps))


# Agents come and go ---------------------------------------------------------------------------------
@pytest.mark.parametrize("max_steps", [0, 4])
@pytest.mark.parametrize("name", ["Arena", "turns"])
def test_rows_are_what_the_raw_environments_give_agent_by_agent(make: Any, name: str, max_steps: int) -> None:
    env = make(name, 3, max_steps=max_steps)
    assert (env.num_rows, env.agents_per_env) == (12, 4)
    assert compare(env, SlowLoop("pettingzoo_test_envs:Arena", 3, max_steps), 80) > 60


def test_who_dies_ends_with_the_last_observation_and_is_absent_until_it_comes_back(make: Any) -> None:
    env = make("Scripted", script={"2": "dies", "5": "comes back"})
    env.reset(0)
    env.step(no_op(env))
    step = env.step(no_op(env))
    assert step.terminated.tolist() == [False, True, False, False] * 2
    assert step.final_obs[BOB, :2].tolist() == [2.0, 1.0]
    for _ in range(2):
        assert env.present.tolist() == [True, False, True, True] * 2
        assert not step.obs[BOB].any()
        step = env.step(no_op(env))
        assert not step.done.any()
        assert step.reward.tolist() == [0.5, 0.0, 2.5, 3.5] * 2
    step = env.step(no_op(env))
    assert env.present.all()
    assert not step.done.any()
    assert step.reward[BOB] == 0.0
    assert step.obs[BOB, :2].tolist() == [5.0, 1.0]
    assert env.step(no_op(env)).reward[BOB] == 1.5


def test_who_vanishes_without_a_word_is_terminated_and_the_rest_begins_anew(make: Any) -> None:
    env = make("Scripted", script={"2": "all vanish"})
    env.reset(0)
    env.step(no_op(env))
    step = env.step(no_op(env))
    assert step.terminated.all()
    assert (step.final_obs[:, 0] == 2).all()
    assert (step.obs[:, 0] == 0).all()
    assert env.present.all()


def test_who_says_so_but_stays_begins_an_episode_at_once(make: Any) -> None:
    env = make("Scripted", script={"2": "dies twice over"})
    env.reset(0)
    env.step(no_op(env))
    step = env.step(no_op(env))
    assert step.terminated.tolist() == [False, True, False, False] * 2
    assert not step.truncated.any()
    assert env.present.all()
    assert torch.equal(step.obs, step.final_obs)


def test_an_environment_that_keeps_its_dead_begins_anew_when_all_are(make: Any) -> None:
    env = make("Scripted", script={"2": "all say so but stay"})
    env.reset(0)
    env.step(no_op(env))
    step = env.step(no_op(env))
    assert step.terminated.all()
    assert (step.obs[:, 0] == 0).all()


def test_time_limit_truncates_all_who_are_there_and_nobody_else(make: Any) -> None:
    env = make("Scripted", max_steps=3, script={"2": "dies"})
    env.reset(0)
    env.step(no_op(env))
    env.step(no_op(env))
    step = env.step(no_op(env))
    assert step.truncated.tolist() == [True, False, True, True] * 2
    assert not step.terminated.any()
    assert env.present.all()
    assert (step.obs[:, 0] == 0).all()


def test_success_is_a_metric_of_those_who_told(make: Any) -> None:
    env = make("Arena", 1)
    env.reset(0)
    steps = [env.step(action) for action in random_actions(env, 40)]
    told = [
        (row, step.metrics["success"][row].item())
        for step in steps
        for row in (ANN, BOB, CLEO)
        if step.done[row] and "success" in step.metrics
    ]
    assert (ANN, 1.0) in told
    assert (BOB, 0.0) in told
    assert all(value != value for row, value in told if row == CLEO)


def test_same_seed_same_rows_and_each_environment_and_episode_another(make: Any) -> None:
    one, other = make("Base", max_steps=2), make("Base", max_steps=2)
    first = one.reset(1)
    assert torch.equal(first, other.reset(1))
    assert not torch.equal(first, other.reset(2))
    assert first[0, 2] != first[4, 2]
    other.reset(1)
    seen = [first[0, 2].item()]
    for _ in range(8):
        step = one.step(no_op(one))
        assert_same(step, other.step(no_op(other)))
        seen += [step.obs[0, 2].item()] if step.done[0] else []
    assert len(set(seen)) == 5


def test_tensors_of_a_step_are_not_changed_by_later_steps(make: Any) -> None:
    env = make("Arena")
    kept = [env.reset(0), env.present, *env.step(no_op(env))[:5], env.present]
    copies = [tensor.clone() for tensor in kept]
    for action in random_actions(env, 30):
        env.step(action)
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_check_finds_nothing_wrong(workers: int) -> None:
    config = PettingZooConfig("pettingzoo_test_envs:Arena", workers=workers)
    findings = check_env(lambda n: make_pettingzoo(config, n), steps=60)
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert any("come and go" in finding.what for finding in findings)


def test_a_registered_environment_is_found_by_its_name(make: Any) -> None:
    assert make("pettingzoo_test_envs:ludus-test/arena-v0").num_rows == 8


class Sparse(Counting):
    """Every third row has no agent while `count` is odd, and ends before. Subclasses break one rule each."""

    def reset(self, seed: int) -> Tensor:
        obs = super().reset(seed)
        self.present = torch.ones(self.num_rows, dtype=torch.bool)
        return obs

    def end_step(self) -> Step:
        assert self.present is not None
        step, acting = super().end_step(), self.present.clone()
        self.present = acting.clone()
        self.present[::3] = self.count % 2 == 0
        leaving = (acting & ~self.present) & ~step.truncated
        obs = step.obs * self.present[:, None]
        return step._replace(
            obs=obs, reward=step.reward * acting, terminated=leaving, truncated=step.truncated & acting
        )

    def state(self) -> State:
        assert self.present is not None
        return {**super().state(), "present": self.present.clone()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.present = state["present"].clone()


class Ghost(Sparse):
    def end_step(self) -> Step:
        return super().end_step()._replace(obs=self.obs.clone())


class Paid(Sparse):
    def end_step(self) -> Step:
        step = super().end_step()
        return step._replace(reward=torch.ones_like(step.reward))


class DeadEnds(Sparse):
    def end_step(self) -> Step:
        step = super().end_step()
        return step._replace(terminated=torch.ones_like(step.terminated), truncated=step.truncated & False)


class Runaway(Sparse):
    def end_step(self) -> Step:
        step = super().end_step()
        return step._replace(terminated=step.terminated & False)


class Numbers(Sparse):
    def end_step(self) -> Step:
        step = super().end_step()
        assert self.present is not None
        self.present = self.present.int()
        return step


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (Ghost, "A row without an agent observes something"),
        (Paid, "A row without an agent has a reward"),
        (DeadEnds, "A row without an agent ends an episode"),
        (Runaway, "An agent leaves though its episode has not ended"),
        (Numbers, "VecEnv.present is torch.int32 [4]; the contract says torch.bool [4]"),
    ],
)
def test_the_check_finds_broken_rules_of_presence(cls: type[VecEnv], what: str) -> None:
    assert problems(Sparse) == []
    (found,) = [finding for finding in problems(cls) if what in finding.what]
    assert found.level == "error"
    assert found.fix.endswith(".")


# Spaces ---------------------------------------------------------------------------------------------
def test_a_mask_of_actions_is_the_last_part_of_the_observation(make: Any) -> None:
    env = make("Masked")
    assert env.obs_space.shape == (6,)
    assert env.reset(0)[CLEO, [0, 1, 3, 4, 5]].tolist() == [0.0, 2.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("what", "other", "remedy"),
    [("observation", "cleo", "pad_observations_v0"), ("action", "dan", "pad_action_space_v0")],
)
def test_agents_with_different_spaces_are_named(make: Any, what: str, other: str, remedy: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"different {what} spaces: 'ann' has .*'{other}' has .*supersuit.{remedy}"
    ):
        make("TwoKinds", what=what)


# Mistakes -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("", "Say which PettingZoo environment as 'module:callable'"),
        ("no_such_package.arena:env", r"'no_such_package' that it needs cannot be found.*is it installed"),
        (
            "pettingzoo.butterfly.knights_archers_zombies_v1",
            r"cannot be found.*Did you mean 'pettingzoo.butterfly.knights_archers_zombies_v",
        ),
        (
            "butterfly/knights_archers-v11",
            r"has no parallel environment.*Did you mean 'butterfly/knights_archers_z",
        ),
        ("pettingzoo_test_envs:ludus-test/aren-v0", r"has no parallel environment.*'ludus-test/arena-v0'"),
        ("pettingzoo_test_envs:Aren", r"has no 'Aren'\. Did you mean 'Arena'"),
        ("pettingzoo_test_envs", "'pettingzoo_test_envs' has no 'parallel_env'"),
        ("pettingzoo_test_envs:not_callable", "is a int; it must be a function or class"),
        ("pettingzoo_test_envs:no_environment", "makes a object, not a PettingZoo environment"),
        ("pettingzoo_test_envs:needs_a_package", "needs a package that is not installed: .*no_such_package"),
        ("pettingzoo_test_envs:Anonymous", "has no possible_agents"),
        ("pettingzoo.mpe.simple_v3", "fails to import: ImportError: MPE has been moved"),
        ("pettingzoo_test_envs:InTurn", "agents act one after the other"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_a_reason(make: Any, env_id: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(env_id)


def test_unknown_kwargs_are_named(make: Any) -> None:
    with pytest.raises(ConfigError, match="gravity"):
        make("Arena", gravity=3)


def test_an_environment_that_raises_when_made_is_named(make: Any) -> None:
    with pytest.raises(EnvError, match="could not be made: RuntimeError: no grass today"):
        make("broken")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("nan", r"observation of row 1 \('bob' of environment 0\) at step 3 is nan at index 0"),
        ("infinite reward", r"reward of row 1 \('bob' of environment 0\) at step 3 is inf"),
        ("shape", r"observation of row 1 .* at step 3 has shape \(2,\); its observation space says \(3,\)"),
        ("blind", r"step\(\) gives no observation of row 1 \('bob'"),
        ("stranger", "an agent 'eve' that is not one of its possible_agents"),
        ("raise", r"raised in step\(\) of environment 0 at step 3: ValueError: the goalkeeper fell asleep"),
    ],
)
def test_steps_that_break_the_contract_are_errors_that_say_where(make: Any, event: str, message: str) -> None:
    env = make("Scripted", script={"3": event})
    env.reset(0)
    env.step(no_op(env))
    env.step(no_op(env))
    with pytest.raises(EnvError, match=message):
        env.step(no_op(env))


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("nobody", "environment 0 has no agents after reset"),
        ("raise", r"raised in reset\(\) of environment 0 at step 0"),
        ("old style", r"reset\(\) of environment 0 at step 0 gives a dict; it must give \(obs, info\)"),
    ],
)
def test_resets_that_break_the_contract_are_errors_that_say_where(make: Any, event: str, message: str) -> None:
    env = make("Scripted", script={"reset": event})
    with pytest.raises(EnvError, match=message):
        env.reset(0)


# State ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["Arena", "OwnState", "turns"])
def test_a_loaded_state_continues_bit_for_bit_with_agents_that_come_and_go(make: Any, name: str) -> None:
    env, fresh = make(name, 3), make(name, 3)
    actions = random_actions(env, 80)
    env.reset(11)
    for action in actions[:20]:
        env.step(action)
    assert not env.present.all()
    state, present = through_files(env.state()), env.present
    expected = [(env.step(action), env.present) for action in actions[20:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no word of an inexact state
        fresh.load_state(state)
    assert torch.equal(fresh.present, present)
    for (step, now_present), action in zip(expected, actions[20:], strict=True):
        assert_same(step, fresh.step(action))
        assert torch.equal(fresh.present, now_present)


def test_an_opaque_environment_truncates_those_who_are_there_on_resume_and_says_so(make: Any) -> None:
    env, fresh = make("Opaque"), make("Opaque")
    env.name = fresh.name = "pettingzoo:opaque, told of here"  # a name is warned of once
    env.reset(0)
    last = env.step(no_op(env))
    assert env.present.tolist() == [True, True, True, False] * 2
    with pytest.warns(RuntimeWarning, match=r"its world is a builtins\.range_iterator"):
        state = through_files(env.state())
    fresh.load_state(state)
    step = fresh.step(no_op(fresh))
    assert step.truncated.tolist() == [True, True, True, False] * 2
    assert not step.reward.any()
    assert torch.equal(step.final_obs, last.obs)
    assert (step.obs[fresh.present, 0] == 0).all()
    assert fresh.step(no_op(fresh)).obs[ANN, 0] == 1


def test_a_state_of_another_number_of_environments_is_refused(make: Any) -> None:
    env = make("Arena", 2)
    env.reset(0)
    with pytest.raises(CheckpointError, match="holds 8 rows"):
        make("Arena", 3).load_state(env.state())


class Thing:
    def __init__(self, value: float) -> None:
        self.value, self.rng = value, np.random.default_rng(0)


class Room:
    def __init__(self) -> None:
        self.first = self.second = Thing(1.0)


def test_things_that_were_one_at_the_start_are_restored_as_two() -> None:
    room, fresh = Room(), Room()
    room.second = Thing(2.0)
    room.second.rng.random()
    assert restore(fresh, snapshot(room)) == ""
    assert (fresh.first.value, fresh.second.value) == (1.0, 2.0)
    assert (fresh.first.rng.random(), fresh.second.rng.random()) == (
        room.first.rng.random(),
        room.second.rng.random(),
    )


def test_positions_of_sprites_are_state_and_sprites_that_come_later_are_not_forgotten() -> None:
    pygame = pytest.importorskip("pygame", reason="pygame is not installed")

    class Ship(pygame.sprite.Sprite):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.rect, self.speed = pygame.Rect(1, 2, 3, 4), pygame.Vector2(0.1, 0.2)

    class World:
        def __init__(self) -> None:
            self.ships = pygame.sprite.Group(Ship(), Ship())

    world, fresh = World(), World()
    second = world.ships.sprites()[1]
    second.rect.x, second.speed.y = 7, 1 / 3
    assert restore(fresh, snapshot(world)) == ""
    restored = fresh.ships.sprites()[1]
    assert (restored.rect, restored.speed) == (second.rect, second.speed)
    assert restored.groups() == [fresh.ships]
    world.ships.add(Ship())
    assert "made in the course of an episode" in restore(fresh, snapshot(world))


# Workers --------------------------------------------------------------------------------------------
def test_workers_give_the_same_rows_as_one_process_and_exchange_states(make: Any) -> None:
    two, none = make("Arena", 3, workers=2), make("Arena", 3)
    actions = random_actions(none, 60)
    assert torch.equal(two.reset(3), none.reset(3))
    for i, action in enumerate(actions):
        assert torch.equal(two.present, none.present)
        assert_same(two.step(action), none.step(action))
        if i == 30:
            state, two = none.state(), make("Arena", 3, workers=3)
            two.load_state(through_files(state))
        if i == 40:
            state, none = two.state(), make("Arena", 3)
            none.load_state(through_files(state))


def test_a_killed_worker_truncates_its_agents_and_nobody_else(make: Any) -> None:
    env = make("Arena", 2, workers=2)
    env.reset(0)
    last = env.step(no_op(env))
    psutil.Process(env.worker_pids[1]).kill()
    with pytest.warns(RuntimeWarning, match="rows 4 to 7 is restarted"):
        step = env.step(no_op(env))
    assert step.truncated[4:].tolist() == [True, True, True, False]
    assert torch.equal(step.final_obs[4:7], last.obs[4:7])
    assert env.present[4:].tolist() == [True, True, True, False]
    assert (step.obs[4:7, 0] == 0).all()


def test_a_worker_that_raises_once_is_replaced(make: Any, tmp_path: Path) -> None:
    env = make("Scripted", 2, workers=1, script={"2": "raise"}, once=str(tmp_path / "played"))
    env.reset(0)
    env.step(no_op(env))
    with pytest.warns(RuntimeWarning, match="the goalkeeper fell asleep"):
        step = env.step(no_op(env))
    assert step.truncated.all()


# Presets --------------------------------------------------------------------------------------------
def test_any_environment_has_a_preset_and_a_wrong_name_none() -> None:
    preset = preset_for("pettingzoo_test_envs:Arena")
    assert preset.name == "pettingzoo:pettingzoo_test_envs:Arena"
    assert preset.config.env == PettingZooConfig("pettingzoo_test_envs:Arena")
    with pytest.raises(ConfigError, match="Did you mean 'Arena'"):
        preset_for("pettingzoo_test_envs:Aren")


# Pictures -------------------------------------------------------------------------------------------
def test_frame_shows_the_environment_of_a_row(make: Any) -> None:
    env, silent = make("Base", render_mode="rgb_array"), make("Base")
    env.reset(0)
    env.step(no_op(env))
    assert (env.frame(5) == np.ones((4, 6, 3), np.uint8)).all()
    assert silent.frame(5) is None


# PettingZoo's own -----------------------------------------------------------------------------------
KNIGHTS = "pettingzoo.butterfly.knights_archers_zombies_v11"
PONG = "pettingzoo.butterfly.cooperative_pong_v6"
REAL = [
    (KNIGHTS, {"spawn_delay": 2, "max_cycles": 150}, 200),
    (PONG, {"render_mode": "rgb_array", "render_ratio": 4}, 80),
    ("pettingzoo.butterfly.pistonball_v6", {"n_pistons": 4, "max_cycles": 20}, 50),
    ("pettingzoo.classic.rps_v2", {"max_cycles": 7}, 40),
    ("pettingzoo.classic.rps_v2:env", {"max_cycles": 7}, 40),
]


@pytest.fixture
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def skip_if_missing(env_id: str) -> None:
    try:
        importlib.import_module(env_id.partition(":")[0])
    except ImportError as error:
        pytest.skip(f"{env_id} cannot be imported here: {error}")


@pytest.mark.usefixtures("no_screen")
@pytest.mark.parametrize(("env_id", "kwargs", "steps"), REAL, ids=[env_id for env_id, _, _ in REAL])
def test_rows_are_what_pettingzoos_own_environments_give(
    make: Any, env_id: str, kwargs: dict[str, Any], steps: int
) -> None:
    skip_if_missing(env_id)
    slow = SlowLoop(env_id.removesuffix(":env"), 2, **kwargs)
    assert compare(make(env_id, **kwargs), slow, steps) > 2


@pytest.mark.usefixtures("no_screen")
def test_knights_die_while_archers_fight_on(make: Any) -> None:
    skip_if_missing(KNIGHTS)
    env = make(KNIGHTS, 1, spawn_delay=2)
    env.reset(0)
    partly = 0
    for action in random_actions(env, 300):
        env.step(action)
        partly += not bool(env.present.all())
    assert partly > 10


@pytest.mark.usefixtures("no_screen")
def test_a_game_of_sprites_continues_exactly(make: Any) -> None:
    skip_if_missing(PONG)
    kwargs = {"render_mode": "rgb_array", "render_ratio": 4, "bounce_randomness": True}
    env, fresh = make(PONG, **kwargs), make(PONG, **kwargs)
    actions = random_actions(env, 60)
    env.reset(0)
    for action in actions[:15]:
        env.step(action)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fresh.load_state(through_files(env.state()))
    for action in actions[15:]:
        assert_same(env.step(action), fresh.step(action))
