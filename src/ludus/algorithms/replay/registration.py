"""SAC, TD3 and DQN: learning from a replay that environments or recorded episodes fill."""

from functools import partial
from typing import TYPE_CHECKING

from ludus.algorithms.registry import Algorithm
from ludus.algorithms.replay.config import DQNTrainConfig, ReplayTrainConfig, SACTrainConfig, TD3TrainConfig
from ludus.algorithms.replay.defaults import adapted

if TYPE_CHECKING:
    import torch

    from ludus.algorithms.replay.job import ReplayJob


def make_replay_job(config: ReplayTrainConfig, device: "torch.device") -> "ReplayJob":
    """From recorded episodes if there are some, else from environments."""
    from ludus.algorithms.replay.offline import OfflineJob
    from ludus.algorithms.replay.online import OffPolicyJob

    return OfflineJob(config, device) if config.offline else OffPolicyJob(config, device)


ALGORITHMS = (
    Algorithm(
        "sac",
        "Soft actor-critic (Haarnoja et al. 2018): continuous actions, few environment steps; also offline.",
        SACTrainConfig,
        make_replay_job,
        partial(adapted, kind=SACTrainConfig),
    ),
    Algorithm(
        "td3",
        "Twin delayed DDPG (Fujimoto et al. 2018): continuous actions; offline with --replay.bc as TD3+BC.",
        TD3TrainConfig,
        make_replay_job,
        partial(adapted, kind=TD3TrainConfig),
    ),
    Algorithm(
        "dqn",
        "Double deep Q-learning (van Hasselt et al. 2016): discrete actions.",
        DQNTrainConfig,
        make_replay_job,
        partial(adapted, kind=DQNTrainConfig),
    ),
)
