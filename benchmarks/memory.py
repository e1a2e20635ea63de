"""What the memory is worth in `forage`, and whether its handling is right: learning curves of a few variants.

    python benchmarks/memory.py                     the preset on three seeds, each variant on one
    python benchmarks/memory.py --plot FILE.png     and a picture of the curves

A wrong state at the start of segments shows as a lower curve, so this tests the pipeline as much as the task.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import ludus
from ludus.buffers.segments import SegmentBuffer, Segments
from ludus.runs import evaluate_run
from ludus.show.console import Console

RETURN_BAR, CHOICE_BAR = 8.5, 0.97


_take = SegmentBuffer.take


def _take_with_empty_states(buffer: SegmentBuffer, update: int, judged: bool = True) -> Segments:
    """What many systems do: act with the carried state, but learn from an empty one."""
    segments = _take(buffer, update, judged)
    segments.state.zero_()
    return segments


@dataclass(frozen=True)
class Variant:
    settings: dict[str, Any] = field(default_factory=dict)
    empty_states: bool = False
    seeds: int = 1


VARIANTS = {
    "LSTM": Variant(seeds=3),
    "no memory": Variant({"policy": {"memory": "none", "hidden": (128, 128), "shared_trunk": True}}),
    "LSTM, empty state at segment starts": Variant(empty_states=True),
    "LSTM, prioritised segments (0.6)": Variant({"ppo": {"prio_alpha": 0.6}}),
    "LSTM, 480 segments of 512 rows, V-trace": Variant({"ppo": {"segments": 480, "rho_clip": 1.0}}),
}


@dataclass
class Result:
    curve: list[tuple[float, float, float]]  # steps, return, share of right choices
    mean_return: float
    right_choice: float
    seconds: float

    def steps_to(self, wanted: float) -> float | None:
        return next((step for step, value, _ in self.curve if value >= wanted), None)


def run(variant: Variant, seed: int, folder: Path) -> Result:
    started = time.perf_counter()
    patch = (
        mock.patch.object(SegmentBuffer, "take", _take_with_empty_states)
        if variant.empty_states
        else nullcontext()
    )
    with patch, Console("quiet") as console:
        settings = {"log": {"report": False, "tensorboard": False}, **variant.settings}
        ludus.train("forage", run_dir=folder, console=console, seed=seed, **settings)
    seconds = time.perf_counter() - started
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [
        (row["step"], row["rollout/ep_rew_mean"], row["rollout/right_choice"])
        for row in rows
        if "rollout/right_choice" in row
    ]
    summary = evaluate_run(folder, 1_000, deterministic=True).summary()
    return Result(curve, summary["mean_reward"], summary["right_choice"], seconds)


def report(name: str, seed: int, result: Result) -> None:
    reached = result.steps_to(RETURN_BAR)
    print(
        f"{name:42} seed {seed}   return {result.mean_return:6.2f}   right {result.right_choice:6.1%}   "
        f"return {RETURN_BAR} at {'never' if reached is None else f'{reached:,.0f}':>9}   {result.seconds:4.0f} s",
        flush=True,
    )


def judge(results: dict[str, list[Result]]) -> bool:
    """The bars, said aloud."""
    with_memory, without = results["LSTM"], results["no memory"][0]
    empty = results["LSTM, empty state at segment starts"][0]
    checks = {
        f"every seed: return >= {RETURN_BAR}": min(r.mean_return for r in with_memory) >= RETURN_BAR,
        f"every seed: right choices >= {CHOICE_BAR:.0%}": min(r.right_choice for r in with_memory) >= CHOICE_BAR,
        "every seed: within one minute": max(r.seconds for r in with_memory) <= 60,
        "without memory: under 80 %": without.right_choice < 0.8,
        "empty state at segment starts: visibly worse": empty.mean_return
        < 0.9 * min(r.mean_return for r in with_memory),
    }
    for what, fine in checks.items():
        print(f"{what:50} {'ok' if fine else 'MISSED'}")
    return all(checks.values())


def plot(results: dict[str, list[Result]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for color, (name, runs) in zip(("C0", "C3", "C1", "C2", "C4"), results.items(), strict=True):
        for i, result in enumerate(runs):
            steps = [step / 1e6 for step, _, _ in result.curve]
            for axis, column in zip(axes, (1, 2), strict=True):
                values = [row[column] for row in result.curve]
                smooth = [
                    sum(values[max(0, t - 5) : t + 1]) / len(values[max(0, t - 5) : t + 1])
                    for t in range(len(values))
                ]
                axis.plot(steps, smooth, color=color, lw=1.4, alpha=0.9, label=name if i == 0 else None)
    axes[0].set(xlabel="million steps", ylabel="return of an episode")
    axes[1].set(xlabel="million steps", ylabel="share of right berries", ylim=(0.4, 1.01))
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="write the curves here")
    arguments = parser.parse_args()
    results: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, variant in VARIANTS.items():
            for seed in range(variant.seeds):
                result = run(variant, seed, Path(folder) / f"{len(results)}-{seed}")
                results.setdefault(name, []).append(result)
                report(name, seed, result)
    if arguments.plot:
        plot(results, arguments.plot)
    sys.exit(0 if judge(results) else 1)


if __name__ == "__main__":
    main()
