"""Are the body's motors quick enough for a clip? A simulation in which the root is led along it tells.

The motors are asked for what residual actions of zero ask for. Floor, balance and limits of joints are left out:
they have nothing to do with how quick a motor is. So is weight, for between two control steps the body falls
freely: a policy learns to hold it up.
"""

import copy
from contextlib import closing
from typing import NamedTuple

import mujoco
import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.envs.mujoco.simulator import CpuSimulator

# The clip is followed twice, half a control step apart: whether a step meets a pose that sticks out is chance.
PHASES = 2
LOOP_SECONDS = 1.0  # for which a loop is followed after its first cycle: over its seam, and however short it is


class Following(NamedTuple):
    """How far off the bodies were at the ends of control steps."""

    times: Tensor  # [n] s since the clip's beginning, in order
    distances: (
        Tensor  # [n, key bodies] m between each body and its reference; infinite once the simulation breaks down
    )


def follow(clip: Clip, model: mujoco.MjModel | None = None) -> Following:
    """Nothing where the clip is shorter than one control step. `model`: one with other motors than the body's."""
    dt = clip.body.dt
    seconds = clip.duration + (LOOP_SECONDS if clip.loop else 0.0)
    steps = torch.arange(int(seconds / dt + 1e-6) + 1, dtype=torch.float64)  # the first is the start
    times = dt * steps[:, None] + dt / PHASES * torch.arange(PHASES)  # [1 + steps, PHASES]
    library = MotionLibrary([clip], LOOP_SECONDS)
    reference = library.at(torch.zeros(times.numel(), dtype=torch.int64), times.flatten())
    qpos, qvel, body_pos = (part.double().unflatten(0, times.shape) for part in reference[:3])
    places = _led_along(clip.body, _in_the_air(model or clip.body.model), qpos, qvel)
    distances = torch.linalg.vector_norm(places - body_pos, dim=-1).nan_to_num(nan=torch.inf)
    told = times <= seconds + 1e-6  # a phase may end after the clip
    told[0] = False
    return Following(times[told], distances[told])


def _led_along(body: Body, model: mujoco.MjModel, qpos: Tensor, qvel: Tensor) -> Tensor:
    """[1 + steps, PHASES, key bodies, 3] where they get to with the root put on the reference after every step.

    `qpos` and `qvel` are the reference's, [1 + steps, PHASES, …]. Not a number where the simulation cannot go on.
    """
    places = torch.full((*qpos.shape[:2], len(body.key), 3), torch.nan, dtype=torch.float64)
    if not (qpos.isfinite().all() and qvel.isfinite().all()):  # too large for the library: nobody can follow
        return places
    with closing(CpuSimulator(model, PHASES, body.substeps, threads=1)) as sim:
        now_qpos, now_qvel, ctrl, now_places = (sim.field(name) for name in ("qpos", "qvel", "ctrl", "xpos"))
        now_qpos.copy_(qpos[0])
        now_qvel.copy_(qvel[0])
        sim.forward()
        key = torch.as_tensor(body.key) + body.root
        targets = qpos[..., 7:][..., body.motors] + torch.as_tensor(body.lag) * qvel[..., 6:][..., body.motors]
        for step in range(1, len(qpos)):
            ctrl.copy_(targets[step])
            sim.begin_step()
            if sim.end_step() is not None:
                break
            now_qpos[:, :7], now_qvel[:, :6] = qpos[step, :, :7], qvel[step, :, :6]
            sim.forward()
            places[step] = now_places[:, key]
    return places


def _in_the_air(model: mujoco.MjModel) -> mujoco.MjModel:
    model = copy.copy(model)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT  # contacts and limits
    return model
