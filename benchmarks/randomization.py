"""Does training under randomisation pay? The KUKA, trained with and without it, measured with and without it.

    python benchmarks/randomization.py                          trains both (some minutes), prints the table
    python benchmarks/randomization.py --plain RUN --randomized RUN       measures runs that are there
    python benchmarks/randomization.py --seeds 3

Every cell is the best policy of a run with deterministic actions, on starts used neither in training nor in
choosing the best; with its 95 % interval. Where one thing alone is randomised, it is as strongly as in the preset.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ludus
from ludus.presets import find_preset
from ludus.runs import evaluate_run
from ludus.show.console import Console

PLAIN, RANDOMIZED = "kuka-pick-place", "kuka-randomized"


def conditions() -> dict[str, dict[str, Any]]:
    """What is randomised, by what stands at the head of its column."""
    everything = getattr(find_preset(RANDOMIZED).config.env, "randomization", {})
    return {"plain": {}, "randomised": everything, **{name: {name: value} for name, value in everything.items()}}


def train(preset: str, seed: int, folder: Path) -> Path:
    with Console("quiet") as console:
        return ludus.train(preset, folder / f"{preset}-{seed}", console=console, seed=seed, log={"report": False})


def cell(run: Path, randomization: dict[str, Any], episodes: int) -> str:
    result = evaluate_run(run, episodes, deterministic=True, randomization=randomization).summary()
    low, high = (100 * result[name] for name in ("success_low", "success_high"))
    return f"{100 * result['success_rate']:.1f} % ({low:.0f}–{high:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", type=Path, help="a run of the plain task")
    parser.add_argument("--randomized", type=Path, help="a run of the randomised task")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each; not with runs that are there")
    parser.add_argument("--episodes", type=int, default=200)
    arguments = parser.parse_args()
    heads = conditions()
    print(f"{'trained':24} " + " ".join(f"{head:>18}" for head in heads), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for preset, given in ((PLAIN, arguments.plain), (RANDOMIZED, arguments.randomized)):
            for seed in range(1 if given else arguments.seeds):
                run = given or train(preset, seed, Path(folder))
                cells = [cell(run, randomization, arguments.episodes) for randomization in heads.values()]
                print(
                    f"{preset + ('' if given else f', seed {seed}'):24} " + " ".join(f"{c:>18}" for c in cells),
                    flush=True,
                )


if __name__ == "__main__":
    main()
