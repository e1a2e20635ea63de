"""Clips of one body brought onto another, measured by where bodies come to; and sentences for what is missing."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from ludus.cli import run_verb
from ludus.envs.bodies import Body, find_body
from ludus.envs.bodies.rotations import from_rotation_vector, rotate
from ludus.envs.humanoid.catalogue import clip_files
from ludus.envs.humanoid.checks import check_motion
from ludus.envs.humanoid.clip import Clip, load_clip, save_clip
from ludus.envs.humanoid.importing import import_motion
from ludus.envs.humanoid.importing.floor import lowest_of_clip
from ludus.envs.humanoid.retargeting import retarget
from ludus.envs.humanoid.retargeting.figure import figure_of
from ludus.errors import ConfigError, DataError
from motion_files import CMU_SKELETON, write_bvh

G1 = pytest.mark.skipif(find_spec("mjlab") is None, reason="the G1's model is in the package mjlab")

# A biped that no code knows: in one piece but for its legs, frames turned about, a left knee that turns backwards.
LEG = """
<body name="{s}1" pos="0 {y} -0.05">
  <joint name="{s}_yaw" axis="0 0 1" range="-1 1"/><joint name="{s}_roll" axis="1 0 0" range="-0.6 0.6"/>
  <joint name="{s}_pitch" axis="0 1 0" range="-2 1"/>
  <geom type="capsule" size="0.03" fromto="0 0 -0.03 0 0 -0.15" density="500"/>
  <body name="{s}2" pos="0 0 -0.2" euler="0 0 {turn}">
    <joint name="{s}_knee" axis="0 1 0" range="{range}"/>
    <geom type="capsule" size="0.025" fromto="0 0 -0.03 0 0 -0.15" density="500"/>
    <body name="{s}3" pos="0 0 -0.2">
      <joint name="{s}_ankle" axis="0 1 0" range="-1 1"/>
      <geom type="box" size="0.07 0.03 0.01" pos="{toe} 0 -0.02" density="500"/>
    </body>
  </body>
</body>"""
BIPED = f"""
<mujoco><compiler angle="radian" autolimits="true"/><default><joint armature="0.01"/></default>
<worldbody><body name="hull" pos="0 0 0.5"><freejoint/><geom type="box" size="0.05 0.08 0.05" density="500"/>
{LEG.format(s="l", y=0.07, turn=3.14159265, range="-2.2 0.1", toe=-0.03)}
{LEG.format(s="r", y=-0.07, turn=0, range="-0.1 2.2", toe=0.03)}
</body></worldbody></mujoco>
"""
BIPED_TOML = """
model = "biped.xml"
feet = ["l3", "r3"]
[human]
pelvis = "hull"
left_hip = "l1"
left_knee = "l2"
left_foot = "l3"
right_hip = "r1"
right_knee = "r2"
right_foot = "r3"
[motors]
groups = [{joints = ["*"], effort = 50, stiffness = 40, damping = 2}]
"""


def shipped(name: str) -> Clip:
    return load_clip(clip_files(f"shipped:{name}")[0])


def biped(folder: Path, toml: str = BIPED_TOML) -> Body:
    (folder / "biped.xml").write_text(BIPED)
    (folder / "biped.toml").write_text(toml)
    return find_body(str(folder / "biped.toml"))


def angles_between_bones(clip: Clip, other: Clip, ends: tuple[str, ...]) -> np.ndarray:
    """[bones, frames] degrees"""

    def directions(clip: Clip) -> dict[tuple[str, str], torch.Tensor]:
        figure, (positions, _) = figure_of(clip.body), clip.bodies()
        bones = {
            bone: positions[:, figure.parts[bone[1]]] - positions[:, figure.parts[bone[0]]]
            for bone in figure.lengths
        }
        return {bone: torch.nn.functional.normalize(way, dim=-1) for bone, way in bones.items()}

    first, second = directions(clip), directions(other)
    bones = [bone for bone in second if bone in first and bone[1].endswith(ends)]
    return np.degrees([torch.acos((first[bone] * second[bone]).sum(-1).clamp(-1, 1)).numpy() for bone in bones])


def distance(clip: Clip) -> float:
    return float(np.linalg.norm(clip.root_pos[-1, :2] - clip.root_pos[0, :2]))


def speeds_on_floor(clip: Clip) -> torch.Tensor:
    """[feet, frames - 1] m/s of the slowest point that is on the floor; infinite where none is."""
    figure, (positions, rotations) = figure_of(clip.body), clip.bodies()
    speeds = []
    for foot in (figure.parts["left_foot"], figure.parts["right_foot"]):
        corners, radii = clip.body.kinematics.surface_of(foot)
        points = positions[:, foot, None] + rotate(rotations[:, foot, None], corners)
        low = (points[:-1, :, 2] - radii < 0.01) & (points[1:, :, 2] - radii < 0.01)
        speed = torch.linalg.vector_norm(points.diff(dim=0)[..., :2], dim=-1).masked_fill(~low, torch.inf)
        speeds.append(speed.amin(dim=1) * clip.fps)
    return torch.stack(speeds)


def check_follows(clip: Clip, made: Clip) -> None:
    """What holds of a walk on any legs."""
    low, high = made.body.limits
    assert (made.joint_pos >= low).all()
    assert (made.joint_pos <= high).all()
    assert angles_between_bones(clip, made, ("knee", "foot")).mean() < 4
    scale = figure_of(made.body).leg / figure_of(clip.body).leg
    assert distance(made) == pytest.approx(scale * distance(clip), rel=0.02)
    assert np.abs(lowest_of_clip(made)).max() < 0.02  # a walk has a foot on the floor all the time
    stands = speeds_on_floor(clip) < 0.1
    assert stands.float().mean() > 0.4
    assert (speeds_on_floor(made)[stands] < 0.1).float().mean() > 0.9
    assert np.abs(np.diff(made.joint_pos, axis=0)).max() * made.fps < 20
    assert (made.fps, made.frames, made.name) == (clip.fps, clip.frames, clip.name)
    assert not [finding for finding in check_motion(made) if finding.level == "error"]


def test_a_body_gets_its_own_clip_back() -> None:
    clip = shipped("stroll")
    made = retarget(clip, clip.body)
    apart = torch.linalg.vector_norm(made.bodies()[0] - clip.bodies()[0], dim=-1)
    assert float(apart.mean()) < 0.002
    assert float(apart.max()) < 0.01
    assert made.loop


@G1
def test_the_g1_walks_as_the_humanoid_does() -> None:
    clip = shipped("stroll")
    made = retarget(clip, find_body("g1"))
    check_follows(clip, made)
    assert angles_between_bones(clip, made, ("elbow", "hand")).mean() < 3
    assert made.loop
    assert (made.source, made.licence) == (clip.source, clip.licence)


@G1
def test_hanging_arms_stay_outside_wider_hips() -> None:
    human, robot = find_body("humanoid"), find_body("g1")
    pose = human.default_qpos.copy()
    for side, angle in (("right", 1.5), ("left", -1.5)):
        pose[7 + human.joints.index(f"{side}_shoulder_x")] = angle
    poses = np.repeat(pose[None], 10, axis=0)
    made = retarget(Clip("stand", 30.0, poses[:, :3], poses[:, 3:7], poses[:, 7:], body=human), robot)
    data = mujoco.MjData(robot.model)
    for pose in made.qpos:
        data.qpos[:] = pose
        mujoco.mj_forward(robot.model, data)
        own = (robot.model.geom_bodyid[data.contact.geom] >= robot.root).all(axis=1)
        assert (data.contact.dist[own] > -0.01).all()


def test_a_small_biped_walks_as_the_humanoid_does(tmp_path: Path) -> None:
    clip = shipped("stroll")
    made = retarget(clip, biped(tmp_path))
    check_follows(clip, made)
    left, right = (made.joint_pos[:, made.body.joints.index(name)] for name in ("l_knee", "r_knee"))
    assert left.min() < -0.5
    assert right.max() > 0.5  # both bend, and neither backwards


def test_hands_without_elbows_are_no_arms(tmp_path: Path) -> None:
    body = biped(tmp_path, BIPED_TOML.replace('pelvis = "hull"', 'pelvis = "hull"\nleft_hand = "l3"'))
    check_follows(shipped("stroll"), retarget(shipped("stroll"), body))


def test_axes_say_how_bodies_move(tmp_path: Path) -> None:
    """Against differences, for a body with several hinges a body, one aslant."""
    kinematics = biped(tmp_path).kinematics
    joints = torch.linspace(-0.5, 0.5, 10, dtype=torch.float64)
    root = (
        torch.tensor([0.1, 0.2, 0.9], dtype=torch.float64),
        from_rotation_vector(torch.tensor([0.3, -0.2, 0.9]).double()),
    )
    positions, rotations = kinematics.forward(*root, joints)
    points, axes = kinematics.axes(positions, rotations, joints)
    for joint in range(len(joints)):
        step = torch.zeros_like(joints)
        step[joint] = 1e-6
        moved = (kinematics.forward(*root, joints + step)[0] - kinematics.forward(*root, joints - step)[0]) / 2e-6
        said = torch.linalg.cross(axes[joint].expand_as(positions), positions - points[joint])
        assert torch.allclose(moved, said * kinematics.moves()[:, joint, None], atol=1e-8)


def test_human_sources_are_imported_onto_another_body(tmp_path: Path) -> None:
    clip, body = shipped("stroll"), biped(tmp_path)
    save_clip(replace(clip, loop=False), tmp_path / "walk.npz")
    (made,) = import_motion(tmp_path / "walk.npz", body=body)
    assert made.body is body
    save_clip(made, tmp_path / "small.npz")
    (again,) = import_motion(tmp_path / "small.npz", body=body)
    assert np.allclose(again.joint_pos, made.joint_pos, atol=1e-5)  # it is of the body already
    frames = [{"Hips": (0, 0, 0)}] * 10
    (stands,) = import_motion(write_bvh(tmp_path / "stands.bvh", CMU_SKELETON, frames, 30), body=body)
    assert (stands.body, stands.name) == (body, "stands")
    with pytest.raises(DataError, match="of another body than humanoid"):
        import_motion(tmp_path / "small.npz", body=find_body("humanoid"))


def test_the_command_brings_a_clip_onto_another_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    biped(tmp_path)
    run_verb("motions", ["import", "shipped:stroll", "--body", "biped.toml", "--name", "small", "--no-loop"])
    assert "small.npz: 1.00 s, 60 fps, once" in capsys.readouterr().out
    assert load_clip(tmp_path / "motions/small.npz", find_body("biped.toml")).licence == shipped("stroll").licence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda toml: toml.split("[human]")[0] + "[motors]" + toml.split("[motors]")[1],
            r"add a table \[human\] with pelvis",
        ),
        (lambda toml: toml.replace('left_knee = "l2"\n', ""), 'add left_knee = "…" to'),
        (lambda toml: toml.replace("left_knee", "left_kneee"), "Did you mean 'left_knee'"),
        (lambda toml: toml.replace('"l2"', '"l9"'), "names the body 'l9', which the model lacks"),
        (lambda toml: toml.replace('"l2"', '"l1"'), "left_hip and left_knee at the same place"),
        (lambda toml: toml.replace('"l2"', "2"), r"human\.left_knee must be a text"),
    ],
)
def test_what_a_body_lacks_is_said(tmp_path: Path, change: Callable[[str], str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        retarget(shipped("stroll"), biped(tmp_path, change(BIPED_TOML)))
