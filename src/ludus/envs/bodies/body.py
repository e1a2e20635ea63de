"""A body that imitates motion, read from an MJCF file and a short TOML file beside it.

Whatever is particular to a robot stands here: its joints and bodies by name and in order, its root, which bodies
are followed, feet, default pose, motors. All the rest of Ludus asks a `Body` and knows no robot by name.
"""

import copy
import os
from functools import cache
from pathlib import Path

import mujoco
import numpy as np

from ludus.envs.bodies.kinematics import Kinematics
from ludus.envs.bodies.model import compiled, furnish, need, read_spec, substeps_of
from ludus.envs.bodies.settings import BodySettings, matching, model_file, read_settings
from ludus.envs.mujoco.robot import is_servo, joint_of
from ludus.errors import ConfigError, did_you_mean, listable

_FREE, _BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
_NO_DYNAMICS = int(mujoco.mjtDyn.mjDYN_NONE)
_CONTROL_RATE = 30.0  # Hz, about, of a body whose file says nothing
_ACTION_SCALE = 0.5  # rad, likewise
_FALLEN = 0.6  # of the root's height in the default pose, likewise
SHIPPED_BODIES = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.toml"))}
LIKE_RADIANS = 0.12  # rad: if all ranges are smaller, they were radians that were read as degrees
_OUTSIDE = 1e-3  # rad that a default pose may lie outside a joint's range


class Body:
    """A robot, for reading alone. Joints are its hinges and slides; the free joint of the root is not among them.

    A pose (qpos) is the root's position and rotation (w first), then the joints in the order of `joints`.
    """

    def __init__(self, name: str, file: Path, settings: BodySettings, model: mujoco.MjModel, at: Path) -> None:
        """`file` is where `settings` come from, `at` the MJCF file that `model` does."""
        self.name, self.file, self.settings, self._at = name, file, settings, at
        self.model = model
        self.root = _root_of(model, at)  # the number of its body in the model
        count = int((model.body_rootid == self.root).sum())
        self.bodies = tuple(model.body(i).name or f"body{i}" for i in range(self.root, self.root + count))
        self.joints = tuple(model.joint(i).name for i in range(1, model.njnt))
        self.substeps, self.dt = _time_of(model, settings)
        self.kinematics = Kinematics(model, self.root, count)
        self._choose_bodies()
        self._read_motors()
        self.default_qpos = self._default_pose()  # [7 + joints]
        height = float(self.default_qpos[2])
        self.fallen_height = _FALLEN * height if settings.fallen_height is None else settings.fallen_height

    def new_model(self) -> mujoco.MjModel:
        """A copy that may be changed."""
        return copy.copy(self.model)

    def new_spec(self) -> mujoco.MjSpec:
        """What the model is compiled from."""
        return _furnished(self._at, self.settings, self.file)

    # Bodies -------------------------------------------------------------------------------------
    def _choose_bodies(self) -> None:
        settings, root = self.settings, self.bodies[0]
        ends = (*settings.feet, *settings.end_effectors)
        for name in (*settings.key_bodies, *ends, settings.anchor or root, *settings.human.values()):
            need(name, self.bodies, "body", self.file)
        chosen = {*(settings.key_bodies or self.bodies), *settings.end_effectors, root}
        self.key = tuple(i for i, name in enumerate(self.bodies) if name in chosen)  # the root first
        self.key_names = tuple(self.bodies[i] for i in self.key)
        self.anchor = self.bodies.index(settings.anchor or root)
        ends = settings.end_effectors or tuple(name for name in self.key_names if self._is_end(name))
        self.end_effectors = tuple(self.key_names.index(name) for name in ends)  # among the key bodies
        self.feet = tuple(self.bodies.index(name) for name in settings.feet)
        self.human = {part: self.bodies.index(name) for part, name in settings.human.items()}

    def _is_end(self, name: str) -> bool:
        """Whether no key body hangs on it."""
        below = {self.root + self.bodies.index(name)}
        for body in range(self.root + 1, self.root + len(self.bodies)):
            if int(self.model.body_parentid[body]) in below:
                below.add(body)
        return len(below & {self.root + i for i in self.key}) == 1

    # Motors -------------------------------------------------------------------------------------
    def _read_motors(self) -> None:
        model = self.model
        motors = [self._motor(actuator) for actuator in range(model.nu)]
        if not motors:
            raise ConfigError(
                f"{self._at} has no actuators: give the body motors, [[motors.groups]] in a TOML file beside it."
            )
        twice = next((joint for joint in motors if motors.count(joint) > 1), None)
        if twice is not None:
            raise ConfigError(f"{self._at}: two motors drive the joint {self.joints[twice]}.")
        self.motors = np.array(motors)  # [motors] which joint each drives
        dofs = model.jnt_dofadr[self.motors + 1]
        self.stiffness = model.actuator_gainprm[:, 0].copy()
        self.damping = model.dof_damping[dofs] - model.actuator_biasprm[:, 2]
        of_motor = _strength(model.actuator_forcelimited, model.actuator_forcerange)
        of_joint = _strength(model.jnt_actfrclimited, model.jnt_actfrcrange)[self.motors + 1]
        self.effort = np.minimum(of_motor, of_joint)
        # A damped motor lags behind a moving target by so many seconds.
        self.lag = self.damping / self.stiffness
        self.action_scale = self._action_scale()

    def _motor(self, actuator: int) -> int:
        """The joint that a motor drives."""
        model, joint = self.model, joint_of(self.model, actuator)
        name = model.actuator(actuator).name or f"actuator {actuator}"
        if joint is None or joint == 0:
            raise ConfigError(f"{self._at}: {name} drives no hinge or slide; a body's motors each drive one.")
        if not is_servo(model, actuator) or model.actuator_gear[actuator, 0] != 1:
            raise ConfigError(
                f"{self._at}: {name} is no position motor, which pulls its joint to an angle. Write "
                f"<position joint={self.joints[joint - 1]!r} kp=…/>, or give the body motors, [[motors.groups]], "
                "in a TOML file beside it."
            )
        if int(model.actuator_dyntype[actuator]) != _NO_DYNAMICS or model.actuator_biasprm[actuator, 0] != 0:
            raise ConfigError(
                f"{self._at}: {name} has a time constant or a constant force; a body's motors pull at once, and "
                "to the angle alone. Take it out, or give the body motors, [[motors.groups]], in a TOML file."
            )
        return joint - 1

    def _action_scale(self) -> np.ndarray:
        """[motors] rad that an action of 1 adds."""
        share, scale = self.settings.action_share, self.settings.action_scale
        if share is None:
            return np.full(len(self.motors), _ACTION_SCALE if scale is None else scale)
        if not np.isfinite(self.effort).all():
            name = self.joints[self.motors[int((~np.isfinite(self.effort)).argmax())]]
            raise ConfigError(
                f"{self.file} has action_share, but the motor of {name} has no limit: give its effort."
            )
        return share * self.effort / self.stiffness

    # Pose ---------------------------------------------------------------------------------------
    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """([joints], [joints]) the lowest and highest angle; infinite where there is no limit."""
        limited = self.model.jnt_limited[1:].astype(bool)
        low, high = self.model.jnt_range[1:].T
        return np.where(limited, low, -np.inf), np.where(limited, high, np.inf)

    def _default_pose(self) -> np.ndarray:
        """The pose that the settings, a keyframe or the model gives, with its lowest point on the floor."""
        original = read_spec(self._at).compile() if self.settings.motors is not None else self.model
        start = np.array(original.key_qpos[0] if original.nkey else original.qpos0)
        joints = start[7 : 7 + len(self.joints)]
        for pattern, angle in self.settings.default_pose.items():
            chosen = matching([pattern], self.joints)
            if not chosen:
                hint = did_you_mean(pattern, self.joints)
                raise ConfigError(f"{self.file}: default_pose names {pattern!r}, which means no joint.{hint}")
            joints[[self.joints.index(name) for name in chosen]] = angle
        if not np.isfinite(start).all():
            raise ConfigError(f"{self._at}: its default pose, which may be its first keyframe, is not finite.")
        low, high = self.limits
        outside = (joints < low - _OUTSIDE) | (joints > high + _OUTSIDE)
        if outside.any():
            i = int(outside.argmax())
            raise ConfigError(
                f"{self.file}: in the default pose {self.joints[i]} is at {joints[i]:.3g}, outside its range of "
                f"{low[i]:.3g} to {high[i]:.3g}. Set it in [default_pose]{_about_units(low, high)}."
            )
        qpos = np.concatenate([[0.0, 0.0, 0.0], start[3:7], joints])
        lowest = self.kinematics.lowest_point(qpos)
        if not np.isfinite(lowest):
            raise ConfigError(
                f"{self._at}: nothing of it touches anything. Give its geoms contype and conaffinity 1, or "
                "[[contacts]] with collide = true in a TOML file beside it."
            )
        qpos[2] = -lowest
        return qpos

    # Sameness -----------------------------------------------------------------------------------
    def facts(self) -> dict[str, object]:
        """What a policy that was trained on it relies on; a checkpoint keeps it."""
        numbers = {
            "masses": self.model.body_mass[self.root : self.root + len(self.bodies)],
            "stiffness": self.stiffness,
            "damping": self.damping,
            "effort": np.minimum(self.effort, 1e9),
            "action_scale": self.action_scale,
        }
        return {
            "name": self.name,
            "joints": list(self.joints),
            "key_bodies": list(self.key_names),
            "dt": self.dt,
            **{name: [round(float(value), 6) for value in values] for name, values in numbers.items()},
        }


def _about_units(low: np.ndarray, high: np.ndarray) -> str:
    """What to look at first where all ranges are tiny."""
    widest = np.abs(np.stack([low, high])[np.isfinite([low, high])]).max(initial=0.0)
    return "; or are radians read as degrees (<compiler angle='radian'/>)?" if widest < LIKE_RADIANS else ""


def find_body(name: str) -> Body:
    """The body that a name (humanoid, g1) or a file (.toml, .xml) means."""
    file = body_file(name).absolute()
    at = file if file.suffix.lower() == ".xml" else model_file(read_settings(file), file)
    return _read(str(file), _version(file), _version(at))


def body_file(name: str) -> Path:
    if name in SHIPPED_BODIES:
        return SHIPPED_BODIES[name]
    path = Path(os.path.expanduser(name))
    if path.suffix.lower() not in (".toml", ".xml"):
        hint = did_you_mean(name, SHIPPED_BODIES)
        known = ", ".join(SHIPPED_BODIES)
        raise ConfigError(
            f"There is no body {name!r}.{hint} There are {known}; or name a file: robot.toml, robot.xml."
        )
    if not os.path.isfile(path):  # also of a name longer than any
        beside = [other.name for other in path.parent.glob("*")] if os.path.isdir(path.parent) else []
        raise ConfigError(f"There is no file {path}.{did_you_mean(path.name, beside)}")
    beside_it = path.with_suffix(".toml")
    return beside_it if path.suffix.lower() == ".xml" and os.path.isfile(beside_it) else path


def whole_name(name: str) -> str:
    """The same body, to be found from any folder."""
    path = Path(os.path.expanduser(name))
    return listable(path.absolute()) if name not in SHIPPED_BODIES and os.path.isfile(path) else name


def _version(file: Path) -> tuple[int, int]:
    """Another one where a file was written anew."""
    try:
        stat = file.stat()
    except OSError:
        return 0, 0  # reading it will tell
    return stat.st_mtime_ns, stat.st_size


@cache
def _read(name: str, *versions: tuple[int, int]) -> Body:
    """All parts of a run share one, as long as its files are the same."""
    file = Path(name)
    if file.suffix.lower() == ".xml":
        settings, at = BodySettings(), file
    else:
        settings = read_settings(file)
        at = model_file(settings, file)
    return Body(file.stem, file, settings, compiled(_furnished(at, settings, file), at), at)


def _furnished(at: Path, settings: BodySettings, file: Path) -> mujoco.MjSpec:
    spec = read_spec(at)
    plain = compiled(spec, at)
    _check_joints(plain, at)
    furnish(spec, settings, [plain.joint(i).name for i in range(1, plain.njnt)], file)
    return spec


def _check_joints(model: mujoco.MjModel, at: Path) -> None:
    """One robot that can move freely, with joints that have names and one angle each."""
    if model.njnt == 0 or int(model.jnt_type[0]) != _FREE:
        raise ConfigError(
            f"{at}: the robot's first body must be free to move: give it a <freejoint/>. (A robot that is bolted "
            "down has a task of its own: 'ludus new'.)"
        )
    for joint in range(1, model.njnt):
        kind, name = int(model.jnt_type[joint]), model.joint(joint).name
        where = name or f"a joint of {model.body(int(model.jnt_bodyid[joint])).name}"
        if model.body_rootid[model.jnt_bodyid[joint]] != model.body_rootid[model.jnt_bodyid[0]]:
            raise ConfigError(f"{at}: {where} does not hang on the robot; a body is one robot alone.")
        if kind == _FREE:
            raise ConfigError(f"{at}: {where} is a second free joint; a body is one robot alone.")
        if kind == _BALL:
            raise ConfigError(f"{at}: {where} is a ball joint; write it as three hinges.")
        if not name:
            raise ConfigError(f"{at}: {where} has no name, by which clips and motors would find it.")
    if model.njnt < 2:
        raise ConfigError(f"{at} has no hinges or slides: there is nothing to move.")


def _root_of(model: mujoco.MjModel, at: Path) -> int:
    root = int(model.jnt_bodyid[0])
    if int(model.body_parentid[root]) != 0:
        raise ConfigError(f"{at}: the body with the free joint must hang on the world itself.")
    return root


def _time_of(model: mujoco.MjModel, settings: BodySettings) -> tuple[int, float]:
    """(physics steps of a control step, its seconds). A rate that is asked for is exact: model.py."""
    timestep = float(model.opt.timestep)
    substeps = settings.substeps or substeps_of(settings.control_rate or _CONTROL_RATE, timestep)
    return substeps, substeps * timestep if settings.control_rate is None else 1 / settings.control_rate


def _strength(limited: np.ndarray, interval: np.ndarray) -> np.ndarray:
    """[n] N m that can be had both ways; infinite where there is no limit."""
    least, most = np.sort(np.abs(interval), axis=1).T
    return np.where(limited.astype(bool), np.where(least > 0, least, most), np.inf)
