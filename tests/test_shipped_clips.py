"""The clips that come with the package: they are what their equations make, and a body could do them."""

import numpy as np
import pytest
import torch

from authoring import LICENCE, SOURCE, author_clips
from balance import sole_corners, support_margin
from humanoid_body import JOINTS, body_model, forward_kinematics, lowest_points
from ludus.envs.humanoid.catalogue import shipped_folder
from ludus.envs.humanoid.checks import check_motion
from ludus.envs.humanoid.clip import Clip, load_clip
from ludus.motion_viewing import qpos_at

NAMES = ("bow", "jog", "march", "punch_combo", "side_step", "squat", "stroll", "turn", "wave")
LOOPS = set(NAMES) - {"bow", "punch_combo"}
GAITS = {"stroll", "jog"}  # their feet roll: at times they stand on an edge, where nothing is to spare

every_clip = pytest.mark.parametrize("name", NAMES)


def _shipped(name: str) -> Clip:
    return load_clip(shipped_folder() / f"{name}.npz")


@pytest.fixture(scope="module")
def authored() -> dict[str, Clip]:
    return {clip.name: clip for clip in author_clips()}


def test_folder_holds_the_authored_clips_and_no_others(authored: dict[str, Clip]) -> None:
    assert sorted(path.stem for path in shipped_folder().glob("*")) == sorted(authored) == sorted(NAMES)


@every_clip
def test_clip_is_what_its_equations_make(name: str, authored: dict[str, Clip]) -> None:
    shipped, made = _shipped(name), authored[name]
    np.testing.assert_allclose(shipped.qpos, made.qpos, atol=1e-4)
    assert (shipped.fps, shipped.loop) == (60, name in LOOPS) == (made.fps, made.loop)
    assert (shipped.source, shipped.licence) == (SOURCE, LICENCE)


@every_clip
def test_check_finds_nothing_wrong(name: str) -> None:
    assert [finding.what for finding in check_motion(_shipped(name)) if finding.level != "ok"] == []


@every_clip
def test_joints_stay_inside_their_limits_and_move_smoothly(name: str) -> None:
    clip, limits = _shipped(name), body_model().jnt_range[1:]
    slack = np.minimum(clip.joint_pos - limits[:, 0], limits[:, 1] - clip.joint_pos).min(axis=0)
    assert slack.min() > 0.05, JOINTS[int(slack.argmin())]
    assert np.abs(np.diff(clip.joint_pos, axis=0)).max() * clip.fps < 16  # rad/s
    assert np.abs(np.diff(clip.joint_pos, 2, axis=0)).max() * clip.fps**2 < 800  # rad/s²


@every_clip
def test_body_is_on_the_floor_and_not_in_it(name: str) -> None:
    pose = torch.as_tensor(_shipped(name).qpos)
    places, turns = forward_kinematics(pose[:, :3], pose[:, 3:7], pose[:, 7:])
    lowest = lowest_points(places, turns).min(dim=1).values
    assert lowest.min() > -0.002
    assert lowest.max() < 0.005


@every_clip
def test_what_stands_does_not_slide(name: str) -> None:
    """A corner of a sole that lies on the floor in two frames is in the same place in both."""
    corners = sole_corners(_shipped(name).qpos)
    stands = corners[:, :, 2] < 0.0005
    moves = np.linalg.norm(np.diff(corners[:, :, :2], axis=0), axis=2)
    slides = moves[stands[1:] & stands[:-1]]
    assert len(slides) > 2 * len(corners)  # of four corners of two soles each; in the jog the feet are up most
    assert slides.max() * 60 < 0.06  # m/s


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_seam_closes(name: str) -> None:
    """The last pose is the first one elsewhere on the floor, and the motion goes on at the same speed."""
    clip = _shipped(name)
    qpos = clip.qpos
    again, onward = (qpos_at(clip, clip.duration + frame / clip.fps) for frame in (0, 1))
    np.testing.assert_allclose(qpos[-1, 7:], qpos[0, 7:], atol=1e-5)
    np.testing.assert_allclose(again, qpos[-1], atol=1e-5)
    step_before, step_after = qpos[-1] - qpos[-2], onward - qpos[-1]
    assert np.abs(step_after - step_before).max() * 60**2 < 800


@every_clip
def test_floor_can_push_where_it_has_to(name: str) -> None:
    """The zero-moment point lies inside the soles; the edge that a foot rolls over may be missed by a hair."""
    margin = support_margin(_shipped(name))
    assert np.nanmin(margin) > (-0.01 if name in GAITS else 0.03)
    assert np.isnan(margin).any() == (name == "jog")  # only it flies


@pytest.mark.parametrize(("name", "speed"), [("stroll", 1.2), ("jog", 2.04)])
def test_gaits_go_straight_ahead(name: str, speed: float) -> None:
    clip = _shipped(name)
    way = clip.root_pos[-1] - clip.root_pos[0]
    np.testing.assert_allclose(way, [speed * clip.duration, 0.0, 0.0], atol=1e-3)


def test_turn_turns_a_quarter_to_the_left() -> None:
    first, last = _shipped("turn").root_quat[[0, -1]]
    angle = 2 * (np.arctan2(last[3], last[0]) - np.arctan2(first[3], first[0]))
    assert angle == pytest.approx(np.pi / 2, abs=0.02)
