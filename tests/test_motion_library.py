"""Clips of motion: rotations, kinematics, files, the table read by clip and time.

Everything is held against a slow version: scipy's rotations, MuJoCo's kinematics, one frame after the other.
"""

import math
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("scipy", reason="SciPy is not installed")
from scipy.spatial.transform import Rotation, Slerp

from humanoid_body import BODIES, JOINTS, body_model, forward_kinematics, load_body, lowest_points
from humanoid_envs import about_z, quat_of, slow_kinematics, standing_clip, walk_clip, yaw_of
from ludus.envs.bodies import rotations
from ludus.envs.humanoid.clip import Clip, load_clip, save_clip
from ludus.envs.humanoid.importing import import_motion
from ludus.envs.humanoid.motions import MotionLibrary, Reference
from ludus.errors import DataError

DEEPMIMIC = Path(__file__).parents[2] / "shared" / "motions" / "deepmimic"


def deepmimic_walk() -> Clip:
    path = DEEPMIMIC / "humanoid3d_walk.txt"
    if not path.is_file():
        pytest.skip(f"DeepMimic's walk is not there ({path})")
    return import_motion(path)[0]


CLIPS: dict[str, Callable[[], Clip]] = {
    "walk": walk_clip,
    "circle": lambda: walk_clip("circle", turn=0.9, yaw=0.5),
    "once": lambda: walk_clip("once", loop=False, fps=50.0, turn=-0.7),
    "stand": standing_clip,
    "deepmimic": deepmimic_walk,
}


# The slow versions ------------------------------------------------------------------------------------
def slow_qpos(clip: Clip, time: float) -> np.ndarray:
    """[35] between two frames; of a looping clip as many cycles later as have passed."""
    cycles = math.floor(time / clip.duration) if clip.loop else 0
    frame = np.clip((time - cycles * clip.duration) * clip.fps, 0, clip.frames - 1)
    before = min(int(frame), clip.frames - 2)
    share = frame - before
    position, joints = (
        (1 - share) * values[before] + share * values[before + 1] for values in (clip.root_pos, clip.joint_pos)
    )
    pair = Rotation.from_quat(clip.root_quat[before : before + 2], scalar_first=True)
    rotation = Slerp([0.0, 1.0], pair)(share)
    turn = about_z(yaw_of(clip.root_quat[-1]) - yaw_of(clip.root_quat[0]))
    first, last = (clip.root_pos[i] * [1, 1, 0] for i in (0, -1))
    for _ in range(cycles):
        position, rotation = turn.apply(position - first) + last, turn * rotation
    return np.concatenate([position, quat_of(rotation), joints])


def angle_between(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[n] rad between rotations [n, 4]."""
    a, b = (Rotation.from_quat(q.reshape(-1, 4), scalar_first=True) for q in (one, other))
    return np.atleast_1d((a.inv() * b).magnitude())


def difference_rate(clip: Clip, time: float, h: float) -> np.ndarray:
    """[34] velocity by MuJoCo's own difference of two poses."""
    qvel = np.zeros(34)
    mujoco.mj_differentiatePos(body_model(), qvel, 2 * h, slow_qpos(clip, time - h), slow_qpos(clip, time + h))
    return qvel


def at(library: MotionLibrary, clip: int, *times: float) -> Reference:
    return library.at(torch.full((len(times),), clip), torch.tensor(times, dtype=torch.float64))


# Rotations --------------------------------------------------------------------------------------------
def random_rotations(n: int, seed: int) -> tuple[Tensor, Rotation]:
    rotation = Rotation.random(n, np.random.default_rng(seed))
    sign = np.random.default_rng(seed + 100).choice([-1.0, 1.0], (n, 1))  # both mean the same
    return torch.from_numpy(sign * quat_of(rotation)), rotation


def assert_same_rotation(quat: Tensor, rotation: Rotation, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(quat.norm(dim=-1), 1.0, atol=atol)
    theirs = rotation.as_matrix()
    ours = Rotation.from_quat(quat.numpy(), scalar_first=True).as_matrix()
    np.testing.assert_allclose(ours, theirs, atol=atol)


def test_products_and_turned_vectors_equal_scipys() -> None:
    (a, ra), (b, rb) = random_rotations(200, 0), random_rotations(200, 1)
    v = np.random.default_rng(2).normal(size=(200, 3))
    assert_same_rotation(rotations.multiply(a, b), ra * rb)
    assert_same_rotation(rotations.conjugate(a), ra.inv())
    np.testing.assert_allclose(rotations.rotate(a, torch.from_numpy(v)), ra.apply(v), atol=1e-12)
    np.testing.assert_allclose(rotations.rotate_back(a, torch.from_numpy(v)), ra.inv().apply(v), atol=1e-12)
    many = rotations.rotate(a[:, None], torch.from_numpy(v)[:7])  # broadcast: [200, 1] with [7]
    np.testing.assert_allclose(many[3], ra[3].apply(v[:7]), atol=1e-12)


def test_heading_is_where_the_x_axis_points_from_above() -> None:
    q, rotation = random_rotations(500, 3)
    x, y, _ = rotation.apply([1.0, 0.0, 0.0]).T
    assert_same_rotation(rotations.heading(q), about_z(np.arctan2(y, x)))
    turned = rotations.multiply(torch.from_numpy(quat_of(about_z(1.3))), q)  # a turn about z turns the heading
    assert_same_rotation(rotations.heading(turned), about_z(1.3 + np.arctan2(y, x)), atol=1e-9)


@pytest.mark.parametrize(
    "angle", [0.0, 1e-12, 1e-9, 1e-7, 1e-4, 0.5, 3.0, math.pi - 1e-4, math.pi - 1e-9, math.pi]
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rotation_vectors_are_right_for_tiny_and_half_turns(angle: float, sign: float) -> None:
    axis = np.random.default_rng(4).normal(size=(50, 3))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    q = np.concatenate([np.full((50, 1), math.cos(angle / 2)), math.sin(angle / 2) * axis], axis=1)
    vector = rotations.rotation_vector(torch.from_numpy(sign * q)).numpy()
    np.testing.assert_allclose(np.linalg.norm(vector, axis=1), angle, rtol=1e-9, atol=1e-15)
    if angle < math.pi - 1e-10:  # half a turn goes both ways
        np.testing.assert_allclose(vector, angle * axis, rtol=1e-6, atol=1e-15 + 1e-9 * angle)
    again = rotations.from_rotation_vector(torch.from_numpy(vector))
    assert_same_rotation(again, Rotation.from_quat(q, scalar_first=True), atol=1e-9)
    single = rotations.rotation_vector(torch.from_numpy(sign * q).float()).numpy()
    assert np.isfinite(single).all()
    np.testing.assert_allclose(np.linalg.norm(single, axis=1), angle, atol=1e-6)


def test_two_axes_are_the_first_and_last_column_of_the_matrix() -> None:
    q, rotation = random_rotations(200, 5)
    matrix = rotation.as_matrix()
    expected = np.concatenate([matrix[:, :, 0], matrix[:, :, 2]], axis=1)
    np.testing.assert_allclose(rotations.two_axes(q), expected, atol=1e-12)


def test_slerp_equals_scipys_the_shorter_way() -> None:
    (a, ra), (b, rb) = random_rotations(200, 6), random_rotations(200, 7)
    share = np.random.default_rng(8).random(200)
    share[:2] = 0.0, 1.0
    between = [Slerp([0, 1], Rotation.concatenate([p, q]))(s) for p, q, s in zip(ra, rb, share, strict=True)]
    assert_same_rotation(rotations.slerp(a, b, torch.from_numpy(share)), Rotation.concatenate(between), atol=1e-9)
    assert_same_rotation(rotations.slerp(a, a, torch.from_numpy(share)), ra, atol=1e-9)


# Kinematics -------------------------------------------------------------------------------------------
def random_poses(n: int, seed: int) -> np.ndarray:
    """[n, 35] any place, any rotation, joints within their limits."""
    rng, limits = np.random.default_rng(seed), body_model().jnt_range[1:]
    joints = rng.uniform(limits[:, 0], limits[:, 1], (n, len(JOINTS)))
    return np.concatenate([rng.normal(size=(n, 3)), quat_of(Rotation.random(n, rng)), joints], axis=1)


def test_names_are_those_of_the_model_in_its_order() -> None:
    model = body_model()
    assert tuple(model.body(i).name for i in range(1, model.nbody)) == BODIES
    assert tuple(model.joint(i).name for i in range(1, model.njnt)) == JOINTS
    assert [model.actuator(i).trnid[0] for i in range(model.nu)] == list(range(1, model.njnt))
    assert model.body_mass.sum() == pytest.approx(50.05, abs=0.05)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_forward_kinematics_equals_mujocos(dtype: torch.dtype, atol: float) -> None:
    poses = random_poses(100, 0)
    qpos = torch.from_numpy(poses).to(dtype)
    positions, quats = forward_kinematics(qpos[:, :3], qpos[:, 3:7], qpos[:, 7:])
    slow = [slow_kinematics(pose) for pose in poses]
    np.testing.assert_allclose(positions, np.stack([p for p, _ in slow]), atol=atol)
    theirs = np.stack([q for _, q in slow])
    sign = np.sign((quats.numpy() * theirs).sum(-1, keepdims=True))
    np.testing.assert_allclose(quats, sign * theirs, atol=atol)
    batched = forward_kinematics(*(qpos.view(4, 25, 35)[..., s] for s in (slice(3), slice(3, 7), slice(7, 35))))
    assert batched[0].shape == (4, 25, 15, 3)
    torch.testing.assert_close(batched[0].flatten(0, 1), positions)


@pytest.mark.parametrize("height", [0.0, 0.9, 5.0])
def test_lowest_points_are_the_distances_at_which_mujoco_finds_the_floor(height: float) -> None:
    model = load_body()
    model.geom_margin[0] = 100.0  # so that it is found however far away
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_MIDPHASE  # which knows nothing of such a margin
    data = mujoco.MjData(model)
    for pose in random_poses(30, 1):
        pose[2] = height
        data.qpos[:] = pose
        mujoco.mj_forward(model, data)
        expected = np.full(len(BODIES), np.inf)
        for contact in data.contact:
            if 0 in contact.geom:
                body = int(model.geom_bodyid[max(contact.geom)]) - 1
                expected[body] = min(expected[body], contact.dist)
        positions, quats = (torch.from_numpy(v.copy()) for v in (data.xpos[1:], data.xquat[1:]))
        np.testing.assert_allclose(lowest_points(positions, quats), expected, atol=1e-8)


def test_only_what_reaches_below_the_floor_has_a_contact() -> None:
    model = load_body()
    data = mujoco.MjData(model)
    for pose in random_poses(30, 2):
        pose[2] = 0.3
        data.qpos[:] = pose
        mujoco.mj_forward(model, data)
        touching = {int(model.geom_bodyid[max(c.geom)]) - 1 for c in data.contact if 0 in c.geom}
        lowest = lowest_points(*(torch.from_numpy(v[None].copy()) for v in (data.xpos[1:], data.xquat[1:])))[0]
        assert touching == set((lowest < 0).nonzero().flatten().tolist())


# The library ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CLIPS)
def test_poses_at_any_time_equal_the_slow_version(name: str) -> None:
    clip = CLIPS[name]()
    library = MotionLibrary([clip], seconds=4.0)
    longest = clip.duration + 4.0 if clip.loop else clip.duration
    times = np.random.default_rng(0).uniform(0, longest, 60)
    found = at(library, 0, *times)
    for i, time in enumerate(times):
        qpos = slow_qpos(clip, time)
        bodies, quats = slow_kinematics(qpos)
        np.testing.assert_allclose(found.qpos[i, :3], qpos[:3], atol=1e-3)
        np.testing.assert_allclose(found.qpos[i, 7:], qpos[7:], atol=math.radians(0.5))
        assert angle_between(found.qpos[i, 3:7].numpy(), qpos[3:7]).max() < math.radians(0.5)
        assert np.linalg.norm(found.body_pos[i].numpy() - bodies, axis=1).max() < 1e-3
        assert angle_between(found.body_quat[i].numpy(), quats).max() < math.radians(0.5)
        torch.testing.assert_close(found.body_quat[i].norm(dim=-1), torch.ones(15))


@pytest.mark.parametrize("name", CLIPS)
def test_velocities_equal_differences_of_the_slow_poses(name: str) -> None:
    clip = CLIPS[name]()
    library = MotionLibrary([clip], seconds=2.0)
    frame = 1 / clip.fps
    last = clip.duration + 1.5 if clip.loop else clip.duration - frame
    frames = np.random.default_rng(1).integers(1, int(last * clip.fps), 40)
    found = at(library, 0, *(frames * frame)).qvel.numpy()
    for qvel, number in zip(found, frames, strict=True):
        np.testing.assert_allclose(qvel, difference_rate(clip, number * frame, frame), atol=5e-3)


@pytest.mark.parametrize("name", ["walk", "circle", "once", "deepmimic"])
def test_mujoco_integrates_a_pose_with_its_velocity_to_the_next(name: str) -> None:
    """The root's velocity is in the world, its turning in its own frame."""
    clip = CLIPS[name]()
    library = MotionLibrary([clip], seconds=2.0)
    dt = 0.004
    for time in np.random.default_rng(2).uniform(0.1, clip.duration - 0.1, 20):
        now, then = at(library, 0, time), at(library, 0, time + dt)
        qpos = now.qpos[0].double().numpy()
        mujoco.mj_integratePos(body_model(), qpos, now.qvel[0].double().numpy(), dt)
        np.testing.assert_allclose(qpos[:3], then.qpos[0, :3], atol=5e-4)
        np.testing.assert_allclose(qpos[7:], then.qpos[0, 7:], atol=1e-2)
        assert angle_between(qpos[3:7], then.qpos[0, 3:7].numpy()).max() < 2e-3


def test_turning_is_told_in_the_roots_own_frame_for_a_body_that_lies() -> None:
    """Lying on its side and spinning about the vertical: nothing of it is about its own z axis."""
    t = np.arange(61) / 60
    quat = quat_of(about_z(2.0 * t) * Rotation.from_euler("x", np.pi / 2))
    clip = Clip("spin", 60.0, np.tile([0.0, 0.0, 0.2], (61, 1)), quat, np.zeros((61, 28)))
    qvel = at(MotionLibrary([clip], 1.0), 0, 0.0, 0.5, 1.0).qvel
    np.testing.assert_allclose(qvel[:, 3:6], [[0.0, 2.0, 0.0]] * 3, atol=1e-4)


@pytest.mark.parametrize("turn", [0.0, 0.2, 0.9, -1.7, 2 * math.pi / 3])
def test_a_looping_clip_goes_on_where_it_ended(turn: float) -> None:
    clip = walk_clip(turn=turn, yaw=0.4)
    library = MotionLibrary([clip], seconds=5.0)
    place, facing = np.zeros(3), about_z(0.0)  # of the cycle that is k cycles later
    cycle = about_z(turn)
    first, last = (clip.root_pos[i] * [1, 1, 0] for i in (0, -1))
    for k in range(1, 5):
        place, facing = facing.apply(last - cycle.apply(first)) + place, facing * cycle
        for t in (0.0, 0.31, 0.77, 1.19):
            then, now = at(library, 0, t + k * clip.duration), at(library, 0, t)
            expected = facing.apply(now.body_pos[0].numpy()) + place
            np.testing.assert_allclose(then.body_pos[0], expected, atol=2e-4)
            np.testing.assert_allclose(then.qpos[0, 2], now.qpos[0, 2], atol=1e-5)  # heights do not drift
            turned = quat_of(facing * Rotation.from_quat(now.qpos[0, 3:7].numpy(), scalar_first=True))
            assert angle_between(turned, then.qpos[0, 3:7].numpy()).max() < 2e-3
            np.testing.assert_allclose(then.qvel[0, :3], facing.apply(now.qvel[0, :3].numpy()), atol=2e-3)
            np.testing.assert_allclose(then.qvel[0, 3:], now.qvel[0, 3:], atol=2e-3)


def test_the_first_frame_of_a_loop_moves_as_it_does_a_cycle_later() -> None:
    clip = walk_clip(fps=30.0)
    first, later = at(MotionLibrary([clip], 2.0), 0, 0.0, clip.duration).qvel
    np.testing.assert_allclose(first, later, atol=2e-3)


def test_a_turning_loop_goes_round_in_a_circle() -> None:
    clip = walk_clip(turn=math.pi / 3)
    library = MotionLibrary([clip], seconds=6 * clip.duration)
    there = at(library, 0, *(clip.duration * np.arange(7)))
    corners = there.qpos[:, :2].numpy()
    np.testing.assert_allclose(corners[6], corners[0], atol=1e-3)  # six sixths are a whole turn
    center = corners[:6].mean(0)
    radii = np.linalg.norm(corners - center, axis=1)
    np.testing.assert_allclose(radii, 1.1 * clip.duration / (math.pi / 3), rtol=2e-3)


def test_a_loop_whose_pelvis_is_twisted_at_its_end_goes_straight_on() -> None:
    """Here as in 'ludus motions check', which reports the jump; see `seam_turn`."""
    clip = walk_clip()
    twisted, bent = clip.root_quat.copy(), clip.joint_pos.copy()
    twisted[-1] = quat_of(about_z(0.4) * Rotation.from_quat(twisted[-1], scalar_first=True))
    bent[-1, 2] -= 0.4
    library = MotionLibrary([replace(clip, root_quat=twisted, joint_pos=bent)], seconds=5 * clip.duration)
    there = at(library, 0, *(0.4 + clip.duration * np.arange(5))).qpos
    np.testing.assert_allclose(there[:, 3:7], there[:1, 3:7].expand(5, 4), atol=1e-6)
    np.testing.assert_allclose(
        np.diff(there[:, :2], axis=0), [clip.root_pos[-1, :2] - clip.root_pos[0, :2]] * 4, atol=1e-5
    )


def test_a_loop_whose_ends_differ_in_height_does_not_climb() -> None:
    clip = walk_clip()
    rising = clip.root_pos + np.outer(np.linspace(0, 0.01, clip.frames), [0, 0, 1])
    library = MotionLibrary([replace(clip, root_pos=rising)], seconds=10.0)
    heights = at(library, 0, *(0.4 + clip.duration * np.arange(8))).qpos[:, 2]
    np.testing.assert_allclose(heights, heights[0], atol=1e-5)


def test_rotations_of_almost_unit_length_do_not_bend_a_loop() -> None:
    """A file may be off by a hundredth; its heading is not."""
    clip = walk_clip(yaw=2.0)
    scaled = replace(clip, root_quat=clip.root_quat * np.linspace(1.0, 1.009, clip.frames)[:, None])
    time = 4.5 * clip.duration
    one, other = (at(MotionLibrary([c], 6.0), 0, time) for c in (clip, scaled))
    np.testing.assert_allclose(one.body_pos, other.body_pos, atol=1e-3)


def test_quaternions_that_change_sign_between_frames_are_the_same_motion() -> None:
    clip = walk_clip(turn=0.8)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (clip.frames, 1))
    times = np.random.default_rng(1).uniform(0, 3, 30)
    one, other = (
        at(MotionLibrary([replace(clip, root_quat=s * clip.root_quat)], 3.0), 0, *times) for s in (1, signs)
    )
    for a, b in zip(one[:1] + one[2:3], other[:1] + other[2:3], strict=True):
        np.testing.assert_allclose(a[..., :3], b[..., :3], atol=1e-5)
    np.testing.assert_allclose(one.qvel, other.qvel, atol=1e-3)
    assert angle_between(one.body_quat.numpy(), other.body_quat.numpy()).max() < 1e-3


def test_other_clips_stop_at_their_first_and_last_pose() -> None:
    clip = CLIPS["once"]()
    library = MotionLibrary([clip], seconds=9.0)
    assert library.ends.tolist() == pytest.approx([clip.duration])
    before, first, last, after = at(library, 0, -1.0, 0.0, clip.duration, clip.duration + 7.0).qpos
    assert torch.equal(before, first)
    assert torch.equal(last, after)
    np.testing.assert_allclose(last[:3], clip.root_pos[-1], atol=1e-6)
    np.testing.assert_allclose(last[7:], clip.joint_pos[-1], atol=1e-6)


def test_clips_of_different_rates_do_not_leak_into_each_other() -> None:
    clips = [
        standing_clip(fps=30, seconds=1.0), walk_clip(fps=60), walk_clip(fps=120, loop=False, turn=1.0),
        standing_clip(fps=24.5, seconds=2.0, loop=True), walk_clip(fps=30, seconds=0.4),
    ]  # fmt: skip
    together = MotionLibrary(clips, seconds=3.0)
    rng = np.random.default_rng(3)
    which = torch.from_numpy(rng.integers(0, len(clips), 300))
    time = torch.from_numpy(rng.uniform(-0.5, 6.0, 300))
    rows = together.rows(which, time)
    for number, clip in enumerate(clips):
        alone = MotionLibrary([clip], seconds=3.0)
        chosen = which == number
        expected = alone.rows(torch.zeros(int(chosen.sum()), dtype=torch.int64), time[chosen])
        assert torch.equal(rows[chosen], expected)
        assert float(together.ends[number]) == float(alone.ends[0])
        if clip.loop:
            assert float(alone.ends[0]) >= clip.duration + 3.0 - 1e-9


def test_a_library_without_clips_is_refused() -> None:
    with pytest.raises(DataError, match="no clips"):
        MotionLibrary([], 1.0)


def test_a_library_takes_over_what_another_knows_of_the_clips_that_both_begin_with() -> None:
    first, second, third = walk_clip(), walk_clip("once", loop=False), standing_clip()
    trained = MotionLibrary([first, second, walk_clip("other")], seconds=2.0)
    trained.table[0, 0] += 1.0  # so that it shows whose numbers they are
    for clips in ([first, second, third], [first, second], [third, first], [walk_clip(), second]):
        found, alone = MotionLibrary(clips, 2.0, known=trained), MotionLibrary(clips, 2.0)
        assert found.names == alone.names
        taken = float(clips[0] is first)
        assert float(found.table[0, 0] - alone.table[0, 0]) == pytest.approx(taken)
        found.table[0, 0] -= taken
        time = torch.linspace(0, 1, 7, dtype=torch.float64)
        for number in range(len(clips)):
            clip = torch.full((7,), number)
            np.testing.assert_allclose(found.rows(clip, time), alone.rows(clip, time), atol=1e-6)
            np.testing.assert_allclose(found.launch(clip, time), alone.launch(clip, time), atol=1e-6)


# Files ------------------------------------------------------------------------------------------------
def test_a_clip_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    clip = replace(walk_clip("gang"), height_fix=-0.02, source="hand-made", licence="CC0 ü")
    save_clip(clip, tmp_path / "new" / "gang.npz")
    again = load_clip(tmp_path / "new" / "gang.npz")
    for name in ("root_pos", "root_quat", "joint_pos"):
        np.testing.assert_allclose(getattr(again, name), getattr(clip, name), atol=1e-6)
    for name in ("name", "fps", "loop", "height_fix", "source", "licence", "frames", "duration"):
        assert getattr(again, name) == getattr(clip, name)


def arrays_of(clip: Clip, folder: Path) -> dict[str, Any]:
    save_clip(clip, folder / "whole.npz")
    with np.load(folder / "whole.npz") as file:
        return dict(file)


def put(values: dict[str, Any], name: str, value: Any) -> None:
    values[name] = np.array(value)


def spoil(values: dict[str, Any], name: str, frame: int, value: float) -> None:
    values[name][frame, 0] = value


def keep_frames(values: dict[str, Any], frames: int) -> None:
    for name in ("root_pos", "root_quat", "joint_pos"):
        values[name] = values[name][:frames]


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "nan position": (lambda v: spoil(v, "root_pos", 3, np.nan), "root_pos is not a finite number in frame 3"),
    "infinite joint": (lambda v: spoil(v, "joint_pos", 7, np.inf), "joint_pos is not a finite number in frame 7"),
    "nan rotation": (lambda v: spoil(v, "root_quat", 0, np.nan), "root_quat is not a finite number in frame 0"),
    "other body": (lambda v: put(v, "body_names", [*BODIES[:-1], "tail"]), "has tail and lacks left_foot"),
    "other joints": (lambda v: put(v, "joint_names", JOINTS[:-1]), "another body.*lacks left_ankle_z"),
    "twice a joint": (lambda v: put(v, "joint_names", [*JOINTS, JOINTS[0]]), "among its joints"),
    "other order": (lambda v: put(v, "joint_names", JOINTS[::-1]), "joints of humanoid in another order"),
    "bodies in other order": (lambda v: put(v, "body_names", BODIES[::-1]), "bodies of humanoid in another order"),
    "no frame": (lambda v: keep_frames(v, 0), "has 0 frames; a motion needs at least 2"),
    "one frame": (lambda v: keep_frames(v, 1), "has 1 frames; a motion needs at least 2"),
    "fps 0": (lambda v: put(v, "fps", 0.0), "0 frames a second"),
    "fps inf": (lambda v: put(v, "fps", np.inf), "inf frames a second"),
    "fps nan": (lambda v: put(v, "fps", np.nan), "nan frames a second"),
    "fps -30": (lambda v: put(v, "fps", -30.0), "-30 frames a second"),
    "fps 1e6": (lambda v: put(v, "fps", 1e6), r"1e\+06 frames a second"),
    "fps three": (lambda v: put(v, "fps", [30.0, 30.0, 30.0]), "is not a clip"),
    "fps a word": (lambda v: put(v, "fps", "fast"), "fps is <U4, not numbers"),
    "no fps": (lambda v: v.pop("fps"), "lacks fps"),
    "no joints, no loop": (lambda v: (v.pop("joint_pos"), v.pop("loop")), "lacks loop, joint_pos"),
    "no format": (lambda v: v.pop("format"), "not a clip of Ludus"),
    "other format": (lambda v: put(v, "format", "ludus-motion-9"), "not a clip of Ludus"),
    "27 joints": (lambda v: put(v, "joint_pos", v["joint_pos"][:, :-1]), r"joint_pos has the shape .*27.* must"),
    "fewer rotations": (lambda v: put(v, "root_quat", v["root_quat"][:-1]), "root_quat has the shape"),
    "flat": (lambda v: put(v, "root_pos", v["root_pos"].ravel()), "has the shape"),
    "a single number": (lambda v: put(v, "root_pos", 1.0), "root_pos"),
    "words": (lambda v: put(v, "root_pos", [["a", "b", "c"]] * 73), "root_pos is <U1, not numbers"),
    "no unit quaternion": (lambda v: put(v, "root_quat", 1.5 * v["root_quat"]), "no unit quaternion"),
    "zero quaternion": (lambda v: spoil(v, "root_quat", 9, 0.0), "frame 9 is no unit quaternion"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_clip_is_said(what: str, tmp_path: Path) -> None:
    change, message = WRONG[what]
    values = arrays_of(walk_clip(), tmp_path)
    change(values)
    path = tmp_path / "wrong.npz"
    np.savez(path, **values)
    with pytest.raises(DataError, match=message) as caught:
        load_clip(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class _Pickled:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_a_pickle_inside_is_refused_and_not_run(tmp_path: Path) -> None:
    values = arrays_of(walk_clip(), tmp_path)
    values["source"] = np.array([_Pickled(tmp_path / "trace")], dtype=object)
    np.savez(tmp_path / "evil.npz", **values)
    with pytest.raises(DataError, match="not a clip of motion"):
        load_clip(tmp_path / "evil.npz")
    assert not (tmp_path / "trace").exists()
    np.load(tmp_path / "evil.npz", allow_pickle=True)["source"]
    assert (tmp_path / "trace").exists()  # it would have


def write_truncated(path: Path) -> None:
    save_clip(walk_clip(), path)
    path.write_bytes(path.read_bytes()[:2000])


def write_damaged(path: Path) -> None:
    """One array's compressed bytes are overwritten."""
    save_clip(walk_clip(), path)
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("joint_pos.npy").header_offset
    whole = bytearray(path.read_bytes())
    whole[start + 100 : start + 400] = bytes(300)
    path.write_bytes(whole)


def write_plain_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


BROKEN: dict[str, Callable[[Path], object]] = {
    "truncated": write_truncated,
    "damaged": write_damaged,
    "text": lambda path: path.write_text("HIERARCHY\nROOT Hips\n"),
    "empty": lambda path: path.write_bytes(b""),
    "folder": lambda path: path.mkdir(),
    "one array": write_plain_array,
    "only the beginning of a zip": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(50)),
    "missing": lambda path: None,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_is_no_clip_is_refused_in_one_sentence(what: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    BROKEN[what](path)
    with pytest.raises(DataError) as caught:
        load_clip(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "pickle" not in str(caught.value)  # numpy's advice, which nobody should follow


def test_a_clip_that_is_wrong_is_not_saved(tmp_path: Path) -> None:
    clip = walk_clip()
    clip.joint_pos[4, 2] = np.nan
    with pytest.raises(DataError, match="joint_pos is not a finite number in frame 4"):
        save_clip(clip, tmp_path / "walk.npz")
    assert list(tmp_path.iterdir()) == []
