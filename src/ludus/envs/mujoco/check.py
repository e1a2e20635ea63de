"""Whether a MuJoCo model and the starts of its episodes are sound: ranges, units, contacts, motors."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from ludus.envs.findings import Finding
from ludus.envs.mujoco.robot import control_names, joint_of, name_of
from ludus.envs.mujoco.task import SimTask
from ludus.envs.vec import VecEnv

_RESETS = 8  # of all rows, whose starts are looked at
_OUTSIDE = 0.01  # share of a joint's range by which a start may be outside
_DEEP = 0.01  # m, of two bodies in each other
_WIDEST_RANGE = 5 * np.pi  # rad, of a hinge; more is thought to be degrees
_NARROWEST_RANGE = 0.06  # rad: π degrees, which were meant as radians
_HEAVIEST = 1_000.0  # kg
_LIGHTEST = 1e-6
_LARGEST = 50.0  # m, the radius of a part
_STRONGEST_GRAVITY = 30.0  # m/s²
_COARSEST_TIMESTEP = 0.02  # s
_SHORTEST_CONTROL, _LONGEST_CONTROL = 0.002, 0.5  # s
_HINGE, _SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)
_BODY, _GEOM, _JOINT = mujoco.mjtObj.mjOBJ_BODY, mujoco.mjtObj.mjOBJ_GEOM, mujoco.mjtObj.mjOBJ_JOINT


def check_physics(env: VecEnv, seed: int) -> Iterator[Finding]:
    """Looks at the model of an environment that has one, and at how its episodes begin."""
    model = getattr(env, "mj_model", None)
    if not isinstance(model, mujoco.MjModel):
        return
    starts = _starts(env, model, seed)
    found = [
        *_check_units(model),
        *_check_masses(model),
        *_check_time(model, getattr(env, "substeps", 1) * float(model.opt.timestep)),
        *_check_ranges(model, starts),
        *_check_contacts(model, starts),
        *_check_actuators(model, starts),
    ]
    yield from found
    if not found:
        seen = f"{len(starts)} starts" if starts else "no start could be looked at"
        yield Finding("ok", f"The model is sound: ranges, units, masses, contacts and motors ({seen}).")


def _starts(env: VecEnv, model: mujoco.MjModel, seed: int) -> list[mujoco.MjData]:
    """The simulations as they are when episodes begin."""
    found = []
    for number in range(_RESETS):
        env.reset(seed + number)
        for row in range(env.num_rows):
            fields = _fields(env, row)
            if fields is None:
                return []
            data = mujoco.MjData(model)
            for name, value in fields.items():
                getattr(data, name)[:] = value
            mujoco.mj_forward(model, data)
            found.append(data)
    return found


def _fields(env: VecEnv, row: int) -> dict[str, Any] | None:
    names = ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat")
    if isinstance(env, SimTask):
        values: dict[str, Tensor] = {name: env.sim.field(name)[row].cpu() for name in names}
        return {name: value.numpy() for name, value in values.items()}
    live = getattr(env, "mj_data", lambda row: None)(row)
    return None if live is None else {name: np.array(getattr(live, name)) for name in names}


# The model ------------------------------------------------------------------------------------------
def _check_units(model: mujoco.MjModel) -> Iterator[Finding]:
    hinges = [j for j in range(model.njnt) if model.jnt_limited[j] and int(model.jnt_type[j]) == _HINGE]
    spans = {j: float(model.jnt_range[j, 1] - model.jnt_range[j, 0]) for j in hinges}
    wide = [j for j in hinges if spans[j] > _WIDEST_RANGE]
    if wide:
        low, high = model.jnt_range[wide[0]]
        what = f"{_joints(model, wide)} may turn from {low:g} to {high:g} rad: are these degrees?"
        yield Finding("warning", what, 'Say <compiler angle="degree"/>, or give the range in radians.')
    narrow = [j for j in hinges if spans[j] < _NARROWEST_RANGE]
    if narrow:
        low, high = np.rad2deg(model.jnt_range[narrow[0]])
        what = f"{_joints(model, narrow)} may turn from {low:.3g} to {high:.3g} degrees only: are these radians?"
        yield Finding("warning", what, 'Say <compiler angle="radian"/>, or give the range in degrees.')
    moving = [g for g in range(model.ngeom) if model.body_weldid[model.geom_bodyid[g]] != 0]
    large = [g for g in moving if model.geom_rbound[g] > _LARGEST]
    if large:
        name, radius = name_of(model, _GEOM, large[0]), float(model.geom_rbound[large[0]])
        what = f"{name!r} has a radius of {radius:,.0f} m: are these millimetres?"
        yield Finding(
            "warning", what, 'Lengths are metres; a mesh in millimetres needs scale="0.001 0.001 0.001".'
        )


def _check_masses(model: mujoco.MjModel) -> Iterator[Finding]:
    moving = [b for b in range(1, model.nbody) if model.body_dofnum[b] > 0]
    heavy = [b for b in range(1, model.nbody) if model.body_weldid[b] != 0 and model.body_mass[b] > _HEAVIEST]
    if heavy:
        name, mass = name_of(model, _BODY, heavy[0]), float(model.body_mass[heavy[0]])
        fix = "Masses are kilograms and densities kg/m³: look at sizes in other units than metres."
        yield Finding("warning", f"The body {name!r} weighs {mass:,.0f} kg.", fix)
    light = [b for b in moving if model.body_subtreemass[b] < _LIGHTEST]
    if light:
        name = name_of(model, _BODY, light[0])
        what = f"The body {name!r} moves and weighs {float(model.body_subtreemass[light[0]]):.2g} kg."
        yield Finding("warning", what, "Give its geoms a mass or a density, or it an <inertial>.")
    off = bool(model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_GRAVITY))
    gravity = 0.0 if off else float(np.linalg.norm(model.opt.gravity))
    if gravity == 0.0 and moving:
        fix = 'Right for a task in a plane or in space; else <option gravity="0 0 -9.81"/>.'
        yield Finding("warning", "Gravity is off.", fix)
    elif gravity > _STRONGEST_GRAVITY:
        fix = 'Gravity is in m/s²: <option gravity="0 0 -9.81"/>, and lengths in metres.'
        yield Finding("warning", f"Gravity is {gravity:g} m/s².", fix)


def _check_time(model: mujoco.MjModel, control_dt: float) -> Iterator[Finding]:
    timestep = float(model.opt.timestep)
    if timestep > _COARSEST_TIMESTEP:
        fix = 'Contacts and stiff servos need 1 to 10 ms: <option timestep="0.005"/>, and more substeps.'
        yield Finding("warning", f"The timestep of the physics is {1000 * timestep:g} ms.", fix)
    if control_dt > _LONGEST_CONTROL:
        yield Finding(
            "warning", f"An action lasts {control_dt:g} s.", "Take fewer substeps: 20 to 50 ms suit most robots."
        )
    elif control_dt < _SHORTEST_CONTROL:
        fix = "Take more substeps, so that an action lasts 20 to 50 ms: what it does is then easier to learn."
        yield Finding("warning", f"An action lasts {1000 * control_dt:g} ms.", fix)


# How episodes begin ---------------------------------------------------------------------------------
def _check_ranges(model: mujoco.MjModel, starts: list[mujoco.MjData]) -> Iterator[Finding]:
    outside: dict[int, list[float]] = {}  # values of each joint
    for joint in range(model.njnt):
        if not model.jnt_limited[joint] or int(model.jnt_type[joint]) not in (_HINGE, _SLIDE):
            continue
        low, high = model.jnt_range[joint]
        slack = _OUTSIDE * (high - low)
        values = [float(data.qpos[model.jnt_qposadr[joint]]) for data in starts]
        if wrong := [value for value in values if not low - slack <= value <= high + slack]:
            outside[joint] = wrong
    if not outside:
        return
    first = next(iter(outside))
    low, high = model.jnt_range[first]
    begin = "begins" if len(outside) == 1 else "begin"
    most = max(map(len, outside.values()))
    what = f"{_joints(model, list(outside))} {begin} outside the range in {most} of {len(starts)} starts"
    example = f"{name_of(model, _JOINT, first)!r} at {outside[first][0]:.3g}, allowed is {low:.3g} to {high:.3g}"
    fix = "Start within the range (clamp, or another keyframe), or widen it: MuJoCo throws a joint back."
    yield Finding("warning", f"{what}: {example}.", fix)


def _check_contacts(model: mujoco.MjModel, starts: list[mujoco.MjData]) -> Iterator[Finding]:
    deepest: dict[tuple[str, str], float] = {}
    counted: Counter[tuple[str, str]] = Counter()
    for data in starts:
        pairs: dict[tuple[str, str], float] = {}
        for contact in data.contact:
            if contact.dist < -_DEEP and contact.exclude == 0:
                first, second = (_part(model, int(geom)) for geom in contact.geom)
                pairs[first, second] = min(float(contact.dist), pairs.get((first, second), 0.0))
        for pair, depth in pairs.items():
            counted[pair] += 1
            deepest[pair] = min(depth, deepest.get(pair, 0.0))
    for pair, count in counted.most_common(3):
        first, second = pair
        overlap = f"overlap by up to {-1000 * deepest[pair]:.0f} mm"
        fix = "Start them apart, or they fly apart; parts that may overlap need <contact><exclude …/></contact>."
        yield Finding("warning", f"In {count} of {len(starts)} starts {first!r} and {second!r} {overlap}.", fix)


def _part(model: mujoco.MjModel, geom: int) -> str:
    """A geom by its name, or by its body's."""
    return model.geom(geom).name or name_of(model, _BODY, int(model.geom_bodyid[geom]))


# Motors ---------------------------------------------------------------------------------------------
def _check_actuators(model: mujoco.MjModel, starts: list[mujoco.MjData]) -> Iterator[Finding]:
    names = control_names(model)
    limited = model.actuator_ctrllimited | model.actuator_forcelimited
    unlimited = [name for name, on in zip(names, limited, strict=True) if not on]
    if unlimited:
        what = f"{_listed(unlimited)} {'has' if len(unlimited) == 1 else 'have'} neither ctrlrange nor forcerange."
        fix = 'Give each actuator one, e.g. ctrlrange="-1 1": without bounds a policy may ask for any force.'
        yield Finding("warning", what, fix)
    for actuator in range(model.nu):
        joint = joint_of(model, actuator)
        if joint is None or int(model.jnt_type[joint]) not in (_HINGE, _SLIDE):
            continue
        unit = "N m" if int(model.jnt_type[joint]) == _HINGE else "N"
        most, needed = _strength(model, actuator, joint, starts)
        whom = f"The actuator {names[actuator]!r} of the joint {name_of(model, _JOINT, joint)!r}"
        friction = float(model.dof_frictionloss[model.jnt_dofadr[joint]])
        if most == 0.0:
            fix = "Look at its gain (kp), gear, ctrlrange and forcerange."
            yield Finding("warning", f"{whom} can exert no force: it never moves it.", fix)
        elif most <= friction:
            fix = "Make it stronger (gear, ctrlrange, forcerange), or the frictionloss smaller."
            what = f"{whom} gives at most {most:.3g} {unit}; the joint's frictionloss is {friction:.3g}."
            yield Finding("warning", what, fix)
        elif needed > most:
            fix = "Make it stronger (gear, ctrlrange, forcerange), or the robot lighter."
            what = f"{whom} gives at most {most:.3g} {unit}; to hold a start takes {needed:.3g}."
            yield Finding("warning", what, fix)


def _strength(
    model: mujoco.MjModel, actuator: int, joint: int, starts: list[mujoco.MjData]
) -> tuple[float, float]:
    """(the most that an actuator can exert on its joint, what gravity asks of that in any start)."""
    plain = int(model.actuator_dyntype[actuator]) == int(mujoco.mjtDyn.mjDYN_NONE)
    fixed = int(model.actuator_gaintype[actuator]) == int(mujoco.mjtGain.mjGAIN_FIXED)
    affine = int(model.actuator_biastype[actuator]) <= int(mujoco.mjtBias.mjBIAS_AFFINE)
    if not (plain and fixed and affine):
        return np.inf, 0.0  # not known without playing
    gear, gain = float(model.actuator_gear[actuator, 0]), float(model.actuator_gainprm[actuator, 0])
    bias, place = model.actuator_biasprm[actuator], int(model.jnt_qposadr[joint])
    limited = bool(model.actuator_ctrllimited[actuator])
    controls = np.array(model.actuator_ctrlrange[actuator]) if limited else np.array([-np.inf, np.inf])
    most, needed = 0.0, 0.0
    for data in starts or [mujoco.MjData(model)]:
        resting = bias[0] + bias[1] * gear * float(data.qpos[place])
        forces = gain * controls + resting if gain else np.full(2, resting)
        if model.actuator_forcelimited[actuator]:
            forces = np.clip(forces, *model.actuator_forcerange[actuator])
        most = max(most, float(np.abs(gear * forces).max()))
        if _alone(model, joint):
            needed = max(needed, abs(float(data.qfrc_bias[model.jnt_dofadr[joint]])))
    return most, needed


def _alone(model: mujoco.MjModel, joint: int) -> bool:
    """Whether one actuator alone holds a joint up: no other, no spring, no floor under a floating base."""
    drivers = sum(joint_of(model, actuator) == joint for actuator in range(model.nu))
    root = int(model.body_rootid[model.jnt_bodyid[joint]])
    floats = model.body_jntnum[root] > 0 and int(model.jnt_type[model.body_jntadr[root]]) not in (_HINGE, _SLIDE)
    sprung = model.jnt_stiffness[joint] > 0 or model.body_gravcomp[model.jnt_bodyid[joint]] > 0
    return drivers == 1 and not floats and not sprung


# Words ----------------------------------------------------------------------------------------------
def _joints(model: mujoco.MjModel, joints: list[int]) -> str:
    names = _listed([name_of(model, _JOINT, joint) for joint in joints])
    return f"The joint {names}" if len(joints) == 1 else f"The joints {names}"


def _listed(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
