"""PPO that a discriminator pays for moving as demonstrated (AMP, Peng et al. 2021; ADD, Zhang et al. 2025)."""

from functools import partial

import torch

from ludus.algorithms.imitation.config import AMPTrainConfig
from ludus.algorithms.registry import Algorithm
from ludus.config import convert
from ludus.training.job import Job


def _job(config: AMPTrainConfig, device: torch.device) -> Job:
    from ludus.algorithms.imitation.job import ImitationJob

    return ImitationJob(config, device)


ALGORITHMS = (
    Algorithm(
        "amp",
        "PPO and a discriminator that pays for moving as demonstrated, where the environment shows motion.",
        AMPTrainConfig,
        _job,
        partial(convert, kind=AMPTrainConfig),
    ),
)
