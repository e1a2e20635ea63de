"""Follow a clip with an exported policy: onnxruntime, MuJoCo and NumPy, and nothing of Ludus.

    ludus export runs/humanoid-mimic/20260101-120000-0 walk.onnx       # also writes walk_body.xml
    python examples/track_with_onnx.py walk.onnx --starts 20 --seconds 10

The ONNX file says in its metadata what is observed, in which order, and how often; the clip lies inside. A robot's
controller does the same with its sensors in place of `Body`: see what it observes, run the network, and let the
motors pull to `joint_targets`. What must be estimated on a robot (its place and speed) is listed as "estimated".
"""

import argparse
import json
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnxruntime

Array = np.ndarray
Frame = dict[str, Array]  # of a clip: joint_pos, body_pos_w, …
LOST = 0.5  # m: the clip is lost where the bodies are farther from it than this on average


# Rotations: quaternions [4], w first  ---------------------------------------------------------------
def conjugate(q: Array) -> Array:
    return q * np.array([1.0, -1.0, -1.0, -1.0])


def multiply(a: Array, b: Array) -> Array:
    real = a[0] * b[0] - a[1:] @ b[1:]
    return np.concatenate([[real], a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])])


def rotate(q: Array, v: Array) -> Array:
    """Vectors [..., 3], turned."""
    t = 2 * np.cross(q[1:], v)
    return v + q[0] * t + np.cross(q[1:], t)


def heading(q: Array) -> Array:
    """The part of a rotation that turns about the vertical."""
    w, x, y, z = q
    half = 0.5 * np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return np.array([np.cos(half), 0.0, 0.0, np.sin(half)])


def two_axes(q: Array) -> Array:
    """[6] where the x and z axes point."""
    return np.concatenate([rotate(q, np.array([1.0, 0.0, 0.0])), rotate(q, np.array([0.0, 0.0, 1.0]))])


# The exported policy ------------------------------------------------------------------------------------
class Policy:
    def __init__(self, file: Path) -> None:
        self.session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["ludus_tracker"])
        if self.about["clip"] is None:
            raise SystemExit(f"{file} takes the clip as an input: export with one inside, --clip NAME.")
        self.sizes = {value.name: value.shape for value in self.session.get_inputs()}
        self.forget()
        nothing = np.zeros(self.sizes["obs"], np.float32)
        steps = [self.run(nothing, step) for step in range(self.about["clip"]["steps"])]
        self.clip = {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
        self.forget()

    def forget(self) -> None:
        """An episode begins: some policies have a memory."""
        self.state = np.zeros(self.sizes["state"], np.float32) if "state" in self.sizes else None

    def run(self, obs: Array, step: int) -> Frame:
        inputs = {"obs": obs.reshape(1, -1), "time_step": np.full((1, 1), step, np.float32)}
        if self.state is not None:
            inputs["state"] = self.state
        names = [value.name for value in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(None, inputs), strict=True))
        self.state = outputs.pop("new_state", None)
        return outputs

    def frame(self, step: int) -> Frame:
        """The clip at a control step; after its end it stands still."""
        return {name: values[min(step, len(values) - 1)].astype(np.float64) for name, values in self.clip.items()}


# The robot ----------------------------------------------------------------------------------------------
class Body:
    """A simulated robot that starts on the clip and sees what the policy was trained to see."""

    def __init__(self, model: mujoco.MjModel, policy: Policy, start: int) -> None:
        self.model, self.policy, self.about, self.step = model, policy, policy.about, start
        self.data = mujoco.MjData(model)
        self.bodies = [model.body(name).id for name in self.about["body_names"]]
        self.actions = np.zeros((2, model.nu), np.float32)  # the newest and the one before
        first = policy.frame(start)
        root = first["body_quat_w"][0]
        turning = rotate(conjugate(root), first["body_ang_vel_w"][0])  # MuJoCo has it in the root's own frame
        self.data.qpos[:] = np.concatenate([first["body_pos_w"][0], root, first["joint_pos"]])
        self.data.qvel[:] = np.concatenate([first["body_lin_vel_w"][0], turning, first["joint_vel"]])
        mujoco.mj_forward(model, self.data)

    def places(self) -> Array:
        """[bodies, 3]"""
        return self.data.xpos[self.bodies]

    def distance(self) -> float:
        """m to the clip, the mean of all bodies."""
        apart = self.places() - self.policy.frame(self.step)["body_pos_w"]
        return float(np.linalg.norm(apart, axis=1).mean())

    def observe(self) -> Array:
        """The terms that the policy names, side by side."""
        terms = self.feel() | {"phase": self.phase(), "last_actions": self.actions.ravel()}
        terms["reference"] = np.concatenate([self.coming(steps, True) for steps in self.about["future"]])
        terms["reference_pose"] = np.concatenate([self.coming(steps, False) for steps in self.about["future"]])
        wanted = self.about["observations"]
        return np.concatenate([term["factor"] * terms[term["name"]] for term in wanted]).astype(np.float32)

    def feel(self) -> Frame:
        """The own body, whatever its place and heading."""
        qpos, qvel = self.data.qpos, self.data.qvel
        back = conjugate(heading(qpos[3:7]))
        lean = multiply(back, qpos[3:7])
        return {
            "height": qpos[2:3],
            "lean": two_axes(lean),
            "velocity": rotate(back, qvel[:3]),
            "turning": rotate(lean, qvel[3:6]),
            "joints": qpos[7:],
            "joint_velocity": qvel[6:],
            "bodies": rotate(back, self.places() - self.places()[0])[1:].ravel(),
        }

    def phase(self) -> Array:
        """How far the clip has come: once round for a cycle of a loop, half round for other clips."""
        clip = self.about["clip"]
        angle = self.step * self.about["control_dt"] * np.pi * (2 if clip["loop"] else 1) / clip["seconds"]
        return np.array([np.sin(angle), np.cos(angle)])

    def coming(self, steps: int, places: bool) -> Array:
        """The clip so many steps ahead, as seen from here."""
        ahead, qpos = self.policy.frame(self.step + steps), self.data.qpos
        offset = rotate(conjugate(heading(qpos[3:7])), ahead["body_pos_w"] - self.places())
        turn = two_axes(multiply(conjugate(qpos[3:7]), ahead["body_quat_w"][0]))
        pose = [turn, ahead["joint_pos"] - qpos[7:], ahead["joint_vel"]]
        return np.concatenate([offset.ravel(), *pose] if places else pose)

    def act(self, outputs: Frame) -> None:
        """Let the motors pull to their targets for one control step."""
        self.actions = np.stack([outputs["actions"][0], self.actions[0]])
        self.data.ctrl[:] = outputs["joint_targets"][0]
        mujoco.mj_step(self.model, self.data, self.about["substeps"])
        mujoco.mj_kinematics(self.model, self.data)  # places of the newest pose
        self.step += 1


def load_model(file: Path, about: dict[str, Any]) -> mujoco.MjModel:
    model = (mujoco.MjModel.from_binary_path if file.suffix == ".mjb" else mujoco.MjModel.from_xml_path)(str(file))
    model.opt.timestep = about["control_dt"] / about["substeps"]  # XML has rounded it
    return model


def follow(body: Body, policy: Policy, steps: int, record: list[tuple[Any, ...]]) -> tuple[int, float, bool]:
    """(steps until the clip was lost, the mean distance to it in metres until then, whether it was kept)"""
    distances: list[float] = []
    policy.forget()
    for _ in range(steps):
        obs, qpos, qvel = body.observe(), body.data.qpos.copy(), body.data.qvel.copy()
        outputs = policy.run(obs, body.step)
        record.append((body.step, obs, outputs["actions"][0], outputs["joint_targets"][0], qpos, qvel))
        body.act(outputs)
        distances.append(body.distance())
        if not distances[-1] <= LOST:
            break
    return len(distances), float(np.mean(distances)), distances[-1] <= LOST


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow a clip with an exported policy in plain MuJoCo.")
    parser.add_argument("policy", type=Path, help="the ONNX file that 'ludus export' wrote")
    parser.add_argument("--model", type=Path, help="of the body (.xml, .mjb); by default the one beside it")
    parser.add_argument("--starts", type=int, default=1, help="spread over a cycle of a looping clip; else one")
    parser.add_argument("--seconds", type=float, default=10.0, help="to follow from each; at most the whole clip")
    parser.add_argument("--record", type=Path, help="where to keep what was seen and done (.npz)")
    arguments = parser.parse_args()
    policy = Policy(arguments.policy)
    about, clip = policy.about, policy.about["clip"]
    model = load_model(arguments.model or arguments.policy.with_name(about["model"]), about)
    cycle = round(clip["seconds"] / about["control_dt"])
    starts = [round(i * cycle / arguments.starts) for i in range(arguments.starts)] if clip["loop"] else [0]
    record: list[tuple[Any, ...]] = []
    results: list[tuple[float, float, bool]] = []
    for start in starts:
        steps = min(round(arguments.seconds / about["control_dt"]), clip["steps"] - 1 - start)
        done, error, kept = follow(Body(model, policy, start), policy, steps, record)
        results.append((done / steps, error, kept))
        seconds = done * about["control_dt"]
        print(f"from step {start}: {'followed' if kept else 'lost after'} {seconds:.1f} s, {1000 * error:.0f} mm")
    share, error, number = np.mean(results, axis=0) * [100, 1000, len(results)]
    print(
        f"{clip['name']}: {number:.0f} of {len(results)} starts followed, {share:.1f} % of the time, "
        f"mean distance of the bodies {error:.1f} mm"
    )
    if arguments.record:
        names = ("step", "obs", "actions", "joint_targets", "qpos", "qvel")
        columns = zip(*record, strict=True)
        np.savez(arguments.record, **{name: np.array(c) for name, c in zip(names, columns, strict=True)})


if __name__ == "__main__":
    main()
