"""Inverse kinematics of the iiwa with the gripper pointing straight down, in closed form.

The iiwa's shoulder, elbow and wrist are each a point where axes meet. With the elbow kept in the
vertical plane through the target (joints 3 and 5 at zero, the arm's redundancy) the arm is a planar
two-link: exact, without iterations or singularities inside the workspace, and cheap for any batch.
"""

import math

import torch
from torch import Tensor

SHOULDER_HEIGHT = 0.1575 + 0.2025  # m, of joint 2 above the base
UPPER_ARM = 0.2045 + 0.2155  # m, shoulder to elbow
FOREARM = 0.1845 + 0.2155  # m, elbow to wrist
TOOL = 0.081 + 0.045 + 0.117  # m, wrist to the point between the fingertips


def joints_for(grip_position: Tensor) -> Tensor:
    """[n, 3] positions of the grip point → [n, 7] joint angles; targets out of reach give the nearest stretch.

    The fingers close along the world's y axis, whatever the direction of the arm.
    """
    x, y, z = grip_position.unbind(-1)
    azimuth = torch.atan2(y, x)
    radius = torch.hypot(x, y)
    height = z + TOOL - SHOULDER_HEIGHT
    cos_bend = (radius**2 + height**2 - UPPER_ARM**2 - FOREARM**2) / (2 * UPPER_ARM * FOREARM)
    bend = torch.acos(cos_bend.clamp(-0.4999, 0.9999))  # joint 4's range is 120 degrees
    lean = torch.atan2(radius, height) - torch.atan2(
        FOREARM * torch.sin(bend), UPPER_ARM + FOREARM * torch.cos(bend)
    )
    zero = torch.zeros_like(azimuth)
    return torch.stack([azimuth, lean, zero, -bend, zero, math.pi - lean - bend, azimuth], dim=-1)
