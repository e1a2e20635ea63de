"""SAC, TD3 and DQN: learning from a replay that environments or recorded episodes fill."""

from functools import partial

import torch

from ludus.algorithms.registry import Algorithm
from ludus.algorithms.replay.config import DQNTrainConfig, ReplayTrainConfig, SACTrainConfig, TD3TrainConfig
from ludus.algorithms.replay.defaults import adapted
from ludus.training.job import Job


def _job(config: ReplayTrainConfig, device: torch.device) -> Job:
    """From recorded episodes if there are some, else from environments."""
    if config.offline:
        from ludus.algorithms.replay.offline import OfflineJob

        return OfflineJob(config, device)
    from ludus.algorithms.replay.online import OffPolicyJob

    return OffPolicyJob(config, device)


ALGORITHMS = (
    Algorithm(
        "sac",
        "Soft actor-critic (Haarnoja et al. 2018): continuous actions, few environment steps; also offline.",
        SACTrainConfig,
        _job,
        partial(adapted, kind=SACTrainConfig),
    ),
    Algorithm(
        "td3",
        "Twin delayed DDPG (Fujimoto et al. 2018): continuous actions; offline with --replay.bc as TD3+BC.",
        TD3TrainConfig,
        _job,
        partial(adapted, kind=TD3TrainConfig),
    ),
    Algorithm(
        "dqn",
        "Double deep Q-learning (van Hasselt et al. 2016): discrete actions.",
        DQNTrainConfig,
        _job,
        partial(adapted, kind=DQNTrainConfig),
    ),
)
