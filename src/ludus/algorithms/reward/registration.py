"""A reward learned from recorded episodes, each with its return; nobody acts."""

from functools import partial

import torch

from ludus.algorithms.registry import Algorithm
from ludus.algorithms.reward.train_config import RewardTrainConfig
from ludus.config import convert
from ludus.training.job import Job


def _job(config: RewardTrainConfig, device: torch.device) -> Job:
    from ludus.algorithms.reward.job import RewardJob

    return RewardJob(config, device)


ALGORITHMS = (
    Algorithm(
        "reward",
        "Return decomposition from recorded episodes (--data FILE): learns a reward alone.",
        RewardTrainConfig,
        _job,
        partial(convert, kind=RewardTrainConfig),
        acts=False,
    ),
)
