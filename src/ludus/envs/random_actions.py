"""Actions drawn at random: within their bounds, and valid where an observation masks some."""

import gymnasium as gym
import torch
from torch import Tensor

from ludus.envs.row_space import ActionRow, RowSpace, choice_slices
from ludus.envs.vec import ActionSpace


def random_actions(space: ActionSpace, rows: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """[*rows, ...] within bounds; a standard normal where there are none."""
    if isinstance(space, ActionRow):
        parts = [random_actions(part, rows, generator).float() for part in space.flat]
        return torch.cat(parts, -1)
    if isinstance(space, gym.spaces.Discrete):
        return torch.randint(int(space.n), rows, generator=generator) + int(space.start)
    if isinstance(space, gym.spaces.MultiDiscrete):
        unit = torch.rand((*rows, len(space.nvec)), generator=generator, dtype=torch.float64)
        return (unit * torch.as_tensor(space.nvec)).long() + torch.as_tensor(space.start)
    low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
    unit = torch.rand((*rows, *space.shape), generator=generator)
    bounded = low.isfinite() & high.isfinite()
    free = torch.randn((*rows, *space.shape), generator=generator).clamp(low, high)
    return torch.where(bounded, torch.lerp(low.expand_as(unit), high.expand_as(unit), unit), free)


def made_valid(action: Tensor, obs: Tensor, obs_space: gym.spaces.Box, action_space: ActionSpace) -> Tensor:
    """The actions, with another choice in the place of each that is masked: the next valid one."""
    if not isinstance(obs_space, RowSpace) or obs_space.mask is None:
        return action
    mask = obs_space.part_of(obs, obs_space.mask).cpu() != 0
    numbers = action.clone().view(len(action), -1)
    for (column, start), choices in zip(_choice_columns(action_space), choice_slices(action_space), strict=True):
        count = choices.stop - choices.start
        order = (numbers[:, column].long()[:, None] - start + torch.arange(count)) % count  # from the drawn one on
        first_valid = mask[:, choices].gather(1, order).float().argmax(1, keepdim=True)
        numbers[:, column] = (order.gather(1, first_valid)[:, 0] + start).to(numbers.dtype)
    return numbers.view_as(action)


def _choice_columns(space: ActionSpace) -> list[tuple[int, int]]:
    """(place in a row of numbers, number of the first choice) of each choice."""
    if isinstance(space, gym.spaces.Discrete):
        return [(0, int(space.start))]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return [(i, int(start)) for i, start in enumerate(space.start)]
    assert isinstance(space, ActionRow), "only choices are masked"
    columns, at = [], 0
    for part in space.flat:
        if isinstance(part, gym.spaces.MultiDiscrete):
            columns += [(at + i, int(start)) for i, start in enumerate(part.start)]
        at += part.shape[0]
    return columns
