"""Environments to be looked at, and to try a trained policy in."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import mujoco
import torch

from ludus.envs import as_evaluated, make_eval_env, make_vec_env, on_threads
from ludus.envs.config import EnvConfig
from ludus.envs.gym.config import GymConfig, PettingZooConfig
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.other_clips import act_as_trained, make_shown, on_clips
from ludus.envs.humanoid.task import HumanoidTask
from ludus.envs.vec import Step, VecEnv
from ludus.errors import LudusError

Frame = dict[str, Any]  # qpos, mocap_pos, mocap_quat
Start = Mapping[str, float | str]  # of an episode, as `abilities.DescribesStarts` tells it, in words


@runtime_checkable
class Shown(Protocol):
    """What an environment may bring to be looked at: pieces with names, each an episode, in a scene of its own.

    Others show their MuJoCo model as it is, episode after episode.
    """

    next_label: str  # of the button that asks for the next piece

    @property
    def pieces(self) -> Sequence[str]: ...

    @property
    def scene_model(self) -> mujoco.MjModel: ...

    def piece_of(self, start: Start) -> int | None:
        """The piece that an episode with this start is of, if there is one."""

    def show(self, piece: int, start: Start | None = None) -> None:
        """Episodes begin with this piece from the next reset on: at its beginning, or as an evaluation began."""

    def drawn(self) -> Frame:
        """The scene as it is now."""

    def told(self) -> dict[str, float | str]:
        """Words and numbers beside a live picture."""

    def outcome(self, last: Step, steps: int) -> str:
        """How the episode went whose last step, the `steps`th, this is."""


def make_trial_env(trained: EnvConfig, clips: str, episodes: int, device: torch.device | str = "cpu") -> VecEnv:
    """For an evaluation of a policy that was trained in `trained`; with `clips`, on these instead of its own."""
    if not clips:
        return make_eval_env(trained, episodes, device)
    env = make_eval_env(on_clips(trained, clips), episodes, device)
    try:
        if isinstance(env, HumanoidTask) and isinstance(trained, HumanoidConfig):
            act_as_trained(env, trained)
    except LudusError:  # the clips that it was trained on may be gone
        env.close()
        raise
    return env


def make_shown_env(trained: EnvConfig, clips: str = "", beside: float = 0.0) -> VecEnv:
    """To look at a policy that was trained in `trained`; with `clips`, on these instead of its own."""
    return drawable_env(on_clips(trained, clips) if clips else trained, trained, beside)


def drawable_env(
    config: EnvConfig, trained: EnvConfig | None = None, beside: float = 0.0, num_envs: int = 1
) -> VecEnv:
    """Environments for looking at, as evaluations have them.

    Gymnasium's own drawing is switched on where the environment has it.

    Of one that brings pieces to be looked at there is but one, whatever `num_envs` says.

    `trained`: how the policy was trained, where that differs from what is shown. `beside`: metres between a body
    and the ghost of what it should do, where there is one; 0 lays one over the other.
    """
    config = as_evaluated(config)
    if isinstance(config, HumanoidConfig) and config.goal == "track":
        return make_shown(config, trained if isinstance(trained, HumanoidConfig) else config, beside)
    if not isinstance(config, GymConfig | PettingZooConfig):
        return make_vec_env(on_threads(config), num_envs, evaluation=True)
    in_process = dataclasses.replace(config, workers=0)
    env = make_vec_env(in_process, num_envs, evaluation=True)
    if scene_of(env) is not None:
        return env
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures in memory need no screen
    try:
        pictured = dataclasses.replace(in_process, kwargs={**config.kwargs, "render_mode": "rgb_array"})
        drawable = make_vec_env(pictured, num_envs, evaluation=True)
    except LudusError:  # it has no such mode: there is nothing to draw, but no harm either
        return env
    env.close()
    return drawable


def scene_of(env: VecEnv) -> mujoco.MjModel | None:
    """What is drawn of an environment, if it is simulated by MuJoCo."""
    return env.scene_model if isinstance(env, Shown) else getattr(env, "mj_model", None)
