"""Pictures of a policy at work: recorded replays and the live viewer, for every environment that can be drawn."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs import EnvConfig
from ludus.envs.gym.env import GymVecEnv
from ludus.envs.mujoco.task import SimTask
from ludus.envs.showing import Frame, Shown, drawable_env, scene_of
from ludus.envs.vec import Step, VecEnv
from ludus.errors import LudusError
from ludus.policies.fit import refuse_misfit
from ludus.policies.policy import Actor, Policy
from ludus.show import playback as replays
from ludus.show import viewer

_SEED = 90_210  # of the episodes shown
_MOST_FRAMES = 1000  # of one episode: some environments never end one
_MOST_PIECES = 12  # on one page: more of them nobody looks at
_PIECE_SECONDS = 10.0
_MOST_PIECE_FRAMES = 1900  # of all pieces together: 15 pictures a second of a dozen long ones


def record_replay(
    config: EnvConfig, policy: Policy, title: str, episodes: int = 4, ranked: Sequence[str] = ()
) -> str | None:
    """A page that shows the policy's episodes; nothing for an environment that cannot be drawn.

    `ranked`: the pieces of an environment that has some, the worst first, so that of many both ends are shown.
    """
    env = drawable_env(config)
    try:
        refuse_misfit(policy, env)
        scene = scene_of(env)
        if scene is None:
            return _picture_replay(env, policy, title)
        replay = replays.Replay(scene, _seconds_per_step(env))
        if isinstance(env, Shown):
            _record_pieces(replay, env, policy, ranked)
        else:
            _record_episodes(replay, env, policy, episodes)
        return replays.replay_html(replay, title)
    finally:
        env.close()


def _record_episodes(replay: replays.Replay, env: VecEnv, policy: Policy, episodes: int) -> None:
    obs, actor = env.reset(_SEED), policy.actor()
    for number in range(1, episodes + 1):
        frames, total, obs, last = _play_episode(env, actor, obs, _MOST_FRAMES)
        replay.add_episode(frames, f"episode {number}: {_outcome(last, total, len(frames))}")


def _record_pieces(replay: replays.Replay, env: VecEnv, policy: Policy, ranked: Sequence[str]) -> None:
    """One episode of every piece, or of a dozen from the worst to the best."""
    assert isinstance(env, Shown)
    replay.most_frames = _MOST_PIECE_FRAMES
    for piece in chosen_pieces(env.pieces, ranked, _MOST_PIECES):
        env.show(piece)
        frames, _, _, last = _play_episode(
            env, policy.actor(), env.reset(_SEED), round(_PIECE_SECONDS / replay.dt)
        )
        replay.add_episode(frames, f"{env.pieces[piece]}: {env.outcome(last, len(frames))}")


def chosen_pieces(pieces: Sequence[str], ranked: Sequence[str], most: int) -> list[int]:
    """Numbers of at most so many pieces, spread evenly over the ranking, its ends included."""
    known = [name for name in dict.fromkeys(ranked) if name in pieces]
    order = [pieces.index(name) for name in known] + [i for i, name in enumerate(pieces) if name not in known]
    if len(order) <= most:
        return order
    return [order[round(i * (len(order) - 1) / (most - 1))] for i in range(most)]


def play_live(env: VecEnv, policy: Policy, title: str, port: int, seconds: float | None) -> None:
    """The policy in the browser, episode after episode."""
    scene = scene_of(env)
    if scene is None:
        raise LudusError(f"{env.name} has no MuJoCo scene to show live; 'ludus report' shows its pictures.")
    live, label = _Live(env, policy), "Next episode"
    if isinstance(env, Shown):
        live, label = _LivePieces(env, policy), env.next_label
    viewer.play(scene, live.advance, _seconds_per_step(env), port, seconds, live.restart, title, next_label=label)


class _Live:
    """Episode after episode, without an end."""

    def __init__(self, env: VecEnv, policy: Policy) -> None:
        self._env, self._actor = env, policy.actor()
        self._obs = env.reset(_SEED)
        self._total, self._steps, self._restarts = 0.0, 0, 0

    def advance(self) -> viewer.StepResult:
        step = self._env.step(self._actor.act(self._obs))
        self._obs = step.obs
        self._actor.forget(step.done)
        self._total, self._steps = self._total + float(step.reward[0]), self._steps + 1
        if bool(step.done[0]):
            self._ended(step)
            self._total, self._steps = 0.0, 0
        frame = _frame(self._env)
        return frame["qpos"], frame.get("mocap_pos"), frame.get("mocap_quat"), self._told()

    def restart(self) -> None:
        self._restarts += 1
        self._obs, self._total, self._steps = self._env.reset(_SEED + self._restarts), 0.0, 0
        self._actor.forget()

    def _ended(self, last: Step) -> None:
        """The next episode has begun already."""

    def _told(self) -> dict[str, float | str]:
        return {"return": self._total}


class _LivePieces(_Live):
    """Piece after piece, and then the first again."""

    def __init__(self, env: VecEnv, policy: Policy) -> None:
        assert isinstance(env, Shown)
        self._shown, self._piece, self._before = env, 0, ""
        env.show(0)
        super().__init__(env, policy)

    def restart(self) -> None:
        self._piece = (self._piece + 1) % len(self._shown.pieces)
        self._shown.show(self._piece)
        super().restart()

    def _ended(self, last: Step) -> None:
        self._before = f"{self._shown.pieces[self._piece]}: {self._shown.outcome(last, self._steps)}"
        self.restart()

    def _told(self) -> dict[str, float | str]:
        return self._shown.told() | ({"before": self._before} if self._before else {})


@torch.no_grad()
def _play_episode(env: VecEnv, actor: Actor, obs: Tensor, most: int) -> tuple[list[Frame], float, Tensor, Step]:
    """Frames, return, the next episode's first observation and the last step of one episode, or of its start."""
    frames, total = [_frame(env)], 0.0
    while True:
        step = env.step(actor.act(obs))
        actor.forget(step.done)
        obs, total = step.obs, total + float(step.reward[0])
        if bool(step.done[0]) or len(frames) == most:
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


def _seconds_per_step(env: VecEnv) -> float:
    model: mujoco.MjModel = getattr(env, "mj_model")  # noqa: B009 (what is drawn may be another)
    return getattr(env, "substeps", 1) * float(model.opt.timestep)


def _frame(env: VecEnv) -> Frame:
    if isinstance(env, Shown):
        return env.drawn()
    if isinstance(env, SimTask):
        field: Callable[[str], Any] = lambda name: env.sim.field(name)[0].numpy().copy()  # noqa: E731
    else:
        assert isinstance(env, GymVecEnv)
        data = env.mj_data(0)
        field = lambda name: np.array(getattr(data, name))  # noqa: E731
    return {name: field(name) for name in ("qpos", "mocap_pos", "mocap_quat")}
