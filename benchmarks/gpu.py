"""Speed on one GPU at the shape of `forage-large`: environment, policy and updates together.

python benchmarks/gpu.py             agent-steps per second, end to end, and where the time goes
python benchmarks/gpu.py --profile   the kernels that take most of it
"""

import argparse
import gc
import time
from dataclasses import dataclass

import torch

from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.on_policy.config import make_schedule
from ludus.algorithms.on_policy.ram import plan_memory
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.ppo.update import PPO
from ludus.envs import make_groups
from ludus.envs.vec import derive_seed
from ludus.policies.factory import make_actor_critic
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.training.device import PRECISIONS, find_device
from ludus.training.ram import size

NETWORKS = {
    "LSTM 256": ({"hidden": (256,), "memory": "lstm", "memory_size": 256}, 5e6),
    "MLP 128": ({"hidden": (128,), "memory": "none", "shared_trunk": True}, 20e6),
    "minGRU 256": ({"hidden": (256,), "memory": "mingru", "memory_size": 256}, 15e6),
    "LSTM 128": ({"hidden": (128,), "memory": "lstm", "memory_size": 128}, None),
    "LSTM 512": ({"hidden": (512,), "memory": "lstm", "memory_size": 512}, None),
}
WARM_UP = 5  # iterations: libraries set up, graphs are recorded


@dataclass
class Loop:
    """What a trainer does between two rows of metrics, without the files."""

    collector: Collector
    ppo: PPO
    iteration: int = 0

    def rollout(self) -> None:
        self.segments = self.collector.collect(self.iteration)

    def learn(self) -> None:
        self.metrics = self.ppo.update(self.segments, 0.0)
        self.iteration += 1

    def run(self) -> None:
        self.rollout()
        self.learn()


def make_loop(config: PPOTrainConfig) -> tuple[Loop, int]:
    device = find_device(config.device)
    torch.set_float32_matmul_precision(PRECISIONS[config.precision])
    groups = make_groups(config.env, config.groups, device)
    schedule = make_schedule(config, sum(env.num_rows for env in groups))
    policy = make_actor_critic(groups[0], config.policy, derive_seed(config.seed, 4)).to(device)
    ppo = PPO(policy, config.ppo, schedule, config.seed, config.cuda_graphs)
    collector = Collector(groups, policy, schedule, config.ppo.gamma, config.seed, config.cuda_graphs)
    return Loop(collector, ppo), schedule.segments * schedule.horizon


def seconds(work: object, times: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        work()  # type: ignore[operator]
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def measure(name: str, config: PPOTrainConfig, iterations: int, bar: float | None) -> bool:
    gc.collect()  # what the last one held
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loop, steps = make_loop(config)
    planned = plan_memory(loop.ppo.policy, loop.ppo.schedule, config.ppo.minibatches, config.groups)
    for _ in range(WARM_UP):
        loop.run()
    total = seconds(loop.run, iterations)
    loop.rollout()
    learn = seconds(lambda: loop.ppo.update(loop.segments, 0.0), iterations)
    rate = steps / total
    verdict = "" if bar is None else "  ok" if rate >= bar else f"  MISSED (bar {bar / 1e6:.0f} M)"
    print(
        f"{name:10} {rate / 1e6:6.2f} M agent-steps/s   iteration {1e3 * total:6.1f} ms: rollout "
        f"{1e3 * (total - learn):6.1f}, update {1e3 * learn:6.1f}   10 billion steps {1e10 / rate / 60:5.1f} min  "
        f"memory {size(torch.cuda.max_memory_allocated() - before)}, planned {size(planned.total)}{verdict}",
        flush=True,
    )
    return bar is None or rate >= bar


def profile(config: PPOTrainConfig) -> None:
    loop, _ = make_loop(config)
    for _ in range(WARM_UP):
        loop.run()
    for part in (loop.rollout, loop.learn):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            part()
            torch.cuda.synchronize()
        print(part.__name__)
        print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=70))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--precision", default="tf32", choices=list(PRECISIONS))
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "This benchmark needs a CUDA GPU.\n")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.groups} groups")
    fine = True
    for name in arguments.networks:
        policy, bar = NETWORKS[name]
        overrides = {
            "device": "cuda",
            "groups": arguments.groups,
            "precision": arguments.precision,
            "cuda_graphs": not arguments.eager,
            "policy": policy,
        }
        config = apply_overrides(find_preset("forage-large").config, overrides)
        assert isinstance(config, PPOTrainConfig)
        if arguments.profile:
            profile(config)
        else:
            fine &= measure(name, config, arguments.iterations, bar)
    parser.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
