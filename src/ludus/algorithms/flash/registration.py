"""FlashSAC: learning from a replay that environments or recorded episodes fill."""

import dataclasses
from typing import Any, NamedTuple

from ludus.algorithms.flash.config import FlashTrainConfig
from ludus.algorithms.registry import Algorithm
from ludus.algorithms.replay.defaults import adapted, name_of_task
from ludus.config import TrainConfig


class _Sizes(NamedTuple):
    """Of networks and batches."""

    policy_width: int
    critic_width: int
    batch_size: int


_SMALL = {"Pendulum-v1": _Sizes(32, 64, 128), "kuka": _Sizes(64, 64, 128)}
"""For tasks that are learned on a CPU."""


def _adapted(config: TrainConfig) -> FlashTrainConfig:
    """Published settings, whatever the task: but for networks and batches, those of SAC."""
    changed, usual = adapted(config, FlashTrainConfig), FlashTrainConfig()
    published = _Sizes(usual.policy.hidden[0], usual.flash.critic_width, usual.replay.batch_size)
    sizes = _SMALL.get(name_of_task(config), published)
    replay: dict[str, Any] = {"batch_size": sizes.batch_size, "polyak": usual.replay.polyak}
    return dataclasses.replace(
        changed,
        precision=usual.precision,
        policy=dataclasses.replace(changed.policy, hidden=(sizes.policy_width,) * 2),
        replay=dataclasses.replace(changed.replay, **replay),
        flash=dataclasses.replace(changed.flash, critic_width=sizes.critic_width),
    )


ALGORITHMS = (
    Algorithm(
        "flash-sac",
        "FlashSAC (Holiday-Robot 2026): SAC with normed networks and critics of distributions; wants a GPU.",
        FlashTrainConfig,
        "ludus.algorithms.flash.job:make_flash_job",
        _adapted,
    ),
)
