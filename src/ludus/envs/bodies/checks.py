"""What is wrong with a body, and what to do about it."""

from collections.abc import Iterator

import mujoco
import numpy as np

from ludus.envs.bodies.body import LIKE_RADIANS, Body, find_body
from ludus.envs.findings import Finding
from ludus.errors import ConfigError

_HELD_SECONDS = 2.0  # for which the default pose is held in a simulation
_TILT = 0.7  # how far up the root's z axis must still point then
_LIKE_DEGREES = 7.0  # rad: a range beyond one turn
_HEIGHTS = (0.1, 4.0)  # m, of a robot that stands
_MASSES = (0.2, 1000.0)  # kg
_FAST, _SLOW = 200.0, 10.0  # control steps a second that are unusual
_GRAVITY = 9.81


def check_body(name: str) -> tuple[Body | None, list[Finding]]:
    """The body that a name or file means, if it can be used, and what was found."""
    try:
        body = find_body(name)
    except ConfigError as error:
        return None, [Finding("error", str(error))]
    return body, [
        *_check_parts(body),
        *_check_units(body),
        *_check_motors(body),
        *_check_contacts(body),
        *_check_time(body),
        *_check_standing(body),
        *_check_human(body),
    ]


def _check_parts(body: Body) -> Iterator[Finding]:
    driven = set(body.motors.tolist())
    loose = [name for i, name in enumerate(body.joints) if i not in driven]
    told = (
        f"{len(body.bodies)} bodies, {len(body.joints)} joints, {len(body.motors)} motors, root {body.bodies[0]}."
    )
    yield Finding("ok", told)
    if loose:
        fix = "If the robot can move them, give them motors; they swing freely as it is."
        yield Finding("warning", f"No motor drives {', '.join(loose[:10])}.", fix)
    low, high = body.limits
    endless = [name for name, a, b in zip(body.joints, low, high, strict=True) if not np.isfinite([a, b]).all()]
    if endless:
        fix = "Give them a range in the model, unless they turn without end."
        yield Finding("warning", f"No limits have {', '.join(endless[:10])}.", fix)
    if not body.feet:
        yield Finding("warning", "No feet are named.", 'Name them: feet = ["left_foot", "right_foot"].')


def _check_units(body: Body) -> Iterator[Finding]:
    low, high = body.limits
    known = np.isfinite(low) & np.isfinite(high)
    widest = float(np.abs(np.stack([low[known], high[known]])).max()) if known.any() else 1.0
    if widest > _LIKE_DEGREES:
        what = f"A joint may turn by {widest:.0f} rad: the ranges look like degrees."
        yield Finding("error", what, 'Say so in the model: <compiler angle="degree"/>.')
    elif widest < LIKE_RADIANS:
        what = f"No joint may turn by more than {widest:.3f} rad: the ranges look like radians, read as degrees."
        yield Finding("error", what, 'Say so in the model: <compiler angle="radian"/>.')
    own = slice(body.root, body.root + len(body.bodies))
    mass, height = float(body.model.body_mass[own].sum()), _height(body)
    if not _MASSES[0] <= mass <= _MASSES[1]:
        yield Finding("warning", f"It weighs {mass:.3g} kg.", "Are the masses in kg?")
    if not _HEIGHTS[0] <= height <= _HEIGHTS[1]:
        yield Finding(
            "warning", f"Its highest body is at {height:.3g} m.", "Are lengths in metres? A mesh may want a scale."
        )
    gravity = float(np.linalg.norm(body.model.opt.gravity))
    if abs(gravity - _GRAVITY) > 0.1:
        yield Finding("warning", f"Gravity is {gravity:.3g} m/s².", 'Set it: <option gravity="0 0 -9.81"/>.')
    yield Finding("ok", f"Its highest body is at {height:.2f} m, and it weighs {mass:.1f} kg.")


def _height(body: Body) -> float:
    """m, of its highest body's origin in the default pose."""
    data = _posed(body)
    return float(data.xpos[body.root : body.root + len(body.bodies), 2].max())


def _posed(body: Body) -> mujoco.MjData:
    data = mujoco.MjData(body.model)
    data.qpos[: len(body.default_qpos)] = body.default_qpos
    mujoco.mj_forward(body.model, data)
    return data


def _check_motors(body: Body) -> Iterator[Finding]:
    endless = [body.joints[j] for j, most in zip(body.motors, body.effort, strict=True) if not np.isfinite(most)]
    if endless:
        what = f"The motors of {', '.join(endless[:10])} have no limit: no real one is as strong."
        yield Finding("warning", what, "Give them a forcerange in the model, or effort in [[motors.groups]].")
    stiff, damp = body.stiffness, body.damping
    told = (
        f"Stiffness {stiff.min():.3g} to {stiff.max():.3g} N m/rad, damping {damp.min():.3g} to {damp.max():.3g}."
    )
    yield Finding("ok", told)
    loose = [body.joints[j] for j, each in zip(body.motors, damp, strict=True) if each <= 0]
    if loose:
        what = f"The motors of {', '.join(loose[:10])} are not damped: they swing about their targets."
        yield Finding("warning", what, "Give the joints damping, about stiffness / 20.")


def _check_contacts(body: Body) -> Iterator[Finding]:
    kinematics = body.kinematics
    bare = [body.bodies[foot] for foot in body.feet if not len(kinematics.surface_of(foot)[0])]
    if bare:
        fix = "Let a geom of each touch: contype and conaffinity 1, or [[contacts]] with collide = true."
        yield Finding("error", f"Nothing of {', '.join(bare)} touches the floor: it falls through.", fix)
    data = _posed(body)
    floor = {i for i in range(body.model.ngeom) if int(body.model.geom_bodyid[i]) < body.root}
    pairs = {_pair(body, contact) for contact in data.contact if not floor & {int(g) for g in contact.geom}}
    if pairs:
        told = "; ".join(sorted(pairs)[:5])
        where = "before the first [table] of the file"
        fix = f"They push each other apart. Leave the pairs out, {where}: exclude = [{_quoted(pairs)}]."
        yield Finding("warning", f"In the default pose parts touch: {told}.", fix)
    else:
        yield Finding("ok", "In the default pose no part of it touches another.")


def _pair(body: Body, contact: mujoco.MjContact) -> str:
    first, second = (body.model.body(int(body.model.geom_bodyid[int(g)])).name for g in contact.geom)
    return " and ".join(sorted((first, second)))


def _quoted(pairs: set[str]) -> str:
    return ", ".join("[" + ", ".join(f'"{name}"' for name in pair.split(" and ")) + "]" for pair in sorted(pairs))


def _check_time(body: Body) -> Iterator[Finding]:
    rate = 1 / body.dt
    told = f"{rate:.4g} control steps a second, each of {body.substeps} physics steps."
    if _SLOW <= rate <= _FAST:
        yield Finding("ok", told)
    else:
        yield Finding("warning", told, "Motion is usually controlled 30 to 50 times a second: control_rate = 50.")


def _check_standing(body: Body) -> Iterator[Finding]:
    """Held in its default pose by its motors alone, for a while."""
    model, data = body.new_model(), mujoco.MjData(body.model)
    data.qpos[: len(body.default_qpos)] = body.default_qpos
    data.ctrl[:] = body.default_qpos[7:][body.motors]
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)  # it would write a log file into the folder
    try:
        mujoco.mj_step(model, data, max(1, round(_HELD_SECONDS / model.opt.timestep)))
    finally:
        mujoco.set_mju_user_warning(handler)
    broken = any(int(data.warning[int(each.value)].number) for each in _DIVERGED)
    if broken or not np.isfinite(data.qpos).all():
        fix = "Make the motors softer, give joints armature and damping, or take more substeps."
        yield Finding("error", "The simulation breaks down while the default pose is held.", fix)
        return
    up = 1 - 2 * float(data.qpos[4] ** 2 + data.qpos[5] ** 2)
    if up < _TILT or float(data.qpos[2]) < body.fallen_height:
        what = f"Its motors alone do not hold the default pose: it falls within {_HELD_SECONDS:g} s."
        yield Finding("warning", what, "A policy can balance; but look whether feet, gains and pose are right.")
    else:
        yield Finding("ok", f"Its motors hold the default pose for {_HELD_SECONDS:g} s.")


def _check_human(body: Body) -> Iterator[Finding]:
    """Whether the parts that stand for a human's lie as a human's do, in the default pose."""
    if not body.human:
        return
    places = _posed(body).xpos[body.root : body.root + len(body.bodies)]
    at = {part: places[number] for part, number in body.human.items()}
    pairs = [(part, "right_" + part.removeprefix("left_")) for part in at if part.startswith("left_")]
    across = {part: at[part] - at[other] for part, other in pairs if other in at}
    # A foot may stand before the other, a hip may not.
    crossed = [
        part
        for part, (ahead, left, _) in across.items()
        if left <= (abs(ahead) if part in ("left_hip", "left_shoulder") else 0.0)
    ]
    for part in crossed:
        what = f"In the default pose the {part.replace('_', ' ')} does not lie to the left of the right one."
        yield Finding("error", what, "Does the robot look along x? Are left and right exchanged in [human]?")
    legs = [[at.get(f"{side}_{part}") for part in ("hip", "knee", "foot")] for side in ("left", "right")]
    heights = [[place[2] for place in leg if place is not None] for leg in legs]
    if any(leg != sorted(leg, reverse=True) for leg in heights):
        yield Finding("error", "Hip, knee and foot of a leg do not lie one below the other.", "Look at [human].")
    elif not crossed:
        yield Finding("ok", "The parts of [human] lie as a human's do.")


_DIVERGED = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
