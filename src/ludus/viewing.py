"""Pictures of a policy at work: recorded replays and the live viewer, for every environment that can be drawn."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs import EnvConfig, GymConfig, PettingZooConfig, make_vec_env
from ludus.envs.gym import GymVecEnv
from ludus.envs.sim_task import SimTask
from ludus.envs.vec import Step, VecEnv
from ludus.errors import LudusError
from ludus.logging import replay as replays
from ludus.logging import viewer
from ludus.policies.policy import Actor, Policy

Frame = dict[str, Any]  # qpos, mocap_pos, mocap_quat
_SEED = 90_210  # of the episodes shown
_MOST_FRAMES = 1000  # of one episode: some environments never end one


def record_replay(config: EnvConfig, policy: Policy, title: str, episodes: int = 4) -> str | None:
    """A page that shows the policy's episodes; nothing for an environment that cannot be drawn."""
    env = _drawable_env(config)
    try:
        scene = _scene(env)
        if scene is None:
            return _picture_replay(env, policy, title)
        replay = replays.Replay(scene, _seconds_per_step(env, scene))
        obs, actor = env.reset(_SEED), policy.actor()
        for number in range(1, episodes + 1):
            frames, total, obs, last = _play_episode(env, actor, obs)
            replay.add_episode(frames, f"episode {number}: {_outcome(last, total, len(frames))}")
        return replays.replay_html(replay, title)
    finally:
        env.close()


def play_live(config: EnvConfig, policy: Policy, title: str, port: int, seconds: float | None) -> None:
    """The policy in the browser, episode after episode."""
    env = _drawable_env(config)
    try:
        scene = _scene(env)
        if scene is None:
            raise LudusError(f"{env.name} has no MuJoCo scene to show live; 'ludus report' shows its pictures.")
        obs = env.reset(_SEED)
        total, restarts = 0.0, 0
        actor = policy.actor()

        def advance() -> viewer.StepResult:
            nonlocal obs, total
            step = env.step(actor.act(obs))
            obs = step.obs
            actor.forget(step.done)
            total = 0.0 if bool(step.done[0]) else total + float(step.reward[0])
            frame = _frame(env)
            return frame["qpos"], frame["mocap_pos"], frame["mocap_quat"], {"return": total}

        def restart() -> None:
            nonlocal obs, total, restarts
            restarts += 1
            obs, total = env.reset(_SEED + restarts), 0.0
            actor.forget()

        viewer.play(scene, advance, _seconds_per_step(env, scene), port, seconds, restart, title)
    finally:
        env.close()


@torch.no_grad()
def _play_episode(env: VecEnv, actor: Actor, obs: Tensor) -> tuple[list[Frame], float, Tensor, Step]:
    """Frames, return, the next episode's first observation and the last step of one episode, or of its start."""
    frames, total = [_frame(env)], 0.0
    while True:
        step = env.step(actor.act(obs))
        actor.forget(step.done)
        obs, total = step.obs, total + float(step.reward[0])
        if bool(step.done[0]) or len(frames) == _MOST_FRAMES:
            return frames, total, obs, step
        frames.append(_frame(env))


def _outcome(last: Step, total: float, steps: int) -> str:
    if "success" in last.metrics:
        return f"{'success' if float(last.metrics['success'][0]) else 'failure'} after {steps} steps"
    return f"return {total:.0f} after {steps} steps"


def _picture_replay(env: VecEnv, policy: Policy, title: str, limit: int = 300) -> str | None:
    """An animated picture, for environments that render themselves."""
    frame: Callable[[int], np.ndarray | None] | None = getattr(env, "frame", None)
    if frame is None:
        return None
    obs, pictures, actor = env.reset(_SEED), [], policy.actor()
    for _ in range(limit):
        try:
            picture = frame(0)
        except gym.error.Error as error:
            raise LudusError(f"{env.name} cannot draw itself: {error}") from error
        if picture is None:
            return None
        pictures.append(picture)
        present = torch.ones(env.num_rows, dtype=torch.bool) if env.present is None else env.present.clone()
        step = env.step(actor.act(obs))
        obs, ended = step.obs, step.done | ~present
        if bool(ended.all()):  # of several agents some may end before
            break
        actor.forget(ended)
    return replays.frames_html(pictures, getattr(env, "frame_rate", 30), title)


def _drawable_env(config: EnvConfig) -> VecEnv:
    """One environment for looking at; Gymnasium's own drawing is switched on where the environment has it."""
    if not isinstance(config, GymConfig | PettingZooConfig):
        return make_vec_env(config, 1, evaluation=True)
    in_process = dataclasses.replace(config, workers=0)
    env = make_vec_env(in_process, 1, evaluation=True)
    if _scene(env) is not None:
        return env
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures in memory need no screen
    try:
        pictured = dataclasses.replace(in_process, kwargs={**config.kwargs, "render_mode": "rgb_array"})
        drawable = make_vec_env(pictured, 1, evaluation=True)
    except LudusError:  # it has no such mode: there is nothing to draw, but no harm either
        return env
    env.close()
    return drawable


def _scene(env: VecEnv) -> mujoco.MjModel | None:
    return getattr(env, "mj_model", None)


def _seconds_per_step(env: VecEnv, scene: mujoco.MjModel) -> float:
    return getattr(env, "substeps", 1) * float(scene.opt.timestep)


def _frame(env: VecEnv) -> Frame:
    if isinstance(env, SimTask):
        field: Callable[[str], Any] = lambda name: env.sim.field(name)[0].numpy().copy()  # noqa: E731
    else:
        assert isinstance(env, GymVecEnv)
        data = env.mj_data(0)
        field = lambda name: np.array(getattr(data, name))  # noqa: E731
    return {name: field(name) for name in ("qpos", "mocap_pos", "mocap_quat")}
