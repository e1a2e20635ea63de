"""Gymnasium environments behind the contract, in this process."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tyro
from safetensors.torch import load, save
from torch import Tensor

import gym_test_envs
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import GymVecEnv, make_gym
from ludus.envs.vec import State, Step, VecEnv, derive_seed
from ludus.errors import CheckpointError, ConfigError, EnvError


def make(env_id: str, num_envs: int = 3, max_steps: int = 0, **kwargs: Any) -> GymVecEnv:
    if hasattr(gym_test_envs, env_id) or env_id == "Short":
        env_id = f"gym_test_envs:ludus-test/{env_id}-v0"
    env = make_gym(GymConfig(env_id, max_steps=max_steps, kwargs=kwargs), num_envs)
    assert isinstance(env, GymVecEnv)
    return env


def random_actions(env: VecEnv, steps: int) -> list[Tensor]:
    env.action_space.seed(0)
    return [
        torch.from_numpy(np.stack([env.action_space.sample() for _ in range(env.num_rows)])) for _ in range(steps)
    ]


def no_op(env: VecEnv) -> Tensor:
    return torch.zeros(env.num_rows, dtype=torch.int64)


def assert_same(one: Step, other: Step) -> None:
    for name, a, b in zip(Step._fields[:5], one[:5], other[:5], strict=True):
        assert torch.equal(a, b), name


# Episodes -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Hopper-v5"])
def test_rows_are_what_gymnasium_gives_when_each_environment_is_stepped_by_hand(env_id: str) -> None:
    group = make(env_id, max_steps=40)
    plain = [gym.make(env_id, max_episode_steps=40) for _ in range(3)]
    obs = group.reset(5)
    flat: list[Any] = [
        gym.spaces.flatten(e.observation_space, e.reset(seed=derive_seed(5, i) % 2**31)[0])
        for i, e in enumerate(plain)
    ]
    assert torch.equal(obs, torch.from_numpy(np.stack(flat)).float())
    ended = 0
    for action in random_actions(group, 100):
        step = group.step(action)
        for row, env in enumerate(plain):
            choice = action[row].item() if action.ndim == 1 else action[row].numpy()
            seen, reward, terminated, truncated, _ = env.step(choice)
            final = torch.from_numpy(gym.spaces.flatten(env.observation_space, seen)).float()
            assert torch.equal(step.final_obs[row], final)
            assert step.reward[row] == np.float32(reward)
            assert (bool(step.terminated[row]), bool(step.truncated[row])) == (
                terminated,
                truncated and not terminated,
            )
            if terminated or truncated:
                ended += 1
                seen = env.reset()[0]
            expected = torch.from_numpy(gym.spaces.flatten(env.observation_space, seen)).float()
            assert torch.equal(step.obs[row], expected)
    assert ended >= 3


def test_time_limit_truncates_with_the_last_observation_and_restarts_in_the_same_step() -> None:
    env = make("Short")
    env.reset(0)
    for count in (1, 2, 3):
        assert not env.step(no_op(env)).done.any()
        assert count < 4
    step = env.step(no_op(env))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert (step.final_obs[:, 0] == 4).all()
    assert (step.obs[:, 0] == 0).all()
    assert (env.step(no_op(env)).obs[:, 0] == 1).all()


def test_max_steps_replaces_the_environments_own_limit() -> None:
    env = make("Short", max_steps=6)
    env.reset(0)
    ends = [bool(env.step(no_op(env)).truncated.all()) for _ in range(12)]
    assert [i + 1 for i, end in enumerate(ends) if end] == [6, 12]


def test_terminated_and_truncated_at_once_counts_as_terminated() -> None:
    env = make("Scripted", script={"2": "both"})
    env.reset(0)
    env.step(no_op(env))
    step = env.step(no_op(env))
    assert step.terminated.all()
    assert not step.truncated.any()


def test_success_is_a_metric_from_the_first_episode_that_says_so() -> None:
    env = make("Scripted", script={"2": "success"}, max_steps=3)
    env.reset(0)
    assert "success" not in env.step(no_op(env)).metrics
    step = env.step(no_op(env))
    assert step.metrics["success"].tolist() == [1.0] * 3
    assert env.step(no_op(env)).metrics["success"].isnan().all()


def test_tensors_of_a_step_are_not_changed_by_later_steps() -> None:
    env = make("CartPole-v1")
    first = env.reset(0)
    step = env.step(no_op(env))
    copies = [first.clone(), *(tensor.clone() for tensor in step[:5])]
    for action in random_actions(env, 30):
        env.step(action)
    assert all(torch.equal(a, b) for a, b in zip([first, *step[:5]], copies, strict=True))


def test_same_seed_same_rows_and_other_seed_other_rows() -> None:
    one, other = make("CartPole-v1"), make("CartPole-v1")
    assert torch.equal(one.reset(1), other.reset(1))
    assert not torch.equal(one.reset(1), other.reset(2))
    first = one.reset(1)
    assert not torch.equal(first[0], first[1])


# Spaces ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "policy_action", "env_action"),
    [
        ("offset", torch.tensor([5, 7]), [5, 7]),
        ("multi", torch.tensor([[1, 2], [3, 5]]), [[1, 2], [3, 5]]),
        (
            "matrix",
            torch.tensor([[0.5] * 6, [9.0] * 3 + [-9.0] * 3]),
            [[[0.5] * 3] * 2, [[3.0] * 3, [-2.0] * 3]],
        ),
        ("integers", torch.tensor([[0.2, 3.7], [11.0, -4.0]]), [[0, 4], [9, 0]]),
        ("binary", torch.tensor([[0, 1, 1], [1, 0, 0]]), [[0, 1, 1], [1, 0, 0]]),
    ],
)
def test_actions_reach_the_environment_in_its_own_space(
    kind: str, policy_action: Tensor, env_action: list[Any]
) -> None:
    env = make("Echo", 2, kind=kind)
    env.reset(0)
    env.step(policy_action)
    seen = [inner.unwrapped.seen[0] for inner in env.envs]
    assert all(np.array_equal(a, b) for a, b in zip(seen, env_action, strict=True))


def test_an_environment_may_keep_the_action_it_was_given() -> None:
    env = make("Echo", 2, kind="matrix")
    env.reset(0)
    action = torch.ones(2, 6)
    env.step(action)
    action.zero_()
    env.step(action)
    assert env.envs[0].unwrapped.seen[0].tolist() == [[1.0] * 3] * 2


def test_dict_and_tuple_observations_become_one_float32_vector() -> None:
    env = make("Echo", 2, kind="offset")
    obs = env.reset(0)
    space = env.envs[0].observation_space
    assert env.obs_space.shape == (8,)
    assert obs.dtype == torch.float32
    step = env.step(torch.tensor([6, 7]))
    expected: Any = gym.spaces.flatten(space, {"action": 7, "where": (2, np.array([1, 0]))})
    assert step.obs[1].tolist() == expected.tolist()


def test_images_keep_their_shape_and_type() -> None:
    env = make("Picture", 2)
    obs = env.reset(0)
    assert obs.dtype == torch.uint8
    assert obs.shape == (2, 4, 5, 3)
    assert env.obs_space.dtype == np.uint8


def test_float64_observations_become_float32() -> None:
    env = make("HalfCheetah-v5", 1)
    assert env.reset(0).dtype == torch.float32
    assert env.obs_space.dtype == np.float32


def test_an_unsupported_action_space_is_named() -> None:
    with pytest.raises(ConfigError, match=r"acts in Text\(1, 3"):
        make("Echo", kind="text")


# Mistakes -------------------------------------------------------------------------------------------
def test_unknown_id_suggests_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"no Gymnasium environment 'CartPol-v1'.*'CartPole-v1'"):
        make("CartPol-v1")


def test_unknown_version_suggests_the_known_one() -> None:
    with pytest.raises(ConfigError, match="'HalfCheetah-v5'"):
        make("HalfCheetah-v9")


def test_missing_module_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'no_such_package' cannot be found.*'no_such_package:Env-v0'"):
        make("no_such_package:Env-v0")


def test_an_environment_that_the_module_lacks_is_told_by_those_that_it_has() -> None:
    with pytest.raises(ConfigError, match=r"'gym_test_envs' neither has nor registers.*'Script'.*mean 'Scripted'"):
        make("gym_test_envs:Script")


def test_a_module_misspelt_is_looked_for_in_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_reach.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"here or among the installed packages.*Did you mean 'my_reach'"):
        make("my_reech:Reach")


def test_missing_dependency_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as if it were not installed
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"LunarLander-v3 needs a package.*pip install"):
        make("LunarLander-v3")


def test_kwargs_can_be_given_as_flags() -> None:
    config = tyro.cli(GymConfig, args=["--id", "CartPole-v1", "--kwargs", "sutton_barto_reward", "True"])
    assert config.kwargs == {"sutton_barto_reward": True}


def test_unknown_kwargs_are_named() -> None:
    with pytest.raises(ConfigError, match="gravitee"):
        make("CartPole-v1", gravitee=3)


def test_a_raising_environment_is_named_with_row_and_error() -> None:
    env = make("Scripted", script={"2": "raise"})
    env.reset(0)
    env.step(no_op(env))
    with pytest.raises(
        EnvError, match=r"Scripted.*step\(\) of row 0 at step 2: ValueError: the gripper fell off"
    ) as e:
        env.step(no_op(env))
    assert isinstance(e.value.__cause__, ValueError)


def test_an_environment_that_raises_in_reset_is_named() -> None:
    env = make("Scripted", script={"reset": "raise"})
    with pytest.raises(EnvError, match=r"reset\(\) of row 0.*the gripper fell off"):
        env.reset(0)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("nan", "observation of row 0 at step 3 is nan at index 0"),
        ("infinite reward", "reward of row 0 at step 3 is inf"),
        ("shape", r"observation of row 0 at step 3 has shape \(3,\); its observation space says \(2,\)"),
        ("scalar", r"has shape \(\); its observation space says \(2,\)"),
    ],
)
def test_values_that_break_the_contract_are_errors_that_say_where(event: str, message: str) -> None:
    env = make("Scripted", script={"3": event})
    env.reset(0)
    env.step(no_op(env))
    env.step(no_op(env))
    with pytest.raises(EnvError, match=message):
        env.step(no_op(env))


# State ----------------------------------------------------------------------------------------------
def through_files(state: State) -> State:
    """What a checkpoint does: tensors to safetensors, the rest to JSON."""
    tensors: dict[str, Tensor] = {}

    def out(node: Any) -> Any:
        if isinstance(node, Tensor):
            tensors[str(len(tensors))] = node
            return {"__tensor__": str(len(tensors) - 1)}
        if isinstance(node, dict):
            return {key: out(value) for key, value in node.items()}
        return [out(value) for value in node] if isinstance(node, list) else node

    def back(node: Any) -> Any:
        if isinstance(node, dict):
            if "__tensor__" in node:
                return loaded[node["__tensor__"]]
            return {key: back(value) for key, value in node.items()}
        return [back(value) for value in node] if isinstance(node, list) else node

    text = json.dumps(out(state), allow_nan=False)
    loaded = load(save(tensors))
    result = back(json.loads(text))
    assert isinstance(result, dict)
    return result


EXACT = [
    ("CartPole-v1", 0),
    ("Pendulum-v1", 30),
    ("Acrobot-v1", 30),
    ("MountainCar-v0", 30),
    ("FrozenLake-v1", 0),
    ("Blackjack-v1", 0),
    ("HalfCheetah-v5", 30),
    ("Hopper-v5", 0),
    ("Ant-v5", 30),
    ("Humanoid-v5", 0),
    ("Pusher-v5", 30),
    ("Attributes", 0),
    ("OwnState", 9),
]


@pytest.mark.parametrize(("env_id", "max_steps"), EXACT, ids=[env_id for env_id, _ in EXACT])
def test_a_loaded_state_continues_bit_for_bit_over_episode_ends(env_id: str, max_steps: int) -> None:
    env = make(env_id, 2, max_steps)
    actions = random_actions(env, 100)
    env.reset(11)
    for action in actions[:17]:
        env.step(action)
    state = through_files(env.state())
    expected = [env.step(action) for action in actions[17:]]
    fresh = make(env_id, 2, max_steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no word of an inexact state
        fresh.load_state(state)
    for one, action in zip(expected, actions[17:], strict=True):
        assert_same(one, fresh.step(action))
    assert sum(int(step.done.sum()) for step in expected) >= 2


def test_a_state_can_be_loaded_twice_and_is_not_changed_by_going_on() -> None:
    env = make("Attributes", 2)
    env.reset(0)
    actions = random_actions(env, 20)
    env.step(actions[0])
    state = env.state()
    first = [env.step(action) for action in actions]
    env.load_state(state)
    for one, action in zip(first, actions, strict=True):
        assert_same(one, env.step(action))


def test_loading_leaves_constants_of_the_environments_module_alone() -> None:
    env = make("Attributes", 1)
    env.reset(0)
    env.step(no_op(env))
    make("Attributes", 1).load_state(env.state())
    assert gym_test_envs.CALM.wind == 0.0


def test_an_opaque_environment_ends_its_episodes_as_truncated_on_resume_and_says_so_once() -> None:
    env = make("Opaque", 2)
    env.name = "gym:opaque, told of once"
    env.reset(0)
    for _ in range(5):
        last = env.step(no_op(env))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = through_files(env.state())
        env.state()
        fresh = make("Opaque", 2)
        fresh.name = env.name
        fresh.load_state(state)
    (warning,) = caught
    assert "its world is a builtins.range_iterator): its episodes restart on resume" in str(warning.message)
    step = fresh.step(no_op(fresh))
    assert step.truncated.all()
    assert torch.equal(step.final_obs, last.obs)
    assert step.reward.tolist() == [0.0, 0.0]
    assert (step.obs[:, 0] == 0).all()
    assert (fresh.step(no_op(fresh)).obs[:, 0] == 1).all()


def test_two_views_of_one_array_are_not_saved_as_two_arrays() -> None:
    env = make("Scripted", 1)
    env.reset(0)
    inner = env.envs[0].unwrapped
    inner.grid = np.zeros(10)
    inner.half = inner.grid[:5]
    env.name = "gym:two views"  # a name is warned of once
    with pytest.warns(RuntimeWarning, match="two of its arrays share memory"):
        state = env.state()
    assert not state["envs"][0]["exact"]


def test_randomised_mujoco_models_are_restored() -> None:
    env, fresh = make("Hopper-v5", 1), make("Hopper-v5", 1)
    env.reset(0)
    assert env.mj_model is not None
    env.mj_model.body_mass[:] *= 1.5
    env.mj_model.opt.gravity[2] = -5.0
    fresh.load_state(through_files(env.state()))
    for action in random_actions(env, 30):
        assert_same(env.step(action), fresh.step(action))


def test_a_state_of_another_number_of_environments_is_refused() -> None:
    env = make("CartPole-v1", 2)
    env.reset(0)
    with pytest.raises(CheckpointError, match="holds 2 environments"):
        make("CartPole-v1", 3).load_state(env.state())


def test_a_state_that_does_not_fit_restarts_the_episode_instead_of_raising() -> None:
    env = make("Attributes", 1)
    env.name = "gym:does not fit"
    env.reset(0)
    state = through_files(env.state())
    state["envs"][0]["tree"]["object"]["body"]["class"] = "os.system"
    with pytest.warns(RuntimeWarning, match="does not fit"):
        env.load_state(state)
    assert env.step(no_op(env)).truncated.all()


# Viewers --------------------------------------------------------------------------------------------
def test_frame_is_a_picture_only_where_one_was_asked_for() -> None:
    env, silent = make("Picture", render_mode="rgb_array"), make("Picture")
    env.reset(0)
    frame = env.frame(1)
    assert frame is not None
    assert frame.shape == (8, 8, 3)
    assert silent.frame(1) is None


def test_mujoco_environments_show_their_model_and_data() -> None:
    env = make("Hopper-v5", 2)
    env.reset(0)
    data = env.mj_data(1)
    assert env.mj_model is not None
    assert data is not None
    assert data.qpos.shape == (env.mj_model.nq,)
    assert make("CartPole-v1").mj_model is None
    assert make("CartPole-v1").mj_data(0) is None
