"""How fast the KUKA sees: frames drawn, acted on and learned from in a second.

python benchmarks/pixels.py                    # on the CPU: 64 arms
python benchmarks/pixels.py --device cuda      # on a GPU: 2,048 arms
"""

import argparse
import dataclasses
import importlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ludus
from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.algorithms.registry import make_job
from ludus.presets import find_preset
from ludus.runs import evaluate_run
from ludus.training.device import PRECISIONS, find_device


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


def speed(device_name: str) -> None:
    """Of each part of a training of `kuka-pixels`."""
    device = find_device(device_name)
    on_gpu = device.type == "cuda"
    arms = 2_048 if on_gpu else 64
    config = find_preset("kuka-pixels").config
    config = dataclasses.replace(
        config,
        device=device_name,
        torch_threads=1 if on_gpu else 2,
        env=dataclasses.replace(config.env, num_envs=arms),
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
    learned = seconds(lambda: job.learner.update(segments, 0.0, lambda batch: None), times, device)
    steps, passes = job.plan.steps_per_iteration, job.config.rollout.update_epochs
    print(f"{arms:,} arms on {device_name}, two images of 64 × 64 a step")
    print(f"drawn     {2 * arms / drawn:12,.0f} frames/s")
    print(f"acted on  {arms / acted:12,.0f} steps/s")
    print(f"learned   {steps * passes / learned:12,.0f} steps/s, in {passes} passes over each")
    print(f"training  {steps / whole:12,.0f} steps/s, all in all")
    job.close()


def train(preset: str, folder: Path, seed: int, **settings: Any) -> tuple[Path, float]:
    """A run with the preset's own settings, and the seconds that it took with its evaluations."""
    started = time.perf_counter()
    run = ludus.train(preset, folder, seed=seed, log={"report": False}, **settings)
    return run, time.perf_counter() - started


def judge(name: str, run: Path, taken: float, bar: float) -> None:
    """The share of 200 new starts at which the task succeeds."""
    result = evaluate_run(run, 200, deterministic=True).summary()
    verdict = "ok" if result["success_rate"] >= bar else f"MISSED (bar {bar:.0%})"
    print(f"{name}: {result['success_rate']:.1%} of 200 new starts after {taken:.0f} s   {verdict}", flush=True)


def distill(folder: Path, seeds: list[int]) -> None:
    teacher, taken = train("kuka-pick-place", folder / "teacher", seed=0)
    judge("teacher, which sees the state", teacher, taken, 0.95)
    for seed in seeds:
        settings = {"distill": {"teacher": str(teacher)}}
        student, taken = train("kuka-pixels-distill", folder / f"student-{seed}", seed, **settings)
        judge(f"student, which sees images, seed {seed}", student, taken, 0.8)


def kuka(folder: Path, seeds: list[int]) -> None:
    for seed in seeds:
        run, taken = train("kuka-pixels", folder / f"kuka-{seed}", seed)
        judge(f"kuka-pixels, seed {seed}", run, taken, 0.9)


def breakout(folder: Path, seeds: list[int]) -> None:
    importlib.import_module("minatar.gym").register_envs()
    for seed in seeds:
        run, taken = train("gym:MinAtar/Breakout-v1", folder / f"breakout-{seed}", seed)
        result = evaluate_run(run, 200, deterministic=True).summary()
        print(f"Breakout, seed {seed}: return {result['mean_reward']:.1f} after {taken:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "breakout", "distill", "kuka"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    if args.what == "speed":
        speed(args.device)
        return
    with tempfile.TemporaryDirectory() as folder:
        {"breakout": breakout, "distill": distill, "kuka": kuka}[args.what](Path(folder), args.seeds)


if __name__ == "__main__":
    main()
