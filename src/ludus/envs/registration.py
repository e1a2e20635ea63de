"""Our environments for plain Gymnasium users; `ludus.gymnasium_ids` gives them their names.

gymnasium.make("ludus/KukaPickPlace-v0")                  one environment
gymnasium.make_vec("ludus/KukaPickPlace-v0", num_envs=64) the batched one
gymnasium.make("ludus/CartPoleNoVelocity-v1")             CartPole that needs a memory
"""

import os
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ludus.envs.abilities import goals_of
from ludus.envs.goals import Judge
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.goals import KukaGoals
from ludus.envs.kuka.task import KukaPickPlace
from ludus.envs.mujoco.task import SimTask
from ludus.envs.row_space import RowSpace
from ludus.ranks import available_cores


def single_kuka(render_mode: str | None = None, **settings: Any) -> "SingleEnv | SingleGoalEnv":
    config = KukaConfig(**settings)
    if config.goals:
        return SingleGoalEnv(KukaGoals(config, 1, threads=1), render_mode)
    return SingleEnv(KukaPickPlace(config, 1, threads=1), render_mode)


def batched_kuka(num_envs: int = 1, **settings: Any) -> "BatchedEnv":
    config = KukaConfig(**settings)
    task = KukaGoals if config.goals else KukaPickPlace
    return BatchedEnv(task(config, num_envs, config.threads or available_cores()))


class CartPoleNoVelocity(CartPoleEnv):
    """CartPole whose observation is the cart's place and the pole's angle alone: how fast they move is hidden."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        seen = self.observation_space
        assert isinstance(seen, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(seen.low[::2], seen.high[::2], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[::2], info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, *outcome = super().step(action)
        return obs[::2], *outcome


class SingleEnv(gym.Env[np.ndarray, np.ndarray]):
    """One row of a task under Gymnasium's own contract."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 (Gymnasium's own form)

    def __init__(self, task: SimTask, render_mode: str | None = None) -> None:
        self._task = task
        self.render_mode = render_mode
        assert isinstance(task.obs_space, gym.spaces.Box)
        assert isinstance(task.action_space, gym.spaces.Box)
        self.observation_space, self.action_space = task.obs_space, task.action_space
        self._renderer: Any = None
        self._next_obs: torch.Tensor | None = None  # of the episode that began when the last one ended
        self._started = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self._started:
            # np_random makes a seed of its own where none is given.
            obs = self._task.reset(int(self.np_random.integers(2**62)))
        elif self._next_obs is not None:
            obs = self._next_obs
        else:
            obs = self._task.restart(torch.zeros(1, dtype=torch.int64))
        self._started, self._next_obs = True, None
        return obs[0].numpy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        step = self._task.step(torch.as_tensor(np.asarray(action, dtype=np.float32))[None])
        self._next_obs = step.obs if bool(step.done[0]) else None
        info = {name: float(value[0]) for name, value in step.metrics.items()}
        if "success" in info:
            info["is_success"] = info["success"] > 0  # the name other libraries look for
        return (
            step.final_obs[0].numpy(),
            float(step.reward[0]),
            bool(step.terminated[0]),
            bool(step.truncated[0]),
            info,
        )

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return None
        if self._renderer is None:
            self._renderer = _make_renderer(self._task.mj_model)
            self._data = mujoco.MjData(self._task.mj_model)
        for name in ("qpos", "mocap_pos", "mocap_quat"):
            getattr(self._data, name)[:] = self._task.sim.field(name)[0].numpy()
        mujoco.mj_forward(self._task.mj_model, self._data)
        self._renderer.update_scene(self._data)
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._task.close()


class SingleGoalEnv(gym.ObservationWrapper):
    """The same of a task with goals, as Gymnasium-Robotics has them."""

    def __init__(self, task: SimTask, render_mode: str | None = None) -> None:
        super().__init__(SingleEnv(task, render_mode))
        space, goals = task.obs_space, goals_of(task)
        assert isinstance(space, RowSpace)
        assert goals is not None
        self._space, self._goals = space, goals
        self.observation_space = space.raw

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        parts = self._space.split(torch.from_numpy(observation)[None])
        return {name: part[0].numpy() for name, part in parts.items()}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        """Of one goal, or of arrays of them."""
        return self._judge(self._goals.reward, achieved_goal, desired_goal)

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        assert self._goals.ended is not None
        return self._judge(self._goals.ended, achieved_goal, desired_goal)

    def _judge(self, judge: Judge, achieved: np.ndarray, desired: np.ndarray) -> Any:
        pair = (torch.from_numpy(np.atleast_2d(np.asarray(goal, np.float32))) for goal in (achieved, desired))
        told = judge(*pair).numpy()
        return told if np.ndim(achieved) > 1 else told[0]


def _make_renderer(model: mujoco.MjModel) -> mujoco.Renderer:
    """MuJoCo's own; on EGL where there is no screen and the user has not chosen anything else."""
    try:
        if not any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")):
            from mujoco import egl
            from mujoco.rendering.classic import gl_context

            gl_context.GLContext = egl.GLContext
        return mujoco.Renderer(model, 480, 640)
    except (ImportError, AttributeError, RuntimeError, mujoco.FatalError) as error:
        raise gym.error.DependencyNotInstalled(
            f"Pictures need OpenGL, which does not work here ({error}); install libegl1, or set MUJOCO_GL."
        ) from error


class BatchedEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A whole task under Gymnasium's vector contract, restarting rows in the same step."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (Gymnasium's own form)

    def __init__(self, task: SimTask) -> None:
        self._task = task
        self.num_envs = task.num_rows
        self.single_observation_space, self.single_action_space = task.obs_space, task.action_space
        self.observation_space = batch_space(task.obs_space, self.num_envs)
        self.action_space = batch_space(task.action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        first = seed[0] if isinstance(seed, list) else seed
        super().reset(seed=first)
        return self._task.reset(int(self.np_random.integers(2**62))).numpy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        step = self._task.step(torch.as_tensor(np.asarray(actions, dtype=np.float32)))
        done = step.done.numpy()
        info: dict[str, Any] = {}
        if done.any():
            final = np.empty(self.num_envs, dtype=object)
            for row in np.flatnonzero(done):
                final[row] = step.final_obs[row].numpy()
            metrics = {name: value.numpy() for name, value in step.metrics.items()}
            info = {"final_obs": final, "_final_obs": done, "final_info": metrics, "_final_info": done}
        return step.obs.numpy(), step.reward.numpy(), step.terminated.numpy(), step.truncated.numpy(), info

    def close(self, **_: Any) -> None:
        self._task.close()
