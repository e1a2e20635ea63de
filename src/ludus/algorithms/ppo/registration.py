"""Proximal policy optimisation (Schulman et al. 2017)."""

from functools import partial

from ludus.algorithms.on_policy.config import adapted
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.registry import Algorithm

ALGORITHMS = (
    Algorithm(
        "ppo",
        "Proximal policy optimisation: learns from each rollout once. Any actions, memory, several agents.",
        PPOTrainConfig,
        "ludus.algorithms.ppo.job:PPOJob",
        partial(adapted, kind=PPOTrainConfig),
    ),
)
