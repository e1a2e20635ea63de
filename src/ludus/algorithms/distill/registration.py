"""Distillation: a trained policy teaches one that sees less (DAgger, Ross et al. 2011)."""

from functools import partial

from ludus.algorithms.distill.config import DistillTrainConfig
from ludus.algorithms.on_policy.config import adapted
from ludus.algorithms.registry import Algorithm

ALGORITHMS = (
    Algorithm(
        "distill",
        "A trained policy (--distill.teacher RUN) teaches one that sees less, while the student acts.",
        DistillTrainConfig,
        "ludus.algorithms.distill.job:DistillJob",
        partial(adapted, kind=DistillTrainConfig),
    ),
)
