"""Starts beside the reference: a policy that was only ever on it has not learned to come back."""

import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import from_rotation_vector, multiply

# The most that each number is off, at noise 1, as mjlab's tracking task has it.
_PLACE = (0.05, 0.05, 0.01)  # m
_TURN = (0.1, 0.1, 0.2)  # rad about x, y and z
_VELOCITY = (0.5, 0.5, 0.2)  # m/s
_TURNING = (0.52, 0.52, 0.78)  # rad/s
_JOINT = 0.1  # rad


class StartNoise:
    """How far from the reference episodes of a body start, at most."""

    def __init__(self, body: Body, scale: float, like: Tensor) -> None:
        """`like`: where the numbers lie, and of which type; moving them at a start would make a GPU wait."""
        self._joints = len(body.joints)
        parts = (*_PLACE, *_TURN, *_VELOCITY, *_TURNING, *[_JOINT] * self._joints)
        self._most = (scale * torch.tensor(parts, dtype=torch.float64)).to(like)
        self._low, self._high = (torch.as_tensor(limit, dtype=torch.float64).to(like) for limit in body.limits)
        self.size = len(parts)  # numbers that a start draws

    def beside(self, qpos: Tensor, qvel: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Poses and velocities near `qpos` [n, 7 + joints] and `qvel`; `unit` [n, size] from −1 to 1."""
        qpos, qvel = qpos.to(unit.dtype), qvel.to(unit.dtype)
        place, turn, speed, joints = (unit * self._most).split([3, 3, 6, self._joints], dim=1)
        angles, low, high = qpos[:, 7:], self._low, self._high
        # Within a joint's limits, unless the reference itself is beyond.
        angles = torch.clamp(angles + joints, torch.minimum(low, angles), torch.maximum(high, angles))
        rotation = multiply(from_rotation_vector(turn), qpos[:, 3:7])
        whole = torch.cat([qpos[:, :3] + place, rotation, angles], dim=1)
        return whole, torch.cat([qvel[:, :6] + speed, qvel[:, 6:]], dim=1)
