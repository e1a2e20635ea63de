"""Bodies read from MJCF and TOML files, held to MuJoCo itself; and sentences for what is wrong with them."""

import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from ludus.cli import run_verb
from ludus.envs.bodies import Body, find_body
from ludus.envs.bodies.checks import check_body
from ludus.errors import ConfigError

G1 = pytest.mark.skipif(find_spec("mjlab") is None, reason="the G1's model is in the package mjlab")

# A robot that no code knows: joints off centre, mounted aslant, a slide, angles that are not 0 at the start.
ODD = """
<mujoco model="odd">
  <compiler angle="radian" autolimits="true"/>
  <worldbody>
    <body name="hull" pos="0.1 0.2 0.6">
      <freejoint/>
      <geom name="hull" type="ellipsoid" size="0.2 0.1 0.06" mass="4"/>
      <body name="left_thigh" pos="0.05 0.1 -0.02" quat="0.9 0.1 -0.3 0.2">
        <joint name="left_hip" axis="0.6 0 0.8" pos="0.01 0.02 -0.03" range="-1 1" ref="0.2" armature="0.02"/>
        <geom name="left_thigh" type="capsule" size="0.03 0.1" pos="0 0 -0.1" mass="1"/>
        <body name="left_foot" pos="0 0 -0.25">
          <joint name="left_reach" type="slide" axis="0 0 1" range="-0.1 0.1" armature="0.5"/>
          <joint name="left_ankle" axis="0 1 0" pos="0 0 0.05" range="-0.8 0.8" armature="0.02"/>
          <geom name="left_foot" type="cylinder" size="0.05 0.02" pos="0 0 -0.1" mass="0.5"/>
        </body>
      </body>
      <body name="right_thigh" pos="0.05 -0.1 -0.02">
        <joint name="right_hip" axis="0 1 0" range="-1 1" armature="0.02"/>
        <geom name="right_thigh" type="box" size="0.02 0.03 0.1" pos="0 0 -0.1" mass="1"/>
        <body name="right_foot" pos="0 0 -0.25" euler="0.3 0 0.1">
          <joint name="right_ankle" axis="0 1 0" range="-0.8 0.8" armature="0.02"/>
          <geom name="right_foot" type="sphere" size="0.05" pos="0 0 -0.1" mass="0.5"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
ODD_TOML = """
model = "odd.xml"
control_rate = 40
substeps = 3
feet = ["left_foot", "right_foot"]
[default_pose]
"*_ankle" = 0.1
[simulation]
integrator = "discrete"
[motors]
[[motors.groups]]
joints = ["*_hip"]
effort = 60
[[motors.groups]]
joints = ["*_ankle", "left_reach"]
stiffness = 100
damping = 5
effort = 30
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Puts a body into files of its own; `changes` are replacements in its model and in its file."""

    def written(*changes: tuple[str, str]) -> Path:
        model, settings = ODD, ODD_TOML
        for before, after in changes:
            assert before in model + settings
            model, settings = model.replace(before, after), settings.replace(before, after)
        (tmp_path / "odd.xml").write_text(model)
        (tmp_path / "odd.toml").write_text(settings)
        return tmp_path / "odd.toml"

    return written


def random_poses(body: Body, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low, high = (np.clip(bound, -1, 1) for bound in body.limits)
    root = np.concatenate([rng.normal(size=(count, 3)), rng.normal(size=(count, 4))], axis=1)
    root[:, 3:] /= np.linalg.norm(root[:, 3:], axis=1, keepdims=True)
    return np.concatenate([root, rng.uniform(low, high, (count, len(body.joints)))], axis=1)


# Kinematics -----------------------------------------------------------------------------------------
@pytest.fixture(params=["odd", "humanoid", pytest.param("g1", marks=G1)])
def body(request: pytest.FixtureRequest, write: Callable[..., Path]) -> Body:
    return find_body(str(write()) if request.param == "odd" else request.param)


def test_bodies_are_where_mujoco_has_them(body: Body) -> None:
    data, poses = mujoco.MjData(body.model), random_poses(body, 20)
    parts = map(torch.as_tensor, (poses[:, :3], poses[:, 3:7], poses[:, 7:]))
    places, turns = body.kinematics.forward(*parts)
    own = slice(body.root, body.root + len(body.bodies))
    for pose, place, turn in zip(poses, places.numpy(), turns.numpy(), strict=True):
        data.qpos[:] = pose
        mujoco.mj_kinematics(body.model, data)
        np.testing.assert_allclose(place, data.xpos[own], atol=1e-12)
        same = np.abs((turn * data.xquat[own]).sum(1))
        np.testing.assert_allclose(same, 1, atol=1e-12)


def test_the_lowest_point_is_where_mujoco_finds_the_floor(body: Body) -> None:
    """A pose that is put on the floor by it touches, and a little higher it does not."""
    data, poses = mujoco.MjData(body.model), random_poses(body, 20, seed=1)
    floor = next(i for i in range(body.model.ngeom) if body.model.geom_type[i] == int(mujoco.mjtGeom.mjGEOM_PLANE))
    for pose in poses:
        for height, touches in ((-0.003, True), (0.003, False)):  # m: round shapes are known to 2 mm
            data.qpos[:] = pose
            data.qpos[2] += height - body.kinematics.lowest_point(pose)
            mujoco.mj_forward(body.model, data)
            deepest = min((c.dist for c in data.contact if floor in c.geom), default=1.0)
            assert (deepest < 0) == touches


def test_a_body_is_what_its_files_say(write: Callable[..., Path]) -> None:
    body = find_body(str(write()))
    assert body.name == "odd"
    assert body.bodies == ("hull", "left_thigh", "left_foot", "right_thigh", "right_foot")
    assert body.joints == ("left_hip", "left_reach", "left_ankle", "right_hip", "right_ankle")
    assert (body.substeps, body.dt) == (3, 1 / 40)
    assert body.model.opt.timestep == pytest.approx(1 / 120)
    inertia, turning = 0.02, 2 * math.pi * 10
    np.testing.assert_allclose(body.stiffness, [inertia * turning**2, 100, 100, inertia * turning**2, 100])
    np.testing.assert_allclose(body.damping, [4 * inertia * turning, 5, 5, 4 * inertia * turning, 5])
    np.testing.assert_array_equal(body.effort, [60, 30, 30, 60, 30])
    assert [body.key_names[i] for i in body.end_effectors] == ["left_foot", "right_foot"]
    np.testing.assert_allclose(body.default_qpos[7:], [0.2, 0.0, 0.1, 0.0, 0.1])
    assert body.kinematics.lowest_point(body.default_qpos) == pytest.approx(0, abs=1e-12)
    assert find_body(str(body.file)) is body
    assert find_body(str(write())) is not body  # the file was written anew


def test_a_floor_is_solid_whatever_the_models_defaults_are(write: Callable[..., Path]) -> None:
    defaults = '<default><geom contype="0" conaffinity="0" rgba="1 0 0 1"/></default><worldbody>'
    foot = ('<geom name="right_foot"', '<geom contype="1" name="right_foot"')
    model = find_body(str(write(("<worldbody>", defaults), foot))).model
    floor = model.geom("floor")
    assert int(floor.contype[0]) == int(floor.conaffinity[0]) == 1
    np.testing.assert_allclose(floor.rgba, [0.5, 0.5, 0.5, 1])  # which lets its material show


@G1
def test_the_g1_has_the_gains_that_mjlab_gives_it() -> None:
    """Figures of mjlab 1.6: stiffness, damping, effort, and the angle that an action of 1 adds."""
    body = find_body("g1")
    motors = dict(
        zip(body.joints, np.stack([body.stiffness, body.damping, body.effort, body.action_scale], 1), strict=True)
    )
    known = {
        "left_hip_pitch_joint": (40.2, 2.56, 88, 0.55),
        "right_knee_joint": (99.1, 6.31, 139, 0.35),
        "left_ankle_roll_joint": (28.5, 1.81, 50, 0.44),
        "right_elbow_joint": (14.3, 0.91, 25, 0.44),
        "left_wrist_yaw_joint": (16.8, 1.07, 5, 0.07),
    }
    for joint, expected in known.items():
        np.testing.assert_allclose(motors[joint], expected, rtol=0.08)


# What is wrong --------------------------------------------------------------------------------------
LARGE = '<texture builtin="flat" width="8000" height="8000"/>'
BROKEN = {
    "no free root": ("<freejoint/>", "", "must be free to move: give it a <freejoint/>"),
    "a ball": ('"right_hip" axis="0 1 0" range="-1 1"', '"right_hip" type="ball"', "write it as three hinges"),
    "a joint without a name": ('name="left_reach" ', "", "has no name"),
    "a joint without a motor": ('"*_ankle", "left_reach"]', '"*_ankle"]', "the joints left_reach"),
    "a group for no joint": ('"*_hip"', '"*_knee"', "has '*_knee', which means no joint"),
    "a pattern for no joint": ('"*_hip"', '"*_hip", "*_hap"', "has '*_hap', which means no joint"),
    "a name for a list": ('["left_foot", "right_foot"]', '"left_foot"', 'must be a list: ["left_foot"]'),
    "a number as a text": ("rate = 40", 'rate = "40"', "control_rate is '40'; it must be a number"),
    "a joint in two groups": ('"*_hip"', '"*_hip", "*_ankle"', "left_ankle is in two groups"),
    "no stiffness": ('joints = ["*_hip"]', 'joints = ["*_hip"]\narmature = 0', "nor its joint an armature"),
    "a foot that is not there": ('feet = ["left_foot"', 'feet = ["left_food"', "Did you mean 'left_foot'"),
    "a start outside the range": ('"*_ankle" = 0.1', '"*_ankle" = 1.5', "left_ankle is at 1.5, outside its range"),
    "a pose of no joint": ('"*_ankle" = 0.1', '"*_angle" = 0.1', "which means no joint"),
    "an unknown setting": ("control_rate = 40", "control_rte = 40", "Did you mean 'control_rate'"),
    "a number out of range": ("substeps = 3", "substeps = 0", "substeps is 0; it must be a number from 1 to 1000"),
    "a word for a number": ("substeps = 3", 'substeps = "x"', "substeps is 'x'; it must be a number"),
    "another integrator": ('"discrete"', '"discret"', "Did you mean 'discrete'"),
    "no TOML": ("control_rate = 40", "control_rate 40", "is not TOML"),
    "no XML": ("<worldbody>", "<worldbdy>", "is not XML"),
    "no model": ('model = "odd.xml"', 'model = "even.xml"', "cannot be read: No such file"),
    "no name of a model": ('model = "odd.xml"', "", "does not name its model"),
    "a package that is not there": ("control_rate", 'package = "no_such"\ncontrol_rate', "not installed"),
    "the program itself": ("control_rate", 'package = "__main__"\ncontrol_rate', "not installed"),
    "a name with an end inside": ('model = "odd.xml"', 'model = "a\\u0000b.xml"', "must be a text of at most"),
    "a number without end": ("substeps = 3", f"substeps = {'9' * 5000}", "is not TOML"),
    "another one": ("substeps = 3", f"substeps = 0x{'f' * 6000}", "substeps is a number without end"),
    "a namespace": ("<worldbody>", '<include xmlns="x" file="other.xml"/><worldbody>', "take xmlns out"),
    "no time step": ("<worldbody>", '<option timestep="0"/><worldbody>', "time step is 0 s"),
    "a time that goes back": ("<worldbody>", '<option timestep="-0.002"/><worldbody>', "time step is -0.002 s"),
    "large textures": (
        "<worldbody>",
        f"<asset>{2 * LARGE}</asset><worldbody>",
        "its textures take 3.1 GB",
    ),
    "a geom that is not there": (
        "[motors]", '[[contacts]]\ngeoms = ["left_foot", "rigth_foot"]\n[motors]', "Did you mean 'right_foot'"
    ),
    "a door": (
        "<worldbody>",
        '<worldbody><body><joint name="door"/><geom size="0.1"/></body>',
        "must be free to move",
    ),
    "a door behind": (
        "  </worldbody>",
        '<body pos="9 0 0"><joint name="door"/><geom size="0.1"/></body></worldbody>',
        "door does not hang on the robot",
    ),
    "a package's inside": ("control_rate", 'package = "os.path"\ncontrol_rate', "not installed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_body_is_said(write: Callable[..., Path], name: str) -> None:
    before, after, told = BROKEN[name]
    with pytest.raises(ConfigError) as raised:
        find_body(str(write((before, after))))
    assert told in str(raised.value)


def test_whatever_a_strangers_file_says_is_a_body_or_a_sentence(write: Callable[..., Path]) -> None:
    file, rng = write(), np.random.default_rng(0)
    whole = file.read_text()
    words = [
        "-1",
        "1e400",
        "nan",
        '"x"',
        "[]",
        "{}",
        "true",
        "[[a]]",
        "* ",
        "\x00",
        "\u202e",
        '""',
        "9" * 400,
        "[[motors]]",
    ]
    for _ in range(300):
        text = whole
        for _ in range(int(rng.integers(1, 4))):
            start = int(rng.integers(len(text)))
            text = text[:start] + str(rng.choice(words)) + text[start + int(rng.integers(12)) :]
        file.write_text(text)
        with suppress(ConfigError):
            find_body(str(file))


def test_a_body_that_is_nowhere() -> None:
    with pytest.raises(ConfigError, match=r"There is no body 'humanoyd'. Did you mean 'humanoid'"):
        find_body("humanoyd")
    with pytest.raises(ConfigError, match="There is no file"):
        find_body("nowhere/robot.toml")


def test_torque_motors_need_gains(write: Callable[..., Path]) -> None:
    motor = '<actuator><motor joint="right_hip"/></actuator>\n</mujoco>'
    file = write(("</mujoco>", motor))
    assert len(find_body(str(file)).motors) == 5  # its own file replaces them
    file.unlink()
    with pytest.raises(ConfigError, match=r"is no position motor.*\[\[motors.groups\]\]"):
        find_body(str(file.with_suffix(".xml")))


SERVO = 'joint="right_hip" gainprm="50" biasprm="0 -50 -1"'
NO_SERVOS = {
    "a bias that is not used": f"<general {SERVO} biastype='none'/>",
    "a time constant": '<position joint="right_hip" kp="50" timeconst="0.5"/>',
    "a constant force": f"<general {SERVO.replace('0 -50', '30 -50')} biastype='affine'/>",
}


@pytest.mark.parametrize("name", NO_SERVOS)
def test_motors_that_do_more_or_less_than_pull_to_an_angle_are_refused(
    write: Callable[..., Path], name: str
) -> None:
    file = write(("</mujoco>", f"<actuator>{NO_SERVOS[name]}</actuator></mujoco>"))
    file.unlink()
    with pytest.raises(ConfigError, match=r"is no position motor|has a time constant or a constant force"):
        find_body(str(file.with_suffix(".xml")))


def test_the_weaker_limit_of_a_motor_counts(write: Callable[..., Path]) -> None:
    motors = '<actuator><position joint="right_hip" kp="50" forcerange="-5 99"/></actuator></mujoco>'
    of_joint = ('"right_hip" axis', '"right_hip" actuatorfrcrange="-3 3" axis')
    file = write(("</mujoco>", motors), of_joint)
    assert find_body(str(file)).effort[3] == 60  # its own file replaces both
    assert not find_body(str(file)).model.jnt_actfrclimited.any()
    file.unlink()
    assert find_body(str(file.with_suffix(".xml"))).effort.tolist() == [3.0]
    file = write(("</mujoco>", motors))
    file.unlink()
    assert find_body(str(file.with_suffix(".xml"))).effort.tolist() == [5.0]


def test_a_rate_that_is_asked_for_is_kept(write: Callable[..., Path]) -> None:
    body = find_body(str(write(("control_rate = 40\nsubsteps = 3", "control_rate = 60"))))
    assert (body.substeps, body.dt) == (8, 1 / 60)  # by the model's own step of 2 ms it would be 62.5
    assert body.model.opt.timestep == pytest.approx(1 / 480)


def test_sensors_of_motors_that_are_replaced_go_with_them_and_a_geom_may_be_called_floor(
    write: Callable[..., Path],
) -> None:
    old = (
        '<actuator><motor name="old" joint="right_hip"/></actuator><sensor><actuatorfrc actuator="old"/></sensor>'
    )
    model = find_body(
        str(write(("</mujoco>", f"{old}</mujoco>"), ('name="hull" type', 'name="floor" type')))
    ).model
    assert model.nsensor == 0
    assert model.geom("ludus_floor").type[0] == mujoco.mjtGeom.mjGEOM_PLANE


def test_a_pipe_is_not_waited_for_in_whichever_folder_mujoco_looks(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "other" / "m.stl")
    for folders, name in [
        ('<compiler meshdir="none"/><compiler assetdir="other"/>', "m.stl"),
        ('<compiler meshdir="other" strippath="true"/>', "far/away/m.stl"),
    ]:
        mesh = f'{folders}<asset><mesh name="m" file="{name}"/></asset><worldbody>'
        with pytest.raises(ConfigError, match="is a named pipe"):
            find_body(str(write(("<worldbody>", mesh))))


UNTOUCHED = "contype='0' conaffinity='0'"
SUSPICIOUS = {
    "degrees": ('range="-1 1"', 'range="-57 57"', "error", "look like degrees"),
    "radians": ('angle="radian"', 'angle="degree"', "error", "read as degrees"),
    "heavy": ('mass="4"', 'mass="4000"', "warning", "Are the masses in kg"),
    "no limit of a motor": ("effort = 60", "", "warning", "The motors of left_hip, right_hip have no limit"),
    "no limit of a joint": ('range="-0.1 0.1" ', "", "warning", "No limits have left_reach"),
    "bare feet": ('<geom name="left_foot"', f"<geom {UNTOUCHED} name='left_foot'", "error", "of left_foot"),
    "no feet": ('feet = ["left_foot", "right_foot"]', "", "warning", "No feet are named"),
    "slow": ("control_rate = 40", "control_rate = 5", "warning", "5 control steps a second"),
    "loose": ("damping = 5", "damping = 0", "warning", "are not damped"),
    "no gravity": ('<compiler', '<option gravity="0 0 0"/><compiler', "warning", "Gravity is 0"),
}  # fmt: skip


HUMAN = """
[human]
left_hip = "left_thigh"
left_foot = "left_foot"
right_hip = "right_thigh"
right_foot = "right_foot"
"""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "lie as a human's do"),
        ({'left_foot = "left': 'left_foot = "right', 'right_foot = "right': 'right_foot = "left'}, "left foot"),
        ({'pos="0.1 0.2 0.6"': 'pos="0.1 0.2 0.6" euler="0 0 1.57"'}, "does not lie to the left"),
        ({'left_foot = "left_foot"': 'left_knee = "left_foot"', 'left_hip = "left_t': 'left_foot = "left_t'},
         "one below the other"),
    ],
)  # fmt: skip
def test_parts_of_a_human_lie_as_a_humans_do(
    write: Callable[..., Path], changes: dict[str, str], told: str
) -> None:
    file = write()
    model = file.with_suffix(".xml")
    settings = file.read_text() + HUMAN
    for before, after in changes.items():
        assert before in settings + model.read_text()
        settings = settings.replace(before, after)
        model.write_text(model.read_text().replace(before, after))
    file.write_text(settings)
    _, findings = check_body(str(file))
    assert any(told in finding.what for finding in findings)


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_what_is_suspicious_about_a_body_is_told(write: Callable[..., Path], name: str) -> None:
    before, after, level, told = SUSPICIOUS[name]
    plain = {f.what for f in check_body(str(write()))[1] if f.level != "ok"}
    assert not any(told in what for what in plain)
    findings = check_body(str(write((before, after))))[1]
    assert [f.level for f in findings if told in f"{f.what} {f.fix}"] == [level]


def test_the_command_tells_and_draws(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_verb("body", ["check", str(write()), "--picture", "it.html"])
    assert ended.value.code == 0
    assert "5 bodies, 5 joints, 5 motors, root hull" in capsys.readouterr().out
    assert (tmp_path / "it.html").read_text().startswith("<!doctype html>")
    wrong = write(('"*_ankle" = 0.1', '"*_ankle" = 1.5'))
    with pytest.raises(SystemExit) as ended:
        run_verb("body", ["check", str(wrong), "--json"])
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)[0]["level"] == "error"
    assert not (tmp_path / "odd.png").exists()


def test_a_body_that_touches_nothing_is_refused(write: Callable[..., Path]) -> None:
    """As robots whose shapes are all for looking at: it was put at a height of minus infinity."""
    file = write(("<geom name", '<geom contype="0" conaffinity="0" name'))
    with pytest.raises(ConfigError, match=r"nothing of it touches anything\. Give its geoms contype"):
        find_body(str(file))


def test_a_rule_for_all_geoms_means_those_without_names(write: Callable[..., Path]) -> None:
    file = write(
        ('<geom name="left_foot"', "<geom"),
        ("[motors]\n[[", '[[contacts]]\ngeoms = ["*"]\nfriction = 0.3\n[motors]\n[['),
    )
    body = find_body(str(file))
    own = body.model.geom_bodyid >= body.root
    assert (body.model.geom_friction[own, 0] == 0.3).all()


def test_corners_of_meshes_are_found_some_at_a_time(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of them at thousands of poses do not fit into memory together."""
    body = find_body(str(write()))
    poses = torch.as_tensor(random_poses(body, 12)).view(3, 4, -1)
    places = body.kinematics.forward(poses[..., :3], poses[..., 3:7], poses[..., 7:])
    whole = body.kinematics.lowest_points(*places)
    assert whole.shape == (3, 4, len(body.bodies))
    monkeypatch.setattr("ludus.envs.bodies.kinematics._CORNERS_AT_ONCE", 1_000)
    assert body.kinematics.poses_at_once() < 12
    assert torch.equal(body.kinematics.lowest_points(*places), whole)


def test_a_picture_is_not_drawn_through_a_link(write: Callable[..., Path], tmp_path: Path) -> None:
    from ludus.body_drawing import draw_page

    (tmp_path / "mine").write_text("precious")
    (tmp_path / "page.html").symlink_to(tmp_path / "mine")
    draw_page(find_body(str(write())), tmp_path / "page.html")
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("name", ["~nobody-of-that-name/robot.xml", "x" * 300 + ".xml"])
def test_a_body_by_an_odd_name_is_a_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match="There is no file"):
        find_body(name)
