"""Gymnasium environments in worker processes: real processes, really killed."""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.gym.finding import find_spec
from ludus.envs.gym.make import GymRecipe
from ludus.envs.gym.workers import MAX_FAILURES, GymWorkersVecEnv
from ludus.envs.vec import Step, VecEnv
from ludus.errors import ConfigError, EnvError

SCRIPTED = "gym_test_envs:ludus-test/Scripted-v0"


@pytest.fixture
def open_envs() -> Iterator[list[VecEnv]]:
    envs: list[VecEnv] = []
    yield envs
    for env in envs:
        env.close()


@pytest.fixture
def make(open_envs: list[VecEnv]) -> Any:
    def make_one(env_id: str, num_envs: int = 4, workers: int = 2, max_steps: int = 0, **kwargs: Any) -> Any:
        open_envs.append(
            make_gym(GymConfig(env_id, workers=workers, max_steps=max_steps, kwargs=kwargs), num_envs)
        )
        return open_envs[-1]

    return make_one


def no_op(env: VecEnv) -> Tensor:
    return torch.zeros(env.num_rows, dtype=torch.int64)


def processes(env: GymWorkersVecEnv) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in env.worker_pids]


def assert_same(one: Step, other: Step) -> None:
    for name, a, b in zip(Step._fields[:5], one[:5], other[:5], strict=True):
        assert torch.equal(a, b), name


def wait_until(condition: Any) -> bool:
    """A minute is no measure of speed: only of what never happens."""
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


# The same as in-process -------------------------------------------------------------------------------
@pytest.mark.parametrize(("env_id", "workers"), [("CartPole-v1", 3), ("Hopper-v5", 2)])
def test_workers_give_the_same_rows_as_one_process_bit_for_bit(make: Any, env_id: str, workers: int) -> None:
    many, one = make(env_id, 5, workers, 40), make(env_id, 5, 0, 40)
    assert torch.equal(many.reset(3), one.reset(3))
    one.action_space.seed(0)
    ended = 0
    for _ in range(120):
        action = torch.stack([torch.as_tensor(one.action_space.sample()) for _ in range(5)])
        expected = one.step(action)
        assert_same(many.step(action), expected)
        ended += int(expected.done.sum())
    assert ended > 5


def test_a_state_moves_between_any_numbers_of_workers_exactly(make: Any) -> None:
    two, none, three = (make("CartPole-v1", 5, workers) for workers in (2, 0, 3))
    actions = torch.randint(2, (60, 5), generator=torch.Generator().manual_seed(0))
    two.reset(1)
    for action in actions[:25]:
        two.step(action)
    none.load_state(two.state())
    three.load_state(none.state())
    for action in actions[25:]:
        expected = two.step(action)
        assert_same(none.step(action), expected)
        assert_same(three.step(action), expected)


def test_success_of_any_worker_is_a_metric_of_all_rows(make: Any) -> None:
    env = make(SCRIPTED, script={"2": "success"})
    env.reset(0)
    assert "success" not in env.step(no_op(env)).metrics
    assert env.step(no_op(env)).metrics["success"].tolist() == [1.0] * 4


def test_two_groups_are_in_flight_at_once(make: Any, tmp_path: Path) -> None:
    """Each waits for the other in its step: neither would ever end it alone."""
    groups = [make(SCRIPTED, 2, 1, script={"2": "meet"}, meet=str(tmp_path)) for _ in range(2)]
    for group in groups:
        group.reset(0)
        group.step(no_op(group))
    for group in groups:
        group.begin_step(no_op(group))
    for group in groups:
        assert not group.end_step().truncated.any()
    assert len(list(tmp_path.iterdir())) == 2


# Waiting ----------------------------------------------------------------------------------------------
def test_waiting_workers_use_no_processor_time(make: Any) -> None:
    env = make("CartPole-v1")
    env.reset(0)
    before = [p.cpu_times() for p in processes(env)]
    time.sleep(0.5)
    after = [p.cpu_times() for p in processes(env)]
    assert all(b.user + b.system - a.user - a.system < 0.05 for a, b in zip(before, after, strict=True))


def test_workers_survive_the_signals_that_stop_a_trainer(make: Any) -> None:
    env = make("CartPole-v1")
    env.reset(0)
    for process in processes(env):
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    step = env.step(no_op(env))
    assert step.metrics["worker_restarts"].tolist() == [0.0] * 4
    assert env.state()["envs"][0]["exact"]


# Failing ----------------------------------------------------------------------------------------------
def test_a_killed_worker_is_replaced_and_only_its_episodes_are_truncated(make: Any) -> None:
    env, calm = make("CartPole-v1"), make("CartPole-v1", workers=0)
    env.reset(0)
    calm.reset(0)
    last = env.step(no_op(env))
    calm.step(no_op(calm))
    processes(env)[0].kill()
    with pytest.warns(RuntimeWarning, match=r"rows 0 to 1 is restarted.*killed \(SIGKILL\)"):
        step = env.step(no_op(env))
    assert step.truncated.tolist() == [True, True, False, False]
    assert not step.terminated.any()
    assert step.reward.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert torch.equal(step.final_obs[:2], last.obs[:2])
    assert (step.obs[:2].abs() <= 0.05).all()  # CartPole's starts
    assert step.metrics["worker_restarts"].tolist() == [1.0] * 4
    assert_rows_equal(step, calm.step(no_op(calm)), slice(2, 4))
    for _ in range(20):
        assert_rows_equal(env.step(no_op(env)), calm.step(no_op(calm)), slice(2, 4))


def assert_rows_equal(one: Step, other: Step, rows: slice) -> None:
    for a, b in zip(one[:5], other[:5], strict=True):
        assert torch.equal(a[rows], b[rows])


def test_a_worker_killed_in_the_middle_of_a_step_is_replaced(make: Any, tmp_path: Path) -> None:
    env = make(SCRIPTED, script={"2": "hang"}, once=str(tmp_path / "played"))
    env.reset(0)
    last = env.step(no_op(env))
    env.begin_step(no_op(env))
    assert wait_until((tmp_path / "played").exists)
    hanging = [p for p in processes(env) if wait_until(lambda p=p: p.status() == "sleeping")]
    for process in hanging:
        process.kill()
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        step = env.end_step()
    assert torch.equal(step.final_obs[step.truncated], last.obs[step.truncated])
    assert step.truncated.any()


def test_a_raising_worker_shows_where_and_is_replaced(make: Any, tmp_path: Path) -> None:
    env = make(SCRIPTED, script={"2": "raise"}, once=str(tmp_path / "played"))
    env.reset(0)
    env.step(no_op(env))
    where = r"the gripper fell off, at .*gym_test_envs.py, line \d+, in _play: `raise"
    with pytest.warns(RuntimeWarning, match=f"because .* ValueError: {where}"):
        step = env.step(no_op(env))
    assert sorted(step.truncated.tolist()) == [False, False, True, True]
    assert not env.step(no_op(env)).done.any()


def test_a_worker_that_always_raises_ends_in_one_error_that_says_where(make: Any) -> None:
    env = make(SCRIPTED, workers=1, script={"reset": "raise"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(EnvError, match=rf"failed {MAX_FAILURES} times in a row.*fell off, at .*envs.py, line"):
            env.reset(0)
    assert len(caught) == MAX_FAILURES - 1


def test_failures_between_good_steps_do_not_add_up(make: Any) -> None:
    env = make("CartPole-v1", workers=1)
    env.reset(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(MAX_FAILURES + 1):
            processes(env)[0].kill()
            step = env.step(no_op(env))
    assert step.metrics["worker_restarts"][0] == MAX_FAILURES + 1


def test_a_worker_that_hangs_is_replaced_after_the_timeout(open_envs: list[VecEnv], tmp_path: Path) -> None:
    kwargs = {"script": {"2": "hang"}, "once": str(tmp_path / "played")}
    recipe = GymRecipe("gym:scripted", "gym_test_envs", find_spec(SCRIPTED), 0, kwargs)
    env = GymWorkersVecEnv(recipe, 4, 1, timeout_s=3.0)
    open_envs.append(env)
    env.reset(0)
    env.step(no_op(env))
    with pytest.warns(RuntimeWarning, match="did not answer for 3 s"):
        step = env.step(no_op(env))
    assert step.truncated.all()


@pytest.mark.parametrize(("event", "message"), [("nan", "row 0 at step 1 is nan"), ("shape", r"shape \(3,\)")])
def test_values_that_break_the_contract_are_errors_not_restarts(make: Any, event: str, message: str) -> None:
    env = make(SCRIPTED, script={"1": event})
    env.reset(0)
    with pytest.raises(EnvError, match=message):
        env.step(no_op(env))


def test_a_worker_killed_between_step_and_state_is_saved_as_lost_and_truncated_on_resume(make: Any) -> None:
    env = make("CartPole-v1")
    env.reset(0)
    last = env.step(no_op(env))
    processes(env)[1].kill()
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        state = env.state()
    assert [part["exact"] for part in state["envs"]] == [True, True, False, False]
    fresh = make("CartPole-v1", workers=0)
    fresh.load_state(state)
    step = fresh.step(no_op(fresh))
    assert step.truncated.tolist() == [False, False, True, True]
    assert torch.equal(step.final_obs[2:], last.obs[2:])


def test_ends_that_a_killed_worker_reported_are_not_reported_again(make: Any) -> None:
    env = make("gym_test_envs:ludus-test/Short-v0")
    env.reset(0)
    for _ in range(4):
        step = env.step(no_op(env))
    assert step.truncated.all()
    processes(env)[0].kill()
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        env.reset(0)
    assert not env.step(no_op(env)).done.any()


def test_an_environment_that_cannot_be_sent_to_workers_is_a_configuration_error(make: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
        make(SCRIPTED, once=lambda: None)


# Closing ----------------------------------------------------------------------------------------------
def test_close_leaves_no_process_and_no_shared_memory_and_never_raises(make: Any) -> None:
    before = set(os.listdir("/dev/shm"))
    env = make("CartPole-v1")
    env.reset(0)
    left = processes(env)
    left[0].kill()
    env.begin_step(no_op(env))
    env.close()
    env.close()
    assert not any(p.is_running() and p.status() != "zombie" for p in left)
    assert set(os.listdir("/dev/shm")) <= before


def test_close_stops_a_worker_that_hangs(make: Any) -> None:
    env = make(SCRIPTED, workers=1, script={"1": "hang"})
    env.reset(0)
    (process,) = processes(env)
    env.begin_step(no_op(env))
    env.close()
    assert not process.is_running()


TRAINER = """
import torch
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
env = make_gym(GymConfig("gym_test_envs:ludus-test/Scripted-v0", workers=2, kwargs={script}), 2)
env.reset(0)
{before}
print(*env.worker_pids, flush=True)
{then}
"""


def start_trainer(
    folder: Path, script: dict[str, str], before: str, then: str
) -> tuple[subprocess.Popen[str], list[int]]:
    """A trainer in a script without `if __name__ == "__main__"`, and the process ids of its workers."""
    code = TRAINER.format(script={"script": script}, before=before, then=then)
    path = folder / "trainer.py"
    path.write_text(code)
    trainer = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    return trainer, [int(pid) for pid in trainer.stdout.readline().split()]


@pytest.mark.parametrize("script", [{}, {"1": "hang"}], ids=["waiting", "hanging"])
def test_workers_die_with_a_trainer_that_is_killed(script: dict[str, str], tmp_path: Path) -> None:
    before = "env.begin_step(torch.zeros(2, dtype=torch.int64))"
    trainer, pids = start_trainer(tmp_path, script, before, "import time; time.sleep(1000)")
    assert len(pids) == 2
    time.sleep(0.2)  # the step has begun
    trainer.kill()
    trainer.wait()
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_trainer_that_forgets_to_close_ends_and_takes_its_workers_along(tmp_path: Path) -> None:
    trainer, pids = start_trainer(tmp_path, {}, "", "raise SystemExit(7)")
    assert trainer.wait() == 7
    assert len(pids) == 2
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_an_environment_defined_in_the_users_script_runs_in_workers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import gymnasium as gym, torch, gym_test_envs\n"
        "from ludus.envs.gym.env import GymConfig, make_gym\n"
        "class Mine(gym_test_envs.Scripted): pass\n"
        "gym.register('Mine-v0', Mine)\n"
        "if __name__ == '__main__':\n"
        "    env = make_gym(GymConfig('Mine-v0', workers=2), 2)\n"
        "    env.reset(0)\n"
        "    print(env.step(torch.zeros(2, dtype=torch.int64)).reward.tolist())\n"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert result.stdout.strip() == "[1.0, 1.0]", result.stderr
