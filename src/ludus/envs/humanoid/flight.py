"""Starts in the air: the velocity with which a body lands where and when its clip does.

In the air nothing can push a body: its centre of mass falls, and its angular momentum stays. Recorded flights are
rarely so. Some hang longer than a fall takes, others begin to turn only there. From the ground such a clip can be
followed, with a jump that is high and quick enough; from mid-air, with the clip's own velocity, nobody can. So a
start in the air is given the velocity of that jump.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import rotate_back
from ludus.envs.humanoid.feedforward import Moving, Stretch, Whole

LAUNCH_SIZE = 7  # numbers of a launch
_IN_THE_AIR_M = 0.03  # what is higher with its lowest point touches nothing
_TAKE_OFF_S = 0.05  # so shortly before the air a push comes too late
_SHORTEST_S, _LONGEST_S = 0.15, 1.5  # of a flight; what is longer is a clip that hangs above the floor
_FEWEST = 3  # frames of a flight, to tell how it falls
_LANDING_S = 0.08  # in the last part of a flight its own velocity is as good
_FALLING = 0.4, 2.5  # times gravity, by which a clip has to fall: what hovers in a stride does not fly
_OFF_M = 0.06  # at most, from a parabola: what lands on something on its way does not fly either


class _Flight(NamedTuple):
    begin: int  # frame from which on starts are changed
    first: int  # frame in the air
    end: int  # frame on the floor again, or the last of the clip
    fps: float

    @property
    def frames(self) -> int:
        return self.end + 1 - self.begin


def lift_of_steps(model: mujoco.MjModel) -> float:
    """m/s upwards that a launch takes besides. All integrators but RK4 move bodies by the velocity at the end of a
    time step, so that they fall deeper than a parabola, by half a step of gravity times the time.
    """
    smooth = model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
    return 0.0 if smooth else -0.5 * float(model.opt.gravity[2] * model.opt.timestep)


def launches(
    body: Body, qpos: Tensor, qvel: Tensor, places: tuple[Tensor, Tensor], stretches: Sequence[Stretch]
) -> Tensor:
    """[frames, 7] what is added to the root's velocity at a start there: six numbers that grow with the rate at
    which a clip is played, and m/s upwards that shrink with it. Zero where the clip is on the floor.
    """
    added = qpos.new_zeros((len(qpos), LAUNCH_SIZE))
    flights = list(_flights(body.kinematics.lowest_points(*places).amin(dim=1), stretches))
    if flights:
        frames = torch.cat([torch.arange(flight.begin, flight.end + 1) for flight in flights])
        position, rotation = (part[frames] for part in places)
        whole = Moving(body, qpos[frames], qvel[frames], (position, rotation)).whole()
        parts = zip(*(part.split([flight.frames for flight in flights]) for part in whole), strict=True)
        gravity = -float(body.model.opt.gravity[2])
        for flight, part in zip(flights, parts, strict=True):
            own = slice(flight.begin, flight.end + 1)
            added[own] = _launches_of(flight, Whole(*part), qpos[own], gravity)
    return added


def _flights(lowest: Tensor, stretches: Sequence[Stretch]) -> Iterator[_Flight]:
    start = 0
    for frames, fps in stretches:
        flying = (lowest[start : start + frames] > _IN_THE_AIR_M).numpy()
        edges = np.flatnonzero(np.diff(flying, prepend=False, append=False))
        landed = 0  # the frame on the floor after the flight before
        for first, after in edges.reshape(-1, 2).tolist():
            end = min(after, frames - 1)
            if end - first >= _FEWEST and _SHORTEST_S <= (end - first) / fps <= _LONGEST_S:
                begin = max(landed, first - round(_TAKE_OFF_S * fps))
                yield _Flight(start + begin, start + first, start + end, fps)
            landed = after
        start += frames


def _launches_of(flight: _Flight, whole: Whole, qpos: Tensor, gravity: float) -> Tensor:
    """[frames, 7] from the beginning to the landing of a flight; zeros if the body does not fall in it."""
    left = torch.arange(flight.frames - 1, -1, -1, dtype=torch.float64)  # frames until landing
    nothing = qpos.new_zeros((flight.frames, LAUNCH_SIZE))
    if not _falls(whole.centre[flight.first - flight.begin :, 2], flight.fps, gravity):
        return nothing
    until = (left / flight.fps).clamp(min=1 / flight.fps)[:, None]
    shift = (whole.centre[-1] - whole.centre) / until - whole.velocity
    turn = torch.linalg.solve(whole.inertia, _steady_spin(whole) - whole.spin)
    at_root = shift + torch.linalg.cross(turn, qpos[:, :3] - whole.centre)
    rise = 0.5 * gravity * until
    launch = torch.cat([at_root, rotate_back(qpos[:, 3:7], turn), rise], dim=1)
    return torch.where((left / flight.fps >= _LANDING_S)[:, None], launch, nothing)


def _steady_spin(whole: Whole) -> Tensor:
    """[frames, 3] the angular momentum that turns a body until landing by as much as its clip turns."""
    ease = torch.linalg.inv(whole.inertia)
    turning = (ease @ whole.spin[..., None])[..., 0]
    return torch.linalg.solve(_coming(ease), _coming(turning))


def _coming(values: Tensor) -> Tensor:
    """[frames, …] the sum from each frame on until the landing."""
    return values.flip(0).cumsum(0).flip(0)


def _falls(height: Tensor, fps: float, gravity: float) -> bool:
    """Whether [frames] m lie near a parabola, as bent as by something like gravity."""
    time = np.arange(len(height)) / fps
    parabola = np.polyfit(time, height.numpy(), 2)
    off = np.abs(np.polyval(parabola, time) - height.numpy()).max()
    least, most = (share * gravity for share in _FALLING)
    return bool(least <= -2 * parabola[0] <= most and off <= _OFF_M)
