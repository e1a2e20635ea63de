"""Rewards, terminations and observations of MuJoCo tasks as named terms."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

import ludus
import term_modules
from ludus import trust
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.config import to_dict
from ludus.envs import make_vec_env
from ludus.envs.humanoid.config import HumanoidConfig, TrackingReward
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.locomotion.config import LocomotionConfig
from ludus.envs.mujoco.task import SimTask
from ludus.envs.mujoco.terms import Term, choose
from ludus.envs.vec import Step
from ludus.errors import ConfigError, EnvError, TrustError
from ludus.ranges import check_fields
from ludus.runs import evaluate_run
from ludus.settings import apply_overrides, load_config
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.training.evaluator import judged_task
from test_trust import SMALL, Call, call, own_module  # noqa: F401 (fixtures)

ROWS = 6


def make(config: Any, rows: int = ROWS) -> SimTask:
    env = make_vec_env(config, rows)
    assert isinstance(env, SimTask)
    return env


def playing(env: SimTask, steps: int, seed: int = 0) -> Iterator[Step]:
    env.reset(seed)
    generator = torch.Generator().manual_seed(seed)
    shape = (env.num_rows, *env.action_space.shape)  # type: ignore[misc]
    for _ in range(steps):
        yield env.step(2 * torch.rand(shape, generator=generator) - 1)


def played(env: SimTask, steps: int, seed: int = 0) -> list[Step]:
    return list(playing(env, steps, seed))


# Equal to before --------------------------------------------------------------------------------------
def test_the_kukas_terms_pay_what_its_formula_says() -> None:
    env = make(KukaConfig(max_steps=30, assist=1.0), 32)
    paid = []
    pay = env.rewards.pay

    def watched(task: SimTask) -> Tensor:
        worth = env.worth  # type: ignore[attr-defined]
        paid.append(worth.progress - 0.1 + 20.0 * worth.success - 5.0 * worth.fallen)
        return pay(task)

    env.rewards.pay = watched  # type: ignore[method-assign]
    steps = played(env, 60)
    assert all(torch.equal(step.reward, expected.float()) for step, expected in zip(steps, paid, strict=True))
    env.close()


@pytest.mark.parametrize("power", [0.0, 0.3])
def test_the_mimics_terms_pay_what_its_formula_says(power: float) -> None:
    r = TrackingReward(power=power)
    env = make(HumanoidConfig(clips="squat", reward=r))
    for step in playing(env, 20):
        error = env.errors  # type: ignore[attr-defined]
        expected = r.position * torch.exp(-r.position_sharpness * error["position"])
        expected += r.pose * torch.exp(-r.pose_sharpness * error["pose"] - r.root_sharpness * error["root"])
        expected += r.velocity * torch.exp(-r.velocity_sharpness * error["velocity"])
        expected += r.root_velocity * torch.exp(-r.root_velocity_sharpness * error["root_velocity"])
        going = ~step.done  # the power of an ended step is gone with its forces
        if power:
            work = (env.sim.field("actuator_force") * env.sim.field("qvel")[:, 6:]).abs().sum(1).float()
            expected += power * (-1e-3 * work)
        assert torch.equal(step.reward[going], expected[going])
    env.close()


def test_a_term_without_changes_draws_nothing_and_looks_the_same() -> None:
    """Settings that say what is so anyway give the same rollouts, bit for bit."""
    for plain, said in (
        (KukaConfig(max_steps=20), {"rewards": {"success": 20, "time": -0.1}, "observations": {"touch": 1}}),
        (
            LocomotionConfig("hopper", max_steps=20),
            {"rewards": {"control": -1e-3}, "terminations": {"unhealthy": True}},
        ),
    ):
        one, two = make(plain), make(type(plain)(**{**vars(plain), **said}))
        for a, b in zip(played(one, 40), played(two, 40), strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))
        one.close()
        two.close()


# Metrics ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "config",
    [
        KukaConfig(max_steps=15),
        LocomotionConfig("hopper", max_steps=15),
        HumanoidConfig(clips="squat", max_steps=15),
    ],
    ids=["kuka", "hopper", "humanoid"],
)
def test_the_terms_of_an_episode_sum_up_to_its_return(config: Any) -> None:
    env = make(config)
    returns = torch.zeros(ROWS)
    ended = 0
    for step in played(env, 40):
        returns += step.reward
        terms = sum(value for name, value in step.metrics.items() if name.startswith("reward/"))
        assert torch.allclose(terms, returns, atol=1e-4)  # type: ignore[arg-type]
        ends = [value for name, value in step.metrics.items() if name.startswith("ended/")]
        assert torch.equal(torch.stack(ends).amax(0).bool(), step.terminated)
        returns[step.done] = 0.0
        ended += int(step.done.sum())
    assert ended >= ROWS
    env.close()


def test_what_was_told_of_a_step_stays_as_it_was() -> None:
    env = make(KukaConfig())
    first = played(env, 1)[0]
    kept = {name: value.clone() for name, value in first.metrics.items()}
    played(env, 3)
    assert all(torch.equal(value, kept[name]) for name, value in first.metrics.items())
    env.close()


# Changing terms ---------------------------------------------------------------------------------------
def test_weights_change_and_null_switches_off() -> None:
    plain, other = make(KukaConfig()), make(KukaConfig(rewards={"time": None, "progress": 2.0, "success": False}))
    assert list(other.rewards.terms) == ["progress", "fallen"]
    for a, b in zip(played(plain, 10), played(other, 10), strict=True):
        assert torch.allclose(2 * (a.reward + 0.1), b.reward, atol=1e-5)
        assert "reward/time" not in b.metrics
    plain.close()
    other.close()


def test_a_function_of_ones_own_pays_ends_and_is_seen() -> None:
    high = {"function": term_modules.high, "weight": 10.0, "over": 0.1}
    config = KukaConfig(
        assist=0.0,
        rewards={"high": high, "action_change": -0.5},
        terminations={"impatient": {"function": "term_modules:impatient", "steps": 3}},
        observations={"speeds": term_modules.speeds, "touch": None, "last_actions": 1, "hand": 2.0},
    )
    assert config.rewards["high"] == {"function": "term_modules:high", "weight": 10.0, "over": 0.1}
    assert config.imports == ("term_modules",)
    env, plain = make(config), make(KukaConfig(assist=0.0))
    assert env.obs_space.shape == (34 - 2 + 2 + 8,)
    ours, theirs = played(env, 3), played(plain, 3)
    generator = torch.Generator().manual_seed(0)
    actions = [2 * torch.rand((ROWS, 4), generator=generator) - 1 for _ in range(3)]
    for number in range(2):
        before = actions[number - 1] if number else torch.zeros(ROWS, 4)
        change = (actions[number] - before).square().sum(1)
        extra = ours[number].reward - theirs[number].reward + 0.5 * change
        assert torch.allclose(extra, torch.full((ROWS,), 10 * (0.22 - 0.1)), atol=0.05)
        assert torch.equal(ours[number].obs[:, :6], 2 * theirs[number].obs[:, :6])
        assert torch.equal(ours[number].obs[:, -10:-6], actions[number])
    assert ours[2].terminated.all()
    assert ours[2].metrics["ended/impatient"].all()
    assert torch.equal(ours[2].obs[:, -10:-2], torch.zeros(ROWS, 8))  # a new episode has had no action
    env.close()
    plain.close()


def test_actions_that_terms_read_are_saved() -> None:
    env = make(KukaConfig(rewards={"action_change": -1.0}))
    played(env, 4)
    state = env.state()
    action = torch.full((ROWS, 4), 0.3)
    expected = env.step(action).reward
    env.load_state(state)
    assert torch.equal(env.step(action).reward, expected)
    env.close()


# What is refused ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rewards": {"sucess": 3}}, "Did you mean 'success'"),
        ({"rewards": {"success": {"scale": 3}}}, "takes a weight alone"),
        ({"rewards": {"success": float("nan")}}, "must be a number"),
        ({"rewards": {"success": 1e30}}, "must be a number"),
        ({"rewards": {"success": {"weight": True}}}, "must be a number"),
        ({"rewards": {"success": [1]}}, "must be a weight, null or names and values"),
        ({"rewards": {"success": {"function": "no colon"}}}, "my_module:my_function"),
        ({"rewards": {"x": "os.path:join()"}}, "my_module:my_function"),
        ({"rewards": {"x": "shutil:rmtree"}}, "is a part of Python"),
        ({"rewards": {"x": "term_modules:hihg"}}, "Did you mean 'high'"),
        ({"rewards": {"x": {"function": "term_modules:high", "ovr": 1}}}, "cannot be called with task, ovr"),
        ({"observations": {"x": {"function": "term_modules:high"}}}, "raised TypeError"),
        ({"rewards": {"a/b": 1}}, "letters, digits"),
        ({"rewards": {1: 1}}, "letters, digits"),
        ({"rewards": {f"x{i}": 1 for i in range(101)}}, "at most 100"),
        ({"rewards": 3}, "names and values"),
        ({"terminations": {"fall": None}}, "Did you mean 'fallen'"),
        ({"observations": {"cub": None}}, "Did you mean 'cube'"),
    ],
    ids=range(18),
)
def test_what_makes_no_sense_is_a_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, EnvError), match=said):
        make_vec_env(KukaConfig(**settings), 1).reset(0)


def test_a_task_cannot_be_left_without_anything_to_see() -> None:
    with pytest.raises(ConfigError, match="nothing to be seen"):
        make(LocomotionConfig("half-cheetah", observations={"qpos": None, "qvel": None}))


def test_a_function_that_cannot_be_found_again_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'x' is a lambda.*at the top of a module"):
        KukaConfig(rewards={"x": lambda task: task.one})

    def inside(task: SimTask) -> Tensor:
        return task.elapsed

    with pytest.raises(ConfigError, match="defined inside something else"):
        KukaConfig(rewards={"x": {"function": inside}})


def test_a_wrong_shape_is_named() -> None:
    env = make(KukaConfig(rewards={"odd": "term_modules:wrong_shape"}))
    with pytest.raises(EnvError, match=r"'odd' must return a tensor of shape \[6\], not one of shape \[3, 3\]"):
        played(env, 1)
    env.close()


def test_terms_of_no_weight_are_not_even_called() -> None:
    def never(task: SimTask) -> Tensor:
        raise AssertionError

    table = {"never": Term(never, 0.0), "once": Term(never, 1.0)}
    assert list(choose("rewards", table, {"once": 0})) == []


# Files, the command line, trust -----------------------------------------------------------------------
TERM = {"high": {"function": "term_modules:high", "weight": 0.5}}
KUKA = SMALL | {"env.num_envs": 4, "groups": 1, "env.max_steps": 10}


def test_a_configuration_survives_its_file(tmp_path: Path) -> None:
    config = apply_overrides(PPOTrainConfig(), {"env.rewards": TERM | {"time": None}, "env.randomization": {}})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(to_dict(config)))
    again = load_config(tmp_path / "c.yaml", PPOTrainConfig())
    check_fields(again)
    assert again == config


def test_a_task_from_before_there_were_terms_is_judged_alike() -> None:
    assert judged_task(KukaConfig()) == judged_task(KukaConfig(rewards={}))
    assert judged_task(KukaConfig()) != judged_task(KukaConfig(rewards={"time": 0}))


def test_a_term_is_trained_with_from_python_and_refused_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = {"high": {"function": term_modules.high, "weight": 0.5}}
    run = ludus.train(
        "kuka-pick-place", tmp_path / "run", console=Console("quiet"), overrides=KUKA | {"env.rewards": terms}
    )
    assert yaml.safe_load((run / "config.yaml").read_text())["env"]["rewards"] == TERM
    assert sum("rollout/reward/high" in row for row in read_metrics(run / "metrics.jsonl")) == 1
    assert "reward/high" in evaluate_run(run, 1, True).summary()  # of this user, on this machine
    monkeypatch.setattr(trust, "_key", lambda make: b"another user's key, thirty-two b")
    with pytest.raises(TrustError, match="'term_modules', and it was not trained by you"):
        evaluate_run(run, 1, True)
    assert "reward/high" in evaluate_run(run, 1, True, trust=True).summary()


def test_a_mark_does_not_serve_for_other_terms(tmp_path: Path) -> None:
    run = ludus.train(
        "kuka-pick-place", tmp_path / "run", console=Console("quiet"), overrides=KUKA | {"env.rewards": TERM}
    )
    config = yaml.safe_load((run / "config.yaml").read_text())
    for change in (
        {"rewards": {"x": "term_modules:impatient"}},
        {"randomization": {"x": {"kind": "term_modules:Tilted"}}},
    ):
        (run / "config.yaml").write_text(yaml.safe_dump(config | {"env": config["env"] | change}))
        with pytest.raises(TrustError, match="'term_modules'"):
            evaluate_run(run, 1, True)


@pytest.mark.parametrize(
    "terms",
    [
        {"rewards": {"x": {"function": "MODULE:f"}}},
        {"rewards": {"x": "MODULE:f"}},
        {"terminations": {"x": {"function": "MODULE:f"}}},
        {"observations": {"x": {"function": "MODULE:f"}}},
        {"randomization": {"x": {"kind": "MODULE:f"}}},
        {"randomization": {"x": {"kind": "MODULE:f", "function": "harmless"}}},
        {"rewards": {"x": {"function": "MODULE:f", "kind": "body_mass"}}},
    ],
    ids=range(7),
)
def test_a_file_that_names_foreign_code_is_refused_by_the_modules_name(
    terms: Any,
    own_module: str,  # noqa: F811
    call: Call,  # noqa: F811
    tmp_path: Path,
) -> None:
    named = json.loads(json.dumps(terms).replace("MODULE", own_module))
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"env": named}))
    said = call("train", "kuka-pick-place", "--config", tmp_path / "c.yaml", "--run-dir", tmp_path / "new")
    assert said.code == 2
    assert f"would import the module '{own_module}'" in said.err
    assert not Path(f"{own_module}.imported").exists()


def test_terms_on_the_command_line_are_json(call: Call, tmp_path: Path) -> None:  # noqa: F811
    flags = [
        part
        for key, value in KUKA.items()
        if not isinstance(value, bool)
        for part in (f"--{key.replace('_', '-')}", value)
    ]
    said = call(
        "train", "kuka-pick-place", "--run-dir", tmp_path / "run", *flags, "--log.no-report",
        "--env.rewards", json.dumps(TERM | {"success": 30}),
        "--env.randomization", '{"late": {"kind": "latency", "steps": [1, 1]}}',
    )  # fmt: skip
    assert said.code == 0, said.err
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["env"]["rewards"] == TERM | {"success": 30}
    assert config["env"]["randomization"] == {"late": {"kind": "latency", "steps": [1, 1]}}
    said = call("eval", tmp_path / "run", "--episodes", 1, "--randomization", "off", "--json")
    assert json.loads(said.out)["episodes"] == 1
    for wrong, expected in (("{", "is not JSON"), ("[1]", "must be names and values")):
        said = call("train", "kuka-pick-place", "--run-dir", tmp_path / "other", "--env.rewards", wrong)
        assert said.code == 2
        assert expected in said.err + said.out


def test_a_file_with_weights_alone_needs_no_trust(call: Call, tmp_path: Path) -> None:  # noqa: F811
    values = {"env": {"rewards": {"success": 30}}, "loop": {"total_steps": 64}, "log": {"report": False}}
    values |= {"ppo": {"horizon": 8, "minibatches": 2, "update_epochs": 1}, "eval": {"episodes": 1, "every": 64}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    said = call(
        "train",
        "kuka-pick-place",
        "--config",
        tmp_path / "c.yaml",
        "--env.num-envs",
        8,
        "--run-dir",
        tmp_path / "r",
    )
    assert said.code == 0, said.err
