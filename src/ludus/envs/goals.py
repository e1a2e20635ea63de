"""Goals: what is wanted of an agent is observed, and a step can be judged as if something else had been wanted.

A goal environment observes a Dict with `achieved_goal` (where a step has led) and `desired_goal` (where it should
have led), beside whatever else there is to see.
"""

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium as gym
from torch import Tensor

from ludus.envs.row_space import Part, RowSpace

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
Judge = Callable[[Tensor, Tensor], Tensor]  # ([n, size] achieved, [n, size] desired) → [n]


@dataclass(frozen=True)
class Goals:
    """Judges steps by what they achieved and what was desired. Tensors are on the device of the replay buffer."""

    reward: Judge
    """The reward of a step, float32."""
    ended: Judge | None = None
    """Whether the step ends the episode because the goal is reached, bool; None: reaching a goal ends none."""
    changed_by: str = ""
    """The wrapper that changes what `reward` says, so that steps are paid otherwise; none: empty."""


def goal_parts(space: gym.spaces.Box) -> tuple[Part, Part] | None:
    """The achieved and the desired goal in a row of observations; None where there are no vectors of that name."""
    if not isinstance(space, RowSpace):
        return None
    parts = {part.name: part for part in space.parts if part.kind == "vector"}
    achieved, desired = parts.get(ACHIEVED), parts.get(DESIRED)
    if achieved is None or desired is None or achieved.space.shape != desired.space.shape:
        return None
    return achieved, desired
