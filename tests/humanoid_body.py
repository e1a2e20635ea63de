"""The humanoid, as the tests know it."""

import mujoco

from ludus.envs.bodies import find_body
from ludus.envs.humanoid.importing.skeleton import BODIES, HINGES, JOINTS

__all__ = ["BODIES", "HINGES", "JOINTS"]
HUMANOID = find_body("humanoid")
DT, SUBSTEPS, MOTOR_LAG = HUMANOID.dt, HUMANOID.substeps, 0.05
FRAME_SIZE = 1 + 6 + 3 + 3 + 2 * 28 + 3 * 5  # of a discriminator's window
forward_kinematics = HUMANOID.kinematics.forward
lowest_points = HUMANOID.kinematics.lowest_points


def body_model() -> mujoco.MjModel:
    return HUMANOID.model


def load_body() -> mujoco.MjModel:
    return HUMANOID.new_model()
