"""PPO that a discriminator pays for moving as demonstrated (AMP, Peng et al. 2021; ADD, Zhang et al. 2025)."""

from functools import partial

from ludus.algorithms.imitation.config import AMPTrainConfig
from ludus.algorithms.on_policy.config import adapted
from ludus.algorithms.registry import Algorithm

ALGORITHMS = (
    Algorithm(
        "amp",
        "PPO and a discriminator that pays for moving as demonstrated, where the environment shows motion.",
        AMPTrainConfig,
        "ludus.algorithms.imitation.job:ImitationJob",
        partial(adapted, kind=AMPTrainConfig),
    ),
)
