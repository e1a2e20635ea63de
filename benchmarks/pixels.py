"""How fast the KUKA sees: frames drawn, acted on and learned from in a second.

python benchmarks/pixels.py                    # on the CPU: 64 arms
python benchmarks/pixels.py --device cuda      # on a GPU: 2,048 arms
"""

import argparse
import dataclasses
import time
from collections.abc import Callable

import torch

from ludus.presets import find_preset
from ludus.training.loop import PRECISIONS, find_device, make_job
from ludus.training.on_policy import OnPolicyJob


def seconds(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Of one call, after a first one that sets things up."""
    for _ in range(3):
        work()
    started = time.perf_counter()
    for _ in range(times):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arms", type=int, default=0, help="default: 64 on a CPU, 2,048 on a GPU")
    args = parser.parse_args()
    device = find_device(args.device)
    on_gpu = device.type == "cuda"
    arms = args.arms or (2_048 if on_gpu else 64)
    config = find_preset("kuka-pixels").config
    config = dataclasses.replace(
        config,
        device=args.device,
        torch_threads=1 if on_gpu else 2,
        env=dataclasses.replace(config.env, num_envs=arms),  # type: ignore[type-var]
    )
    torch.set_num_threads(config.torch_threads)
    torch.set_float32_matmul_precision(PRECISIONS[config.precision])
    job = make_job(config, device)
    assert isinstance(job, OnPolicyJob)
    env, policy = job.collector.groups[0].env, job.policy
    times = 20 if on_gpu else 3
    drawn = seconds(lambda: env._eyes.see(slice(None)), times, device)  # type: ignore[attr-defined]
    obs, state = job.collector.groups[0].obs, policy.start(arms)
    with torch.no_grad():
        acted = seconds(lambda: policy.params_of(policy.prepare(obs), state), times, device)
    iterations = iter(range(1_000))
    whole = seconds(lambda: job.iteration(next(iterations), 0.0, lambda share, batches: None), times, device)
    segments = job._segments
    assert segments is not None
    learned = seconds(lambda: job.learner.update(segments, 0.0), times, device)
    steps, passes = job.plan.steps_per_iteration, config.ppo.update_epochs
    print(f"{arms:,} arms on {args.device}, two images of 64 × 64 a step")
    print(f"drawn     {2 * arms / drawn:12,.0f} frames/s")
    print(f"acted on  {arms / acted:12,.0f} steps/s")
    print(f"learned   {steps * passes / learned:12,.0f} steps/s, in {passes} passes over each")
    print(f"training  {steps / whole:12,.0f} steps/s, all in all")
    job.close()


if __name__ == "__main__":
    main()
