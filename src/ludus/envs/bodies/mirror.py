"""Left and right of a body exchanged: which joint takes the place of which, and with which sign.

Partners are found by their names (left_knee and right_knee, L_hip and R_hip), signs from the model's axes. Whether
that makes a mirror is not believed but tried, on random poses: a robot that is built otherwise is refused.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies.body import Body
from ludus.envs.bodies.rotations import conjugate, multiply
from ludus.errors import ConfigError

_SIDES = {"left": "right", "right": "left", "l": "r", "r": "l"}
_EXACT = 1e-3  # m between a body and its partner's mirrored place: files round (the G1's differ by 0.01 mm)
_EXACT_TURN = 1e-2  # rad between how they are turned
_POSES = 32  # that are tried
_WIDEST = 1.0  # rad or m, of joints without limits in those
_ACROSS = np.array([1.0, -1.0, 1.0])  # bodies face along x: the mirror stands upright between left and right
_TURNED = np.array([1.0, -1.0, 1.0, -1.0])  # what turns about y stays; about x and z it is turned back


class Mirror(NamedTuple):
    """A joint's mirrored angle is its own zero plus its sign times its partner's angle from the partner's zero."""

    partners: np.ndarray  # [joints] the joint on the other side; a joint in the middle is its own
    signs: np.ndarray  # [joints]
    zeros: np.ndarray  # [joints] angles in the model's own pose

    def qpos(self, qpos: np.ndarray) -> np.ndarray:
        """[..., 7 + joints] poses seen in a mirror between left and right, at y = 0."""
        joints = self.zeros + self.signs * (qpos[..., 7:] - self.zeros)[..., self.partners]
        return np.concatenate([qpos[..., :3] * _ACROSS, qpos[..., 3:7] * _TURNED, joints], axis=-1)


@lru_cache(maxsize=16)
def mirror_of(body: Body) -> Mirror:
    """How a body is mirrored; refused where left and right are not built alike."""
    model = body.model
    partners = np.array(partners_in(body.joints))
    data = mujoco.MjData(model)
    data.qpos[3:7] = [1, 0, 0, 0]
    mujoco.mj_kinematics(model, data)
    axes = data.xaxis[1:]
    # Seen in a mirror, a turn goes the other way round; a slide does not.
    slide = model.jnt_type[1:] == int(mujoco.mjtJoint.mjJNT_SLIDE)
    along = (axes * axes[partners] * _ACROSS).sum(axis=1)
    signs = np.where(along >= 0, 1.0, -1.0) * np.where(slide, 1.0, -1.0)
    mirror = Mirror(partners, signs, model.qpos0[7:].copy())
    _refuse_asymmetric(body, mirror)
    return mirror


def partners_in(names: Sequence[str]) -> list[int]:
    """The place of each name's counterpart on the other side; its own where there is none."""
    places = {name: i for i, name in enumerate(names)}
    return [
        next((places[other] for other in _other_sides(name) if other in places), places[name]) for name in names
    ]


def _other_sides(name: str) -> list[str]:
    """What the same thing on the other side may be called."""
    words = re.sub("left|right", _swapped, name, flags=re.IGNORECASE)
    letters = re.sub(r"(?<![A-Za-z])[LlRr](?![A-Za-z])", _swapped, name)
    return [other for other in (words, letters) if other != name]


def _swapped(found: re.Match[str]) -> str:
    word = found[0]
    other = _SIDES[word.lower()]
    return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other


def _refuse_asymmetric(body: Body, mirror: Mirror) -> None:
    rng = np.random.default_rng(0)
    low, high = (np.clip(limit, -_WIDEST, _WIDEST) for limit in body.limits)
    poses = np.concatenate([rng.normal(size=(_POSES, 7)), rng.uniform(low, high, (_POSES, len(low)))], axis=1)
    poses[:, 3:7] /= np.linalg.norm(poses[:, 3:7], axis=1, keepdims=True)
    poses[0] = [0, 0, 0, 1, 0, 0, 0, *mirror.zeros]  # tells how a body's frame lies to its partner's
    partners = partners_in(body.bodies)
    seen, turned = _bodies(body, poses)
    places, turns = (part[:, partners] for part in _bodies(body, mirror.qpos(poses)))
    away = (seen * torch.as_tensor(_ACROSS) - places).norm(dim=2).amax(dim=0).numpy()  # [bodies]
    turned = turned * torch.as_tensor(_TURNED)
    still = multiply(turns, multiply(conjugate(turns[:1]), turned[:1]).expand_as(turns))
    askew = 2 * (turned * still).sum(dim=-1).abs().clamp(max=1).acos().amax(dim=0).numpy()
    wrong = (away > _EXACT) | (askew > _EXACT_TURN)
    if not wrong.any():
        return
    worst = int(wrong.argmax())  # the first: what hangs on it is off as well
    name, other = body.bodies[worst], body.bodies[partners[worst]]
    if away[worst] <= _EXACT:
        pair = f"{name} is turned by {np.degrees(askew[worst]):.3g}° against {other}"
    else:
        where = f"where {other} is" if name != other else "the middle"
        pair = f"{name} comes to lie {1000 * away[worst]:.3g} mm beside {where}"
    raise ConfigError(
        f"The body {body.name} is not symmetric: in a mirror {pair}. Leave out --env.mirror. (Left and right are "
        "found by names such as left_knee and right_knee, or L_hip and R_hip.)"
    )


def _bodies(body: Body, poses: np.ndarray) -> tuple[Tensor, Tensor]:
    """([poses, bodies, 3], [poses, bodies, 4])"""
    pose = torch.as_tensor(poses)
    return body.kinematics.forward(pose[:, :3], pose[:, 3:7], pose[:, 7:])
