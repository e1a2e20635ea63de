"""Environments that leave, hang, grow or return rubbish end in a sentence, in process and in workers."""

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ludus
from ludus.config import TrainConfig
from ludus.envs.gym import workers as gym_workers
from ludus.envs.gym.config import GymConfig, PettingZooConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.gym.finding import find_spec
from ludus.envs.gym.make import GymRecipe
from ludus.envs.gym.pettingzoo import make_pettingzoo
from ludus.envs.gym.workers import MAX_HANGS, MAX_RESTARTS, GymWorkersVecEnv
from ludus.envs.vec import VecEnv
from ludus.errors import EnvError, LudusError
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_actor_critic
from ludus.show.console import Console
from ludus.training.evaluator import evaluate, limit_warnings

pytest.importorskip("pettingzoo", reason="a part of the environments here is PettingZoo's")
from misbehaving_envs import RESETS, RUBBISH

Make = Callable[..., VecEnv]
RUDE = "misbehaving_envs:ludus-test/Rude-v0"
ENDLESS = "misbehaving_envs:ludus-test/Endless-v0"


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[VecEnv] = []

    def make_one(name: str = "Rude", workers: int = 0, num_envs: int = 2, **kwargs: Any) -> VecEnv:
        if name == "RudeParallel":
            config = PettingZooConfig("misbehaving_envs:RudeParallel", workers=workers, kwargs=kwargs)
            made.append(make_pettingzoo(config, num_envs))
        else:
            env_id = f"misbehaving_envs:ludus-test/{name}-v0"
            made.append(make_gym(GymConfig(env_id, workers=workers, kwargs=kwargs), num_envs))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def no_op(env: VecEnv) -> Tensor:
    return torch.zeros(env.num_rows, dtype=torch.int64)


def play(env: VecEnv, steps: int = 5) -> None:
    env.reset(0)
    for _ in range(steps):
        env.step(no_op(env))


def refuse(env: VecEnv, steps: int = 5) -> str:
    """The one sentence that playing ends in."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a worker that is restarted warns
        with pytest.raises(EnvError) as caught:
            play(env, steps)
    return str(caught.value)


# Leaving ----------------------------------------------------------------------------------------------
LEAVING = {
    "sys.exit": r"it called sys\.exit\(3\)",
    "sys.exit with words": r"it called sys\.exit\('no licence'\)",
    "base exception": "Stop: enough",
}


@pytest.mark.parametrize("name", ["Rude", "RudeParallel"])
@pytest.mark.parametrize(("event", "words"), LEAVING.items())
@pytest.mark.parametrize(("at", "place"), [("step", r"step\(\) of \w+ 0 at step 3"), ("reset", r"reset\(\)")])
def test_trust_18_an_environment_that_leaves_is_a_sentence(
    make: Make, name: str, event: str, words: str, at: str, place: str
) -> None:
    assert re.search(f"raised in {place}.*: {words}", refuse(make(name, event=event, at=at)))


@pytest.mark.parametrize("name", ["Rude", "RudeParallel"])
@pytest.mark.parametrize("workers", [0, 1])
def test_trust_18_an_environment_that_leaves_when_it_is_made_is_a_sentence(
    make: Make, name: str, workers: int
) -> None:
    with pytest.raises(EnvError, match=r"could not be made: it called sys\.exit\(3\)"):
        make(name, workers, event="sys.exit", at="make")


def test_trust_18_an_environment_that_leaves_when_it_is_closed_is_a_warning(make: Make) -> None:
    with pytest.warns(RuntimeWarning, match=r"failed to close: it called sys\.exit\(3\)"):
        make(event="sys.exit", at="close").close()


def test_trust_18_a_module_that_leaves_when_it_is_imported_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_module.py").write_text("import sys\nsys.exit(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LudusError, match=r"'leaving_module' of .* fails to import: it called sys\.exit"):
        make_gym(GymConfig("leaving_module:X-v0"), 1)


@pytest.mark.parametrize("name", ["Rude", "RudeParallel"])
@pytest.mark.parametrize(
    ("event", "words"),
    [("sys.exit", r"it called sys\.exit\(3\)"), ("os._exit", r"ended by itself \(exit code 7\)")],
)
def test_trust_18_a_worker_that_leaves_again_and_again_is_given_up(
    make: Make, name: str, event: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_workers, "MAX_RESTARTS", 2)
    env = make(name, 1, event=event)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(EnvError, match=rf"(?s)failed 3 times within 1,000 steps\. The last time.*{words}"):
            play(env, 30)
    assert len(caught) == 2


def test_trust_18_a_training_whose_environment_leaves_keeps_what_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"env.num_envs": 2, "env.kwargs": {"event": "sys.exit", "first": 40}, "loop.total_steps": 2000}
    settings |= {"ppo.horizon": 16, "ppo.minibatches": 1, "log.tensorboard": False}
    with pytest.raises(EnvError, match=r"raised in step\(\) of row 0 at step 40: it called sys\.exit\(3\)"):
        ludus.train(f"gym:{RUDE}", run_dir=tmp_path / "run", console=Console("plain"), overrides=settings)
    assert "Saved an emergency checkpoint" in capsys.readouterr().out
    assert list((tmp_path / "run" / "checkpoints").glob("step_*"))


# Rubbish ----------------------------------------------------------------------------------------------
SENTENCES = {
    "string array": r"observation of row 0 at step 3 is not made of real numbers: .* of <U1 and shape \(2,\)",
    "numeric strings": "not made of real numbers",
    "object array": "not made of real numbers",
    "no observation": "is not made of real numbers: it is None",
    "complex": "array of complex64",
    "ragged": "does not fit its space",
    "huge integers": "is not made of real numbers: it is a list of 2 values",
    "wrong shape": r"has shape \(3,\)",
    "nan": "is nan",
    "reward text": r"reward of row 0 at step 3 is a str \('1.5'\); it must be one real number",
    "reward array": "reward .* is an array of float64 and shape",
    "reward none": "reward .* is None",
    "reward complex": "reward .* is a complex",
    "reward huge": "reward .* is a int",
    "reward nan": "reward .* is nan",
    "terminated array": "terminated .* is an array of bool .* must be True or False",
    "terminated none": "terminated .* is None",
    "terminated text": "terminated .* is a str",
    "truncated list": "truncated .* is a list",
    "no info": "info that is a NoneType; it must be a dict",
    "four values": r"step\(\) of row 0 at step 3 gives a tuple of 4 values; it must give \(obs, reward, term",
    "six values": "gives a tuple of 6 values",
    "nothing": "gives None; it must give",
}


def test_every_kind_of_rubbish_has_its_sentence() -> None:
    assert SENTENCES.keys() == RUBBISH.keys()


@pytest.mark.parametrize("event", RUBBISH)
def test_trust_19_rubbish_is_the_sentence_that_says_where(make: Make, event: str) -> None:
    assert re.search(SENTENCES[event], refuse(make(event=event)))


@pytest.mark.parametrize("event", ["string array", "reward text", "terminated array", "four values", "no info"])
def test_trust_19_rubbish_of_a_worker_is_refused_and_the_worker_not_restarted(make: Make, event: str) -> None:
    assert re.search(SENTENCES[event], refuse(make(workers=1, event=event)))


@pytest.mark.parametrize(("event", "workers"), [*((event, 0) for event in RESETS), ("old style reset", 1)])
def test_trust_19_rubbish_from_reset_is_a_sentence(make: Make, event: str, workers: int) -> None:
    message = refuse(make(workers=workers, event=event, at="reset"))
    assert re.search(r"must give \(obs, info\)|not made of real numbers|it must be a dict", message)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("string array", r"observation of row 1 \('bob' of environment 0\) at step 3 is not made of real numbers"),
        ("reward text", r"reward of row 1 .* is a str"),
        ("terminated array", r"terminated of row 1 .* is an array"),
        ("four values", "gives a tuple of 4 values"),
        ("rewards are a list", "gives a list of 2 values where a dict of the agents belongs"),
        ("agents are a number", "has agents that are a int"),
        ("agents are lists", "a list of names is needed"),
    ],
)
def test_trust_19_rubbish_of_pettingzoo_is_a_sentence_too(
    make: Make, event: str, message: str, workers: int
) -> None:
    assert re.search(message, refuse(make("RudeParallel", workers, event=event)))


@pytest.mark.parametrize("name", ["Rude", "RudeParallel"])
def test_trust_19_an_environment_without_a_space_is_a_sentence(make: Make, name: str) -> None:
    with pytest.raises(LudusError, match="has no observation space"):
        make(name, event="no space")


def test_numbers_of_unusual_types_are_still_rewards_and_ends() -> None:
    from ludus.envs.gym.block import EnvBlock

    env = make_gym(GymConfig(RUDE), 1)
    block: EnvBlock = env._block  # type: ignore[attr-defined]
    for value in (1, True, torch.tensor(1.0), 1.0):
        assert block._number(0, "reward", value) == 1.0
    for flag in (1, torch.tensor(True), True):
        assert block._flag(0, "terminated", flag) is True


# Hanging ----------------------------------------------------------------------------------------------
def test_trust_19_a_worker_that_hangs_again_and_again_is_given_up_after_a_few_restarts() -> None:
    kwargs = {"event": "hang", "first": 2}
    env = GymWorkersVecEnv(GymRecipe(RUDE, "misbehaving_envs", find_spec(RUDE), 0, kwargs), 1, 1, timeout_s=1.0)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(
                EnvError, match=rf"hung {MAX_HANGS} times within 1,000 steps.*did not answer for 1 s"
            ):
                play(env, 50)
        assert len(caught) == MAX_HANGS - 1
    finally:
        env.close()


def test_failures_far_apart_are_forgiven() -> None:
    worker = gym_workers._Worker(None, None, 1.0)  # type: ignore[arg-type]
    for _ in range(3 * MAX_RESTARTS):
        assert worker.note_failure(hung=True) == ""
        for _ in range(gym_workers.WINDOW):
            worker.note_step()


# Growing ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("workers", "what"), [(0, "arrays"), (0, "numbers"), (1, "arrays")])
def test_trust_20_a_growing_history_is_named_once_with_its_attribute(make: Make, workers: int, what: str) -> None:
    env = make("Hoarder", workers, what=what)
    play(env, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            env.state()
            for _ in range(10):
                env.step(no_op(env))
    (warning,) = caught
    assert re.search(r"grown to \d+\.\d MB\. The largest is log\['pictures'\] with", str(warning.message))
    assert "ludus_state()" in str(warning.message)


def test_trust_20_a_growing_history_of_pettingzoo_is_named_too(make: Make) -> None:
    env = make("RudeParallel", event="hoards")
    play(env, 1)
    env.state()
    play(env, 30)
    with pytest.warns(RuntimeWarning, match="The largest is log with"):
        env.state()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Hopper-v5"])
def test_an_environment_that_does_not_grow_is_left_in_peace(env_id: str) -> None:
    env = make_gym(GymConfig(env_id), 2)
    env.reset(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            env.state()
            for _ in range(20):
                env.step(torch.zeros((2, *(env.action_space.shape or ())), dtype=torch.int64))


# Never ending -----------------------------------------------------------------------------------------
class _Always:
    """Stands for a policy that has learned to take one action, or to take action 1 in some rows only."""

    device = torch.device("cpu")

    def __init__(self, actions: list[int]) -> None:
        self._actions = torch.tensor(actions)

    def actor(self, deterministic: bool, generator: torch.Generator) -> "_Always":
        return self

    def act(self, obs: Tensor) -> Tensor:
        return self._actions

    def forget(self, done: Tensor) -> None:
        """Nothing is remembered."""


def test_trust_24_an_evaluation_cuts_endless_episodes_and_counts_them(make: Make) -> None:
    policy: Any = _Always([0, 1, 1, 0])
    result = evaluate(policy, make("Endless", num_envs=4), 8, 0, True, max_steps=50)
    summary = result.summary()
    assert sorted(result.lengths) == [1, 1, 1, 1, 50, 50]
    assert summary["cut_episodes"] == 2
    assert summary["episodes"] == 6
    assert summary["success_rate"] == pytest.approx(4 / 6)  # who was cut has not succeeded


def test_trust_24_without_a_limit_of_its_own_an_environment_has_the_evaluations(make: Make) -> None:
    policy: Any = _Always([0])
    result = evaluate(policy, make("Endless", num_envs=1), 1, 0, True)
    assert result.lengths == [10_000]


def test_trust_24_an_environment_with_a_limit_is_never_cut() -> None:
    env = make_gym(GymConfig("CartPole-v1"), 2)
    summary = evaluate(make_actor_critic(env, PolicyConfig(), seed=0), env, 4, 0, True).summary()
    assert "cut_episodes" not in summary


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_trust_24_a_training_without_a_time_limit_says_so_first_and_evaluates_to_its_end(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"env.num_envs": 2, "eval.max_steps": 60}
    settings |= {"loop.total_steps": 64, "eval.episodes": 2, "log.report": False, "log.tensorboard": False}
    replay = {"replay.steps": 16, "replay.warmup": 16, "replay.train_batches": 1}
    settings |= replay if algo == "dqn" else {"ppo.horizon": 16, "ppo.minibatches": 1}
    run = ludus.train(
        f"gym:{ENDLESS}", run_dir=tmp_path / "run", console=Console("plain"), algo=algo, overrides=settings
    )
    out = capsys.readouterr()
    said = out.out + out.err
    assert said.count("has no time limit") == 1
    assert said.index("has no time limit") < said.index("eval at")
    assert (run / "final").exists()


def test_trust_24_pettingzoo_and_limited_environments_need_no_such_word(make: Make) -> None:
    limited = TrainConfig(env=GymConfig("CartPole-v1"))
    assert limit_warnings(limited, make_gym(GymConfig("CartPole-v1"), 1)) == ()
    assert limit_warnings(TrainConfig(env=PettingZooConfig()), make("RudeParallel")) == ()
    (warning,) = limit_warnings(TrainConfig(env=GymConfig(ENDLESS)), make("Endless"))
    assert "10,000 steps" in warning
    assert "--env.max-steps" in warning
