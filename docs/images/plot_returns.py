"""Draws docs/images/rrd-curves.png: evaluations of the runs that benchmarks/returns.py left behind.

python docs/images/plot_returns.py runs/returns [MORE FOLDERS]
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

OUT = Path(__file__).with_name("rrd-curves.png")
TASKS = {  # of a run's folder: the title and the unit of the x axis
    "Pendulum-v1": ("Pendulum-v1", 1e3),
    "InvertedPendulum-v5": ("InvertedPendulum-v5", 1e3),
    "half-cheetah": ("HalfCheetah-v5", 1e6),
}
METHODS = {  # of a run's folder: what the legend says, colour and line
    "SAC": ("SAC, one return per episode", "#d62728", "-"),
    "IRCR": ("IRCR", "#ff9d2e", "-"),
    "RRD": ("RRD", "#1f77b4", "-"),
    "RRD_unbiased": ("RRD, unbiased", "#2ca02c", "-"),
    "SAC_dense_reward": ("SAC, dense reward", "#333333", (0, (3, 2))),  # on top: it often hides the others
}


def curve_of(run: Path) -> tuple[list[float], list[float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    points = [(row["step"], row["eval/mean_reward"]) for row in rows if "eval/mean_reward" in row]
    return [step for step, _ in points], [value for _, value in points]


def draw(axis: Any, task: str, roots: list[Path]) -> None:
    title, unit = TASKS[task]
    for method, (_, color, line) in METHODS.items():
        for run in sorted(run for root in roots for run in root.glob(f"{task}-{method}-[0-9]*")):
            if (run / "metrics.jsonl").is_file():
                steps, values = curve_of(run)
                at = [step / unit for step in steps]
                axis.plot(at, values, color=color, ls=line, lw=1.2, marker="o", ms=2.2, alpha=0.9)
    axis.set_title(title, fontsize=11)
    axis.set_xlabel(f"{'million' if unit == 1e6 else 'thousand'} steps")
    axis.set_xlim(left=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace("-", "−"))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    roots = [Path(name) for name in sys.argv[1:]] or [Path("runs/returns")]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.7), layout="constrained")
    for axis, task in zip(axes, TASKS, strict=True):
        draw(axis, task, roots)
    axes[0].set_ylabel("return of an episode, deterministic")
    lines = [plt.Line2D([], [], color=color, ls=line, lw=2.0) for _, color, line in METHODS.values()]
    names = [name for name, _, _ in METHODS.values()]
    figure.legend(lines, names, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=10)
    figure.savefig(OUT, dpi=130)


if __name__ == "__main__":
    main()
