"""Distillation: a trained policy teaches one that sees less (DAgger, Ross et al. 2011)."""

from functools import partial

import torch

from ludus.algorithms.distill.config import DistillTrainConfig
from ludus.algorithms.registry import Algorithm
from ludus.config import convert
from ludus.training.job import Job


def _job(config: DistillTrainConfig, device: torch.device) -> Job:
    from ludus.algorithms.distill.job import DistillJob

    return DistillJob(config, device)


ALGORITHMS = (
    Algorithm(
        "distill",
        "A trained policy (--distill.teacher RUN) teaches one that sees less, while the student acts.",
        DistillTrainConfig,
        _job,
        partial(convert, kind=DistillTrainConfig),
    ),
)
