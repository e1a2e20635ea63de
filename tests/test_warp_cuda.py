"""MuJoCo Warp on a CUDA GPU: recorded as a graph of torch's it does what it does call by call."""

from typing import Any

import mujoco
import pytest
import torch
from torch import Tensor

from conftest import ON_GPU, Recordings
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.on_policy.config import make_schedule
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.envs import make_vec_env
from ludus.envs.humanoid.mimic import MimicTask
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.locomotion.task import TASKS, load_model
from ludus.envs.mujoco.task import ALL_ROWS, SimTask
from ludus.graphs import Graphed
from ludus.policies.factory import make_actor_critic
from ludus.presets import find_preset
from ludus.settings import apply_overrides

pytest.importorskip("mujoco_warp", reason="MuJoCo Warp is not installed: pip install 'ludus[gpu]'")
pytestmark = pytest.mark.gpu

if not ON_GPU:
    import warp

    warp.config.optimization_level = 0  # kernels take longer to compile than to run
SIMS, ROLLOUTS = (64, 4) if ON_GPU else (8, 2)


# Without a GPU it compiles and simulates the KUKA on the CPU, which takes minutes.
kuka_test = pytest.mark.filterwarnings() if ON_GPU else pytest.mark.slow


@pytest.fixture
def device(device: str) -> torch.device:
    return torch.device(device)


def hopper() -> mujoco.MjModel:
    """A small model, with a solver that converges: see tests/test_warp.py."""
    model = load_model(TASKS["hopper"].xml)
    model.opt.iterations, model.opt.ls_iterations = 20, 50
    model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return model


def kuka(device: torch.device, max_steps: int) -> SimTask:
    env = make_vec_env(KukaConfig(max_steps=max_steps, simulator="warp"), SIMS, device=device)
    assert isinstance(env, SimTask)
    return env


def test_a_recorded_step_is_one_made_call_by_call(device: torch.device, recordings: Recordings) -> None:
    from ludus.envs.mujoco.warp import WarpSimulator

    results: list[Tensor] = []
    for enabled in (True, False):
        sim = WarpSimulator(hopper(), SIMS, 2, device, "positions")
        sim.field("qpos")[:, 1] += torch.linspace(0.0, 0.5, SIMS, device=device)
        diverged = torch.zeros(SIMS, dtype=torch.bool, device=device)

        def work(sim: WarpSimulator = sim, diverged: Tensor = diverged) -> None:
            sim.begin_step()
            diverged.logical_or_(sim.end_step())

        step = Graphed(work, device, enabled)
        for _ in range(12):
            step()
        assert not diverged.any()
        results.append(torch.cat([sim.field("qpos"), sim.field("xpos").flatten(1)], dim=1).clone())
        assert sum(sim.overflows().values()) == 0
        assert recordings.count == (device.type == "cuda")  # that of the first
    # The order of additions is not fixed on a GPU, and contacts multiply the difference.
    assert (results[0] - results[1]).abs().max() < 1e-3


def test_the_gpu_simulates_as_the_threads_do(device: torch.device) -> None:
    from ludus.envs.mujoco.simulator import CpuSimulator
    from ludus.envs.mujoco.warp import WarpSimulator

    model = hopper()
    sim, other = WarpSimulator(model, SIMS, 2, device, "positions"), CpuSimulator(model, SIMS, 2, threads=4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        control = 0.2 * torch.rand((SIMS, model.nu), dtype=torch.float64, generator=generator) - 0.1
        for each in (sim, other):
            each.field("ctrl").copy_(control)
            each.begin_step()
            each.end_step()
    for name in ("qpos", "xpos"):
        apart = (sim.field(name).cpu().double() - other.field(name)).abs().flatten(1).amax(1)
        # Where one side makes a contact a little earlier the two part; that may happen to few.
        assert apart.median() < 1e-5, name
        assert apart.quantile(0.9) < 1e-3, name
        assert apart.max() < 0.2, name
    other.close()


@kuka_test
def test_replays_restart_ended_rows_alone_and_from_fresh_random_numbers(device: torch.device) -> None:
    env = kuka(device, max_steps=5)
    env.reset(0)
    env.elapsed.copy_(torch.arange(SIMS, device=device) % 5)  # a fifth of the rows ends at every step
    action = torch.zeros((SIMS, 4), device=device)
    done = torch.zeros(SIMS, dtype=torch.bool, device=device)

    def work() -> None:
        env.begin_step(action)
        done.copy_(env.end_step().done)

    step = Graphed(work, device, generators=env.generators)
    goals: list[Tensor] = []
    for _ in range(20):
        before = env.memory["goal"].clone()
        step()
        changed = (env.memory["goal"] != before).any(dim=1)
        assert torch.equal(changed, done)  # no two places are the same
        assert (env.elapsed[done] == 0).all()
        goals.append(env.memory["goal"][done].clone())
    found = torch.cat(goals)
    assert len(found) >= 20 * (SIMS // 5)
    assert len(found.unique(dim=0)) == len(found)


def collect(device: torch.device, cuda_graphs: bool, rollouts: int) -> list[dict[str, Tensor]]:
    """What was recorded of some rollouts, each [horizon, segments, ...]."""
    changes = {"env.num_envs": SIMS, "env.max_steps": 30, "env.simulator": "warp", "groups": 1, "ppo.horizon": 16}
    config = apply_overrides(find_preset("kuka-pick-place").config, changes)
    env = make_vec_env(config.env, SIMS, device=device)
    policy = make_actor_critic(env, config.policy, seed=2).to(device)
    assert isinstance(config, PPOTrainConfig)
    schedule = make_schedule(config, SIMS)
    collector = Collector([env], policy, schedule, 0.99, seed=1, cuda_graphs=cuda_graphs)
    recorded = []
    for update in range(rollouts):
        segments = collector.collect(update)
        recorded.append({name: getattr(segments, name).clone() for name in ("obs", "reward", "done")})
    metrics = collector.episode_metrics()
    assert metrics["rollout/contact_overflow"] == metrics["rollout/constraint_overflow"] == 0
    collector.close()
    return recorded


@kuka_test
def test_a_rollout_with_graphs_is_one_without(device: torch.device) -> None:
    """The first is equal but for rounding; then contacts tell them apart, and only the statistics are the same."""
    graphs, calls = collect(device, True, ROLLOUTS), collect(device, False, ROLLOUTS)
    for one, other in zip(graphs, calls, strict=True):
        assert torch.isfinite(one["obs"]).all()
        assert (one["obs"].mean(dim=(0, 1)) - other["obs"].mean(dim=(0, 1))).abs().max() < 0.2
        assert abs(float(one["reward"].mean() - other["reward"].mean())) < 0.5
        assert abs(float(one["done"].float().mean() - other["done"].float().mean())) < 0.02
    assert (
        graphs[0]["obs"][:3] - calls[0]["obs"][:3]
    ).abs().max() < 1e-2  # before any graph is recorded, and in it


def many_humanoids(device: torch.device, changes: dict[str, Any]) -> tuple[SimTask, Collector]:
    if device.type == "cpu":
        pytest.skip("hundreds of simulations, too many for Warp on a CPU; other tests ask it of the threads")
    usual = {"env.num_envs": 512, "env.simulator": "warp", "groups": 1, "ppo.horizon": 16}
    config = apply_overrides(find_preset("humanoid-mimic").config, usual | changes)
    env = make_vec_env(config.env, 512, device=device)
    assert isinstance(env, SimTask)
    policy = make_actor_critic(env, config.policy, seed=2).to(device)
    assert isinstance(config, PPOTrainConfig)
    return env, Collector([env], policy, make_schedule(config, 512), 0.97, seed=1, cuda_graphs=True)


def test_starts_beside_the_clip_at_other_rates_mirrored_and_pushed_are_recorded(
    device: torch.device, recordings: Recordings
) -> None:
    """Nothing of it may wait for the GPU."""
    push = {"push": {"kind": "push", "speed": 0.5, "turning": 0.6, "every": [2, 5]}}
    changes = {"env.start_noise": 1.0, "env.mirror": True, "env.playback": (0.8, 1.25), "env.randomization": push}
    changes |= {"env.clips": "bow,wave", "env.max_steps": 8, "env.strict_termination": 0.25}
    env, collector = many_humanoids(device, changes)
    for rollout in range(4):
        assert torch.isfinite(collector.collect(rollout).obs).all()
    collector.close()
    assert recordings.count
    assert 0.8 < float(env.memory["rate"].min()) < 0.85
    assert 1.2 < float(env.memory["rate"].max()) < 1.25
    assert set(env.memory["clip"].tolist()) == {0, 1, 2, 3}


def test_a_tracker_sees_the_same_by_kernels_and_step_by_step(device: torch.device) -> None:
    env, collector = many_humanoids(device, {"env.future": (1, 5, 15), "env.playback": (0.8, 1.25)})
    assert isinstance(env, MimicTask)
    collector.collect(0)
    by_kernels = env.observe(ALL_ROWS)
    assert env._fused
    env._fused = False
    torch.testing.assert_close(by_kernels, env.observe(ALL_ROWS), atol=1e-4, rtol=1e-4)
    collector.close()


def test_recorded_rollouts_start_where_an_evaluation_failed(device: torch.device) -> None:
    """A graph knows the chances of the starts by their address: an evaluation changes what it draws."""
    env, collector = many_humanoids(device, {"env.clips": "bow,wave", "env.max_steps": 5})
    shares = []
    for rollout in range(8):
        if rollout == 4:
            for _ in range(4):  # smoothed: the first alone would move half of the weight
                labels = {"clip": [0.0, 1.0], "began": [0.0, 0.0], "ended": [0.5, 1.0]}
                collector.adapt({"success": [0.0, 1.0]}, labels)
        assert torch.isfinite(collector.collect(rollout).obs).all()
        shares.append(float((env.memory["clip"] == 0).float().mean()))
    collector.close()
    assert 0.4 < shares[3] < 0.6, shares
    assert shares[7] > 0.8, shares
