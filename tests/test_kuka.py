"""The KUKA task: its kinematics, what it shows, what it rewards, how it begins, and that it can be solved."""

import math
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from ludus.envs.kuka import kinematics
from ludus.envs.kuka import task as kuka
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.kinematics import joints_for
from ludus.envs.kuka.scripted import scripted_action
from ludus.envs.kuka.task import CUBE_HALF, CUBE_ON_PAD, FINGER_OPEN, HOME, KukaPickPlace
from ludus.envs.mujoco.task import ALL_ROWS
from ludus.envs.vec import Step

OPEN, CLOSE = 1.0, -1.0
ON_TABLE = kuka.TABLE_TOP + CUBE_HALF  # height of a lying cube's centre
SQUEEZED = CUBE_HALF - 0.0005  # m, each finger of a hand that holds the cube
CUBE = (*kuka.FIXED_CUBE, ON_TABLE)
PAD = (0.55, 0.10)
TOUCH = slice(kuka.OBS_SIZE - 2, kuka.OBS_SIZE)  # of the observation
AWAY = (0.45, -0.20, 0.40)


def make(rows: int = 1, evaluation: bool = True, threads: int = 2, **settings: object) -> KukaPickPlace:
    return KukaPickPlace(KukaConfig(**settings), rows, threads, evaluation)  # type: ignore[arg-type]


def tensor(values: object) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def place(
    env: KukaPickPlace,
    cube: object = CUBE,
    hand: object = HOME,
    finger: object = FINGER_OPEN,
    pad: object = PAD,
    cube_velocity: object = (0.0, 0.0, 0.0),
) -> None:
    """Put every row into a state: positions of cube, hand and pad ([3], [3], [2], or one for each row).

    Fingers that are not wide open are closing.
    """
    env.reset(0)
    qpos, qvel, ctrl = (env.sim.field(name) for name in ("qpos", "qvel", "ctrl"))
    joints = joints_for(tensor(hand).expand(env.num_rows, 3))
    qpos[:, :7], ctrl[:, :7] = joints, joints
    qpos[:, 7:9] = tensor(finger)
    qpos[:, 9:12] = tensor(cube)
    qpos[:, 12:16] = tensor([1.0, 0.0, 0.0, 0.0])
    qvel[:] = 0.0
    qvel[:, 9:12] = tensor(cube_velocity)
    env.sim.field("mocap_pos")[:, 0, :2] = tensor(pad)
    env.memory["goal"][:, :2] = tensor(pad)
    env.memory["target"][:] = tensor(hand)
    env.memory["grip"][:] = torch.where(qpos[:, 7] < FINGER_OPEN, CLOSE, OPEN).double()
    env.sim.forward()
    env.memory.update(env.begun(ALL_ROWS))


def action(env: KukaPickPlace, move: object = (0.0, 0.0, 0.0), grip: object = OPEN) -> Tensor:
    """One for all rows, or one for each."""
    moves = tensor(move).float().expand(env.num_rows, 3)
    return torch.cat([moves, tensor(grip).float().expand(env.num_rows)[:, None]], dim=1)


def cube_of(env: KukaPickPlace) -> Tensor:
    return env.sim.field("qpos")[:, 9:12].clone()


def hand_of(env: KukaPickPlace) -> Tensor:
    return env.sim.field("sensordata")[:, :3].clone()


def play(env: KukaPickPlace, policy: Callable[[Tensor], Tensor], seed: int) -> list[Step]:
    obs, steps = env.reset(seed), []
    for _ in range(env.max_steps):
        steps.append(env.step(policy(obs)))
        obs = steps[-1].obs
    return steps


def assert_same(one: Step, other: Step, rows: Any = slice(None)) -> None:
    for name, a, b in zip(Step._fields[:5], one[:5], other[:5], strict=True):
        assert torch.equal(a[rows], b[rows]), name
    for name in one.metrics:
        assert torch.equal(one.metrics[name][rows], other.metrics[name][rows]), name


# Kinematics -------------------------------------------------------------------------------------------
def test_closed_form_inverse_kinematics_equals_mujocos_forward_over_the_workspace() -> None:
    model = mujoco.MjModel.from_xml_path(str(kuka.scene_path()))
    data = mujoco.MjData(model)
    low, high = tensor(kuka.WORKSPACE_LOW), tensor(kuka.WORKSPACE_HIGH)
    corners = torch.cartesian_prod(*torch.stack([low, high], dim=1))
    inside = low + (high - low) * torch.rand((1000, 3), dtype=torch.float64)
    targets = torch.cat([inside, corners])
    joints = joints_for(targets)
    limits = torch.from_numpy(model.jnt_range[:7])
    assert bool(((joints > limits[:, 0]) & (joints < limits[:, 1])).all())
    shoulder = tensor((0.0, 0.0, kinematics.SHOULDER_HEIGHT - kinematics.TOOL))
    distance = (targets - shoulder).norm(dim=1)
    longest = 0.9999 * (kinematics.UPPER_ARM + kinematics.FOREARM)
    # The box's far upper corners are out of reach: there the arm stretches towards the target.
    nearest = shoulder + (targets - shoulder) * (longest / distance).clamp(max=1)[:, None]
    assert float((distance < longest).double().mean()) > 0.9
    for reachable, place, angles in zip(distance < longest, nearest.numpy(), joints.numpy(), strict=True):
        data.qpos[:7] = angles
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(data.site("grip").xpos, place, atol=1e-6 if reachable else 1e-3)
        axes = data.site("grip").xmat.reshape(3, 3)
        np.testing.assert_allclose(axes[:, 2], [0, 0, -1], atol=1e-6)  # the hand points straight down
        np.testing.assert_allclose(np.abs(axes[1]), [0, 1, 0], atol=1e-6)  # the fingers close along y


def test_every_place_for_a_cube_or_a_pad_is_reached_exactly() -> None:
    env = make(256)
    env.reset(1)
    sites = torch.cat([cube_of(env), env.memory["goal"]]).numpy()
    data = mujoco.MjData(env.mj_model)
    for place, angles in zip(sites, joints_for(tensor(sites)).numpy(), strict=True):
        data.qpos[:7] = angles
        mujoco.mj_kinematics(env.mj_model, data)
        np.testing.assert_allclose(data.site("grip").xpos, place, atol=1e-6)


def test_targets_out_of_reach_give_the_nearest_stretch_and_never_nan() -> None:
    far = tensor([[3.0, 0.0, 0.3], [0.0, 0.0, 0.3], [-1.0, -1.0, 2.0]])
    assert bool(torch.isfinite(joints_for(far)).all())


def test_the_hand_goes_where_it_is_told_within_its_workspace() -> None:
    env = make(2)
    place(env)
    for _ in range(40):
        env.step(action(env, [[1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]))
    corners = tensor(
        [
            (kuka.WORKSPACE_HIGH[0], kuka.WORKSPACE_HIGH[1], kuka.WORKSPACE_LOW[2]),
            (kuka.WORKSPACE_LOW[0], kuka.WORKSPACE_LOW[1], kuka.WORKSPACE_HIGH[2]),
        ]
    )
    assert float((hand_of(env) - corners).abs().max()) < 2e-3


def test_one_noisy_gripper_action_does_not_drop_the_cube_and_two_in_a_row_open_the_hand() -> None:
    env = make()
    place(env, cube=(0.5, 0.0, 0.38), hand=(0.5, 0.0, 0.38), finger=SQUEEZED)
    for t in range(20):
        step = env.step(action(env, grip=OPEN if t % 5 == 2 else CLOSE))
        assert step.metrics["grasped"][0] == 1
    env.step(action(env, grip=OPEN))
    step = env.step(action(env, grip=OPEN))
    assert step.metrics["grasped"][0] == 0
    assert float(cube_of(env)[0, 2]) < 0.38


# Seeing -----------------------------------------------------------------------------------------------
def test_every_part_of_the_observation_is_what_mujoco_says() -> None:
    env = make(6, evaluation=False, assist=0.5)
    obs = env.reset(3)
    for _ in range(12):
        obs = env.step(scripted_action(obs)).obs
    model = env.mj_model
    hand, cube = model.site("grip").id, model.body("cube").id
    touching = obs[:, TOUCH].all(dim=1).numpy()
    assert touching.any()
    assert not touching.all()
    for row, seen in enumerate(obs.double().numpy()):
        data = mujoco.MjData(model)
        for name in ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat"):
            getattr(data, name)[:] = env.sim.field(name)[row].numpy()
        mujoco.mj_forward(model, data)
        velocity = np.zeros(6)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_SITE, hand, velocity, 0)
        goal = np.array([*data.mocap_pos[0, :2], CUBE_ON_PAD])
        expected = [
            data.site_xpos[hand],
            velocity[3:],
            [data.joint("finger_left").qpos[0] / FINGER_OPEN],
            [env.memory["grip"][row]],
            data.xpos[cube],
            seen_rotation(data.xmat[cube])[:6],
            data.joint("cube").qvel[:3],
            data.xpos[cube] - data.site_xpos[hand],
            goal - data.xpos[cube],
            (goal - data.xpos[cube]) * touching[row],
            env.memory["target"][row].numpy() - data.site_xpos[hand],
        ]
        np.testing.assert_allclose(seen[: TOUCH.start], np.concatenate(expected), atol=1e-5)


def seen_rotation(matrix: np.ndarray) -> np.ndarray:
    """Of all that look the same, the one whose third axis points up and whose first points along x the most."""
    alike = (Rotation.from_matrix(matrix.reshape(3, 3)) * Rotation.create_group("O")).as_matrix()
    upright = [turned for turned in alike if turned[2, 2] > alike[:, 2, 2].max() - 1e-9]
    return max(upright, key=lambda turned: turned[0, 0]).flatten()


def test_a_cube_on_any_of_its_faces_is_seen_as_it_can_be_grasped() -> None:
    turned = Rotation.random(50, random_state=0).as_matrix().reshape(-1, 9)
    expected = np.stack([seen_rotation(matrix) for matrix in turned])
    np.testing.assert_allclose(kuka.upright(torch.from_numpy(turned)).numpy(), expected, atol=1e-9)


def test_the_rotation_of_a_cube_that_has_not_tipped_is_seen_as_it_is() -> None:
    angles = np.random.default_rng(0).uniform(-44, 44, (50, 1))
    flat = torch.from_numpy(Rotation.from_euler("z", angles, degrees=True).as_matrix().reshape(-1, 9))
    assert torch.equal(kuka.upright(flat), flat)


def test_touch_is_seen_for_each_finger_that_touches() -> None:
    env = make(2)
    place(env, cube=(0.5, 0.0, 0.35), hand=(0.5, 0.0, 0.35), finger=[[SQUEEZED] * 2, [FINGER_OPEN] * 2])
    step = env.step(action(env, grip=[CLOSE, OPEN]))
    assert step.obs[:, TOUCH].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert step.metrics["grasped"].tolist() == [1.0, 0.0]


# Success ----------------------------------------------------------------------------------------------
def test_a_cube_resting_on_the_pad_released_is_a_success() -> None:
    env = make()
    place(env, cube=(*PAD, CUBE_ON_PAD), hand=AWAY)
    step = env.step(action(env))
    assert bool(step.terminated[0])
    assert step.metrics["success"][0] == 1
    assert step.reward[0] > 10


def test_a_cube_held_on_the_pad_is_no_success_until_it_is_released() -> None:
    env = make()
    place(env, cube=(*PAD, CUBE_ON_PAD + 0.001), hand=(*PAD, CUBE_ON_PAD + 0.001), finger=SQUEEZED)
    for _ in range(15):
        step = env.step(action(env, grip=CLOSE))
        assert not bool(step.done[0])
        assert step.metrics["success"][0] == 0
        assert step.metrics["grasped"][0] == 1
    for _ in range(10):
        step = env.step(action(env, grip=OPEN))
        if bool(step.terminated[0]):
            break
    assert step.metrics["success"][0] == 1


@pytest.mark.parametrize("side", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_a_cube_beside_the_pad_is_no_success(side: tuple[int, int]) -> None:
    env = make()
    gap = kuka.PAD_HALF + CUBE_HALF + 0.002
    place(env, cube=(PAD[0] + gap * side[0], PAD[1] + gap * side[1], ON_TABLE), hand=AWAY)
    for _ in range(5):
        step = env.step(action(env))
        assert not bool(step.done[0])
        assert step.metrics["success"][0] == 0


def test_a_cube_that_moves_over_the_pad_or_above_it_is_no_success_before_it_rests() -> None:
    env = make(2)
    on_pad, above = [*PAD, CUBE_ON_PAD], [*PAD, CUBE_ON_PAD + 0.05]
    place(env, cube=[on_pad, above], hand=AWAY, cube_velocity=[[0.0, -0.5, 0.0], [0.0, 0.0, 0.0]])
    first = env.step(action(env))
    assert first.metrics["success"].tolist() == [0.0, 0.0]
    landed = [env.step(action(env)) for _ in range(10)]
    assert any(bool(step.terminated[1]) and step.metrics["success"][1] == 1 for step in landed)


@pytest.mark.parametrize("grip", [OPEN, CLOSE])
@pytest.mark.parametrize("speed", [0.2, 1.0])
def test_pushing_cannot_cheat(grip: float, speed: float) -> None:
    """The pad is a step up: a cube pushed against it from any side, low or high, stays below."""
    rows = 64
    env = make(rows)
    angle = torch.linspace(0, 2 * math.pi, rows + 1, dtype=torch.float64)[:rows]
    away = torch.stack([angle.cos(), angle.sin()], dim=1)
    height = ON_TABLE + CUBE_HALF * (torch.arange(rows) % 3) / 3
    cube = torch.cat([tensor(PAD) + 0.13 * away, torch.full((rows, 1), ON_TABLE)], dim=1)
    hand = torch.cat([tensor(PAD) + 0.20 * away, height[:, None]], dim=1)
    place(env, cube=cube, hand=hand, finger=FINGER_OPEN if grip == OPEN else 0.0)
    highest = torch.zeros(rows, dtype=torch.float64)
    push = torch.cat([-speed * away, torch.zeros(rows, 1)], dim=1)
    for _ in range(60):
        step = env.step(action(env, push, grip))
        assert float(step.metrics["success"].sum()) == 0
        highest = torch.where(step.done, highest, torch.maximum(highest, cube_of(env)[:, 2]))
    assert float(highest.max()) < CUBE_ON_PAD - CUBE_HALF / 2


# Reward -----------------------------------------------------------------------------------------------
def idle_reward(env: KukaPickPlace) -> float:
    """Of a step in which nothing new is reached."""
    env.memory["best_potential"].fill_(math.inf)
    return float(env.step(action(env)).reward[0])


def test_only_new_bests_are_paid_so_that_dropping_the_cube_is_not_punished() -> None:
    env = make(max_steps=1000)
    place(env, hand=AWAY)
    idle = idle_reward(env)
    assert idle < 0
    grip_at = (*kuka.FIXED_CUBE, ON_TABLE + 0.005)
    place(env, hand=grip_at, cube=(*kuka.FIXED_CUBE, ON_TABLE))

    def lift_and_drop() -> tuple[float, list[float], float]:
        up = [env.step(action(env, (0, 0, 0.4 if t > 5 else 0), CLOSE)) for t in range(25)]
        height = float(cube_of(env)[0, 2])
        down = [env.step(action(env)) for _ in range(8)]
        assert float(cube_of(env)[0, 2]) < ON_TABLE + 0.01
        assert not any(bool(step.done[0]) for step in [*up, *down])
        for _ in range(20):  # back down around the cube
            env.step(action(env, (0, 0, -0.4)))
        gained = sum(float(step.reward[0]) - idle for step in up)
        return gained, [float(step.reward[0]) for step in down], height

    first, dropped, height = lift_and_drop()
    assert height > ON_TABLE + 0.05
    assert first > 5
    assert min(dropped) >= idle - 1e-6  # no step of the fall costs more than any other
    second, _, height = lift_and_drop()
    assert height > ON_TABLE + 0.05
    assert second < 0.1 * first  # the same again is worth nothing


def test_the_rewards_of_an_episode_add_up_to_its_best_potential() -> None:
    env = make(32)
    place(env, hand=AWAY)
    idle = idle_reward(env)
    obs = env.reset(5)
    start, total = env.memory["best_potential"].clone(), torch.zeros(32, dtype=torch.float64)
    for t in range(20):  # too short to finish
        step = env.step(scripted_action(obs))
        obs, total = step.obs, total + step.reward
        assert not bool(step.done.any())
        gained = env.memory["best_potential"] - start
        assert torch.allclose(total, gained + idle * (t + 1), atol=1e-3)
    assert float(gained.min()) > 0


@pytest.mark.parametrize("edge", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_a_cube_off_the_table_ends_the_episode_with_minus_five(edge: tuple[int, int]) -> None:
    env = make()
    place(env, hand=AWAY)
    idle = idle_reward(env)
    off = [
        c + side * (half + 0.001) for c, half, side in zip(kuka.TABLE_CENTER, kuka.TABLE_HALF, edge, strict=True)
    ]
    place(env, cube=(*off, ON_TABLE), hand=AWAY)
    env.memory["best_potential"].fill_(math.inf)
    step = env.step(action(env))
    assert bool(step.terminated[0])
    assert not bool(step.truncated[0])
    assert step.metrics["fallen"][0] == 1
    assert step.metrics["success"][0] == 0
    assert float(step.reward[0]) == pytest.approx(idle - 5.0)


def test_time_runs_out_as_truncation_with_the_last_observation() -> None:
    env = make(3, max_steps=7)
    obs = env.reset(0)
    for t in range(1, 8):
        step = env.step(action(env, (0.5, 0.0, 0.0)))
        assert step.truncated.tolist() == [t == 7] * 3
        assert not bool(step.terminated.any())
        if t < 7:
            obs = step.obs
    assert float((step.final_obs[:, :3] - obs[:, :3]).norm(dim=1).max()) < 0.05  # goes on from where it was
    assert float((step.obs[:, :3] - tensor(HOME)).norm(dim=1).max()) < 0.05  # back home
    assert env.elapsed.tolist() == [0, 0, 0]


# Beginning --------------------------------------------------------------------------------------------
def test_cubes_and_pads_stand_anywhere_on_the_table_and_apart() -> None:
    env = make(1000)
    env.reset(1)
    cube, pad = cube_of(env), env.sim.field("mocap_pos")[:, 0]
    for places in (cube[:, :2], pad[:, :2]):
        low, high = tensor(kuka.PLACE_LOW), tensor(kuka.PLACE_HIGH)
        assert bool(((places >= low) & (places <= high)).all())
        spread = (high - low) / math.sqrt(12)
        assert bool((places.std(dim=0) > 0.8 * spread).all())  # all over it
    assert torch.allclose(cube[:, 2], tensor(ON_TABLE))
    distance = (cube[:, :2] - pad[:, :2]).norm(dim=1)
    assert float(distance.min()) > kuka.PAD_HALF * math.sqrt(2) + CUBE_HALF
    for _ in range(4):  # and nothing jumps when physics begins
        step = env.step(action(env))
    assert not bool(step.done.any())
    assert float((cube_of(env) - cube).norm(dim=1).max()) < 2e-3


def test_the_fixed_option_always_starts_at_the_same_places() -> None:
    env = make(20, fixed=True, max_steps=3)
    for seed in (1, 2):
        env.reset(seed)
        for _ in range(4):  # the second episode too
            assert torch.allclose(cube_of(env)[:, :2], tensor(kuka.FIXED_CUBE), atol=1e-3)
            assert torch.allclose(env.sim.field("mocap_pos")[:, 0, :2], tensor(kuka.FIXED_PAD))
            env.step(action(env))
        assert torch.allclose(env.sim.field("qpos")[:, 12].abs(), tensor(1.0), atol=1e-4)  # not turned


def test_the_arm_starts_at_home_with_a_little_noise_on_every_joint() -> None:
    env = make(500)
    env.reset(2)
    noise = env.sim.field("qpos")[:, :7] - joints_for(tensor(HOME)[None])
    assert float(noise.abs().max()) <= kuka.START_NOISE
    assert bool((noise.std(dim=0) > 0.8 * kuka.START_NOISE / math.sqrt(3)).all())
    assert bool((noise.mean(dim=0).abs() < 0.2 * kuka.START_NOISE).all())


def test_assisted_starts_hold_the_cube_surround_it_or_have_lost_it() -> None:
    env = make(400, evaluation=False, assist=1.0)
    obs = env.reset(4)
    start, off = cube_of(env), (cube_of(env) - hand_of(env)).abs()
    held = start[:, 2] > CUBE_ON_PAD
    lost = ~held & (off.amax(dim=1) > 0.02)
    assert float(held.float().mean()) == pytest.approx(0.5, abs=0.1)
    assert float(lost.float().mean()) == pytest.approx(0.25, abs=0.1)
    assert float(obs[lost, 6].min()) < 0.2  # fingers of any opening, told to open or to close
    assert float(obs[lost, 7].min()) < -0.8
    assert float(obs[lost, 7].max()) > 0.8
    assert float(off[lost, :2].max()) < 0.1
    for _ in range(10):
        step = env.step(action(env, grip=CLOSE))
    grasped = step.obs[:, TOUCH].all(dim=1)
    alive = ~step.done
    assert bool(grasped[held & alive].all())
    assert float((cube_of(env) - start)[held & alive].norm(dim=1).max()) < 0.01  # not dropped
    around = ~held & ~lost & alive
    assert float(grasped[around].float().mean()) > 0.98  # closing was all that was left to do
    assert float((start[around, 2] - ON_TABLE).abs().max()) < 1e-9


def test_the_share_of_assisted_starts_falls_at_the_end_of_the_training() -> None:
    env = make(2000, evaluation=False, assist=0.6, assist_final=0.1)
    for progress, share in ((0.0, 0.6), (0.5, 0.6), (1.0, 0.1)):
        env.set_progress(progress)
        env.reset(6)
        helped = (hand_of(env) - tensor(HOME)).norm(dim=1) > 0.06
        assert float(helped.double().mean()) == pytest.approx(share, abs=0.05)


def test_evaluation_has_no_assisted_starts() -> None:
    env = make(300, assist=1.0, assist_final=1.0, max_steps=2)
    env.set_progress(1.0)
    obs = env.reset(7)
    for _ in range(3):
        assert float((obs[:, :3] - tensor(HOME)).norm(dim=1).max()) < 0.06
        assert float((obs[:, 6] - 1.0).abs().max()) < 0.05  # fingers wide open
        assert float((obs[:, 10] - ON_TABLE).abs().max()) < 1e-3
        env.step(action(env))
        obs = env.step(action(env)).obs


# Solving ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fixed", [False, True])
def test_a_scripted_controller_solves_at_least_95_percent_of_random_starts(fixed: bool) -> None:
    rows = 40 if fixed else 200
    env = make(rows, fixed=fixed)
    ended, success = torch.zeros(rows, dtype=torch.bool), torch.zeros(rows)
    for step in play(env, scripted_action, seed=11):
        success = torch.where(ended, success, step.metrics["success"])
        ended |= step.done
    assert bool(ended.all())
    assert float(success.mean()) >= 0.95


def test_doing_nothing_or_anything_at_random_solves_nothing() -> None:
    env = make(50)
    generator = torch.Generator().manual_seed(0)
    for policy in (
        lambda obs: torch.zeros(50, 4),
        lambda obs: 2 * torch.rand((50, 4), generator=generator) - 1,
    ):
        assert sum(float(step.metrics["success"].sum()) for step in play(env, policy, seed=3)) == 0


# Exactness --------------------------------------------------------------------------------------------
def actions_for(rows: int, steps: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [2 * torch.rand((rows, 4), generator=generator) - 1 for _ in range(steps)]


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others() -> None:
    one, two = make(6, evaluation=False, max_steps=15), make(6, evaluation=False, max_steps=15, threads=1)
    assert torch.equal(one.reset(9), two.reset(9))
    for chosen in actions_for(6, 40):
        assert_same(one.step(chosen), two.step(chosen))
    assert torch.equal(one.reset(9), two.reset(9))  # whatever happened before
    assert not torch.equal(one.reset(9), two.reset(10))


def test_a_saved_state_continues_bit_for_bit_with_another_number_of_threads() -> None:
    one = make(7, evaluation=False, max_steps=25, threads=2)
    obs = one.reset(12)
    for _ in range(40):  # scripted: cubes are touched, held and carried
        obs = one.step(scripted_action(obs)).obs
    two = make(7, evaluation=False, max_steps=25, threads=1)
    two.reset(99)
    for chosen in actions_for(7, 5):
        two.step(chosen)
    two.load_state(one.state())
    for _ in range(60):
        chosen = scripted_action(obs)
        first, second = one.step(chosen), two.step(chosen)
        assert_same(first, second)
        obs = first.obs


def test_saving_a_state_changes_nothing() -> None:
    one, two = make(5, max_steps=20), make(5, max_steps=20)
    obs = one.reset(3)
    two.reset(3)
    for _ in range(50):
        chosen = scripted_action(obs)
        one.state()
        first = one.step(chosen)
        assert_same(first, two.step(chosen))
        obs = first.obs


def test_two_groups_in_flight_equal_stepping_one_after_the_other() -> None:
    together, alone = [make(4, max_steps=12) for _ in range(2)], [make(4, max_steps=12) for _ in range(2)]
    for seed, (a, b) in enumerate(zip(together, alone, strict=True)):
        assert torch.equal(a.reset(seed), b.reset(seed))
    for first, second in zip(actions_for(4, 30, 1), actions_for(4, 30, 2), strict=True):
        together[0].begin_step(first)
        together[1].begin_step(second)
        results = [env.end_step() for env in together]
        assert_same(results[0], alone[0].step(first))
        assert_same(results[1], alone[1].step(second))


def test_a_row_does_not_depend_on_how_many_others_there_are() -> None:
    many = make(5, max_steps=1000)
    obs = many.reset(8)
    for _ in range(10):
        obs = many.step(scripted_action(obs)).obs
    one = make(1, max_steps=1000)
    one.reset(0)
    state = many.state()
    row = 3
    one.load_state(
        {
            "sim": {name: value[row : row + 1] for name, value in state["sim"].items()},
            "elapsed": state["elapsed"][row : row + 1],
            "memory": {name: value[row : row + 1] for name, value in state["memory"].items()},
            "obs": state["obs"][row : row + 1],
            "generator": state["generator"],
        }
    )
    for _ in range(20):
        chosen = scripted_action(obs)
        all_rows, single = many.step(chosen), one.step(chosen[row : row + 1])
        if bool(all_rows.done[row]):
            break
        assert torch.equal(single.obs[0], all_rows.obs[row])
        assert torch.equal(single.reward[0], all_rows.reward[row])
        obs = all_rows.obs


# Diverged simulations ---------------------------------------------------------------------------------
@pytest.mark.parametrize("poison", [math.nan, 1e12])
def test_a_diverged_simulation_is_truncated_and_restarted_and_the_others_are_untouched(poison: float) -> None:
    env, twin = make(6), make(6)
    obs = env.reset(5)
    twin.reset(5)
    for chosen in actions_for(6, 5):
        obs = env.step(chosen).obs
        twin.step(chosen)
    env.sim.field("qvel")[2] = poison
    others = torch.tensor([0, 1, 3, 4, 5])
    chosen = actions_for(6, 1, 7)[0]
    step, expected = env.step(chosen), twin.step(chosen)
    assert_same(step, expected, others)
    assert step.truncated.tolist() == [False, False, True, False, False, False]
    assert not bool(step.terminated.any())
    assert step.metrics["diverged"].tolist() == [0, 0, 1, 0, 0, 0]
    assert step.metrics["success"][2] == 0
    assert step.reward[2] == 0
    assert torch.equal(step.final_obs[2], obs[2])  # the last one that can be trusted
    assert bool(torch.isfinite(step.obs).all())
    assert float((step.obs[2, :3] - tensor(HOME)).norm()) < 0.06  # a new episode
    for chosen in actions_for(6, 10, 8):
        step = env.step(chosen)
        assert_same(step, twin.step(chosen), others)
        assert not bool(step.done.any())
        assert float(step.metrics["diverged"].sum()) == 0
