"""What a learned reward is shown of a replay, whose rows and actions are made for the policy."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ludus.algorithms.replay.recorded_rows import RecordedRows
from ludus.errors import ConfigError
from ludus.policies.replay_heads import GreedyHead
from ludus.policies.replay_policy import ReplayPolicy
from ludus.policies.reward import Obs, ObsShapes


class RewardView(NamedTuple):
    """Inputs of a reward network."""

    shapes: ObsShapes
    actions: int  # numbers, or choices
    discrete: bool
    obs: Callable[[Tensor], Obs]  # of rows
    action: Callable[[Tensor], Tensor]  # of stored actions


def view_of_rows(policy: ReplayPolicy) -> RewardView:
    """Rows as they are, and actions in the head's units."""
    if policy.has_images:
        raise ConfigError(
            "In environments a reward is learned from vectors: leave --reward.method out, or the images. From "
            "recorded images it is learned with --data."
        )
    head, shape = policy.head, tuple(policy.obs_space.shape)
    discrete = isinstance(head, GreedyHead)
    actions = head.linear.out_features if isinstance(head, GreedyHead) else head.action_size
    return RewardView({"obs": (shape, torch.float32)}, actions, discrete, lambda x: {"obs": x}, lambda a: a)


def view_of_recording(policy: ReplayPolicy, rows: RecordedRows) -> RewardView:
    """What critics see, and actions, as the files have them: so 'ludus label' can ask the network about files."""
    head, discrete = policy.head, isinstance(policy.head, GreedyHead)
    actions = head.start + head.linear.out_features if isinstance(head, GreedyHead) else head.action_size
    judged = rows.only(policy.judged_parts())
    return RewardView(judged.shapes(), actions, discrete, judged.named, head.to_env)
