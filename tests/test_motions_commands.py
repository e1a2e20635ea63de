"""What is found wrong with clips, how clips are found by name, and the command `ludus motions`."""

import json
import re
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import ludus.envs.humanoid.catalogue as catalogue
import warm_python
from humanoid_body import BODIES, DT, HUMANOID, JOINTS, MOTOR_LAG, SUBSTEPS, load_body
from ludus.commands.motions import motions
from ludus.envs.humanoid.catalogue import find_clips, known_clips
from ludus.envs.humanoid.checks import check_motion, lacks_support
from ludus.envs.humanoid.clip import Clip, load_clip, save_clip
from ludus.envs.humanoid.importing.floor import put_on_floor
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.envs.humanoid.motor_bandwidth import PHASES, follow
from ludus.envs.humanoid.support import weight_beside_support
from ludus.errors import ConfigError, DataError
from motion_files import CMU_SKELETON, DEEPMIMIC, SHARED, needs_shared, write_bvh

FRAMES = 121
WALK = "humanoid3d_walk"


def standing(**changes: object) -> Clip:
    """On its feet, arms hanging, breathing a little."""
    joints = np.zeros((FRAMES, 28))
    joints[:, JOINTS.index("right_shoulder_x")], joints[:, JOINTS.index("left_shoulder_x")] = 1.4, -1.4
    joints[:, JOINTS.index("abdomen_y")] = 0.05 * np.sin(np.linspace(0, 2 * np.pi, FRAMES))
    root, quat = np.tile([0.0, 0.0, 0.9], (FRAMES, 1)), np.tile([1.0, 0, 0, 0], (FRAMES, 1))
    clip = put_on_floor(Clip("stand", 60.0, root, quat, joints, loop=True))
    return replace(replace(clip, height_fix=0.0), **changes)  # type: ignore[arg-type]


def bent(joint: str, angles: np.ndarray | float) -> Clip:
    clip = standing(loop=False)
    clip.joint_pos[:, JOINTS.index(joint)] = angles
    return clip


def moved(heights: np.ndarray | float) -> Clip:
    clip = standing(loop=False)
    clip.root_pos[:, 2] += heights
    return clip


def sitting() -> Clip:
    """Hips and knees at right angles, on no chair."""
    clip = standing(loop=False)
    for side in ("right", "left"):
        clip.joint_pos[:, JOINTS.index(f"{side}_hip_y")] = -1.5
        clip.joint_pos[:, JOINTS.index(f"{side}_knee")] = 1.5
    return replace(put_on_floor(clip), height_fix=0.0)


def levels(clip: Clip) -> dict[str, str]:
    return {finding.what: finding.level for finding in check_motion(clip) if finding.level != "ok"}


def test_a_clean_clip_is_fine() -> None:
    assert [finding.level for finding in check_motion(standing())] == ["ok"] * 9


def dip() -> np.ndarray:
    return np.where(np.arange(FRAMES) % 40 < 5, 1.0, 0.0)


@pytest.mark.parametrize(
    ("clip", "told", "level"),
    [
        (bent("right_knee", 3.1), "right_knee goes 11° beyond its limit, in 100%", "warning"),
        (bent("left_knee", -1.2), "beyond its limit", "error"),
        (bent("left_shoulder_y", 1.45), "left_shoulder_y reaches 83°", "warning"),
        (bent("neck_z", dip()), "neck_z at 0.07 s turns with 60 rad/s", "warning"),
        (bent("neck_z", 2.5 * dip()), "jumps by 143°", "error"),
        (moved(-0.03), "3.0 cm under the floor", "warning"),
        (moved(-0.2), "under the floor, in 100% of the frames", "error"),
        (moved(0.2), "never touches the floor", "error"),
        (moved(np.where(np.arange(FRAMES) > 60, 0.1, 0.0)), "hangs above the floor for 1.00 s", "warning"),
        (sitting(), "For 2.0 s it sits or leans on what is not there", "warning"),
        (standing(height_fix=0.12), "moved it by up to +12.0 cm", "warning"),
        (standing(fps=500.0), "500 frames a second", "warning"),
        (standing(fps=300.0), "lasts 0.40 s", "warning"),
    ],
)
def test_what_is_wrong_is_told(clip: Clip, told: str, level: str) -> None:
    found = levels(clip)
    matching = [what for what in found if told in what]
    assert matching, found
    assert found[matching[0]] == level


def test_what_hangs_or_leans_lacks_support() -> None:
    steps = np.where(np.arange(FRAMES) > 60, 1.0, 0.0)
    assert [lacks_support(clip) for clip in (standing(), moved(0.3 * steps))] == [False] * 2
    assert [lacks_support(clip) for clip in (sitting(), moved(0.6 * steps))] == [True] * 2


def slow_distance(point: np.ndarray, points: np.ndarray) -> float:
    """From the convex hull, edge by edge; 0 within."""
    hull = pytest.importorskip("scipy.spatial", reason="SciPy is not installed").ConvexHull(points)
    if (hull.equations[:, :2] @ point + hull.equations[:, 2] <= 0).all():
        return 0.0
    corners, nearest = points[hull.vertices], np.inf
    for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        share = np.clip((point - a) @ (b - a) / ((b - a) @ (b - a)), 0, 1)
        nearest = min(nearest, float(np.linalg.norm(point - a - share * (b - a))))
    return nearest


def test_where_the_weight_is_borne_equals_a_slow_version() -> None:
    clip, place = standing(loop=False), np.array([0.3, -0.2, 0.8])
    positions, rotations = clip.bodies()
    ends, _ = clip.body.kinematics.lowest_ends(positions, rotations)
    for still in (True, False):
        course = np.zeros((FRAMES, 1)) if still else np.cumsum(np.ones((FRAMES, 1)), axis=0) ** 2 / 60**2
        centre = place + course * np.array([0.5, 0.25, 0.0])  # driven by 1 and 0.5 m/s²
        pushed = np.array([0.0, 0.0]) if still else np.array([1.0, 0.5])
        found = weight_beside_support(clip, positions, rotations, centre)
        for frame in range(30, FRAMES - 30, 10):
            touching = ends[frame].numpy()[ends[frame, :, 2].numpy() < 0.1, :2]
            expected = slow_distance(centre[frame, :2] - 0.8 / 9.81 * pushed, touching)
            assert found[frame] == pytest.approx(expected, rel=0.01, abs=0.003)
        assert found.max() > 0.1


@pytest.mark.parametrize(("rate", "told"), [(0.6, "hangs"), (1.0, ""), (2.0, "played 2.0 times too fast")])
def test_flights_tell_hanging_and_wrong_rates(rate: float, told: str) -> None:
    t = np.arange(FRAMES) / 60
    flight = np.where((t > 0.5) & (t < 1.1), 0.5 * rate**2 * 9.81 * (t - 0.5) * (1.1 - t), 0.0)
    found = [what for what in levels(moved(flight)) if "hangs" in what or "played" in what]
    assert [told in what for what in found] == [True] * bool(told)


def test_a_jump_is_told_though_it_is_slow() -> None:
    """As in DeepMimic's walk: two halves that do not meet."""
    t = np.arange(FRAMES) / 60
    smooth = 0.3 * np.sin(2 * np.pi * t)
    found = levels(bent("left_hip_y", smooth + 0.25 * np.clip((t - 1.0) * 30, 0, 1)))
    (jump,) = (what for what in found if what.startswith("At 1.00 s the pose jumps"))
    assert "the left foot by 2" in jump
    assert "left_hip_y by 1" in jump
    found = levels(bent("neck_z", smooth + 0.25 * np.clip((t - 1.0) * 30, 0, 1)))  # which moves nothing else
    assert [what for what in found if what.startswith("At 1.00 s the pose jumps") and "lead: neck_z by 1" in what]


@pytest.mark.parametrize("fps", [20.0, 60.0, 120.0])
def test_a_fast_kick_is_no_jump(fps: float) -> None:
    t = np.arange(FRAMES) / fps
    clip = replace(bent("left_knee", 1.0 - np.cos(2 * np.pi * np.clip((t - 0.3) / 0.5, 0, 1))), fps=fps)
    assert not [what for what in levels(clip) if "jump" in what]


def test_a_sliding_foot_and_a_fast_root() -> None:
    clip = standing(loop=False)
    clip.root_pos[:, 0] = np.arange(FRAMES) / 60
    assert any("slides over the floor with 1.00 m/s" in what for what in levels(clip))
    clip.root_pos[:, 0] *= 20
    assert any("up to 20.0 m/s" in what for what in levels(clip))


def test_a_seam_that_does_not_close() -> None:
    clip = standing()
    clip.joint_pos[:, JOINTS.index("right_knee")] = np.linspace(0, 1, FRAMES)
    found = levels(clip)
    assert any("right_knee by 57°" in what and level == "error" for what, level in found.items())
    clip = standing()
    clip.joint_pos[:, JOINTS.index("left_shoulder_x")] = np.linspace(0, 2 * np.pi, FRAMES)
    assert any("left_shoulder_x gains a whole turn" in what for what in levels(clip))


def test_held_poses_are_told() -> None:
    clip = bent("right_knee", np.repeat(np.linspace(0, 1, 61), 2)[:FRAMES])
    clip.joint_pos[:, JOINTS.index("abdomen_y")] = 0
    assert any("equal the one before" in what for what in levels(clip))


# Motors ---------------------------------------------------------------------------------------------
def shipped(name: str) -> Clip:
    (clip,) = find_clips(f"shipped:{name}")
    return clip


def told_of_motors(clip: Clip) -> tuple[str, str]:
    (finding,) = (finding for finding in check_motion(clip) if finding.what.startswith("The motors"))
    return finding.level, finding.what


def test_motors_follow_every_shipped_clip_to_10_cm() -> None:
    for clip in find_clips("all"):
        assert float(follow(clip).distances.max()) < 0.1, clip.name
    level, what = told_of_motors(shipped("jog"))
    assert level == "ok"
    assert re.fullmatch(r"The motors can follow: at most 9 cm off \(the (left|right) foot at 0\.\d\d s\)\.", what)


@pytest.mark.parametrize("loop", [True, False])
def test_motors_cannot_follow_a_run_six_times_as_fast(loop: bool) -> None:
    jog = shipped("jog")
    clip = replace(jog, fps=6 * jog.fps, loop=loop)
    level, what = told_of_motors(clip)
    assert level == "warning"
    found = re.fullmatch(
        r"The motors cannot follow, led by residual actions: at (.*) s the (left|right) foot is (\d+) cm off, "
        r"and for (.*) s more than 25 cm\.",
        what,
    )
    assert found, what
    assert 0 <= float(found[1]) <= clip.duration + 0.005
    assert 50 < int(found[3]) < 100
    assert 0 < float(found[4]) <= clip.duration + 0.005


def test_the_body_and_the_time_that_motors_cannot_follow_are_told() -> None:
    t = np.arange(FRAMES) / 60
    whirl = -1.4 + 1.4 * np.sin(2 * np.pi * 5 * np.clip(t - 1.0, 0, 0.4))
    _, what = told_of_motors(bent("left_shoulder_x", whirl))
    found = re.match(
        r"The motors cannot follow, led by .*: at (.*) s the left hand is \d+ cm off, and for (.*) s more",
        what,
    )
    assert found, what
    assert 1.0 < float(found[1]) < 1.5
    assert float(found[2]) < 0.4


@pytest.mark.parametrize("clip", [bent("left_knee", -1.2), moved(-0.2), moved(1.0)])
def test_floor_and_limits_are_not_blamed_on_motors(clip: Clip) -> None:
    level, what = told_of_motors(clip)
    assert level == "ok"
    assert "at most 0 cm off" in what


def test_weaker_motors_cannot_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = load_body()
    weak.actuator_forcerange /= 20
    monkeypatch.setattr(HUMANOID, "model", weak)
    assert told_of_motors(shipped("jog"))[0] == "warning"


@pytest.mark.parametrize("name", ["jog", "punch_combo"])
def test_a_clip_is_followed_as_a_plain_simulation_does_it(name: str) -> None:
    """Also between the control steps that start with the clip, where another one started half a step later."""
    clip, followed = shipped(name), follow(shipped(name))
    library, seconds = MotionLibrary([clip], 5.0), clip.duration + clip.loop * 1.0
    for phase in range(PHASES):
        start = phase * DT / PHASES
        steps = int((seconds - start) / DT + 1e-6)
        slow = follow_slowly(library, start, steps)
        np.testing.assert_allclose(followed.times[phase::PHASES], start + DT * np.arange(1, steps + 1), atol=1e-9)
        np.testing.assert_allclose(followed.distances[phase::PHASES], slow, atol=1e-5)


def follow_slowly(library: MotionLibrary, start: float, steps: int) -> np.ndarray:
    """[steps, 15]"""

    def at(step: int) -> list[np.ndarray]:
        return [
            part[0].double().numpy() for part in library.at(torch.tensor([0]), torch.tensor([start + DT * step]))
        ]

    model = load_body()
    model.geom_contype[:] = model.geom_conaffinity[:] = 0
    model.jnt_limited[:] = 0
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = at(0)[:2]
    distances = np.zeros((steps, len(BODIES)))
    for step in range(steps):
        qpos, qvel, places, *_ = at(step + 1)
        data.ctrl[:] = qpos[7:] + MOTOR_LAG * qvel[6:]
        mujoco.mj_step(model, data, SUBSTEPS)
        data.qpos[:7], data.qvel[:6] = qpos[:7], qvel[:6]
        mujoco.mj_forward(model, data)
        distances[step] = np.linalg.norm(data.xpos[1:] - places, axis=1)
    return distances


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers so large overflow here and there
@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e12, 1e37, 1e300])
def test_wild_numbers_are_told_not_to_be_followable(
    size: float, loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clip, random = standing(loop=loop, fps=1000.0), np.random.default_rng(0)
    clip.joint_pos[:] = size * random.normal(size=clip.joint_pos.shape)
    clip.root_pos[:] = size * random.normal(size=clip.root_pos.shape)
    level, what = told_of_motors(clip)
    assert level == "error"
    assert re.fullmatch(r"The motors cannot follow: at 0\.\d\d s the simulation breaks down\.", what)
    assert not list(tmp_path.iterdir())  # MuJoCo would leave a log


def test_a_clip_shorter_than_a_control_step_says_nothing_of_motors() -> None:
    clip = standing(loop=False)
    short = replace(clip, root_pos=clip.root_pos[:2], root_quat=clip.root_quat[:2], joint_pos=clip.joint_pos[:2])
    assert not [finding for finding in check_motion(short) if "motors" in finding.what]


@needs_shared
@pytest.mark.parametrize("path", DEEPMIMIC, ids=lambda path: path.stem)
def test_motors_follow_deepmimics_clips_to_20_cm(path: Path) -> None:
    (clip,) = find_clips(str(path))
    if clip.name == "backflip":  # whose left shoulder turns with 71 rad/s for one pose
        level, what = told_of_motors(clip)
        assert level == "warning"
        assert "at 0.48 s the left hand is 3" in what
    else:
        assert float(follow(clip).distances.max()) < 0.2


# Names ----------------------------------------------------------------------------------------------
@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; one clip is shipped, called stand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "shipped_folder", lambda: tmp_path / "shipped")
    save_clip(standing(source="us", licence="MIT"), tmp_path / "shipped" / "stand.npz")
    return tmp_path


def test_clips_are_found_by_name_file_and_folder(here: Path) -> None:
    save_clip(replace(standing(), name="mine"), here / "motions" / "mine.npz")
    save_clip(replace(standing(), name="stand"), here / "motions" / "stand.npz")
    squat(here / "other" / "a.bvh")
    (here / "other" / "LICENSE.txt").write_text("free")
    assert [clip.name for clip in find_clips("all")] == ["stand"]
    assert find_clips("stand")[0].source == ""  # your own goes first
    assert find_clips("shipped:stand")[0].source == find_clips("all")[0].source == "us"
    assert [clip.name for clip in find_clips("mine, stand,mine")] == ["mine", "stand"]
    assert [clip.name for clip in find_clips(f"{here / 'other'},motions/mine.npz")] == ["a", "mine"]
    assert list(known_clips()) == ["mine", "stand"]


def test_clips_of_the_same_name_get_numbers_and_no_file_is_read_twice(here: Path) -> None:
    for name in ("a/walk", "b/walk", "c/walk-2"):
        save_clip(standing(), here / f"{name}.npz")
    assert [clip.name for clip in find_clips("a,b,c,a/walk.npz")] == ["walk", "walk-2", "walk-2-2"]
    assert [clip.name for clip in find_clips(f"a/walk.npz,{here / 'a'}")] == ["walk"]


def test_names_that_are_not_there(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"no clip 'stnd'.*Did you mean 'stand'\? There are: stand\."):
        find_clips("stnd")
    with pytest.raises(ConfigError, match=r"No clip 'stnd' comes with Ludus\. Did you mean 'stand'\?"):
        find_clips("shipped:stnd")
    with pytest.raises(ConfigError, match="Say which clips"):
        find_clips(" ")
    (here / "empty").mkdir()
    with pytest.raises(DataError, match="holds no clips"):
        find_clips("empty")
    with pytest.raises(ConfigError, match=r"Did you mean 'stand\.npz'\?"):
        find_clips("shipped/stan.npz")
    (here / "shipped" / "stand.npz").unlink()
    with pytest.raises(ConfigError, match="No clips come with"):
        find_clips("all")


# Commands -------------------------------------------------------------------------------------------
def squat(path: Path) -> Path:
    bends = 30 - 30 * np.cos(np.linspace(0, 2 * np.pi, 61))
    frames = [
        {"root": (0, 15, 0), "LeftLeg": (0, 0, a), "RightLeg": (0, 0, a), "LeftUpLeg": (0, 0, -a / 2),
         "RightUpLeg": (0, 0, -a / 2)}
        for a in bends
    ]  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    return write_bvh(path, CMU_SKELETON, frames, 30)


def test_import_writes_clips_that_check_and_list_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squat(here / "squat.bvh")
    motions(["import", "squat.bvh", "--loop", "--licence", "CC0", "--source", "a test"])
    assert capsys.readouterr().out.startswith("motions/squat.npz: 2.00 s, 60 fps, loop")
    clip = load_clip(here / "motions" / "squat.npz")
    assert (clip.loop, clip.licence, clip.source) == (True, "CC0", "a test")
    motions(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "body", "seconds", "fps", "loop", "where", "source", "licence"]
    assert [line.split()[:6:5] for line in lines[1:]] == [["squat", "yours"], ["stand", "shipped"]]
    with pytest.raises(SystemExit) as end:
        motions(["check", "squat", "squat.bvh", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["motions/squat.npz", "squat.bvh"]
    assert {"level", "what", "fix"} == set(told["squat.bvh"][0])
    assert end.value.code == 0


def test_check_tells_of_a_motion_that_is_there_twice(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        save_clip(standing(loop=name == "three"), here / "some" / f"{name}.npz")
    save_clip(moved(np.linspace(0, 0.01, FRAMES)), here / "some" / "other.npz")
    with pytest.raises(SystemExit):
        motions(["check", "some", "--json"])
    told = json.loads(capsys.readouterr().out)
    twins = {file: [x["what"] for x in found if "same motion" in x["what"]] for file, found in told.items()}
    same = "It is the same motion as some/one.npz."
    found = {f"some/{name}.npz": lines for name, lines in [("one", []), ("other", []), ("two", [same])]}
    assert twins == found | {"some/three.npz": [same]}


def test_a_robots_table_is_read_as_it_is_told_also_onto_the_humanoid(here: Path) -> None:
    table = np.tile([0.0, 0.0, 0.79, 0.0, 0.0, 0.0, 1.0, *[0.0] * 29], (60, 1))
    np.savetxt(here / "stand.csv", table, delimiter=",")
    with pytest.raises(DataError, match="--quaternion wxyz"):
        motions(["import", "stand.csv"])
    motions(["import", "stand.csv", "--quaternion", "xyzw"])
    assert abs(load_clip(here / "motions" / "stand.npz").root_quat[0, 0]) == pytest.approx(1, abs=1e-3)


def test_your_own_clip_goes_before_a_shipped_one_and_list_says_so(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_clip(standing(source="me"), here / "motions" / "stand.npz")
    motions(["list"])
    _, line, told = capsys.readouterr().out.splitlines()
    assert line.split()[5:7] == ["yours", "me"]
    assert told == "Your stand goes before the shipped one, which is called shipped:stand."
    motions(["list", "shipped:stand", str(here / "motions")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[5] for line in lines[1:]] == ["shipped", str(here / "motions" / "stand.npz")]


def test_import_writes_over_nothing_unless_it_is_asked_to(here: Path) -> None:
    squat(here / "squat.bvh")
    squat(here / "other.bvh")
    motions(["import", "squat.bvh", "--licence", "CC0"])
    with pytest.raises(DataError, match=r"motions/squat\.npz is already there.*--overwrite"):
        motions(["import", "other.bvh", "squat.bvh"])
    assert not (here / "motions" / "other.npz").exists()
    motions(["import", "squat.bvh", "--name", "other"])
    motions(["import", "squat.bvh", "--overwrite"])
    assert load_clip(here / "motions" / "squat.npz").licence == ""


def test_import_goes_on_after_a_broken_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squat(here / "sources" / "good.bvh")
    (here / "sources" / "bad.bvh").write_text("nonsense")
    with pytest.raises(DataError, match="1 of 2 files"):
        motions(["import", "sources", "--out", "clips", "--no-loop"])
    assert "HIERARCHY" in capsys.readouterr().err
    assert not load_clip(here / "clips" / "good.npz").loop


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["chek", "x"], "Did you mean 'check'?"),
        (["check"], "ludus motions check FILE"),
        (["import", "nowhere.bvh"], "There is no clip 'nowhere.bvh'"),
        (["import", "stand"], "is a clip already"),
        (["import", "sources", "--name", "x"], "--name is for one source"),
        (["import", "sources", "other"], "Two sources are called good"),
        (["import", "sources/fine.bvh", "third/humanoid3d_fine.bvh"], "Two sources are called fine"),
        (["import", "sources/good.bvh", "--fps", "0"], "from 1 to 1000"),
        (["import", "sources/good.bvh", "--name", "../good"], "'../good' cannot be a clip's name"),
        (["import", "sources/good.bvh", "--name", "all"], "'all' cannot be a clip's name"),
        (["import", "other.npz"], "export it as BVH or CSV"),
        (["view", "nothing"], "There is no clip 'nothing'"),
        (["view", "stand", "--port", "99999"], "--port is 99999; it must be from 0"),
    ],
)
def test_mistakes_are_told(here: Path, arguments: list[str], told: str) -> None:
    for path in ("sources/good.bvh", "sources/fine.bvh", "other/good.bvh", "third/humanoid3d_fine.bvh"):
        squat(here / path)
    np.savez(here / "other.npz", poses=np.zeros(3))
    with pytest.raises((ConfigError, DataError)) as error:
        motions(arguments)
    assert told in str(error.value)


def test_list_goes_on_after_a_broken_clip(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "motions").mkdir()
    (here / "motions" / "broken.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="1 of 2 files could not be read"):
        motions(["list"])
    told = capsys.readouterr()
    assert told.out.splitlines()[1].startswith("stand ")
    assert "broken.npz is not a clip of motion" in told.err


def test_a_broken_clip_is_a_finding(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "broken.npz").write_bytes(b"PK")
    with pytest.raises(SystemExit) as end:
        motions(["check", "broken.npz", "stand"])
    assert end.value.code == 1
    assert "error    broken.npz is not a clip of motion" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [[], ["import"], ["check"], ["list"], ["view"]])
def test_everything_has_help(here: Path, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        motions([*verb, "--help"])
    assert end.value.code == 0
    assert "ludus motions" in capsys.readouterr().out


def test_the_command_line_knows_it(tmp_path: Path) -> None:
    done = warm_python.run(warm_python.ludus_command("motions", "lst"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "ludus: There is no command 'motions lst'. Did you mean 'list'? There are: " + (
        "import, check, list, view.\n"
    )


@needs_shared
def test_a_source_is_found_and_checked_on_the_fly(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = SHARED / "deepmimic" / f"{WALK}.txt"
    (clip,) = find_clips(str(path))
    assert clip.name == "walk"  # without the name of the body
    (fault,) = levels(clip)  # its two halves do not meet
    assert fault.startswith("At 0.60 s the pose jumps")
    assert fault.endswith("left_shoulder_y by 27°.")
    (run,) = find_clips(str(SHARED / "deepmimic" / "humanoid3d_run.txt"))
    assert any(what.startswith("At 0.37 s the pose jumps") for what in levels(run))
    with pytest.raises(SystemExit):
        motions(["check", str(SHARED / "deepmimic" / "humanoid3d_dance_a.txt")])
    assert "right_shoulder_y reaches 80°" in capsys.readouterr().out
