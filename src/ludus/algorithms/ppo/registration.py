"""Proximal policy optimisation (Schulman et al. 2017)."""

from functools import partial

from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.ppo.job import PPOJob
from ludus.algorithms.registry import Algorithm
from ludus.config import convert

ALGORITHMS = (
    Algorithm(
        "ppo",
        "Proximal policy optimisation: learns from each rollout once. Any actions, memory, several agents.",
        PPOTrainConfig,
        PPOJob,
        partial(convert, kind=PPOTrainConfig),
    ),
)
