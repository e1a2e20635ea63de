"""A reward learned from recorded episodes, each with its return; nobody acts."""

from functools import partial

from ludus.algorithms.registry import Algorithm
from ludus.algorithms.reward.train_config import RewardTrainConfig
from ludus.config import convert

ALGORITHMS = (
    Algorithm(
        "reward",
        "Return decomposition from recorded episodes (--data FILE): learns a reward alone.",
        RewardTrainConfig,
        "ludus.algorithms.reward.job:RewardJob",
        partial(convert, kind=RewardTrainConfig),
        acts=False,
    ),
)
