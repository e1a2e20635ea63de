"""A body's model: the MJCF file with what the body's own file says: motors, contacts, physics, a floor."""

import math
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np

from ludus.envs.bodies.model_limits import refuse_harm
from ludus.envs.bodies.settings import BodySettings, ContactRule, MotorGroup, Motors, matching
from ludus.errors import ConfigError, did_you_mean, plain_text

_FAILURES = (ValueError, RuntimeError, MemoryError)  # of MuJoCo, with a model that it cannot use
_MOST_BODIES, _MOST_JOINTS = 500, 500
_SHORTEST_S, _LONGEST_S, _MOST_SUBSTEPS = 1e-5, 0.1, 1_000  # of physics steps
_INTEGRATOR = {
    "Euler": "mjINT_EULER", "RK4": "mjINT_RK4", "implicit": "mjINT_IMPLICIT",
    "implicitfast": "mjINT_IMPLICITFAST", "discrete": "mjINT_DISCRETE",
}  # fmt: skip
_CONE = {"pyramidal": "mjCONE_PYRAMIDAL", "elliptic": "mjCONE_ELLIPTIC"}
_JACOBIAN = {"dense": "mjJAC_DENSE", "sparse": "mjJAC_SPARSE", "auto": "mjJAC_AUTO"}
_SKY, _SKY_END = (0.86, 0.90, 0.95), (0.55, 0.66, 0.78)
_GROUND, _GROUND_OTHER = (0.80, 0.82, 0.85), (0.72, 0.75, 0.79)


def read_spec(file: Path) -> mujoco.MjSpec:
    """The MJCF file as it is, with a sentence where it cannot be read."""
    refuse_harm(file)
    try:
        return mujoco.MjSpec.from_file(str(file))
    except _FAILURES as error:
        raise ConfigError(f"MuJoCo cannot read {file}: {plain_text(str(error), 500)}") from error


def compiled(spec: mujoco.MjSpec, file: Path) -> mujoco.MjModel:
    try:
        model = spec.compile()
    except _FAILURES as error:
        raise ConfigError(f"MuJoCo cannot use {file}: {plain_text(str(error), 500)}") from error
    if model.nbody > _MOST_BODIES or model.njnt > _MOST_JOINTS:
        raise ConfigError(
            f"{file} has {model.nbody - 1:,} bodies and {model.njnt:,} joints; a body here has at most "
            f"{_MOST_BODIES} and {_MOST_JOINTS}."
        )
    if not _SHORTEST_S <= model.opt.timestep <= _LONGEST_S:
        raise ConfigError(
            f"{file}: the physics' time step is {model.opt.timestep:g} s; it must be {_SHORTEST_S:g} to "
            f"{_LONGEST_S:g}: <option timestep='0.002'/>."
        )
    return model


def substeps_of(rate: float, timestep: float) -> int:
    """Physics steps of one control step, of which there are about `rate` a second."""
    return min(max(1, round(1 / (rate * timestep))), _MOST_SUBSTEPS)


def furnish(spec: mujoco.MjSpec, settings: BodySettings, joints: Sequence[str], file: Path) -> None:
    """Change the model to what the body's file says. `joints`: the names of its hinges and slides, in order."""
    for rule in settings.contacts:
        _touch(spec, rule, file)
    known = [body.name for body in spec.bodies]
    for pair in settings.exclude:
        for name in pair:
            need(name, known, "body", file)
        spec.add_exclude(bodyname1=pair[0], bodyname2=pair[1])
    if settings.motors is not None:
        _put_motors(spec, settings.motors, joints, file)
    _set_physics(spec, settings)
    if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms):
        add_floor(spec)


def need(name: str, known: Sequence[str], kind: str, file: Path) -> None:
    """A sentence where a file names what its model does not have."""
    if name not in known:
        shown = ", ".join(plain_text(other, 60) for other in known[:40]) + ", …" * (len(known) > 40)
        raise ConfigError(
            f"{file} names the {kind} {name!r}, which the model lacks.{did_you_mean(name, known)} It has {shown}."
        )


def _touch(spec: mujoco.MjSpec, rule: ContactRule, file: Path) -> None:
    names = [geom.name for geom in spec.geoms]  # "" of many: "*" means these as well
    for pattern in rule.geoms or [""]:
        if not pattern or not matching([pattern], names):
            hint = did_you_mean(pattern, names)
            raise ConfigError(f"{file}: contacts.geoms {pattern!r} means no geom of the model.{hint}")
    chosen = set(matching(rule.geoms, names))
    for geom in (geom for geom in spec.geoms if geom.name in chosen):
        if rule.condim is not None:
            geom.condim = rule.condim
        if rule.friction is not None:
            geom.friction = [rule.friction, *geom.friction[1:]]
        if rule.priority is not None:
            geom.priority = rule.priority
        if rule.collide is not None:
            geom.contype = geom.conaffinity = int(rule.collide)


def _put_motors(spec: mujoco.MjSpec, motors: Motors, joints: Sequence[str], file: Path) -> None:
    """A position motor for every joint. Damping goes to the joint: so the integrator treats it implicitly whatever
    the motor's limit; inside a motor that is at its limit MuJoCo would drop it, and fast motions blow up.
    """
    for sensor in [sensor for sensor in spec.sensors if sensor.objtype == mujoco.mjtObj.mjOBJ_ACTUATOR]:
        spec.delete(sensor)
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    for key in list(spec.keys):  # their controls are those of other motors
        spec.delete(key)
    groups = _groups_of(motors, joints, file)
    for name in joints:
        group, joint = groups[name], spec.joint(name)
        if group.armature is not None:
            joint.armature = group.armature
        stiffness, damping = _gains(group, motors, float(joint.armature), name, file)
        joint.damping = [damping, *[0.0] * (len(np.atleast_1d(joint.damping)) - 1)]
        actuator = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        actuator.gaintype, actuator.biastype = mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtBias.mjBIAS_AFFINE
        actuator.gainprm = [stiffness, *[0] * (len(actuator.gainprm) - 1)]
        actuator.biasprm = [0, -stiffness, *[0] * (len(actuator.biasprm) - 2)]
        if group.effort is not None:
            actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
            actuator.forcerange = [-group.effort, group.effort]
            joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE  # of the motor that was there


def _groups_of(motors: Motors, joints: Sequence[str], file: Path) -> dict[str, MotorGroup]:
    found: dict[str, MotorGroup] = {}
    for group in motors.groups:
        for pattern in group.joints:
            if not matching((pattern,), joints):
                hint = did_you_mean(pattern, joints)
                raise ConfigError(f"{file}: motors.groups.joints has {pattern!r}, which means no joint.{hint}")
        chosen = matching(group.joints, joints)
        twice = next((name for name in chosen if name in found), None)
        if twice is not None:
            raise ConfigError(f"{file}: the joint {twice} is in two groups of motors.")
        found |= dict.fromkeys(chosen, group)
    missing = [name for name in joints if name not in found]
    if missing:
        raise ConfigError(
            f"{file}: no group of motors has the joints {', '.join(missing)}; add them to [[motors.groups]]."
        )
    return found


def _gains(group: MotorGroup, motors: Motors, armature: float, joint: str, file: Path) -> tuple[float, float]:
    turning = 2 * math.pi * motors.frequency
    stiffness = armature * turning**2 if group.stiffness is None else group.stiffness
    if stiffness <= 0:
        raise ConfigError(
            f"{file}: the motor of {joint} has no stiffness, nor its joint an armature from which it follows: "
            "give one of them."
        )
    damping = 2 * motors.damping_ratio * armature * turning if group.damping is None else group.damping
    return stiffness, damping


def _set_physics(spec: mujoco.MjSpec, settings: BodySettings) -> None:
    simulation, option = settings.simulation, spec.option
    if settings.control_rate is not None:
        substeps = settings.substeps or substeps_of(settings.control_rate, option.timestep)
        option.timestep = 1 / (settings.control_rate * substeps)
    if simulation.integrator is not None:
        option.integrator = getattr(mujoco.mjtIntegrator, _INTEGRATOR[simulation.integrator])
    if simulation.cone is not None:
        option.cone = getattr(mujoco.mjtCone, _CONE[simulation.cone])
    if simulation.jacobian is not None:
        option.jacobian = getattr(mujoco.mjtJacobian, _JACOBIAN[simulation.jacobian])
    if simulation.iterations is not None:
        option.iterations = simulation.iterations
    if simulation.ls_iterations is not None:
        option.ls_iterations = simulation.ls_iterations


def add_floor(spec: mujoco.MjSpec) -> None:
    """A floor at 0, light and sky, for a model that comes alone."""
    builtin, textures = mujoco.mjtBuiltin, mujoco.mjtTexture
    if not any(texture.type == textures.mjTEXTURE_SKYBOX for texture in spec.textures):
        spec.add_texture(
            name="ludus_sky", type=textures.mjTEXTURE_SKYBOX, builtin=builtin.mjBUILTIN_GRADIENT,
            rgb1=_SKY, rgb2=_SKY_END, width=256, height=256,
        )  # fmt: skip
    spec.add_texture(
        name="ludus_ground", type=textures.mjTEXTURE_2D, builtin=builtin.mjBUILTIN_CHECKER,
        rgb1=_GROUND, rgb2=_GROUND_OTHER, width=256, height=256,
    )  # fmt: skip
    ground = spec.add_material(name="ludus_ground", texrepeat=[1, 1], texuniform=True, reflectance=0.05)
    ground.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "ludus_ground"
    name = "ludus_floor" if any(geom.name == "floor" for geom in spec.geoms) else "floor"
    # Whatever the model's defaults are, this one is solid and of its own colour (a grey that stands for none).
    spec.worldbody.add_geom(
        name=name, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], material="ludus_ground",
        rgba=[0.5, 0.5, 0.5, 1], contype=1, conaffinity=1, condim=3, group=0,
    )  # fmt: skip
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.35] * 3, [0.5] * 3
    sun = spec.worldbody.add_light(name="ludus_sun", pos=[0, -3, 8], dir=[0, 0.35, -1], diffuse=[0.6] * 3)
    sun.type = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
