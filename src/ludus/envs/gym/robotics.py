"""Gymnasium-Robotics 1.4.2 with MuJoCo of 3.12 and later, whose joint types are no longer whole numbers.

The package looks joints up by `joint_type in (mjJNT_HINGE, mjJNT_SLIDE)`, which no number is now, and so its Fetch
and Hand robots and the kitchen cannot be made. Its newest source is mended; no release is yet.
"""

import importlib
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np

PACKAGE = "gymnasium_robotics"
_READER = f"{PACKAGE}.utils.mujoco_utils"  # the module that looks joints up


class _MujocoWithNumbers:
    """The module mujoco, whose types of joints are whole numbers again."""

    mjtJoint = SimpleNamespace(  # noqa: N815 (MuJoCo's name)
        **{name: int(kind) for name, kind in mujoco.mjtJoint.__members__.items()}
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(mujoco, name)


def mend_robotics(entry_point: Any) -> None:
    """Before an environment of the package is made; does nothing where MuJoCo's types compare as numbers do."""
    hinge = mujoco.mjtJoint.mjJNT_HINGE
    if not str(entry_point).startswith(PACKAGE) or np.int32(hinge) in (hinge,):
        return
    reader = importlib.import_module(_READER)
    if reader.mujoco is mujoco:
        reader.mujoco = _MujocoWithNumbers()  # type: ignore[attr-defined]
