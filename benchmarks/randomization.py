"""Does training under randomisation pay? Trained with and without it, measured with and without it.

    python benchmarks/randomization.py                          the KUKA: trains both (minutes), prints the table
    python benchmarks/randomization.py --task tracker           the humanoid's `stroll`, pushed and on other floors
    python benchmarks/randomization.py --plain RUN --randomized RUN       measures runs that are there
    python benchmarks/randomization.py --seeds 3

Every cell is the best policy of a run with deterministic actions and its 95 % interval: of the KUKA on starts used
neither in training nor in choosing the best; of the tracker from 64 places of the clip. Where one thing alone is
randomised, it is as strongly as with all others.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import ludus
from ludus.presets import find_preset
from ludus.runs import evaluate_run
from ludus.show.console import Console


class Training(NamedTuple):
    preset: str
    changes: dict[str, Any]


ROUGH = {
    "push": {"kind": "push", "speed": 0.5, "turning": 0.6, "every": [30, 90]},
    "friction": {"kind": "friction", "scale": [0.4, 1.2]},
}
PLACES = {"clips": "stroll", "eval_starts": 64}
TASKS = {
    "kuka": (Training("kuka-pick-place", {}), Training("kuka-randomized", {})),
    "tracker": (
        Training("humanoid-mimic", {"env": PLACES}),
        Training("humanoid-mimic", {"env": PLACES | {"randomization": ROUGH}, "loop": {"total_steps": 1_500_000}}),
    ),
}


def conditions(randomized: Training) -> dict[str, dict[str, Any]]:
    """What is randomised, by what stands at the head of its column."""
    usual = getattr(find_preset(randomized.preset).config.env, "randomization", {})
    everything = randomized.changes.get("env", {}).get("randomization", usual)
    return {"plain": {}, "randomised": everything, **{name: {name: value} for name, value in everything.items()}}


def train(training: Training, seed: int, folder: Path) -> Path:
    preset, changes = training
    with Console("quiet") as console:
        return ludus.train(preset, folder, console=console, seed=seed, log={"report": False}, **changes)


def cell(run: Path, randomization: dict[str, Any], episodes: int) -> str:
    result = evaluate_run(run, episodes, deterministic=True, randomization=randomization).summary()
    low, high = (100 * result[name] for name in ("success_low", "success_high"))
    return f"{100 * result['success_rate']:.1f} % ({low:.0f}–{high:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="kuka")
    parser.add_argument("--plain", type=Path, help="a run of the plain task")
    parser.add_argument("--randomized", type=Path, help="a run of the randomised task")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each; not with runs that are there")
    parser.add_argument("--episodes", type=int, default=200, help="of the KUKA")
    arguments = parser.parse_args()
    plain, randomized = TASKS[arguments.task]
    heads = conditions(randomized)
    print(f"{'trained':24} " + " ".join(f"{head:>18}" for head in heads), flush=True)
    kinds = (("plain", plain, arguments.plain), ("randomised", randomized, arguments.randomized))
    with tempfile.TemporaryDirectory() as folder:
        for kind, training, given in kinds:
            for seed in range(1 if given else arguments.seeds):
                run = given or train(training, seed, Path(folder) / f"{kind}-{seed}")
                cells = [cell(run, randomization, arguments.episodes) for randomization in heads.values()]
                name = kind if given else f"{kind}, seed {seed}"
                print(f"{name:24} " + " ".join(f"{c:>18}" for c in cells), flush=True)


if __name__ == "__main__":
    main()
