"""A scripted controller that solves pick-and-place from the observation alone: a check of the task."""

import torch
from torch import Tensor

from ludus.envs.kuka.task import STRIDE

_HOVER = 0.07  # m above the cube before descending, and above the goal before lowering
_GAIN = 0.4  # of the way in one step: the hand follows its target with a lag


def scripted_action(obs: Tensor) -> Tensor:
    """[rows, 34] observations → [rows, 4] actions: hover, descend, close, lift, carry, lower, open."""
    to_cube, to_goal = obs[:, 20:23], obs[:, 23:26]
    touching = obs[:, -2:] > 0
    held = touching.all(dim=1)
    on_pad = (to_goal[:, :2].norm(dim=1) < 0.03) & (to_goal[:, 2].abs() < 0.007)
    move, close = _pick(to_cube)
    move = torch.where(held[:, None], _carry(to_goal), move)
    close = (close | held) & ~on_pad
    up = torch.tensor([0.0, 0.0, 1.0]).expand_as(move) * 0.05
    released = on_pad & ~touching.any(dim=1)
    move = torch.where(on_pad[:, None], torch.where(released[:, None], up, torch.zeros_like(move)), move)
    grip = torch.where(close, -1.0, 1.0)
    return torch.cat([(move * _GAIN / STRIDE).clamp(-1, 1), grip[:, None]], dim=1)


def _pick(to_cube: Tensor) -> tuple[Tensor, Tensor]:
    """Towards a point above the cube, then down around it; closes when it is there."""
    aligned = to_cube[:, :2].norm(dim=1) < 0.012
    above = to_cube + torch.tensor([0.0, 0.0, _HOVER])
    move = torch.where(aligned[:, None], to_cube, above)
    return move, aligned & (to_cube[:, 2].abs() < 0.012)


def _carry(to_goal: Tensor) -> Tensor:
    """Up to carrying height, across, then down."""
    across = to_goal[:, :2].norm(dim=1)
    height_wanted = to_goal[:, 2] + torch.where(across > 0.015, _HOVER, 0.0)
    low = height_wanted > 0.03  # do not sweep sideways into the pad's edge
    move = to_goal.clone()
    move[:, 2] = height_wanted
    move[:, :2] *= (~low)[:, None]
    return move
