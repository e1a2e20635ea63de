"""The memory that is planned is the memory that is taken."""

import json
import os
import platform
import subprocess
import sys
from typing import Any

import pytest
import torch

from ludus.algorithms.on_policy.ram import plan_memory
from ludus.algorithms.registry import make_job
from ludus.buffers.schedule import SegmentSchedule
from ludus.errors import ConfigError
from ludus.policies.factory import make_actor_critic
from ludus.presets import find_preset
from ludus.runs import make_env
from ludus.settings import apply_overrides
from ludus.training.ram import refuse_what_cannot_fit, size

# In a process of its own, whose largest size tells what a rollout and an update took.
SCRIPT = """
import ctypes, gc, sys, json
import psutil, torch
from ludus.algorithms.ppo.update import PPO
from ludus.settings import apply_overrides
from ludus.algorithms.on_policy.config import make_schedule
from ludus.envs import make_groups
from ludus.policies.factory import make_actor_critic
from ludus.presets import find_preset
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.registry import make_job
from ludus.algorithms.on_policy.ram import plan_memory

torch.set_num_threads(1)
config = apply_overrides(find_preset("forage").config, json.loads(sys.argv[1]))
groups = make_groups(config.env, 1)
groups[0].reset(0)
groups[0].step(torch.zeros(groups[0].num_rows, dtype=torch.int64))
schedule = make_schedule(config, groups[0].num_rows)
policy = make_actor_critic(groups[0], config.policy, 0)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)  # what starting left behind would be used again, and not be counted
before = psutil.Process().memory_info().rss
collector = Collector(groups, policy, schedule, 0.97, 0)
ppo = PPO(policy, config.ppo, schedule, 0)
for update in range(2):
    ppo.update(collector.collect(update), 0.0)
# Of this program alone: getrusage would count the larger one that started it.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
taken = int(peak.split()[1]) * 1024 - before
print(plan_memory(policy, schedule, config.ppo.minibatches).total / taken)
"""

CASES = {
    "memory": '{"env": {"num_envs": 512}, "ppo": {"horizon": 64, "minibatches": 4}}',
    "minGRU": (
        '{"env": {"num_envs": 512}, "ppo": {"horizon": 64, "minibatches": 4}, "policy": {"memory": "mingru"}}'
    ),
    "own network": (
        '{"env": {"num_envs": 512}, "ppo": {"horizon": 64, "minibatches": 4}, "policy": {'
        '"network": "network_modules:Remembers", "network_kwargs": {"width": 128}}}'
    ),
    "memory, half-recorded segments, V-trace": (
        '{"env": {"num_envs": 500}, "ppo": {"horizon": 64, "segments": 2048, "minibatches": 4, "rho_clip": 1.0}}'
    ),
    "two trunks, standardised": (
        '{"env": {"num_envs": 1024}, "ppo": {"horizon": 64, "minibatches": 8},'
        ' "policy": {"memory": "none", "hidden": [256, 256], "normalize_obs": true}}'
    ),
}

# The plan counts workspaces of torch's libraries as they are on x86-64. On ARM those of matrix products are
# larger, and those of convolutions smaller.
LEAST, MOST = (0.85, 1.15) if platform.machine() in ("x86_64", "AMD64") else (0.75, 1.6)

# Every tensor in pages of its own, given back when it is freed: glibc would keep them by what it saw before,
# and a process be a tenth larger in one run than in the next.
EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.skipif(sys.platform != "linux", reason="reads the largest size of a process from Linux")
def test_the_plan_is_within_15_percent_of_what_is_taken(case: str) -> None:
    command = [sys.executable, "-c", SCRIPT, CASES[case]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | EXACT)
    assert LEAST < float(done.stdout) < MOST


# A job that sees images: how much it takes more than a small one of its kind, which has loaded all libraries.
JOB_SCRIPT = """
import ctypes, gc, json, sys
import psutil, torch
from ludus.algorithms.registry import make_job
from ludus.presets import find_preset
from ludus.settings import apply_overrides

torch.set_num_threads(1)
preset, algo, settings, small = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
config = apply_overrides(find_preset(preset, algo).config, settings)


def run(config):
    job = make_job(config, torch.device("cpu"))
    for iteration in range(2):
        job.iteration(iteration, 0.0, lambda share, batch: None)
    return job


run(apply_overrides(config, small)).close()
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
before = psutil.Process().memory_info().rss
open("/proc/self/clear_refs", "w").write("5")  # the largest size from now on
job = run(config)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(job.memory_plan.total / (int(peak.split()[1]) * 1024 - before))
"""
DOT, CATCH = "gym:dot_env:ludus-test/Dot-v0", "gym:catch_env:ludus-test/Catch-v0"
FEW = {"env.num_envs": 2, "ppo.horizon": 8, "ppo.minibatches": 2}
ROLLOUT = {"env.num_envs": 32, "ppo.update_epochs": 1}
SHORT = {"replay.batch_size": 2, "replay.train_batches": 2, "replay.capacity": 1_100, "replay.steps": 50}
REPLAY = {
    "env.num_envs": 4, "replay.capacity": 4_000, "replay.train_batches": 2, "replay.batch_size": 256,
    "replay.warmup": 0, "replay.steps": 4_000,
}  # fmt: skip
IMAGES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "ppo, 84 pixels": (DOT, "ppo", ROLLOUT | {"env.kwargs": {"size": 84}, "ppo.horizon": 64}, FEW),
    "ppo, 24 pixels": (DOT, "ppo", ROLLOUT | {"env.kwargs": {"size": 24}, "ppo.horizon": 64}, FEW),
    "ppo, residual": (
        DOT,
        "ppo",
        ROLLOUT | {"env.kwargs": {"size": 64}, "ppo.horizon": 16, "policy.cnn": "residual"},
        FEW,
    ),
    "sac": (DOT, "sac", REPLAY | {"env.kwargs": {"size": 84}}, SHORT),
    "td3": (DOT, "td3", REPLAY | {"env.kwargs": {"size": 64}}, SHORT),
    "dqn": (CATCH, "dqn", REPLAY | {"env.kwargs": {"size": 64}}, SHORT),
}


@pytest.mark.parametrize("case", IMAGES)
@pytest.mark.skipif(sys.platform != "linux", reason="reads the largest size of a process from Linux")
def test_the_plan_of_images_is_within_15_percent_of_what_is_taken(case: str) -> None:
    preset, algo, settings, small = IMAGES[case]
    command = [sys.executable, "-c", JOB_SCRIPT, preset, algo, json.dumps(settings), json.dumps(small)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | EXACT)
    assert LEAST < float(done.stdout) < MOST


def test_what_cannot_fit_is_refused_with_numbers_and_a_way_out() -> None:
    env = make_env("forage", num_envs=2)
    policy = make_actor_critic(env, find_preset("forage").config.policy, 0)
    plan = plan_memory(policy, SegmentSchedule(10**9, 10**9, 64), minibatches=4)
    with pytest.raises(ConfigError, match=r"needs [\d.]+ GB of memory, but cpu has .* recorded steps.* Take less"):
        refuse_what_cannot_fit(plan.total, plan.line(), "Take less.", torch.device("cpu"))
    refuse_what_cannot_fit(5, "little", "Take less.", torch.device("cpu"))


def test_a_replay_that_cannot_fit_is_refused_before_it_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"GB of memory.* replay, .* --replay.capacity"):
        make_job(
            apply_overrides(find_preset("gym:Pendulum-v1", "sac").config, {"replay.capacity": 10**12}),
            torch.device("cpu"),
        )


def test_sizes_are_easy_to_read() -> None:
    assert [size(n) for n in (999, 1_500, 2_100_000_000, 123_456_789)] == ["999 B", "1.5 kB", "2.1 GB", "123 MB"]
