"""FlashSAC: learning from a replay that environments or recorded episodes fill."""

import dataclasses
from typing import Any

from ludus.algorithms.flash.config import FlashTrainConfig
from ludus.algorithms.registry import Algorithm
from ludus.algorithms.replay.defaults import adapted
from ludus.config import TrainConfig

_SMALL = {"Pendulum-v1"}  # tasks for which narrow networks do


def _adapted(config: TrainConfig) -> FlashTrainConfig:
    """Published settings, whatever the task: but for networks and batches, those of SAC."""
    changed, usual = adapted(config, FlashTrainConfig), FlashTrainConfig()
    small = getattr(config.env, "id", "") in _SMALL
    replay: dict[str, Any] = {
        "batch_size": 128 if small else usual.replay.batch_size,
        "polyak": usual.replay.polyak,
    }
    return dataclasses.replace(
        changed,
        precision=usual.precision,
        policy=dataclasses.replace(changed.policy, hidden=(32, 32) if small else usual.policy.hidden),
        replay=dataclasses.replace(changed.replay, **replay),
        flash=dataclasses.replace(changed.flash, critic_width=64) if small else changed.flash,
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
