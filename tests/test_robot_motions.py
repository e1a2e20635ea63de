"""Motions made for a robot itself: tables, npz files of trackers, GMR's pickles."""

import os
import pickle
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus.cli import run_verb
from ludus.envs.bodies import Body, find_body
from ludus.envs.bodies.rotations import about_axis
from ludus.envs.humanoid.checks import check_motion
from ludus.envs.humanoid.clip import Clip, load_clip, save_clip
from ludus.envs.humanoid.importing import import_motion
from ludus.envs.humanoid.importing.robot import orders_of
from ludus.envs.humanoid.importing.table import ROOT
from ludus.errors import ConfigError, DataError, LudusError

# A quadruped with two joints a leg: it walks by rolling its legs forward, two by two.
LEG = """
<body name="{name}_thigh" pos="{x} {y} 0">
  <joint name="{name}_hip" axis="0 1 0" range="-1.2 1.2" armature="0.01"/>
  <geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.2" mass="0.4"/>
  <body name="{name}_shin" pos="0 0 -0.2">
    <joint name="{name}_knee" axis="0 1 0" range="-2 0.5" armature="0.01"/>
    <geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.2" mass="0.3"/>
  </body>
</body>"""
LEGS = {"fl": (0.2, 0.1), "fr": (0.2, -0.1), "rl": (-0.2, 0.1), "rr": (-0.2, -0.1)}
DOG = f"""<mujoco><compiler autolimits="true" angle="radian"/><worldbody><body name="trunk" pos="0 0 0.42">
<freejoint/><geom type="box" size="0.25 0.08 0.05" mass="5"/>
{"".join(LEG.format(name=name, x=x, y=y) for name, (x, y) in LEGS.items())}
</body></worldbody></mujoco>"""
DOG_TOML = """model = "dog.xml"
control_rate = 50
substeps = 2
feet = ["fl_shin", "fr_shin", "rl_shin", "rr_shin"]
[simulation]
integrator = "discrete"
[motors]
[[motors.groups]]
joints = ["*"]
stiffness = 60
damping = 3
effort = 40
"""
FPS, FRAMES = 50.0, 100


@pytest.fixture
def dog(tmp_path: Path) -> Body:
    (tmp_path / "dog.xml").write_text(DOG)
    (tmp_path / "dog.toml").write_text(DOG_TOML)
    return find_body(str(tmp_path / "dog.toml"))


def walk(body: Body, yaw: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Root and joints of a trot along its heading, stance feet where they are."""
    times, speed = np.arange(FRAMES) / FPS, 0.95
    joints = np.zeros((FRAMES, len(body.joints)))
    for number, name in enumerate(body.joints):
        phase = 2 * np.pi * (times * 2 + (0.5 if name[:2] in ("fl", "rr") else 0.0))
        swing = np.maximum(np.sin(phase), 0)
        joints[:, number] = 0.3 * np.cos(phase) + 0.3 * swing if name.endswith("hip") else -0.9 * swing
    way = speed * times
    root = np.stack([way * np.cos(yaw), way * np.sin(yaw), np.full(FRAMES, 0.40)], axis=1)
    quat = about_axis(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), torch.tensor(yaw, dtype=torch.float64))
    return root, np.tile(quat.numpy(), (FRAMES, 1)), joints


def table(path: Path, *parts: np.ndarray, names: tuple[str, ...] = ()) -> Path:
    rows = np.concatenate(parts, axis=1)
    np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="")
    return path


def nearly_same(clip: Clip, root: np.ndarray, quat: np.ndarray, joints: np.ndarray) -> None:
    """All but the height, which importing puts on the floor."""
    np.testing.assert_allclose(clip.root_pos[:, :2], root[:, :2], atol=1e-6)
    np.testing.assert_allclose(np.abs((clip.root_quat * quat).sum(1)), 1, atol=1e-6)
    np.testing.assert_allclose(clip.joint_pos, joints, atol=1e-6)
    lowest = clip.body.kinematics.lowest_points(*clip.bodies()).amin(-1)
    assert float(lowest.min()) > -0.01


# Tables ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["wxyz", "xyzw"])
@pytest.mark.parametrize("yaw", [0.0, 0.8, 2.0, 2.8])
def test_where_w_stands_is_told_by_what_it_leads_to(dog: Body, tmp_path: Path, order: str, yaw: float) -> None:
    """Also near half a turn, where both readings stand upright, but in one of them the feet slide."""
    root, quat, joints = walk(dog, yaw)
    written = quat if order == "wxyz" else quat[:, [1, 2, 3, 0]]
    (clip,) = import_motion(table(tmp_path / "walk.csv", root, written, joints), body=dog)
    assert clip.fps == 30.0  # what tables have that do not say
    nearly_same(clip, root, quat, joints)


def test_a_table_that_leaves_it_open_is_refused_and_can_be_told(dog: Body, tmp_path: Path) -> None:
    root, quat, joints = walk(dog, np.pi - 0.2)
    file = table(tmp_path / "stand.csv", np.tile(root[:1], (FRAMES, 1)), quat, np.tile(joints[:1], (FRAMES, 1)))
    with pytest.raises(DataError, match="--quaternion wxyz"):
        import_motion(file, body=dog)
    (clip,) = import_motion(file, body=dog, quaternion="wxyz")
    np.testing.assert_allclose(np.abs((clip.root_quat * quat).sum(1)), 1, atol=1e-6)


def test_a_robot_on_its_head_is_never_silent(dog: Body, tmp_path: Path) -> None:
    root, quat, joints = walk(dog)
    file = table(tmp_path / "walk.csv", root, quat, joints)
    with pytest.raises(DataError, match="stands on its head"):
        import_motion(file, body=dog, quaternion="xyzw")


def test_columns_with_names_come_in_any_order(dog: Body, tmp_path: Path) -> None:
    root, quat, joints = walk(dog, 0.3)
    names = ("time", *ROOT, *dog.joints)
    columns = np.concatenate([np.arange(FRAMES)[:, None] / FPS, root, quat, joints], axis=1)
    mixed = np.random.default_rng(0).permutation(len(names))
    file = table(tmp_path / "walk.csv", columns[:, mixed], names=tuple(names[i] for i in mixed))
    (clip,) = import_motion(file, body=dog, loop=False)
    assert clip.fps == pytest.approx(FPS)
    nearly_same(clip, root, quat, joints)


def test_columns_with_names_and_no_time_need_a_rate(dog: Body, tmp_path: Path) -> None:
    file = table(tmp_path / "walk.csv", *walk(dog), names=(*ROOT, *dog.joints))
    with pytest.raises(DataError, match=r"does not say its rate: add a column 'time' in seconds, .* --fps"):
        import_motion(file, body=dog)
    assert import_motion(file, body=dog, fps=50.0)[0].fps == 50.0


# Trackers -------------------------------------------------------------------------------------------
def tracker_arrays(body: Body, order: str) -> dict[str, np.ndarray]:
    """As BeyondMimic and mjlab write them: all bodies, no names, the joints by limbs or by levels."""
    root, quat, joints = walk(body, 0.3)
    places, turns = body.kinematics.forward(*map(torch.as_tensor, (root, quat, joints)))
    of_joints, of_bodies = (np.argsort(part) for part in orders_of(body)[order])
    return {
        "fps": np.array([FPS]),
        "joint_pos": joints[:, of_joints],
        "joint_vel": np.gradient(joints, 1 / FPS, axis=0)[:, of_joints],
        "body_pos_w": places.numpy()[:, of_bodies],
        "body_quat_w": turns.numpy()[:, of_bodies],
    }


@pytest.mark.parametrize("order", ["MuJoCo", "Isaac"])
def test_a_trackers_file_without_names_tells_its_order(dog: Body, tmp_path: Path, order: str) -> None:
    np.savez(tmp_path / "motion.npz", **tracker_arrays(dog, order))  # type: ignore[arg-type]
    (clip,) = import_motion(tmp_path / "motion.npz", body=dog)
    assert clip.fps == FPS
    nearly_same(clip, *walk(dog, 0.3))


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("told", ["", "xyzw"])
def test_a_trackers_rotations_with_w_last_are_known_by_where_its_bodies_are(
    dog: Body, tmp_path: Path, named: bool, told: str
) -> None:
    arrays = tracker_arrays(dog, "MuJoCo")
    arrays["body_quat_w"] = arrays["body_quat_w"][..., [1, 2, 3, 0]]
    if named:
        arrays |= {"joint_names": np.array(dog.joints, "S"), "body_names": np.array(dog.bodies, "S")}
    np.savez(tmp_path / "motion.npz", **arrays)  # type: ignore[arg-type]
    (clip,) = import_motion(tmp_path / "motion.npz", body=dog, quaternion=told)
    nearly_same(clip, *walk(dog, 0.3))
    with pytest.raises(DataError, match="or are its quaternions not wxyz"):
        import_motion(tmp_path / "motion.npz", body=dog, quaternion="wxyz")


def test_an_order_that_the_bodies_cannot_tell_is_refused(dog: Body, tmp_path: Path) -> None:
    arrays = tracker_arrays(dog, "Isaac") | {"body_names": np.array(dog.bodies[:1])}
    np.savez(tmp_path / "motion.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="too few to find their order: add joint_names"):
        import_motion(tmp_path / "motion.npz", body=dog)
    # Where the joints have names, w is told as in a table.
    arrays = tracker_arrays(dog, "MuJoCo") | {"body_names": np.array(dog.bodies[:1])}
    arrays |= {"joint_names": np.array(dog.joints), "body_quat_w": arrays["body_quat_w"][..., [1, 2, 3, 0]]}
    np.savez(tmp_path / "motion.npz", **arrays)  # type: ignore[arg-type]
    (clip,) = import_motion(tmp_path / "motion.npz", body=dog)
    nearly_same(clip, *walk(dog, 0.3))


def test_a_rate_that_is_given_stands_in_for_one_that_is_missing(dog: Body, tmp_path: Path) -> None:
    arrays = tracker_arrays(dog, "MuJoCo")
    del arrays["fps"]
    np.savez(tmp_path / "motion.npz", **arrays)  # type: ignore[arg-type]
    assert import_motion(tmp_path / "motion.npz", body=dog, fps=25)[0].fps == 25
    with pytest.raises(DataError, match="--body"):  # which is what is missing, not the rate
        import_motion(tmp_path / "motion.npz", fps=25)


KNOWN_JOINTS = [f"{name}_{joint}" for name in LEGS for joint in ("hip", "knee")]
ODD_ARRAYS: dict[str, dict[str, Any]] = {
    "no rate": {"fps": np.zeros(0)},
    "a rate of words": {"fps": np.array("fast")},
    "joints of words": {"joint_pos": np.full((FRAMES, 8), "x")},
    "no bodies": {"body_pos_w": np.zeros((FRAMES, 0, 3))},
    "flat places": {"body_pos_w": np.zeros((FRAMES, 9, 2))},
    "short rotations": {"body_quat_w": np.zeros((FRAMES, 9, 3))},
    "not a number in a far body": {"body_pos_w": np.full((FRAMES, 9, 3), np.nan)},
    "more names than joints": {
        "joint_names": np.array([*(f"{e}_{j}" for e in LEGS for j in ("hip", "knee")), "tail"])
    },
    "more names than bodies": {"body_names": np.array(["trunk", *"abcdefghi"])},
}


@pytest.mark.parametrize("name", ODD_ARRAYS)
def test_odd_arrays_of_a_tracker_are_a_sentence(dog: Body, tmp_path: Path, name: str) -> None:
    arrays = tracker_arrays(dog, "MuJoCo") | ODD_ARRAYS[name]
    np.savez(tmp_path / "motion.npz", **arrays)
    with pytest.raises(DataError, match=r"motion\.npz"):
        import_motion(tmp_path / "motion.npz", body=dog)


def test_times_in_milliseconds_are_even_and_a_given_rate_goes_before_them(dog: Body, tmp_path: Path) -> None:
    names = ("time", *ROOT, *dog.joints)
    for rate in (30, 60):
        times = np.round(np.arange(FRAMES) / rate, 3)[:, None]
        path = table(tmp_path / f"{rate}.csv", times, *walk(dog), names=names)
        assert import_motion(path, body=dog)[0].fps == rate
        since_1970 = 1.7e9 + np.arange(FRAMES)[:, None] / rate
        path = tmp_path / f"unix-{rate}.csv"
        np.savetxt(path, np.hstack([since_1970, *walk(dog)]), delimiter=",", header=",".join(names), comments="")
        assert import_motion(path, body=dog)[0].fps == pytest.approx(rate, abs=1e-3)
    uneven = np.cumsum(np.random.default_rng(0).uniform(0.01, 0.03, FRAMES))[:, None]
    path = table(tmp_path / "uneven.csv", uneven, *walk(dog), names=names)
    with pytest.raises(DataError, match=r"not evenly spaced; .*--fps"):
        import_motion(path, body=dog)
    assert import_motion(path, body=dog, fps=50)[0].fps == 50
    with pytest.raises(ConfigError, match="--fps is 0; it must be from 1 to 1000"):
        import_motion(path, body=dog, fps=0)


def test_joints_by_levels_are_those_of_isaac() -> None:
    if find_spec("mjlab") is None:
        pytest.skip("the G1's model is in the package mjlab")
    body = find_body("g1")
    joints, _ = orders_of(body)["Isaac"]
    by_level = [body.joints[joints.index(place)] for place in range(len(joints))]
    assert by_level[:6] == [
        "left_hip_pitch_joint", "right_hip_pitch_joint", "waist_yaw_joint", "left_hip_roll_joint",
        "right_hip_roll_joint", "waist_roll_joint",
    ]  # fmt: skip
    assert by_level[9:13] == [
        "left_knee_joint", "right_knee_joint", "left_shoulder_pitch_joint", "right_shoulder_pitch_joint",
    ]  # fmt: skip


def test_a_trackers_file_of_another_robot_is_refused(dog: Body, tmp_path: Path) -> None:
    arrays = tracker_arrays(dog, "MuJoCo")
    arrays["body_pos_w"] = arrays["body_pos_w"] * 1.5
    np.savez(tmp_path / "motion.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="cm or more from where it says"):
        import_motion(tmp_path / "motion.npz", body=dog)
    with pytest.raises(DataError, match="--body g1"):
        import_motion(tmp_path / "motion.npz")


def test_holosomas_file_begins_with_the_root_and_names_its_joints(dog: Body, tmp_path: Path) -> None:
    root, quat, joints = walk(dog, 2.9)
    mixed = np.random.default_rng(0).permutation(len(dog.joints))
    names = np.array([dog.joints[i] for i in mixed])
    np.savez(
        tmp_path / "motion.npz",
        fps=np.array([50]),
        joint_pos=np.concatenate([root, quat, joints[:, mixed]], axis=1),
        joint_names=names,
    )
    (clip,) = import_motion(tmp_path / "motion.npz", body=dog)
    nearly_same(clip, root, quat, joints)


# GMR ------------------------------------------------------------------------------------------------
def gmr(body: Body) -> dict[str, Any]:
    root, quat, joints = walk(body, 2.9)
    xyzw = quat[:, [1, 2, 3, 0]]
    return {
        "fps": 50, "root_pos": root, "root_rot": xyzw, "dof_pos": joints, "local_body_pos": None,
        "link_body_list": list(body.bodies),
    }  # fmt: skip


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_gmrs_pickle_is_read(dog: Body, tmp_path: Path, protocol: int) -> None:
    (tmp_path / "walk.pkl").write_bytes(pickle.dumps(gmr(dog), protocol))
    (clip,) = import_motion(tmp_path / "walk.pkl", body=dog)
    nearly_same(clip, *walk(dog, 2.9))


class Hostile:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(Path("owned").absolute()),)


def test_nothing_in_a_pickle_runs(dog: Body, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "walk.pkl").write_bytes(pickle.dumps(gmr(dog) | {"extra": Hostile()}))
    with pytest.raises(DataError, match="Refused, and nothing was run"):
        import_motion(tmp_path / "walk.pkl", body=dog)
    assert not (tmp_path / "owned").exists()


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no rate": lambda v: v.pop("fps"),
    "a list": lambda v: v.update(root_pos=[[1.0]]),
    "other joints": lambda v: v.update(dof_pos=v["dof_pos"][:, 1:]),
    "no frames": lambda v: v.update(dof_pos=v["dof_pos"][:0]),
    "not a number": lambda v: v["dof_pos"].__setitem__((3, 2), np.nan),
    "other frames": lambda v: v.update(root_rot=v["root_rot"][1:]),
    "no rotation": lambda v: v.update(root_rot=0 * v["root_rot"]),
    "far": lambda v: v.update(root_pos=1e9 * v["root_pos"]),
    "rate": lambda v: v.update(fps=1e9),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_motion_is_said(dog: Body, tmp_path: Path, name: str) -> None:
    content = gmr(dog)
    WRONG[name](content)
    (tmp_path / "walk.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=r"walk\.pkl"):
        import_motion(tmp_path / "walk.pkl", body=dog)


# Clips of a body ------------------------------------------------------------------------------------
def test_a_clip_keeps_its_body(dog: Body, tmp_path: Path) -> None:
    (tmp_path / "walk.pkl").write_bytes(pickle.dumps(gmr(dog)))
    (clip,) = import_motion(tmp_path / "walk.pkl", body=dog)
    save_clip(clip, tmp_path / "walk.npz")
    assert load_clip(tmp_path / "walk.npz", dog).body is dog
    with pytest.raises(DataError, match="is of the body dog, which does not come with Ludus"):
        load_clip(tmp_path / "walk.npz")
    with pytest.raises(DataError, match="of another body than humanoid"):
        load_clip(tmp_path / "walk.npz", find_body("humanoid"))


def test_the_commands_take_a_body(
    dog: Body, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trot.pkl").write_bytes(pickle.dumps(gmr(dog)))
    run_verb("motions", ["import", "trot.pkl", "--body", "dog.toml", "--loop"])
    assert "motions/trot.npz: 1.98 s, 50 fps, loop" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        run_verb("motions", ["check", "trot", "--body", "dog.toml"])
    assert "The motors can follow" in capsys.readouterr().out
    assert ended.value.code in (0, 1)
    run_verb("motions", ["list"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("trot"))
    assert line.split()[:2] == ["trot", "dog"]
    run_verb("motions", ["view", "trot", "--body", "dog.toml", "--html", "trot.html"])
    assert (tmp_path / "trot.html").stat().st_size > 10_000
    with pytest.raises(LudusError, match="is a clip already"):
        run_verb("motions", ["import", "motions/trot.npz", "--body", "dog.toml", "--name", "other"])


KIMODO = sorted((Path(__file__).parents[2] / "shared" / "motions" / "g1_kimodo").glob("*.csv"))


@pytest.mark.skipif(not KIMODO, reason="the clips of the G1 are not here")
@pytest.mark.skipif(find_spec("mjlab") is None, reason="the G1's model is in the package mjlab")
@pytest.mark.parametrize("path", KIMODO, ids=lambda path: path.stem)
def test_real_clips_of_the_g1_are_sound(path: Path, tmp_path: Path) -> None:
    """In both readings of the quaternion: the files are w first, those of others are not."""
    body = find_body("g1")
    (clip,) = import_motion(path, body=body)
    assert not [finding for finding in check_motion(clip) if finding.level == "error"]
    assert abs(clip.height_fix) < 0.04
    rows = np.loadtxt(path, delimiter=",")
    other = table(tmp_path / path.name, rows[:, :3], rows[:, [4, 5, 6, 3]], rows[:, 7:])
    (again,) = import_motion(other, body=body)
    np.testing.assert_allclose(again.root_quat, clip.root_quat, atol=1e-6)


def nested(levels: int) -> bytes:
    """A tuple of twice the tuple before, and so on: few bytes, which would be written out as billions."""
    return b"(S'x'\ntp0\n" + b"".join(b"0(g%d\ng%d\ntp%d\n" % (i, i, i + 1) for i in range(levels))


@pytest.mark.parametrize(
    "body",
    [
        b"cnumpy\ndtype\n(" + nested(40) + b"tR.",
        b"c_codecs\nencode\n(S'x'\n" + nested(40) + b"tR.",
        b"(" + nested(40) + b"S'x'\nd.",
        b"}" + nested(40) + b"S'x'\ns.",
        b"}(" + nested(40) + b"S'x'\nu.",
        b"ccollections\nOrderedDict\n((l(" + nested(40) + b"S'x'\ntatR.",
        b"\x80\x04\x8f(" + nested(40) + b"\x90.",
        b"cnumpy.core.numeric\n_frombuffer\n(I10000000000\ncnumpy\ndtype\n(S'u1'\ntR(I1\ntS'C'\ntR.",
    ],
)
def test_few_bytes_of_a_pickle_are_not_written_out_as_billions(dog: Body, tmp_path: Path, body: bytes) -> None:
    (tmp_path / "walk.pkl").write_bytes(body)
    with pytest.raises(DataError, match=r"walk\.pkl"):
        import_motion(tmp_path / "walk.pkl", body=dog)


def test_an_array_larger_than_a_motion_is_refused_before_it_grows(dog: Body, tmp_path: Path) -> None:
    content = gmr(dog) | {"root_pos": np.zeros((6_000_000, 3), np.uint8)}
    (tmp_path / "walk.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match="larger than any motion"):
        import_motion(tmp_path / "walk.pkl", body=dog)
    joints = np.zeros((1_000_000, len(dog.joints)), np.float16)
    np.savez_compressed(tmp_path / "walk.npz", fps=50, joint_pos=joints)
    with pytest.raises(DataError, match="cut it into shorter motions"):
        import_motion(tmp_path / "walk.npz", body=dog)
