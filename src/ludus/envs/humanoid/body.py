"""The humanoid's body: its model, and the names and orders that clips of motion are checked against."""

from functools import cache
from pathlib import Path

import mujoco

BODIES = (
    "pelvis", "torso", "head", "right_upper_arm", "right_lower_arm", "right_hand", "left_upper_arm",
    "left_lower_arm", "left_hand", "right_thigh", "right_shin", "right_foot", "left_thigh", "left_shin",
    "left_foot",
)  # fmt: skip
# The hinges of each joint, in the order in which they turn: outer first. Real clips stay away from gimbal lock.
HINGES = {
    "abdomen": "yxz", "neck": "yxz", "right_shoulder": "xyz", "right_elbow": "z", "left_shoulder": "xyz",
    "left_elbow": "z", "right_hip": "yxz", "right_knee": "y", "right_ankle": "yxz", "left_hip": "yxz",
    "left_knee": "y", "left_ankle": "yxz",
}  # fmt: skip
JOINTS = tuple(f"{joint}_{axis}" if len(order) > 1 else joint for joint, order in HINGES.items() for axis in order)


def body_path() -> Path:
    return Path(__file__).with_name("body.xml")


@cache
def body_model() -> mujoco.MjModel:
    """The model, for reading alone."""
    return load_body()


def load_body() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(body_path()))
