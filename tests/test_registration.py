"""Our environments under Gymnasium's own contract, for people who train with other libraries."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

import ludus  # noqa: F401 (registers the environments)
from ludus.envs.kuka.task import OBS_SIZE
from ludus.envs.registration import BatchedEnv, SingleEnv
from ludus.gymnasium_ids import register_environments

ID = "ludus/KukaPickPlace-v0"


@pytest.fixture
def single() -> Iterator[SingleEnv]:
    env = gym.make(ID).unwrapped
    assert isinstance(env, SingleEnv)
    yield env
    env.close()


def draws() -> bool:
    """Whether this machine has OpenGL, with or without a screen."""
    env = gym.make(ID, render_mode="rgb_array")
    env.reset(seed=0)
    try:
        picture = env.render()
    except gym.error.DependencyNotInstalled:
        return False
    finally:
        env.close()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (480, 640, 3)
    assert picture.std() > 10  # something is in it
    return True


def actions(steps: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).uniform(-1, 1, (steps, *shape, 4)).astype(np.float32)


# One environment --------------------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [{}, {"fixed": True, "assist": 0.0}])
def test_gymnasiums_own_checker_passes(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns of what it does not like
        # The observation has no bounds, which is as good as any that could be made up.
        warnings.filterwarnings("ignore", message=".*[Bb]ox observation space (minimum|maximum).*infinity.*")
        check_env(gym.make(ID, **settings).unwrapped, skip_render_check=not draws())


def test_an_episode_ends_by_success_or_after_its_time_and_never_by_gymnasiums_limit(single: SingleEnv) -> None:
    single.reset(seed=1)
    for t in range(1, 101):
        obs, reward, terminated, truncated, info = single.step(np.zeros(4, np.float32))
        assert isinstance(reward, float)
        assert not terminated
        assert truncated == (t == 100)
        assert single.observation_space.contains(obs)
    assert info["is_success"] is False
    env = gym.make(ID)
    while isinstance(env, gym.Wrapper):
        assert not isinstance(env, TimeLimit)
        env = env.env


def test_a_seed_determines_the_episodes_and_a_reset_without_one_goes_on(single: SingleEnv) -> None:
    first, _ = single.reset(seed=4)
    second, _ = single.reset()
    third, _ = single.reset()
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)
    again = [single.reset(seed=4)[0], single.reset()[0], single.reset()[0]]
    for before, after in zip([first, second, third], again, strict=True):
        np.testing.assert_array_equal(before, after)
    assert not np.array_equal(single.reset(seed=5)[0], first)


def test_the_first_reset_needs_no_seed_and_two_environments_then_differ() -> None:
    one, two = gym.make(ID), gym.make(ID)
    assert not np.array_equal(one.reset()[0], two.reset()[0])


def test_importing_twice_registers_once() -> None:
    register_environments()
    register_environments()
    assert ID in gym.registry


def test_gymnasium_finds_it_by_the_modules_name_alone() -> None:
    program = f"import gymnasium; print(gymnasium.make('ludus:{ID}').observation_space.shape)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"({OBS_SIZE},)\n", done.stderr


def test_settings_go_through_make() -> None:
    env = gym.make(ID, max_steps=3, fixed=True, assist=0.0).unwrapped
    starts = [env.reset(seed=seed)[0][8:11] for seed in (1, 2)]
    np.testing.assert_allclose(starts[0], starts[1])
    done = [bool(env.step(np.zeros(4, np.float32))[3]) for _ in range(3)]
    assert done == [False, False, True]
    with pytest.raises(TypeError):
        gym.make(ID, color="red")


# The batched one --------------------------------------------------------------------------------------
def test_make_vec_gives_the_batched_environment_with_resets_in_the_same_step() -> None:
    envs = gym.make_vec(ID, num_envs=6, max_steps=5)
    assert isinstance(envs.unwrapped, BatchedEnv)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert envs.num_envs == 6
    assert envs.single_observation_space.shape == (OBS_SIZE,)
    assert envs.action_space.shape == (6, 4)
    obs, _ = envs.reset(seed=3)
    assert envs.observation_space.contains(obs)
    for t, chosen in enumerate(actions(10, 6), start=1):
        before = obs
        obs, reward, terminated, truncated, info = envs.step(chosen)
        assert envs.observation_space.contains(obs)
        assert (reward.shape, reward.dtype) == ((6,), np.float32)
        assert (terminated.dtype, truncated.dtype) == (np.bool_, np.bool_)
        assert truncated.tolist() == [t % 5 == 0] * 6
        assert ("final_obs" in info) == bool(truncated.any())
        if truncated.any():
            assert info["_final_obs"].all()
            for row in range(6):
                final = info["final_obs"][row]
                assert np.abs(final[:3] - before[row, :3]).max() < 0.1  # where the hand was …
                assert not np.array_equal(final, obs[row])  # … and not where the new episode begins
            assert set(info["final_info"]) >= {"success", "grasped"}
    envs.close()


def test_one_row_of_the_batched_environment_is_the_single_one_step_by_step(single: SingleEnv) -> None:
    envs = gym.make_vec(ID, num_envs=1)
    obs, (batch, _) = single.reset(seed=8)[0], envs.reset(seed=8)
    np.testing.assert_array_equal(obs, batch[0])
    ended = 0
    for chosen in actions(250, 1):
        obs, reward, terminated, truncated, info = single.step(chosen[0])
        batch, rewards, terminations, truncations, infos = envs.step(chosen)
        assert (reward, terminated, truncated) == (rewards[0], terminations[0], truncations[0])
        last = batch[0]
        if terminated or truncated:
            ended += 1
            last = infos["final_obs"][0]
            assert infos["final_info"]["success"][0] == info["success"]
        np.testing.assert_array_equal(obs, last)
        if terminated or truncated:
            np.testing.assert_array_equal(single.reset()[0], batch[0])
    assert ended >= 2
    envs.close()


def test_seeds_of_the_batched_environment_determine_it() -> None:
    envs, others = gym.make_vec(ID, num_envs=3), gym.make_vec(ID, num_envs=3, threads=1)
    np.testing.assert_array_equal(envs.reset(seed=2)[0], others.reset(seed=2)[0])
    assert not np.array_equal(envs.reset(seed=2)[0], others.reset(seed=9)[0])
    assert len(np.unique(envs.reset(seed=2)[0], axis=0)) == 3  # rows differ from each other


def test_actions_outside_the_space_are_clipped_not_obeyed(single: SingleEnv) -> None:
    single.reset(seed=1)
    wild = single.step(np.array([100.0, -100.0, 100.0, 9.0], np.float32))[0]
    single.reset(seed=1)
    clipped = single.step(np.array([1.0, -1.0, 1.0, 1.0], np.float32))[0]
    np.testing.assert_array_equal(wild, clipped)


# Stable-Baselines3 ------------------------------------------------------------------------------------
def test_stable_baselines3_accepts_it_and_trains_on_it_unchanged() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    env = gym.make(ID)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb3_check_env(env.unwrapped)
        model = PPO("MlpPolicy", env, n_steps=128, batch_size=64, n_epochs=2, seed=0, device="cpu")
        model.learn(384)
    assert model.num_timesteps == 384
    info = model.ep_info_buffer
    assert info is not None
    assert len(info) == 3  # its Monitor saw whole episodes
    assert len(model.ep_success_buffer) == 3  # and its logger our successes
    action, _ = model.predict(env.reset(seed=0)[0], deterministic=True)
    assert env.action_space.contains(action)
