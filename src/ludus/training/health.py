"""Is the training well? Faults of environments, gradients that are not finite, ranks that have come apart."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ludus import ranks
from ludus.errors import TrainingError
from ludus.training.checkpoint import dump_tensors
from ludus.training.job import Job


class FaultWarnings:
    """Of what environments count as faults, each the first time that it happens."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._warned_of: set[str] = set()

    def look(self, job: Job, row: dict[str, float]) -> None:
        for name, advice in job.fault_advice().items():
            if row.get(name, 0) > 0 and name not in self._warned_of:
                self._warned_of.add(name)
                self._warn(f"{name}: {row[name]:.0f} {advice}")


def gradients_well(
    job: Job, metrics: dict[str, Tensor], step: int, run_dir: Path, warn: Callable[[str], None]
) -> bool:
    """False when the updates asked about did no good at all; what they learned from is kept for inspection."""
    skipped = int(metrics.get("train/skipped_updates", 0))
    if skipped == 0:
        return True
    if skipped < job.judged_batches / 2 and weights_finite(job):
        warn(f"{skipped} gradients were not finite and were skipped (step {step:,}).")
        return True
    of_rank = "" if ranks.is_first() else f"_rank_{ranks.rank()}"
    path = run_dir / "nan_dump" / f"step_{step:09d}{of_rank}.safetensors"
    dump_tensors(path, job.suspects())
    warn(f"{skipped} gradients were not finite; what they were taken of is kept in {path}.")
    job.refuse_faulty_environments()
    return False


def weights_finite(job: Job) -> bool:
    return all(bool(torch.isfinite(weights).all()) for weights in job.weights())


def refuse_different_weights(job: Job, step: int) -> None:
    """Ranks whose weights differ in a single bit no longer train one policy."""
    if ranks.size() == 1:
        return
    bits = [weights.detach().flatten().view(torch.int16).sum() for weights in job.weights()]
    everyones = ranks.gather(torch.stack(bits))
    if bool(everyones.ne(everyones[0]).any()):
        raise TrainingError(
            f"The ranks have come apart: at step {step:,} their weights differ. Train with --procs 1. An "
            "algorithm of your own must call the optimiser's average() before each step()."
        )
