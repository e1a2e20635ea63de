"""What a first task needs to know of a user's MJCF, and a sentence for each model that cannot be one."""

from dataclasses import dataclass
from pathlib import Path

import mujoco

from ludus.envs.mujoco.robot import (
    Gains,
    control_names,
    driven_joints,
    joints_of,
    name_of,
    names_of,
    reachable_points,
    servo_gains,
)
from ludus.errors import ConfigError, did_you_mean, plain_text

_CONTROL_S = 0.04  # seconds that an action lasts, about
_EPISODE_S = 4.0
_FREE = int(mujoco.mjtJoint.mjJNT_FREE)


@dataclass(frozen=True)
class RobotFacts:
    """A model as a first task sees it."""

    joints: tuple[str, ...]  # that the task is about
    site: str  # that has to reach a mark; "" where a pose is taken instead
    reach: float  # m, how far the points that the site reaches lie from their middle
    actuators: tuple[str, ...]
    sensors: tuple[str, ...]
    unlimited: tuple[str, ...]  # actuators without a ctrlrange
    gains: dict[str, Gains]  # of servos for motors, by joint
    floats: bool  # the first joint is free
    timestep: float

    @property
    def substeps(self) -> int:
        return max(1, round(_CONTROL_S / self.timestep))

    @property
    def control_s(self) -> float:
        return self.substeps * self.timestep

    @property
    def max_steps(self) -> int:
        return max(10, round(_EPISODE_S / self.control_s))

    def lines(self) -> list[str]:
        """What was found, for a user to read."""
        found = [
            f"joints     {_told(self.joints)}",
            f"actuators  {_told(self.actuators)}",
            f"sensors    {_told(self.sensors)}",
        ]
        if self.gains:
            found.append(f"motors     {_told(tuple(self.gains))}: each gets a servo, whose gains are in the task")
        if self.unlimited:
            found.append(f"no ctrlrange: {_told(self.unlimited)}; their controls are held to ±1. Give them one.")
        return found


def _told(names: tuple[str, ...], most: int = 8) -> str:
    shown = ", ".join(plain_text(name, 60) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"


def facts_of(file: Path, site: str = "") -> RobotFacts:
    """The facts of an MJCF file; `site` chooses what reaches, by default the last that actuated joints move."""
    model = _load(file)
    if model.nu == 0:
        raise ConfigError(f"{file} has no actuators, so a policy could move nothing: add an <actuator> section.")
    site = _site_of(model, file, site)
    joints = joints_of(model, int(model.site(site).bodyid[0])) if site else driven_joints(model)
    if not joints:
        raise ConfigError(
            f"{file} has no hinge or slide with an actuator of its own. Write the task by hand (docs/robot.md)."
        )
    names = tuple(_joint_name(model, joint, file) for joint in joints)
    actuators = control_names(model)
    return RobotFacts(
        joints=names,
        site=site,
        reach=_spread(model, site, names) if site else 0.0,
        actuators=tuple(actuators),
        sensors=tuple(names_of(model, mujoco.mjtObj.mjOBJ_SENSOR, model.nsensor)),
        unlimited=tuple(name for name, on in zip(actuators, model.actuator_ctrllimited, strict=True) if not on),
        gains=servo_gains(model),
        floats=model.njnt > 0 and int(model.jnt_type[0]) == _FREE,
        timestep=float(model.opt.timestep),
    )


def _load(file: Path) -> mujoco.MjModel:
    if not file.is_file():
        raise ConfigError(f"There is no file {file}.")
    try:
        return mujoco.MjModel.from_xml_path(str(file))
    except ValueError as error:
        raise ConfigError(f"MuJoCo cannot read {file}: {plain_text(str(error), 500)}") from error


def _site_of(model: mujoco.MjModel, file: Path, wanted: str) -> str:
    """The site that has to reach a mark; "" where none can."""
    names = [name for number in range(model.nsite) if (name := model.site(number).name)]
    if wanted:
        if wanted not in names:
            known = f"There are {', '.join(names)}." if names else "It has none with a name."
            raise ConfigError(f"{file} has no site {wanted!r}.{did_you_mean(wanted, names)} {known}")
        if not _reaches(model, wanted):
            raise ConfigError(
                f"The site {wanted!r} of {file} cannot be sent to a mark: actuated hinges and slides alone must "
                "move it, and the model may hold no mocap body."
            )
        return wanted
    return next((name for name in reversed(names) if _reaches(model, name)), "")


def _reaches(model: mujoco.MjModel, site: str) -> bool:
    joints = joints_of(model, int(model.site(site).bodyid[0]))
    return model.nmocap == 0 and bool(joints) and set(joints) <= set(driven_joints(model))


def _spread(model: mujoco.MjModel, site: str, joints: tuple[str, ...]) -> float:
    """How far the points that the site reaches lie from their middle, in metres."""
    points = reachable_points(model, site, joints)
    return float((points - points.mean(0)).norm(dim=1).mean())


def _joint_name(model: mujoco.MjModel, joint: int, file: Path) -> str:
    name: str = model.joint(joint).name
    if not name:
        body = name_of(model, mujoco.mjtObj.mjOBJ_BODY, int(model.jnt_bodyid[joint]))
        raise ConfigError(f"A joint of the body {body!r} in {file} has no name, by which a task would find it.")
    return name
