"""A policy that follows clips, for the controllers of robots.

The file has the form that mjlab and BeyondMimic gave it, which controllers of several robots read. It takes `obs`
[1, size] and `time_step` [1, 1], a number of control steps from the clip's beginning, and gives

    actions                       [1, motors]     raw: × action_scale is added to default_joint_pos, or to the clip
    joint_pos, joint_vel          [1, joints]     of the clip at that step, which stops at its first and last
    body_pos_w, body_quat_w,      [1, bodies, …]  likewise, in the world; rotations have w first
    body_lin_vel_w, body_ang_vel_w
    joint_targets                 [1, motors]     what the motors pull to: the actions already added

Where the clip is an input, `joint_pos` and `joint_vel` [1, joints] of the reference one control step ahead come in
instead of `time_step`, and `actions` and `joint_targets` go out; absolute actions need neither.

Its metadata are texts with commas between, three decimals, as those controllers parse them; "ludus_tracker" is
JSON that says the same unrounded, and what else Ludus' observations and actions need.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.model_files import write_model
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.factory import clip_sets, library_of
from ludus.envs.humanoid.mimic import ESTIMATED, MimicTask
from ludus.envs.humanoid.motions import MotionLibrary, Reference
from ludus.envs.humanoid.other_clips import on_clips
from ludus.envs.mujoco.simulator import CpuSimulator
from ludus.errors import ConfigError, LudusError
from ludus.onnx_files import Graph, write_checked
from ludus.policies.fit import refuse_misfit
from ludus.policies.policy import Policy
from ludus.saved_run import run_config, run_folder, trusted_config

OPSET = 17  # with file format 8: onnxruntime reads both since 1.12, of 2022
_MOST_NAMED = 8  # clips in an error


class Clip(NamedTuple):
    """A clip at every control step."""

    joint_pos: Tensor  # [steps, joints]
    joint_vel: Tensor  # [steps, joints]
    body_pos_w: Tensor  # [steps, key bodies, 3]
    body_quat_w: Tensor  # [steps, key bodies, 4]
    body_lin_vel_w: Tensor  # [steps, key bodies, 3]
    body_ang_vel_w: Tensor  # [steps, key bodies, 3]


@dataclass(frozen=True)
class Tracker:
    """A policy, and what its numbers mean."""

    policy: Policy
    config: HumanoidConfig
    body: Body
    center: Tensor  # [joints] what absolute actions are added to
    scale: Tensor  # [motors]
    terms: Sequence[Mapping[str, Any]]  # of an observation, in order
    about_clip: Mapping[str, Any] | None
    clip: Clip | None  # None: an input
    lead: Tensor | None  # [steps, motors] of a clip whose motors are led; see feedforward.py
    run: str

    @property
    def around(self) -> tuple[str, ...]:
        """What targets are made of, besides actions, one step ahead; of absolute actions nothing is."""
        kinds = {"residual": ("joint_pos", "joint_vel"), "feedforward": ("joint_pos", "motor_lead")}
        return kinds.get(self.config.actions, ())


def tracker_of(
    run: str | PathLike[str], policy: Policy, trust: bool, clip: str, clip_as_input: bool
) -> Tracker | None:
    """The policy of a run with the clip to be exported; None where the run follows no clips."""
    folder = run_folder(run)
    env = run_config(folder).env
    if not isinstance(env, HumanoidConfig) or env.goal != "track":
        if clip or clip_as_input:
            flag = "--clip-as-input" if clip_as_input else "--clip"
            raise ConfigError(f"{flag} is for runs of a body that follows clips; this one follows none.")
        return None
    if clip and clip_as_input:
        raise ConfigError("--clip-as-input leaves the clip to the controller: leave out --clip.")
    trusted = trusted_config(folder, trust).env
    assert isinstance(trusted, HumanoidConfig)
    config = replace(trusted, randomization={}, simulator="threads")
    library, number = _library(config, clip, clip_as_input)
    body = library.body
    task = MimicTask(config, library, CpuSimulator(body.new_model(), 1, body.substeps, 1))
    try:
        columns = {name: place.stop - place.start for name, place in task.observation_columns().items()}
        weights = {name: term.weight for name, term in task.observations.terms.items()}
        refuse_misfit(policy, task)
    finally:
        task.close()
    terms = [{"name": name, "size": size, "factor": weights[name]} for name, size in columns.items()]
    scale = np.full(len(body.motors), config.action_scale) if config.action_scale else body.action_scale
    return Tracker(
        policy=policy,
        config=config,
        body=body,
        center=_center(config, body),
        scale=torch.as_tensor(scale, dtype=torch.float32),
        terms=terms,
        about_clip=None if clip_as_input else _about(library, number),
        clip=None if clip_as_input else clip_at_steps(library, number),
        lead=None if clip_as_input or config.actions != "feedforward" else _at_steps(library, number).lead,
        run=folder.resolve().name,
    )


def _library(config: HumanoidConfig, name: str, any_clip: bool) -> tuple[MotionLibrary, int]:
    """The clips among which the one to be exported is, and which it is: of the run's own, or another.

    As evaluations have them: with those that were kept out of the training, and none mirrored.
    """
    if not name:
        own, trained = library_of(config, "cpu", evaluation=True), len(clip_sets(config)[0])
        if trained > 1 and not any_clip:
            told = ", ".join(own.names[: min(trained, _MOST_NAMED)]) + ", …" * (trained > _MOST_NAMED)
            raise ConfigError(
                f"The run follows {trained} clips ({told}), and a file holds one: choose it, --clip NAME, or "
                "leave all to the controller, --clip-as-input."
            )
        return own, 0
    with suppress(LudusError):  # the clips trained on may be gone, and another is asked for
        own = library_of(config, "cpu", evaluation=True)
        if name in own.names:
            return own, own.names.index(name)
    other = library_of(on_clips(config, name), "cpu", evaluation=True)
    if len(other) > 1:
        raise ConfigError(f"--clip {name} means {len(other)} clips, and a file holds one: name one of them.")
    return other, 0


def _center(config: HumanoidConfig, body: Body) -> Tensor:
    """[joints] what absolute actions are added to; of residual ones, which have no such pose, the body's own."""
    if config.actions == "absolute":
        return library_of(config, "cpu").mean_pose()
    return torch.as_tensor(body.default_qpos[7:], dtype=torch.float32)


# The clip -------------------------------------------------------------------------------------------
def _about(library: MotionLibrary, number: int) -> dict[str, Any]:
    clip = library.clips[number]
    return {
        "name": clip.name,
        "seconds": clip.duration,  # of a looping clip: of one cycle
        "loop": clip.loop,
        "steps": _steps(library, number),
        "source": clip.source,
        "licence": clip.licence,
    }


def _steps(library: MotionLibrary, number: int) -> int:
    return int(float(library.ends[number]) / library.body.dt + 1e-6) + 1


def clip_at_steps(library: MotionLibrary, number: int) -> Clip:
    """A clip of the library at every control step; a looping one goes on for as long as an episode can."""
    reference = _at_steps(library, number)
    turning, moving = _body_velocities(library.body, reference)
    joint_pos, joint_vel = reference.qpos[:, 7:], reference.qvel[:, 6:]
    return Clip(joint_pos, joint_vel, reference.body_pos, reference.body_quat, moving, turning)


def _at_steps(library: MotionLibrary, number: int) -> Reference:
    time = torch.arange(_steps(library, number), dtype=torch.float64) * library.body.dt
    return library.at(torch.full((len(time),), number), time)


def _body_velocities(body: Body, reference: Reference) -> tuple[Tensor, Tensor]:
    """([steps, key bodies, 3] rad/s, the same in m/s) in the world, as the joints' velocities make them."""
    model, data, found = body.model, mujoco.MjData(body.model), np.zeros(6)
    velocities = np.zeros((len(reference.qpos), len(body.key), 6))
    for step, (qpos, qvel) in enumerate(zip(reference.qpos.numpy(), reference.qvel.numpy(), strict=True)):
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        for place, key in enumerate(body.key):
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body.root + key, found, 0)
            velocities[step, place] = found
    turning, moving = torch.as_tensor(velocities, dtype=torch.float32).split(3, dim=-1)
    return turning, moving


# The file -------------------------------------------------------------------------------------------
class _Step(torch.nn.Module):
    """What the file computes; inputs in the order of `_inputs`, outputs in that of `_outputs`."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self.policy, self.around, self.inside = tracker.policy, tracker.around, tracker.clip is not None
        motors = torch.as_tensor(tracker.body.motors)
        self.register_buffer("motors", motors)
        self.register_buffer("center", tracker.center[motors][None])
        self.register_buffer("scale", tracker.scale)
        self.register_buffer("lag", torch.as_tensor(tracker.body.lag, dtype=torch.float32))
        for name, values in (tracker.clip._asdict() if tracker.clip is not None else {}).items():
            self.register_buffer(f"clip_{name}", values)  # outputs have the names without
        if tracker.lead is not None:
            self.register_buffer("clip_motor_lead", tracker.lead)

    def forward(self, obs: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        memory = others[-1] if self.policy.state_size else self.policy.start(0)
        actions, new_state = self.policy(obs, memory)
        center: Tensor = self.get_buffer("center")
        frame: list[Tensor] = []
        if self.inside:
            last = self.get_buffer("clip_joint_pos").shape[0] - 1
            step = others[0].reshape(-1)
            now, ahead = (place.clamp(0.0, float(last)).long() for place in (step, step + 1.0))
            frame = [self._clip_at(name, now) for name in Clip._fields]
            others = tuple(self._clip_at(name, ahead) for name in self.around)
        if self.around:
            center = others[0].index_select(1, self.get_buffer("motors")) + self._lead(others[1])
        targets = center + self.get_buffer("scale") * actions
        return (actions, *frame, targets, *[new_state] * bool(self.policy.state_size))

    def _lead(self, ahead: Tensor) -> Tensor:
        """[n, motors] rad by which targets are ahead: as given, or by the motors' lag at these velocities."""
        if "motor_lead" in self.around:
            return ahead
        velocity: Tensor = ahead.index_select(1, self.get_buffer("motors"))
        return self.get_buffer("lag") * velocity

    def _clip_at(self, name: str, step: Tensor) -> Tensor:
        return self.get_buffer(f"clip_{name}").index_select(0, step)


def _inputs(tracker: Tracker) -> dict[str, Tensor]:
    """Examples, [16, ...] each."""
    generator = torch.Generator().manual_seed(0)

    def some(size: int) -> Tensor:
        return torch.randn((16, size), generator=generator)

    assert tracker.policy.obs_space.shape is not None
    inputs = {"obs": 3 * some(tracker.policy.obs_space.shape[0])}
    if tracker.clip is not None:
        steps = len(tracker.clip.joint_pos)
        inputs["time_step"] = torch.linspace(-1.0, steps + 3.0, 16)[torch.randperm(16, generator=generator), None]
    else:
        widths = {"motor_lead": len(tracker.body.motors)}
        inputs |= {name: some(widths.get(name, len(tracker.body.joints))) for name in tracker.around}
    if tracker.policy.state_size:
        inputs["state"] = 0.5 * some(tracker.policy.state_size)
    return inputs


def _outputs(tracker: Tracker) -> list[str]:
    frame = Clip._fields if tracker.clip is not None else ()
    return ["actions", *frame, "joint_targets", *["new_state"] * bool(tracker.policy.state_size)]


def export_tracker(tracker: Tracker, metadata: Mapping[str, Any], file: Path) -> float:
    """Write the policy, and beside it the body's model; returns the largest difference to torch."""
    at = file.with_name(f"{file.stem}_body.xml")
    about = facts_of(tracker) | {"model": at.name}
    texts = json_texts({**metadata, "ludus_tracker": about}) | controller_texts(tracker)
    graph = Graph(_Step(tracker), _inputs(tracker), _outputs(tracker), texts, batches=False, opset=OPSET)
    difference = write_checked(graph, file)
    write_model(tracker.body, at)
    return difference


# Metadata -------------------------------------------------------------------------------------------
def json_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in metadata.items()}


def facts_of(tracker: Tracker) -> dict[str, Any]:
    """All that a controller needs, unrounded."""
    body, config = tracker.body, tracker.config
    names = [term["name"] for term in tracker.terms]
    return {
        "body": body.name,
        "control_dt": body.dt,
        "substeps": body.substeps,
        "joint_names": list(body.joints),
        "action_joint_names": [body.joints[i] for i in body.motors],
        "joint_stiffness": _of_joints(body, body.stiffness),
        "joint_damping": _of_joints(body, body.damping),
        "effort": [float(most) if np.isfinite(most) else None for most in body.effort],
        "default_joint_pos": tracker.center.tolist(),
        "actions": config.actions,
        "action_scale": tracker.scale.tolist(),
        "motor_lag": body.lag.tolist(),
        "future": list(config.future),
        "observations": list(tracker.terms),
        "estimated": [name for name in names if name in ESTIMATED],
        "root_body_name": body.bodies[0],
        "anchor_body_name": body.bodies[body.anchor],
        "body_names": list(body.key_names),
        "clip": tracker.about_clip,
    }


def _of_joints(body: Body, of_motors: np.ndarray) -> list[float]:
    """In the order of the joints; 0 of those without a motor."""
    values = np.zeros(len(body.joints))
    values[body.motors] = of_motors
    return [float(value) for value in values]


def controller_texts(tracker: Tracker) -> dict[str, str]:
    """As mjlab's and BeyondMimic's controllers parse it."""
    facts = facts_of(tracker)
    names = [term["name"] for term in tracker.terms]
    numbers = ("joint_stiffness", "joint_damping", "default_joint_pos", "action_scale")
    return {
        "run_path": tracker.run,
        "joint_names": ",".join(facts["joint_names"]),
        "action_joint_names": ",".join(facts["action_joint_names"]),  # the order of actions and action_scale
        "action_mode": facts["actions"],
        **{name: ",".join(f"{value:.3f}" for value in facts[name]) for name in numbers},
        "command_names": "motion",
        "observation_names": ",".join(names),
        "observation_history_lengths": ",".join("1" for _ in names),
        "anchor_body_name": facts["anchor_body_name"],
        "body_names": ",".join(facts["body_names"]),
    }
