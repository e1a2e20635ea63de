"""What a task wants to know of a robot's model: its joints, its home pose, its controls and what it can reach."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

_HINGE, _SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)
_TRANSMISSIONS_OF_JOINTS = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
UNLIMITED_CONTROL = 1.0  # what a control without a ctrlrange may be, in both directions
_SERVO_SPEED = 40.0  # rad/s, how quickly a servo goes to its target
_SERVO_SAG = 0.1  # rad or m, the most that weight pulls it away
_MOST_TRIES = 100  # poses tried for each reachable point that is wanted


def name_of(model: mujoco.MjModel, kind: mujoco.mjtObj, number: int) -> str:
    """What the model calls it, or its kind and number: "joint3"."""
    what = kind.name.removeprefix("mjOBJ_").lower()
    return mujoco.mj_id2name(model, kind, number) or f"{what}{number}"


def names_of(model: mujoco.MjModel, kind: mujoco.mjtObj, count: int) -> list[str]:
    return [name_of(model, kind, number) for number in range(count)]


# Joints ---------------------------------------------------------------------------------------------
def joints_of(model: mujoco.MjModel, body: int) -> list[int]:
    """Numbers of the hinges and slides that move a body, the first after the world first; none if it floats."""
    found: list[int] = []
    while body:
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        found = [*range(first, first + count), *found] if count else found
        body = int(model.body_parentid[body])
    return found if all(model.jnt_type[joint] in (_HINGE, _SLIDE) for joint in found) else []


def driven_joints(model: mujoco.MjModel) -> list[int]:
    """Numbers of the hinges and slides that have an actuator of their own."""
    driven = {joint for actuator in range(model.nu) if (joint := joint_of(model, actuator)) is not None}
    return sorted(joint for joint in driven if model.jnt_type[joint] in (_HINGE, _SLIDE))


def joint_of(model: mujoco.MjModel, actuator: int) -> int | None:
    """The joint that an actuator drives, if it drives one."""
    if int(model.actuator_trntype[actuator]) not in _TRANSMISSIONS_OF_JOINTS:
        return None
    return int(model.actuator_trnid[actuator, 0])


def columns_of(model: mujoco.MjModel, joints: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Where the named hinges and slides stand in qpos, and where in qvel."""
    numbers = [model.joint(name).id for name in joints]
    return torch.tensor(model.jnt_qposadr[numbers]).long(), torch.tensor(model.jnt_dofadr[numbers]).long()


def ranges_of(model: mujoco.MjModel, joints: Sequence[str], unlimited: float = np.pi) -> tuple[Tensor, Tensor]:
    """The least and the largest position of the named joints; of one without limits ±`unlimited`."""
    numbers = [model.joint(name).id for name in joints]
    limited = model.jnt_limited[numbers].astype(bool)
    low, high = model.jnt_range[numbers].T
    return torch.tensor(np.where(limited, low, -unlimited)), torch.tensor(np.where(limited, high, unlimited))


def home_of(model: mujoco.MjModel) -> Tensor:
    """[nq] the pose to begin with: the first keyframe, else the model's own, with every joint in its range."""
    qpos = np.array(model.key_qpos[0] if model.nkey else model.qpos0)
    for joint in range(model.njnt):
        if model.jnt_limited[joint] and model.jnt_type[joint] in (_HINGE, _SLIDE):
            place = model.jnt_qposadr[joint]
            qpos[place] = np.clip(qpos[place], *model.jnt_range[joint])
    return torch.tensor(qpos)


# Controls -------------------------------------------------------------------------------------------
class Controls:
    """How an action becomes the controls: it moves the target of a servo, and any other control it is itself.

    A servo that could be sent anywhere in one step would be thrown about by a policy that explores. So its target
    moves by at most `stride` of its range in a step, and a robot that is handed the policy moves smoothly, too.
    """

    def __init__(self, model: mujoco.MjModel, device: torch.device, dtype: torch.dtype, stride: float) -> None:
        low, high = control_bounds(model)
        servo = np.array([is_servo(model, actuator) for actuator in range(model.nu)])
        step = stride * (high - low)
        least, most = np.where(servo, -step, low), np.where(servo, step, high)
        self.space = gym.spaces.Box(least.astype(np.float32), most.astype(np.float32), dtype=np.float32)
        self.names = control_names(model)
        self.units = [
            f"{unit} a step" if on else unit for unit, on in zip(control_units(model), servo, strict=True)
        ]
        self._kept = torch.tensor(servo, device=device).to(dtype)
        self._low, self._high = (torch.tensor(bound, device=device, dtype=dtype) for bound in (low, high))

    def after(self, ctrl: Tensor, action: Tensor) -> Tensor:
        """[rows, nu] the controls that follow `ctrl`."""
        return (ctrl * self._kept + action).clamp(self._low, self._high)


def control_names(model: mujoco.MjModel) -> list[str]:
    """Of the actuators; one without a name is called as the joint that it drives."""
    return [model.actuator(number).name or _driven_name(model, number) for number in range(model.nu)]


def _driven_name(model: mujoco.MjModel, actuator: int) -> str:
    joint = joint_of(model, actuator)
    if joint is None:
        return name_of(model, mujoco.mjtObj.mjOBJ_ACTUATOR, actuator)
    return name_of(model, mujoco.mjtObj.mjOBJ_JOINT, joint)


def control_bounds(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """[nu] the least and the largest control; without a ctrlrange ±`UNLIMITED_CONTROL`."""
    limited = model.actuator_ctrllimited.astype(bool)[:, None]
    low, high = np.where(limited, model.actuator_ctrlrange, (-UNLIMITED_CONTROL, UNLIMITED_CONTROL)).T
    return low, high


def home_control(model: mujoco.MjModel) -> Tensor:
    """[nu] controls that hold `home_of`, as far as that is known: positions of servos, else 0, within bounds."""
    qpos = home_of(model).numpy()
    control = np.array(model.key_ctrl[0] if model.nkey else np.zeros(model.nu))
    for actuator in range(model.nu):
        joint = joint_of(model, actuator)
        if joint is not None and is_servo(model, actuator) and not model.nkey:
            control[actuator] = qpos[model.jnt_qposadr[joint]] * model.actuator_gear[actuator, 0]
    return torch.tensor(np.clip(control, *control_bounds(model)))


def is_servo(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether the control is a position that the actuator pulls towards."""
    if model.actuator_gaintype[actuator] != mujoco.mjtGain.mjGAIN_FIXED:
        return False
    if model.actuator_biastype[actuator] != mujoco.mjtBias.mjBIAS_AFFINE:  # then its numbers are not used
        return False
    gain, bias = float(model.actuator_gainprm[actuator, 0]), model.actuator_biasprm[actuator]
    return gain > 0 and bool(np.isclose(bias[1], -gain))


def is_motor(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether the control is the force itself, of a hinge or a slide."""
    joint, by = joint_of(model, actuator), model.actuator_trntype[actuator]
    bare = (
        model.actuator_dyntype[actuator] == mujoco.mjtDyn.mjDYN_NONE and not model.actuator_biasprm[actuator].any()
    )
    fixed = model.actuator_gaintype[actuator] == mujoco.mjtGain.mjGAIN_FIXED
    if joint is None or by != mujoco.mjtTrn.mjTRN_JOINT or int(model.jnt_type[joint]) not in (_HINGE, _SLIDE):
        return False
    return bool(bare and fixed)


def control_units(model: mujoco.MjModel) -> list[str]:
    """What each control is measured in; "" where that is not known."""
    return [_unit_of(model, actuator) for actuator in range(model.nu)]


def _unit_of(model: mujoco.MjModel, actuator: int) -> str:
    joint = joint_of(model, actuator)
    kind = -1 if joint is None else int(model.jnt_type[joint])
    if kind not in (_HINGE, _SLIDE):
        return ""
    length, force = ("rad", "N m") if kind == _HINGE else ("m", "N")
    gain, bias = float(model.actuator_gainprm[actuator, 0]), model.actuator_biasprm[actuator]
    gear = float(model.actuator_gear[actuator, 0])
    if is_servo(model, actuator):
        return length if gear == 1 else f"× {1 / gear:g} {length}" if gear else ""
    if gain > 0 and np.isclose(bias[2], -gain):
        return f"{length}/s"
    if not bias[:3].any():
        scale = gain * gear
        return force if scale == 1 else f"× {scale:g} {force}"
    return ""


# Servos ---------------------------------------------------------------------------------------------
class Gains(NamedTuple):
    """Of a servo: force = stiffness · (target − position) − damping · velocity."""

    stiffness: float  # N m/rad or N/m
    damping: float  # N m s/rad or N s/m


def servo_gains(model: mujoco.MjModel, poses: int = 100) -> dict[str, Gains]:
    """Gains for each motor, by the name of its joint: swift, critically damped, stable at the model's time step.

    They follow from the inertia and the weight that the motor moves, over random poses.
    """
    motors = {model.joint(joint_of(model, a)).name: a for a in range(model.nu) if is_motor(model, a)}
    names = [name for name in motors if name]
    if not names:
        return {}
    inertia, least, weight = _loads(model, names, poses)
    swift = (inertia * _SERVO_SPEED**2).clip(weight / _SERVO_SAG)
    stiffness = np.minimum(swift, 0.1 * least / model.opt.timestep**2)  # beyond it an explicit integrator swings
    own = model.dof_damping[columns_of(model, names)[1].numpy()]  # which the joint has without a servo
    damping = np.minimum(2 * np.sqrt(stiffness * inertia) - own, 0.5 * least / model.opt.timestep).clip(0.0)
    return {n: Gains(float(k), float(d)) for n, k, d in zip(names, stiffness, damping, strict=True)}


def _loads(model: mujoco.MjModel, joints: Sequence[str], poses: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each joint: its mean inertia, the least while all others move freely, the most force that holds it."""
    data, generator = mujoco.MjData(model), np.random.default_rng(0)
    low, high = (bound.numpy() for bound in ranges_of(model, joints))
    places, dofs = (columns.numpy() for columns in columns_of(model, joints))
    unit, found = np.eye(model.nv)[dofs], []
    for _ in range(poses):
        data.qpos[:] = home_of(model).numpy()
        data.qpos[places] = generator.uniform(low, high)
        mujoco.mj_forward(model, data)
        moved, solved = np.zeros_like(unit), np.zeros_like(unit)
        for row, direction in zip(moved, unit, strict=True):
            mujoco.mj_mulM(model, data, row, direction)
        mujoco.mj_solveM(model, data, solved, unit)
        found.append(((moved * unit).sum(1), 1 / (solved * unit).sum(1), np.abs(data.qfrc_bias[dofs])))
    inertia, alone, weight = (np.array(column) for column in zip(*found, strict=True))
    return inertia.mean(0), alone.min(0), weight.max(0)


def with_servos(spec: mujoco.MjSpec, gains: Mapping[str, Gains]) -> mujoco.MjModel:
    """The model, with a servo in place of the motor of each joint in `gains`, as strong as the motor was.

    A policy that sets forces directly, a few times a second, learns slowly to hold an arm still. One that sets
    targets, which a servo follows at every time step, learns as quickly as with motors that are servos themselves.
    """
    before = spec.compile()  # in radians, whatever the file is in
    for actuator in spec.actuators:
        if actuator.target not in gains or actuator.trntype != mujoco.mjtTrn.mjTRN_JOINT:
            continue
        force = _strength_of(before, actuator.id)
        stiffness, damping = gains[actuator.target]
        actuator.gear = [1, 0, 0, 0, 0, 0]
        actuator.gainprm = [stiffness, *[0] * (len(actuator.gainprm) - 1)]
        actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        actuator.biasprm = [0, -stiffness, -damping, *[0] * (len(actuator.biasprm) - 3)]
        actuator.forcelimited, actuator.forcerange = mujoco.mjtLimited.mjLIMITED_TRUE, [-force, force]
        around = [float(bound[0]) for bound in ranges_of(before, [actuator.target])]
        actuator.ctrllimited, actuator.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, around
    return _with_home(spec.compile(), gains)


def _strength_of(model: mujoco.MjModel, motor: int) -> float:
    """The most force that a motor puts on its joint."""
    limited = model.actuator_ctrllimited[motor]
    control = np.abs(model.actuator_ctrlrange[motor]).max() if limited else UNLIMITED_CONTROL
    push = control * abs(model.actuator_gainprm[motor, 0])
    if model.actuator_forcelimited[motor]:
        push = min(push, np.abs(model.actuator_forcerange[motor]).max())
    return float(push * abs(model.actuator_gear[motor, 0]))


def _with_home(model: mujoco.MjModel, joints: Mapping[str, Gains]) -> mujoco.MjModel:
    """Keyframes whose controls were forces get the positions that they are about."""
    for actuator in range(model.nu):
        joint = joint_of(model, actuator)
        if joint is not None and model.joint(joint).name in joints:
            model.key_ctrl[:, actuator] = model.key_qpos[:, model.jnt_qposadr[joint]]
    return model


# Reach ----------------------------------------------------------------------------------------------
def reachable_points(
    model: mujoco.MjModel, site: str, joints: Sequence[str], count: int = 1_000, seed: int = 0
) -> Tensor:
    """[count, 3] places of a site in random poses of the joints, free of contacts where there are such poses."""
    data, generator = mujoco.MjData(model), np.random.default_rng(seed)
    low, high = (bound.numpy() for bound in ranges_of(model, joints))
    columns, home = columns_of(model, joints)[0].numpy(), home_of(model).numpy()
    free: list[np.ndarray] = []
    touching: list[np.ndarray] = []
    for _ in range(_MOST_TRIES * count):
        data.qpos[:] = home
        data.qpos[columns] = generator.uniform(low, high)
        mujoco.mj_fwdPosition(model, data)
        (touching if data.ncon else free).append(data.site(site).xpos.copy())
        if len(free) == count or (not free and len(touching) == count):
            break
    points = free or touching
    return torch.tensor(np.array([points[i % len(points)] for i in range(count)]))
