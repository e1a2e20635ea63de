"""Proximal policy optimisation (Schulman et al. 2017)."""

from functools import partial

import torch

from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.registry import Algorithm
from ludus.config import convert
from ludus.training.job import Job


def _job(config: PPOTrainConfig, device: torch.device) -> Job:
    from ludus.algorithms.ppo.job import PPOJob

    return PPOJob(config, device)


ALGORITHMS = (
    Algorithm(
        "ppo",
        "Proximal policy optimisation: learns from each rollout once. Any actions, memory, several agents.",
        PPOTrainConfig,
        _job,
        partial(convert, kind=PPOTrainConfig),
    ),
)
