"""A body twice, to draw a policy and its reference together: a body, and a ghost that touches nothing."""

from functools import cache

import mujoco
import numpy as np

from ludus.envs.bodies import Body

GHOST_COLOUR = (0.95, 0.35, 0.05, 0.45)
PREFIX = "ghost_"


@cache
def ghost_model(body: Body) -> mujoco.MjModel:
    """The model, for reading alone: the positions of the body, then those of its ghost."""
    spec = body.new_spec()
    spec.attach(_ghost(body), prefix=PREFIX, frame=spec.worldbody.add_frame())
    return spec.compile()


def ghost_qpos(policy_qpos: np.ndarray, reference_qpos: np.ndarray, beside: float = 0.0) -> np.ndarray:
    """[..., 2 · nq] positions that draw both; the ghost is `beside` metres to the left (y), 0 lays it over."""
    ghost = np.array(reference_qpos, dtype=float)
    ghost[..., 1] += beside
    return np.concatenate([np.asarray(policy_qpos, dtype=float), ghost], axis=-1)


def _ghost(body: Body) -> mujoco.MjSpec:
    """The body alone: no floor or light of its own, no motors, one colour, and nothing it could touch."""
    ghost = body.new_spec()
    for thing in (*ghost.actuators, *ghost.excludes, *ghost.worldbody.geoms, *ghost.lights):
        ghost.delete(thing)
    for geom in ghost.geoms:
        geom.contype = geom.conaffinity = 0
        geom.material = ""
        geom.rgba = np.array(GHOST_COLOUR)
    for thing in (*ghost.sites, *ghost.tendons):
        thing.material = ""
    for thing in (*ghost.materials, *ghost.textures):
        ghost.delete(thing)
    return ghost
