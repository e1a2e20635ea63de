"""A robot that no code knows imitates motion: examples/quadruped, and one whose motors are not all there."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ludus
from ludus.envs import make_eval_env, make_vec_env
from ludus.envs.abilities import doubts, plan_lines
from ludus.envs.bodies import find_body
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.mimic import MimicTask
from ludus.envs.humanoid.tracking import ANY_DISTANCE, MEAN_DISTANCE, farthest_followed
from ludus.errors import CheckpointError, ConfigError
from ludus.export import export_onnx
from ludus.show.console import Console

EXAMPLE = Path(__file__).parents[1] / "examples" / "quadruped"


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    """A copy of the example, which may be changed."""
    folder = tmp_path / "quadruped"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("trot.csv", "__pycache__"))
    subprocess.run([sys.executable, str(folder / "trot.py")], check=True)
    return folder


def settings(robot: Path, **others: Any) -> HumanoidConfig:
    return HumanoidConfig(body=str(robot / "quadruped.toml"), clips=str(robot / "trot.csv"), **others)


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def test_the_examples_clip_is_what_its_program_writes(robot: Path) -> None:
    assert (robot / "trot.csv").read_text() == (EXAMPLE / "trot.csv").read_text()


def test_it_starts_on_its_clip_and_sees_what_it_should(robot: Path) -> None:
    env = make_vec_env(settings(robot, num_envs=4), 4)
    assert isinstance(env, MimicTask)
    env.reset(seed=0)
    joints, bodies = 12, 13
    assert env.obs_space.shape == (13 + 2 * joints + 3 * (bodies - 1) + 2 + 3 * bodies + 6 + 2 * joints,)
    assert env.action_space.shape == (joints,)
    assert env.action_names == env.body.joints
    reference = env.reference()
    np.testing.assert_allclose(env.sim.field("qpos").numpy(), reference.qpos.numpy(), atol=1e-6)
    np.testing.assert_allclose(
        env.key_places().numpy(), reference.body_pos.numpy(), atol=1e-3
    )  # on a line between frames
    env.close()


def test_motors_that_are_few_and_in_another_order_pull_their_own_joints(robot: Path) -> None:
    """Of a model with actuators of its own: the front hips have none, the others come in any order."""
    names = [f"{end}_{side}_{part}" for end in ("rear", "front") for part in ("knee", "thigh", "hip")
             for side in ("right", "left")][:-2]  # fmt: skip
    motors = "".join(f'<position joint="{name}" kp="60" forcerange="-30 30"/>' for name in names)
    change(robot / "quadruped.xml", "</mujoco>", f"<actuator>{motors}</actuator></mujoco>")
    change(robot / "quadruped.xml", '<joint armature="0.01"/>', '<joint armature="0.01" damping="3"/>')
    whole = (robot / "quadruped.toml").read_text()
    (robot / "quadruped.toml").write_text(whole[: whole.index("[[motors.groups]]")])
    env = make_vec_env(settings(robot, num_envs=4), 4)
    assert isinstance(env, MimicTask)
    env.reset(seed=0)
    assert list(env.action_names) == names
    ahead = env.library.at(env.memory["clip"], env.memory["time"] + env.body.dt)
    action = torch.zeros((4, len(names)))
    action[:, 3] = 1.0
    env.step(action)
    columns = [env.body.joints.index(name) for name in names]
    wanted = ahead.qpos[:, 7:][:, columns] + 0.05 * ahead.qvel[:, 6:][:, columns]
    wanted[:, 3] += 0.5 * 30 / 60
    np.testing.assert_allclose(env.sim.field("ctrl").numpy(), wanted.numpy(), atol=1e-6)
    env.close()


def test_a_robot_that_is_called_as_ours_is_still_another(robot: Path) -> None:
    for file in robot.glob("quadruped.*"):
        file.rename(file.with_stem("humanoid"))
    change(robot / "humanoid.toml", "quadruped.xml", "humanoid.xml")
    config = HumanoidConfig(body=str(robot / "humanoid.toml"), clips=str(robot / "trot.csv"))
    env = make_vec_env(config, 1)
    assert isinstance(env, MimicTask)
    assert len(env.body.joints) == 12
    env.close()
    with pytest.raises(ConfigError, match="No clips of humanoid come with Ludus"):
        make_vec_env(HumanoidConfig(body=str(robot / "humanoid.toml"), clips="all"), 1)


def test_a_low_robot_is_held_to_its_own_height(robot: Path) -> None:
    """On its belly it is not half a metre from where it should stand."""
    env = make_eval_env(settings(robot), 1)
    assert isinstance(env, MimicTask)
    height = float(env.body.default_qpos[2])
    assert height < 0.4
    assert farthest_followed(env.body) == (height / 2, height / 4)
    env.reset(0)
    off = torch.full((env.num_rows, len(env.body.key)), 0.49 * height)
    assert env._is_lost(off).tolist() == [False]
    assert env._is_lost(off + 0.02 * height).tolist() == [True]
    env.close()
    assert farthest_followed(find_body("humanoid")) == (MEAN_DISTANCE, ANY_DISTANCE)


def test_the_plan_says_what_is_imitated_and_what_is_wrong_with_it(robot: Path) -> None:
    env = make_vec_env(settings(robot, num_envs=2), 2)
    (line,) = plan_lines(env)
    assert re.fullmatch(r"quadruped; a clip, [\d.]+ s: trot", line)
    assert doubts(env) == ()
    env.close()
    shutil.copy(robot / "trot.csv", robot / "\x1b[31mtrot.csv")
    strange = make_vec_env(replace(settings(robot), clips=str(robot / "\x1b[31mtrot.csv")), 2)
    assert "�[31mtrot" in plan_lines(strange)[0]  # a file's name does not steer the terminal
    strange.close()
    names, *rows = (robot / "trot.csv").read_text().splitlines()
    columns = names.split(",")
    turned = [columns.index(name) for name in columns if name.endswith(("_hip", "_thigh", "_knee"))]
    table = np.array([[float(value) for value in row.split(",")] for row in rows])
    table[:, turned] = np.degrees(table[:, turned])
    np.savetxt(robot / "trot.csv", table, delimiter=",", header=names, comments="")
    wrong = make_vec_env(settings(robot, num_envs=2), 2)
    (doubt,) = doubts(wrong)
    assert "the angles look like degrees" in doubt
    wrong.close()


def test_its_state_is_exact(robot: Path) -> None:
    env, other = (make_vec_env(settings(robot, num_envs=3, max_steps=20), 3) for _ in range(2))
    actions = torch.rand((60, 3, 12), generator=torch.Generator().manual_seed(0)) - 0.5
    env.reset(seed=0)
    other.reset(seed=1)
    for action in actions[:30]:
        env.step(action)
    other.load_state(env.state())
    for action in actions[30:]:
        one, two = env.step(action), other.step(action)
        torch.testing.assert_close(one.obs, two.obs, rtol=0, atol=0)
        torch.testing.assert_close(one.reward, two.reward, rtol=0, atol=0)
    env.close()
    other.close()


def test_a_body_that_has_changed_is_told_on_resume(robot: Path, tmp_path: Path) -> None:
    small = {
        "env": {"body": str(robot / "quadruped.toml"), "clips": str(robot / "trot.csv"), "num_envs": 4},
        "ppo": {"horizon": 8, "minibatches": 2},
        "groups": 1,
        "loop": {"total_steps": 64},
        "eval": {"every": 1000},
    }
    run = ludus.train("mimic", tmp_path / "run", console=Console("quiet"), overrides=small)
    change(robot / "quadruped.toml", "effort = 30", "effort = 20")
    with pytest.raises(CheckpointError, match="its effort, action_scale changed"):
        ludus.resume(run.path, console=Console("quiet"), overrides={"loop.total_steps": 128})
    for use in (lambda: run.evaluate(), lambda: export_onnx(run.path, tmp_path / "x.onnx")):
        with pytest.raises(CheckpointError, match="its effort, action_scale changed"):
            use()
    change(robot / "quadruped.toml", "effort = 20", "effort = 30")
    assert run.evaluate()["episodes"] == 1


@pytest.mark.slow
def test_it_learns_to_trot(robot: Path, tmp_path: Path) -> None:
    """With no line of the package changed: 5 s of a trot, from its start to its end."""
    overrides = {
        "env": {"body": str(robot / "quadruped.toml"), "clips": str(robot / "trot.csv")},
        "loop": {"total_steps": 200_000},
        "eval": {"every": 50_000},
    }
    run = ludus.train("mimic", tmp_path / "run", console=Console("quiet"), overrides=overrides)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    errors = [line["eval/mpjpe"] for line in lines if "eval/mpjpe" in line]
    untrained = unmoved_error(robot)
    assert min(errors) < 60  # mm; with actions of 0 it is far off after 5 s
    assert untrained > 2 * min(errors)


def unmoved_error(robot: Path) -> float:
    """mm, of actions of 0: the motors pull to the reference, but nothing corrects where it gets to."""
    env = make_eval_env(settings(robot), 1)
    env.reset(seed=0)
    for _ in range(1_000):
        step = env.step(torch.zeros((env.num_rows, 12)))
        if bool(step.done[0]):
            break
    env.close()
    return float(step.metrics["mpjpe"][0])
