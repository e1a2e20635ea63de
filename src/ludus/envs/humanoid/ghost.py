"""The humanoid twice, to draw a policy and its reference together: a body, and a ghost that touches nothing."""

from functools import cache

import mujoco
import numpy as np

from ludus.envs.humanoid.body import body_path

GHOST_COLOUR = (0.95, 0.35, 0.05, 0.45)
PREFIX = "ghost_"


@cache
def ghost_model() -> mujoco.MjModel:
    """The model, for reading alone: 35 positions of the body, then 35 of its ghost."""
    body = mujoco.MjSpec.from_file(str(body_path()))
    body.attach(_ghost(), prefix=PREFIX, frame=body.worldbody.add_frame())
    return body.compile()


def ghost_qpos(policy_qpos: np.ndarray, reference_qpos: np.ndarray, beside: float = 0.0) -> np.ndarray:
    """[..., 70] positions that draw both; the ghost is moved `beside` metres to the left (y), 0 lays it over."""
    ghost = np.array(reference_qpos, dtype=float)
    ghost[..., 1] += beside
    return np.concatenate([np.asarray(policy_qpos, dtype=float), ghost], axis=-1)


def _ghost() -> mujoco.MjSpec:
    """The body alone: no floor or light of its own, no motors, one colour, and nothing it could touch."""
    ghost = mujoco.MjSpec.from_file(str(body_path()))
    for thing in (*ghost.actuators, *ghost.excludes, *ghost.worldbody.geoms, *ghost.lights):
        ghost.delete(thing)
    for geom in ghost.geoms:
        geom.contype = geom.conaffinity = 0
        geom.material = ""
        geom.rgba = np.array(GHOST_COLOUR)
    for thing in (*ghost.materials, *ghost.textures):
        ghost.delete(thing)
    return ghost
