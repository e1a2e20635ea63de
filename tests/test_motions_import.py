"""Motions of other sources land on our humanoid where they were, measured with kinematics of the source's own."""

import csv
import json
import re
import warnings
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from humanoid_body import BODIES, HINGES, HUMANOID, JOINTS, body_model, forward_kinematics, load_body
from ludus.envs.bodies.rotations import about_axis, multiply, rotate
from ludus.envs.humanoid.catalogue import shipped_folder
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.importing import import_motion, read_motion
from ludus.envs.humanoid.importing.floor import lowest_of_clip, put_on_floor
from ludus.envs.humanoid.importing.hinges import euler, hinge_angles
from ludus.envs.humanoid.importing.motion import FPS, Motion, joint_angles, make_clip, resample, without_held_poses
from ludus.envs.humanoid.importing.retarget import LIMBS, bend, shortest_turn
from ludus.envs.humanoid.importing.table import ROOT
from ludus.envs.humanoid.seam import seam_jumps, seam_turn, seam_turns
from ludus.errors import DataError
from motion_files import (
    CMU,
    CMU_SKELETON,
    DEEPMIMIC,
    G1,
    LAFAN_SKELETON,
    LAFAN_STANCE,
    SHARED,
    Skeleton,
    bvh_positions,
    matrix,
    needs_shared,
    quat_matrix,
    write_bvh,
)

MM = 1e-3


def positions_of(motion: Motion) -> np.ndarray:
    """[keys, 15, 3] where an import puts the bodies, before rates and heights are touched."""
    return forward_kinematics(motion.root_pos, motion.root_quat, torch.as_tensor(joint_angles(motion)))[0].numpy()


# Rotations to hinges ------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["xyz", "yxz", "zyx", "xzy"])
def test_angles_of_hinges_rebuild_the_rotation(order: str) -> None:
    quats = torch.nn.functional.normalize(
        torch.randn(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    axes = torch.eye(3, dtype=torch.float64)
    angles = euler(quats, order)
    built = about_axis(axes["xyz".index(order[0])], angles[:, 0])
    for i in (1, 2):
        built = multiply(built, about_axis(axes["xyz".index(order[i])], angles[:, i]))
    assert torch.allclose((built * quats).sum(-1).abs(), torch.ones(200, dtype=torch.float64), atol=1e-9)


def test_joints_are_ordered_as_in_the_model() -> None:
    assert HUMANOID.joints == JOINTS
    assert HUMANOID.limits[0].shape == (28,)


def test_a_turning_joint_has_no_jumps_and_the_least_trouble_with_limits() -> None:
    angle = torch.linspace(0, 2.9, 120, dtype=torch.float64)
    quats = about_axis(torch.tensor([1.0, 0, 0], dtype=torch.float64), angle)
    quats[::2] *= -1  # the same rotations
    angles = hinge_angles(quats, "left_shoulder", "xyz")
    assert np.abs(np.diff(angles, axis=0)).max() < 0.05
    assert np.allclose(angles[:, 0], angle, atol=1e-6)
    assert np.abs(angles[:, 1:]).max() < 1e-6


@pytest.mark.parametrize("limb", LIMBS)
def test_a_bend_about_any_axis_leads_the_lower_bone_to_its_place(limb: str) -> None:
    _, _, bone, hinge, sign = LIMBS[limb]
    random = torch.Generator().manual_seed(1)
    upper = torch.nn.functional.normalize(torch.randn(50, 4, dtype=torch.float64, generator=random), dim=-1)
    turn = sign * torch.rand(50, dtype=torch.float64, generator=random) * 1.8 + sign * 0.5
    aside = about_axis(bone, torch.rand(50, dtype=torch.float64, generator=random) - 0.5)
    lower = multiply(multiply(upper, aside), about_axis(hinge, turn))
    twist, angle = bend(upper, lower, bone, hinge, sign)
    ours = multiply(multiply(upper, twist), about_axis(hinge, angle))
    assert torch.allclose(rotate(ours, bone), rotate(lower, bone), atol=1e-6)
    assert torch.allclose(angle, turn, atol=1e-6)


def test_opposite_directions_have_a_turn_between_them() -> None:
    x, z = torch.tensor([1.0, 0, 0], dtype=torch.float64), torch.tensor([0, 0, 1.0], dtype=torch.float64)
    assert torch.allclose(rotate(shortest_turn(x, -x, z), x), -x, atol=1e-9)
    assert torch.allclose(rotate(shortest_turn(x, x, z), z), z, atol=1e-9)


# DeepMimic ----------------------------------------------------------------------------------------
def deepmimic_positions(frame: list[float]) -> np.ndarray:
    """[15, 3] in our axes, step by step from the source's own quaternions: y up, z right, arms hanging."""
    root = np.array(frame[1:4])
    chest, neck = quat_matrix(np.array(frame[8:12])), quat_matrix(np.array(frame[12:16]))
    turns, offsets = {"pelvis": quat_matrix(np.array(frame[4:8]))}, body_offsets()
    places = {"pelvis": root}

    def add(body: str, parent: str, turn: np.ndarray, offset: np.ndarray | None = None) -> None:
        ours = offsets[body]
        own = np.array([ours[0], ours[2], -ours[1]]) if offset is None else offset
        places[body] = places[parent] + turns[parent] @ own
        turns[body] = turns[parent] @ turn

    add("torso", "pelvis", chest)
    add("head", "torso", neck)
    for side, start in (("right", 16), ("left", 30)):
        hip, ankle, shoulder = (quat_matrix(np.array(frame[start + i : start + i + 4])) for i in (0, 5, 9))
        knee, elbow = (matrix("z", np.degrees(frame[start + i])) for i in (4, 13))
        add(f"{side}_thigh", "pelvis", hip)
        add(f"{side}_shin", f"{side}_thigh", knee)
        add(f"{side}_foot", f"{side}_shin", ankle)
        add(f"{side}_upper_arm", "torso", shoulder)
        down = [np.array([0, -np.linalg.norm(offsets[f"{side}_{part}"]), 0]) for part in ("lower_arm", "hand")]
        add(f"{side}_lower_arm", f"{side}_upper_arm", elbow, down[0])
        add(f"{side}_hand", f"{side}_lower_arm", np.eye(3), down[1])
    return np.array([[x, -z, y] for x, y, z in (places[body] for body in BODIES)])


def body_offsets() -> dict[str, np.ndarray]:
    return {body: body_model().body(body).pos.copy() for body in BODIES}


@needs_shared
@pytest.mark.parametrize("path", DEEPMIMIC, ids=lambda path: path.stem)
def test_deepmimic_lands_where_its_own_kinematics_say(path: Path) -> None:
    frames = json.loads(path.read_text())["Frames"]
    theirs = np.stack([deepmimic_positions(frame) for frame in frames])
    assert np.abs(positions_of(read_motion(path)) - theirs).max() < MM


def test_a_written_deepmimic_clip(tmp_path: Path) -> None:
    """One with a known pose: standing, the right elbow bent forward, walking along x."""
    still = [1.0, 0, 0, 0]
    pose = [*still, *still, *still, *still, -0.4, *still, *still, 1.5, *still, 0.0, *still, *still, 0.0]
    frames = [[0.1, 0.1 * i, 0.9, 0.0, *pose] for i in range(5)]
    path = tmp_path / "stand.txt"
    path.write_text(json.dumps({"Loop": "wrap", "Frames": frames}))
    (clip,) = import_motion(path)
    assert (clip.name, clip.fps, clip.loop, clip.frames, clip.source) == ("stand", FPS, True, 25, "stand.txt")
    angle = dict(zip(JOINTS, clip.joint_pos[0], strict=True))
    assert angle["right_elbow"] == pytest.approx(1.5)
    assert angle["right_knee"] == pytest.approx(0.4)
    assert np.allclose(np.diff(clip.root_pos[:, 0]), 1 / FPS)
    assert clip.root_pos[:, 1] == pytest.approx(0)
    positions = forward_kinematics(*map(torch.as_tensor, (clip.root_pos, clip.root_quat, clip.joint_pos)))[0][0]
    hand, elbow, shoulder = (positions[BODIES.index(f"right_{b}")] for b in ("hand", "lower_arm", "upper_arm"))
    assert float(shoulder[2] - elbow[2]) == pytest.approx(0.274788, abs=MM)  # hangs
    assert float(hand[0] - elbow[0]) > 0.25  # bent forward


# Poselib ------------------------------------------------------------------------------------------
@needs_shared
@pytest.mark.parametrize("path", CMU, ids=lambda path: path.stem)
def test_poselib_lands_where_its_own_kinematics_say(path: Path) -> None:
    motion = np.load(path, allow_pickle=True).item()  # a file of ours; the importer trusts none
    tree = motion["skeleton_tree"]
    parents, offsets = tree["parent_indices"]["arr"], tree["local_translation"]["arr"]
    quats, root = motion["rotation"]["arr"], motion["root_translation"]["arr"]
    frames = range(0, len(quats), 5)
    theirs = []
    for frame in frames:
        places, turns = [root[frame]], [quat_matrix(quats[frame, 0, [3, 0, 1, 2]])]
        for body in range(1, len(parents)):
            places.append(places[parents[body]] + turns[parents[body]] @ offsets[body])
            turns.append(turns[parents[body]] @ quat_matrix(quats[frame, body, [3, 0, 1, 2]]))
        theirs.append(places)
    assert tree["node_names"] == list(BODIES)
    # The bones are ours but for fractions of a millimetre; a straight limb's plane is not turned.
    assert np.abs(positions_of(read_motion(path))[list(frames)] - np.array(theirs)).max() < 5 * MM


# BVH ------------------------------------------------------------------------------------------------
Frame = dict[str, tuple[float, float, float]]
CHAINS = (
    ("UpLeg", "Leg", "thigh", "shin"), ("Leg", "Foot", "shin", "foot"),
    ("Arm", "ForeArm", "upper_arm", "lower_arm"), ("ForeArm", "Hand", "lower_arm", "hand"),
)  # fmt: skip


def cmu_frames() -> list[Frame]:
    """Squats with bent elbows, turning left: x is to the left here, so knees bend about +x."""
    return [
        {
            "root": (0, 15 - 2 * s, 10 * s), "Hips": (0, 40 * s, 0), "Spine": (0, 0, 15 * s),
            "Head": (0, 20 * s, 0),
            "LeftUpLeg": (5, 0, -40 * s), "RightUpLeg": (0, 0, -35 * s), "LeftLeg": (0, 0, 25 + 60 * s),
            "RightLeg": (0, 0, 25 + 50 * s), "LeftFoot": (0, 0, -20 * s), "LeftArm": (-50 * s, 0, 20 * s),
            "RightArm": (60 * s, 0, 0), "LeftForeArm": (0, -30 - 50 * s, 0), "RightForeArm": (0, 30 + 40 * s, 0),
        }
        for s in np.linspace(0, 1, 31)
    ]  # fmt: skip


def lafan_frames() -> list[Frame]:
    """The same in a skeleton whose bones all point along x: knees and elbows bend about z."""
    return [
        LAFAN_STANCE | {
            "root": (0, 90 - 10 * s, 50 * s), "Spine": (-15 * s, 0, 0), "LeftUpLeg": (-40 * s, 180, 0),
            "RightUpLeg": (-35 * s, 175, 0), "LeftLeg": (-25 - 60 * s, 0, 0), "RightLeg": (-25 - 50 * s, 0, 0),
            "LeftForeArm": (-30 - 50 * s, 0, 0), "RightForeArm": (-30 - 40 * s, 0, 0), "LeftArm": (0, 40 * s, 0),
        }
        for s in np.linspace(0, 1, 31)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("skeleton", "frames"), [(CMU_SKELETON, cmu_frames()), (LAFAN_SKELETON, lafan_frames())], ids=["cmu", "lafan1"]
)
def test_bvh_keeps_every_limbs_direction(tmp_path: Path, skeleton: Skeleton, frames: list[Frame]) -> None:
    motion = read_motion(write_bvh(tmp_path / "squat.bvh", skeleton, frames, 30))
    ours = positions_of(motion)
    for i in (0, 15, 30):
        theirs = bvh_positions(skeleton, frames[i])
        for side in ("Left", "Right"):
            for start, end, our_start, our_end in CHAINS:
                wanted = theirs[side + end] - theirs[side + start]
                got = ours[i, BODIES.index(f"{side.lower()}_{our_end}")]
                got = got - ours[i, BODIES.index(f"{side.lower()}_{our_start}")]
                cosine = wanted @ got / np.linalg.norm(wanted) / np.linalg.norm(got)
                assert cosine > np.cos(np.radians(1.5)), (i, side, start)


def test_an_added_pose_before_the_motion_is_left_out_and_said(tmp_path: Path) -> None:
    """As conversions of CMU's clips have it: a T-pose with legs and hands set by hand, in whole degrees."""
    motion: list[Frame] = [
        {part: (x + 0.37, y + 0.37, z + 0.37) for part, (x, y, z) in frame.items()} for frame in cmu_frames()[10:]
    ]
    legs: Frame = {"LeftUpLeg": (-21, 0, 0), "RightUpLeg": (21, 0, 0)}
    added: Frame = {"root": motion[0]["root"], "Head": (0, 0, 11), **legs}
    with pytest.warns(UserWarning, match="T-pose that was added"):
        (clip,) = import_motion(write_bvh(tmp_path / "added.bvh", CMU_SKELETON, [added, *motion], 30))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (alone,) = import_motion(write_bvh(tmp_path / "alone.bvh", CMU_SKELETON, motion, 30))
        import_motion(write_bvh(tmp_path / "begun.bvh", CMU_SKELETON, cmu_frames(), 30))  # begins in such a pose
    np.testing.assert_array_equal(clip.joint_pos, alone.joint_pos)


@pytest.mark.parametrize(
    ("skeleton", "frames"), [(CMU_SKELETON, cmu_frames()), (LAFAN_SKELETON, lafan_frames())], ids=["cmu", "lafan1"]
)
def test_bvh_stands_faces_and_bends_as_a_person(tmp_path: Path, skeleton: Skeleton, frames: list[Frame]) -> None:
    (clip,) = import_motion(write_bvh(tmp_path / "squat.bvh", skeleton, frames, 30))
    angle = dict(zip(JOINTS, clip.joint_pos.T, strict=True))
    assert clip.frames == 61
    assert clip.duration == pytest.approx(1)
    for side, sign in (("right", 1), ("left", -1)):
        assert angle[f"{side}_knee"].min() > 0.3
        assert (sign * angle[f"{side}_elbow"]).min() > 0.4
    forward = rotate(torch.as_tensor(clip.root_quat), torch.tensor([1.0, 0, 0], dtype=torch.float64))
    up = rotate(torch.as_tensor(clip.root_quat), torch.tensor([0, 0, 1.0], dtype=torch.float64))
    assert float(forward[0, 0]) > 0.99
    assert float(up[0, 2]) > 0.99
    assert abs(lowest_of_clip(clip).min()) < 0.01
    assert 0.7 < clip.root_pos[0, 2] < 0.95  # scaled to our legs
    foot = forward_kinematics(*map(torch.as_tensor, (clip.root_pos, clip.root_quat, clip.joint_pos)))[1]
    sole_up = rotate(foot[0, BODIES.index("right_foot")], torch.tensor([0, 0, 1.0], dtype=torch.float64))
    assert float(sole_up[2]) > 0.85  # about flat
    assert clip.root_pos[-1, 0] - clip.root_pos[0, 0] > 0.3


def test_feet_are_flat_when_legs_that_are_apart_at_zero_come_together(tmp_path: Path) -> None:
    apart = np.degrees(np.arctan2(2.2, 6.4))
    frames = [
        {"root": (0, 15, 0), "LeftUpLeg": (-apart, 0, 0), "RightUpLeg": (apart, 0, 0), "Head": (0, 5 * s, 0)}
        for s in np.linspace(0, 1, 31)
    ]
    (clip,) = import_motion(write_bvh(tmp_path / "stand.bvh", CMU_SKELETON, frames, 30))
    rotations = forward_kinematics(*map(torch.as_tensor, (clip.root_pos, clip.root_quat, clip.joint_pos)))[1]
    for side in ("right", "left"):
        up = rotate(rotations[:, BODIES.index(f"{side}_foot")], torch.tensor([0, 0, 1.0], dtype=torch.float64))
        assert float(up[:, 2].min()) > 0.999
        assert np.abs(clip.joint_pos[:, JOINTS.index(f"{side}_hip_x")]).max() < 0.02


def test_bvh_reads_any_order_of_channels_and_prefixed_names(tmp_path: Path) -> None:
    path = write_bvh(tmp_path / "a.bvh", CMU_SKELETON, cmu_frames(), 30)
    text = path.read_text()
    header, frames = text.split("MOTION")
    rows = frames.splitlines()
    swapped = header.replace("Zrotation Yrotation Xrotation", "Xrotation Yrotation Zrotation")
    single = [{"root": (0, 15, 0), "LeftLeg": (0, 0, a)} for a in np.linspace(0, 60, 31)]  # one axis at a time
    one = write_bvh(tmp_path / "one.bvh", CMU_SKELETON, single, 30)
    numbers = [row.split() for row in one.read_text().split("MOTION")[1].splitlines()[3:]]
    turned = [" ".join(r[:3] + [v for i in range(3, len(r), 3) for v in r[i : i + 3][::-1]]) for r in numbers]
    other = tmp_path / "other.bvh"
    other.write_text(swapped.replace("JOINT ", "JOINT mixamorig:") + "MOTION" + "\n".join([*rows[:3], *turned]))
    assert np.allclose(positions_of(read_motion(one)), positions_of(read_motion(other)), atol=1e-5)


# CSV ------------------------------------------------------------------------------------------------
def write_csv(path: Path, clip: Clip, time: bool = True) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time"] * time + [*JOINTS[::-1], *ROOT])  # in any order
        for i in range(clip.frames):
            row = [i / clip.fps] * time + [*clip.joint_pos[i, ::-1], *clip.root_pos[i], *clip.root_quat[i]]
            writer.writerow([repr(float(value)) for value in row])
    return path


def wavy_clip(frames: int = 61) -> Clip:
    t = np.linspace(0, 1, frames)
    joints = 0.3 * np.sin(2 * np.pi * t[:, None] + np.arange(28))
    for side, sign in (("right", 1), ("left", -1)):
        joints[:, JOINTS.index(f"{side}_knee")] = 0.5 + 0.3 * np.sin(2 * np.pi * t)
        joints[:, JOINTS.index(f"{side}_elbow")] = sign * (0.5 + 0.3 * np.sin(2 * np.pi * t))
    quats = np.stack([np.cos(t / 2), 0 * t, 0 * t, np.sin(t / 2)], axis=1)
    return put_on_floor(Clip("wavy", 60.0, np.stack([t, 0 * t, 0.9 + 0 * t], axis=1), quats, joints))


@pytest.mark.parametrize("time", [True, False])
def test_our_csv_comes_back_as_it_was(tmp_path: Path, time: bool) -> None:
    clip = wavy_clip()
    (again,) = import_motion(write_csv(tmp_path / "wavy.csv", clip, time), fps=None if time else 60.0)
    assert again.frames == clip.frames
    assert np.allclose(again.joint_pos, clip.joint_pos, atol=1e-6)
    assert np.allclose(again.root_quat, clip.root_quat, atol=1e-9)
    assert np.allclose(again.root_pos, clip.root_pos, atol=0.02)  # a second look for the floor


@needs_shared
@pytest.mark.parametrize("path", G1, ids=lambda path: path.stem)
def test_the_g1s_motions_stand_on_our_legs(path: Path) -> None:
    (clip,) = import_motion(path)
    assert clip.duration == pytest.approx((len(path.read_text().splitlines()) - 1) / 30, abs=0.02)
    assert 0.75 < np.median(clip.root_pos[:, 2]) < 1.0
    assert lowest_of_clip(clip).min() > -0.01
    assert np.percentile(lowest_of_clip(clip), 25) < 0.02
    low, high = HUMANOID.limits
    assert np.maximum(low - clip.joint_pos, clip.joint_pos - high).max() < 0.1
    assert np.abs(np.diff(clip.joint_pos, axis=0)).max() < 0.5


def g1_model() -> mujoco.MjModel:
    """The published chain of the G1, without its looks: where its joints are, and how they are mounted."""

    def body(name: str, pos: str, axis: str, inside: str = "", quat: str = "1 0 0 0") -> str:
        joint = f'<joint name="{name}" axis="{axis}"/>' if axis else ""
        geom = '<geom size="0.01" mass="1"/>'
        return f'<body name="{name}" pos="{pos}" quat="{quat}">{joint}{geom}{inside}</body>'

    def leg(side: str, s: int) -> str:
        ankle = body(f"{side}_ankle_roll", "0 0 -0.017558", "1 0 0")
        ankle = body(f"{side}_ankle_pitch", "0 0 -0.30001", "0 1 0", ankle)
        knee = body(
            f"{side}_knee", f"-0.078273 {s * 0.0021489} -0.17734", "0 1 0", ankle, "0.996179 0 0.0873386 0"
        )
        yaw = body(f"{side}_hip_yaw", "0.025001 0 -0.12412", "0 0 1", knee)
        roll = body(f"{side}_hip_roll", f"0 {s * 0.052} -0.030465", "1 0 0", yaw, "0.996179 0 -0.0873386 0")
        return body(f"{side}_hip_pitch", f"0 {s * 0.064452} -0.1027", "0 1 0", roll)

    def arm(side: str, s: int) -> str:
        wrist = body(f"{side}_wrist_yaw", "0.046 0 0", "0 0 1")
        wrist = body(f"{side}_wrist_pitch", "0.038 0 0", "0 1 0", wrist)
        wrist = body(f"{side}_wrist_roll", f"0.1 {s * 0.0018879} -0.01", "1 0 0", wrist)
        elbow = body(f"{side}_elbow", "0.015783 0 -0.080518", "0 1 0", wrist)
        yaw = body(f"{side}_shoulder_yaw", f"0 {s * 0.00624} -0.1032", "0 0 1", elbow)
        back = f"0.990268 {-s * 0.139172} 0 0"
        roll = body(f"{side}_shoulder_roll", f"0 {s * 0.038} -0.013831", "1 0 0", yaw, back)
        place = f"0.0039563 {s * 0.10022} 0.24778"
        return body(f"{side}_shoulder_pitch", place, "0 1 0", roll, f"0.990264 {s * 0.139201} 0 0")

    torso = body("waist_pitch", "0 0 0", "0 1 0", arm("left", 1) + arm("right", -1))
    waist = body("waist_yaw", "0 0 0", "0 0 1", body("waist_roll", "-0.0039635 0 0.044", "1 0 0", torso))
    inside = f'<freejoint/><geom size="0.01" mass="1"/>{leg("left", 1)}{leg("right", -1)}{waist}'
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><compiler angle="radian"/><worldbody><body name="pelvis">{inside}</body></worldbody></mujoco>'
    )


@needs_shared
@pytest.mark.parametrize("path", G1, ids=lambda path: path.stem)
def test_limbs_point_as_the_g1s_do(path: Path) -> None:
    table = np.loadtxt(path, delimiter=",")
    ours, model = positions_of(read_motion(path)), g1_model()
    data = mujoco.MjData(model)
    chains = (
        ("hip_roll", "knee", "thigh", "shin"), ("knee", "ankle_roll", "shin", "foot"),
        ("shoulder_roll", "elbow", "upper_arm", "lower_arm"), ("elbow", "wrist_yaw", "lower_arm", "hand"),
    )  # fmt: skip
    for frame in range(0, len(table), 10):
        data.qpos[:] = table[frame]
        mujoco.mj_kinematics(model, data)
        for side in ("left", "right"):
            for start, end, our_start, our_end in chains:
                wanted = data.body(f"{side}_{end}").xpos - data.body(f"{side}_{start}").xpos
                got = (
                    ours[frame, BODIES.index(f"{side}_{our_end}")]
                    - ours[frame, BODIES.index(f"{side}_{our_start}")]
                )
                cosine = wanted @ got / np.linalg.norm(wanted) / np.linalg.norm(got)
                assert cosine > np.cos(np.radians(12)), (frame, side, start)  # its bones are not quite straight


@needs_shared
def test_the_g1s_quaternion_is_found_whichever_comes_first(tmp_path: Path) -> None:
    table = np.loadtxt(SHARED / "g1_kimodo" / "walk.csv", delimiter=",")
    last = tmp_path / "last.csv"
    np.savetxt(last, table[:, [0, 1, 2, 4, 5, 6, 3, *range(7, 36)]], delimiter=",")
    first = import_motion(SHARED / "g1_kimodo" / "walk.csv")[0]
    assert np.allclose(import_motion(last)[0].root_quat, first.root_quat, atol=1e-6)


@needs_shared
@pytest.mark.parametrize("degrees", [90, 170, 180])
def test_the_g1s_quaternion_is_found_whichever_way_it_walks(tmp_path: Path, degrees: float) -> None:
    """Facing back, w is nearly 0: the reading by which the feet slide is the wrong one."""
    table = np.loadtxt(SHARED / "g1_kimodo" / "walk.csv", delimiter=",")
    turn = about_axis(torch.tensor([0.0, 0, 1], dtype=torch.float64), torch.tensor(np.radians(degrees)))
    table[:, :3] = rotate(turn, torch.as_tensor(table[:, :3])).numpy()
    table[:, 3:7] = multiply(turn.expand(len(table), 4), torch.as_tensor(table[:, 3:7])).numpy()
    np.savetxt(tmp_path / "back.csv", table, delimiter=",")
    for told in ("", "wxyz"):
        (clip,) = import_motion(tmp_path / "back.csv", quaternion=told)
        ahead = rotate(torch.as_tensor(clip.root_quat), torch.tensor([1.0, 0, 0], dtype=torch.float64))
        step = torch.as_tensor(np.diff(clip.root_pos, axis=0))
        assert float((ahead[1:] * step).sum(1).median()) > 0  # it walks where it looks


def test_the_pelvis_is_what_the_legs_hang_on(tmp_path: Path) -> None:
    """Some exporters put a point on the floor above the hips."""
    turning = [{"root": (0, 15, 0), "Hips": (0, a, 0)} for a in np.linspace(0, 180, 31)]
    plain = read_motion(write_bvh(tmp_path / "plain.bvh", CMU_SKELETON, turning, 30))
    above = (("Reference", "", (0, 0, 0)), *((n, p or "Reference", o) for n, p, o in CMU_SKELETON))
    other = read_motion(write_bvh(tmp_path / "other.bvh", above, turning, 30))
    assert torch.allclose((plain.root_quat * other.root_quat).sum(1).abs(), torch.ones(len(turning)).double())


def test_a_rate_that_is_given_goes_before_a_frame_time_that_is_none(tmp_path: Path) -> None:
    path = write_bvh(tmp_path / "a.bvh", CMU_SKELETON, cmu_frames(), 30)
    text = path.read_text()
    path.write_text(re.sub(r"Frame Time: .*", "Frame Time: 0", text))
    with pytest.raises(DataError, match=r"frame time of 0 s.*--fps"):
        import_motion(path)
    (clip,) = import_motion(path, fps=30)
    assert clip.duration == pytest.approx((len(cmu_frames()) - 1) / 30, abs=0.05)
    with pytest.raises(DataError, match="leave out --quaternion"):
        import_motion(path, quaternion="wxyz")
    with pytest.raises(DataError, match="leave out --fps"):
        import_motion(shipped_folder() / "bow.npz", fps=60)


# Rates, the floor and loops ---------------------------------------------------------------------------
def test_resampling_passes_through_the_keys() -> None:
    times = torch.tensor([0, 0.05, 0.1, 0.2], dtype=torch.float64)
    x = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    quats = about_axis(x, torch.tensor([0.0, 0.5, 1.0, 3.0], dtype=torch.float64))
    motion = Motion(times, torch.stack([times] * 3, dim=1), quats, {}, {"right_knee": 10 * times}, loop=False)
    fine = resample(motion, 60)
    assert len(fine.times) == 13
    assert torch.allclose(fine.root_pos[:, 0], fine.times)
    assert torch.allclose(fine.hinges["right_knee"], 10 * fine.times)
    assert torch.allclose(fine.root_quat[[3, 6, 12]].abs(), quats[[1, 2, 3]].abs(), atol=1e-9)


def test_poses_that_are_stored_twice_count_once() -> None:
    times = torch.arange(20, dtype=torch.float64) / 60
    still = torch.tensor([[1.0, 0, 0, 0]] * 20, dtype=torch.float64)
    x = torch.arange(10, dtype=torch.float64).repeat_interleave(2)
    doubled = Motion(times, torch.stack([x] * 3, dim=1), still, {}, {})
    assert torch.equal(without_held_poses(doubled).times, times[::2])
    standing = Motion(times, torch.zeros(20, 3, dtype=torch.float64), still, {}, {})
    assert len(without_held_poses(standing).times) == 20


def test_a_loop_keeps_its_last_pose_and_a_clip_its_rate() -> None:
    times = torch.tensor([0, 0.51], dtype=torch.float64)
    still = torch.tensor([[1.0, 0, 0, 0]] * 2, dtype=torch.float64)
    for loop, last in ((True, 0.51), (False, 0.5)):
        motion = resample(Motion(times, torch.stack([times] * 3, dim=1), still, {}, {}, loop), 60)
        assert float(motion.root_pos[-1, 0]) == pytest.approx(last)


def standing(frames: int = 120, height: float = 0.9, loop: bool = False) -> Clip:
    root = np.tile([0.0, 0.0, height], (frames, 1))
    return Clip("stand", 60.0, root, np.tile([1.0, 0, 0, 0], (frames, 1)), np.zeros((frames, 28)), loop)


@pytest.mark.parametrize("height", [0.7, 1.3])
def test_a_clip_under_or_above_the_floor_is_put_on_it(height: float) -> None:
    fixed = put_on_floor(standing(height=height))
    assert np.abs(lowest_of_clip(fixed)).max() < 1e-6
    assert fixed.height_fix == pytest.approx(fixed.root_pos[0, 2] - height)


def test_feet_are_lifted_smoothly_and_jumps_stay() -> None:
    clip = put_on_floor(standing(240))
    clip.root_pos[60:70, 2] -= 0.1  # a dip under the floor
    clip.root_pos[150:180, 2] += 0.3 * np.sin(np.linspace(0, np.pi, 30))  # a jump
    before = clip.root_pos.copy()
    fixed = put_on_floor(clip)
    assert lowest_of_clip(fixed).min() > -1e-6
    assert np.allclose(fixed.root_pos[140:190], before[140:190], atol=1e-3)
    lift = fixed.root_pos[:, 2] - before[:, 2]
    assert np.abs(np.diff(lift)).max() < 0.03
    assert lift[:40].max() < 1e-3


def test_a_loops_lift_is_periodic() -> None:
    clip = put_on_floor(standing(121, loop=True))
    clip.root_pos[[0, 1, 2, 119, 120], 2] -= 0.05
    fixed = put_on_floor(clip)
    assert fixed.root_pos[0, 2] - clip.root_pos[0, 2] == pytest.approx(
        fixed.root_pos[-1, 2] - clip.root_pos[-1, 2]
    )
    assert lowest_of_clip(fixed).min() > -1e-6


# All real clips -----------------------------------------------------------------------------------------
@needs_shared
@pytest.mark.parametrize("path", [*DEEPMIMIC, *CMU], ids=lambda path: path.stem)
def test_real_clips_are_sound(path: Path) -> None:
    (clip,) = import_motion(path)
    lowest = lowest_of_clip(clip)
    assert clip.fps == FPS
    assert lowest.min() > -0.01
    assert np.percentile(lowest, 10) < 0.03  # it stands on the floor
    assert np.abs(clip.height_fix) < 0.14
    # Only arms that swing through gimbal lock's neighbourhood are fast.
    steps = np.abs(np.diff(clip.joint_pos, axis=0)).max(axis=0)
    shoulders = np.array(["shoulder" in joint for joint in JOINTS])
    assert steps[~shoulders].max() < 0.5
    assert steps[shoulders].max() < 1.3
    middle = [JOINTS.index(f"{joint}_{order[1]}") for joint, order in HINGES.items() if len(order) == 3]
    assert np.abs(clip.joint_pos[:, middle]).max() < np.radians(85)
    if clip.loop:
        joints, tilt, height = seam_jumps(clip)
        assert max(np.abs(joints).max(), np.abs(tilt).max(), abs(height)) < 1e-6
        assert not seam_turns(clip).any()


@needs_shared
def test_mujoco_agrees_about_an_import() -> None:
    (clip,) = import_motion(SHARED / "deepmimic" / "humanoid3d_cartwheel.txt")
    model = load_body()
    data = mujoco.MjData(model)
    data.qpos[:] = np.concatenate([clip.root_pos[70], clip.root_quat[70], clip.joint_pos[70]])
    mujoco.mj_kinematics(model, data)
    ours = forward_kinematics(*map(torch.as_tensor, (clip.root_pos, clip.root_quat, clip.joint_pos)))[0][70]
    assert np.abs(data.xpos[1:] - ours.numpy()).max() < 1e-4


@needs_shared
def test_the_loop_flag_can_be_set_and_a_wide_gap_stays() -> None:
    path = SHARED / "deepmimic" / "humanoid3d_kick.txt"
    assert not import_motion(path)[0].loop
    forced = import_motion(path, loop=True)[0]
    assert forced.loop
    assert np.abs(seam_jumps(forced)[0]).max() > 1
    assert not import_motion(SHARED / "deepmimic" / "humanoid3d_walk.txt", loop=False)[0].loop
    assert import_motion(path, fps=15.0)[0].duration == pytest.approx(46 / 15, abs=0.02)


def test_the_turn_of_a_seam_is_about_the_vertical() -> None:
    clip = standing()
    clip.root_quat[-1] = [np.cos(0.6), 0, 0, np.sin(0.6)]
    assert np.allclose(seam_turn(clip), clip.root_quat[-1])
    assert np.allclose(seam_jumps(clip)[1], 0, atol=1e-9)
    clip.root_quat[-1] = [np.cos(0.3), 0, 0, np.sin(0.3)]  # a small turn, after which all meets
    assert np.allclose(seam_turn(clip), clip.root_quat[-1])
    clip.joint_pos[-1, 2] = -0.6  # but this is a twist of the pelvis, not of the way
    assert np.allclose(seam_turn(clip), [1, 0, 0, 0])
    assert np.allclose(np.abs(seam_jumps(clip)[1]), [0, 0, 0.6])


def test_an_arm_that_winds_up_ends_the_loop() -> None:
    angle = torch.linspace(0, 2 * torch.pi, 60, dtype=torch.float64)
    still = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(60, 4)
    x = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    balls = {joint: still for joint, order in HINGES.items() if len(order) == 3}
    balls["left_shoulder"] = about_axis(x, angle)
    hinges = {joint: torch.zeros(60, dtype=torch.float64) for joint, order in HINGES.items() if len(order) == 1}
    root = torch.zeros(60, 3, dtype=torch.float64)
    clip = make_clip(Motion(torch.arange(60) / 60, root, still, balls, hinges, loop=True), "windmill", "", "here")
    assert not clip.loop
    assert np.abs(np.diff(clip.joint_pos, axis=0)).max() < 0.2
