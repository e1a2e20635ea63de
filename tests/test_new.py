"""`ludus new`: a folder that trains as it is, of the example's arm or of the user's own model."""

import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

from ludus.envs.mujoco.robot import is_servo, servo_gains, with_servos
from ludus.errors import ConfigError
from ludus.scaffold.writing import write_task
from warm_python import Completed, ludus_command, python_command, run

ARM = """
<mujoco><compiler angle="degree"/>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" range="-120 120" limited="true" damping="0.5"/>
      <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
      <body pos="0 0 -.3">
        <joint name="elbow" axis="0 1 0" range="-150 150" limited="true" damping="0.5"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".02" mass=".5"/>
        <site name="tip" pos="0 0 -.3"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="shoulder" gear="20" ctrlrange="-1 1" ctrllimited="true"/>
    <motor joint="elbow"/>
  </actuator>
  <sensor><jointpos name="angle" joint="elbow"/></sensor>
</mujoco>
"""
FLOATING = ARM.replace(
    '<body name="upper" pos="0 0 1">', '<body pos="0 0 2"><freejoint/><geom size=".1"/><body name="upper">'
)
FLOATING = FLOATING.replace("</body>\n  </worldbody>", "</body></body>\n  </worldbody>")


PYTEST = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider']))"


def ludus(folder: Path, *arguments: str) -> Completed:
    return run(ludus_command(*arguments), cwd=folder)


def assert_style(folder: Path) -> None:
    """What is written is as ruff would write it."""
    for checked in (("check", "--select", "E,F,I,B,UP"), ("format", "--check")):
        line = [sys.executable, "-m", "ruff", *checked, "--isolated", "--line-length", "115", "--no-cache", "."]
        style = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        assert style.returncode == 0, style.stdout


@pytest.mark.parametrize(("flags", "tests"), [((), 2), (("--gym",), 3)], ids=["robot", "gym"])
def test_the_printed_commands_work(flags: tuple[str, ...], tests: int, tmp_path: Path) -> None:
    made = ludus(tmp_path, "new", "my_task", *flags)
    assert made.returncode == 0, made.stderr
    told = [line.split("  ")[1] for line in made.stdout.partition("Next:\n")[2].splitlines()]
    assert told[0] == "cd my_task"
    assert told[3] == "python -m pytest"
    folder = tmp_path / "my_task"
    for line in told[1:3]:
        _, *arguments = line.split()
        short = ["--total-steps", "4096", "--eval.episodes", "2", "--log.no-report"] if "train" in line else []
        done = ludus(folder, *arguments, *short)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = run(python_command(PYTEST), cwd=folder)
    assert tested.returncode == 0, tested.stdout
    assert f"{tests} passed" in tested.stdout
    assert_style(folder)


def test_the_example_learns_to_reach_the_mark(tmp_path: Path) -> None:
    """As it is printed, in about a minute: near 100 % on new starts."""
    assert ludus(tmp_path, "new", "my_task").returncode == 0
    folder = tmp_path / "my_task"
    train = ("train", "vec:my_task:MyTask", "--config", "train.yaml", "--run-dir", "run", "--log.no-report")
    assert ludus(folder, *train).returncode == 0
    measured = ludus(folder, "eval", "run", "--episodes", "100", "--json").stdout
    assert float(measured.partition('"success_rate": ')[2].partition(",")[0]) >= 0.95


@pytest.mark.parametrize(("model", "goal"), [(ARM, "the site 'tip'"), (FLOATING, "the joints take")])
def test_an_own_model_becomes_a_task_without_faults(tmp_path: Path, model: str, goal: str) -> None:
    (tmp_path / "robot").mkdir()
    (tmp_path / "robot" / "robot.xml").write_text(model)
    made = ludus(tmp_path, "new", "robot_task", "--mjcf", "robot/robot.xml")
    assert made.returncode == 0, made.stderr
    assert goal in made.stdout
    assert "joints     shoulder, elbow\n  actuators  shoulder, elbow\n  sensors    angle\n" in made.stdout
    assert "no ctrlrange: elbow" in made.stdout
    folder = tmp_path / "robot_task"
    tests = run(python_command(PYTEST), cwd=folder)
    assert tests.returncode == 0, tests.stdout
    assert_style(folder)


@pytest.mark.parametrize("name", ["my-task", "2fast", "class", "json", "torch", "_", "größe", "a" * 61])
def test_a_name_that_is_no_new_module_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        write_task(name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ConfigError, match="is there already"):
        write_task("mine")
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.parametrize(
    ("model", "site", "sentence"),
    [
        ("<mujoco><worldbody/></mujoco>", "", "has no actuators"),
        ("<mujoco><wordbody/></mujoco>", "", "MuJoCo cannot read"),
        (ARM, "top", "has no site 'top'.* There are tip"),
        (FLOATING, "tip", "cannot be sent to a mark"),
        (
            ARM.replace('name="elbow" axis', "axis").replace('joint="elbow"', 'joint="shoulder"'),
            "tip",
            "cannot be",
        ),
    ],
)
def test_a_model_that_is_no_robot_gets_a_sentence(
    model: str, site: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot.xml").write_text(model)
    with pytest.raises(ConfigError, match=sentence):
        write_task("robot_task", Path("robot.xml"), site)
    assert not (tmp_path / "robot_task").exists()


def test_a_motor_gets_a_servo_as_strong_as_itself_that_goes_to_its_target_and_stays() -> None:
    spec = mujoco.MjSpec.from_string(ARM)
    gains = servo_gains(spec.compile())
    model = with_servos(spec, {"shoulder": gains["shoulder"]})
    assert [is_servo(model, actuator) for actuator in range(2)] == [True, False]  # the other is left as it was
    np.testing.assert_allclose(model.actuator_forcerange[0], (-20, 20))  # gear × ctrlrange of the motor
    np.testing.assert_allclose(model.actuator_ctrlrange[0], np.deg2rad((-120, 120)))
    data = mujoco.MjData(model)
    data.ctrl[0] = 1.0
    mujoco.mj_step(model, data, nstep=round(3 / model.opt.timestep))
    assert abs(data.qpos[0] - 1.0) < 0.1
    assert abs(data.qvel[0]) < 0.05


def test_a_servo_is_no_stronger_than_the_forcerange_of_its_motor() -> None:
    spec = mujoco.MjSpec.from_string(ARM.replace('joint="shoulder"', 'joint="shoulder" forcerange="-0.1 0.1"'))
    model = with_servos(spec, servo_gains(spec.compile()))
    gear = 20.0
    np.testing.assert_allclose(model.actuator_forcerange[0], (-0.1 * gear, 0.1 * gear))
