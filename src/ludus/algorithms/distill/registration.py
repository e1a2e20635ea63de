"""Distillation: a trained policy teaches one that sees less (DAgger, Ross et al. 2011)."""

from functools import partial

from ludus.algorithms.distill.config import DistillTrainConfig
from ludus.algorithms.distill.job import DistillJob
from ludus.algorithms.registry import Algorithm
from ludus.config import convert

ALGORITHMS = (
    Algorithm(
        "distill",
        "A trained policy (--distill.teacher RUN) teaches one that sees less, while the student acts.",
        DistillTrainConfig,
        DistillJob,
        partial(convert, kind=DistillTrainConfig),
    ),
)
