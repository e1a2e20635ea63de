"""Pictures of a policy at work: recorded replays and the live viewer, for every environment that can be drawn."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.config import EnvConfig
from ludus.envs.gym.env import GymVecEnv
from ludus.envs.mujoco.task import SimTask
from ludus.envs.showing import Frame, Shown, Start, drawable_env, scene_of
from ludus.envs.vec import Step, VecEnv
from ludus.errors import LudusError
from ludus.policies.fit import refuse_misfit
from ludus.policies.policy import Actor, Policy
from ludus.show import playback as replays
from ludus.show import text, viewer
from ludus.training.evaluator import Evaluation, evaluate

_SEED = 90_210  # of the episodes shown
_MOST_FRAMES = 1000  # of one episode: some environments never end one
_MOST_PICTURES = 300  # of all episodes of an environment that renders itself
_MOST_PICTURED = 1  # of its failures, and of its successes
_MOST_PIECES = 12  # of a replay on one page
_PIECE_SECONDS = 10.0
_MOST_PIECE_FRAMES = 1900  # of all pieces together: 15 pictures a second of a dozen long ones


@dataclass(frozen=True)
class Cast:
    """Which episodes of an evaluation to look at: the same are played again with the same seed and rows."""

    seed: int
    rows: int
    failures: Sequence[int]  # numbers of episodes; where success is not told, of the lowest returns
    successes: Sequence[int]
    most_steps: int = 0  # of an episode, as in the evaluation
    longest: int = 0  # steps of the longest of them; 0: not known
    failed_starts: Sequence[Start] = ()  # of all that failed

    @property
    def numbers(self) -> set[int]:
        return {*self.failures, *self.successes}


ANY_FOUR = Cast(_SEED, 1, (), (0, 1, 2, 3), _MOST_FRAMES)  # where nothing was measured


@dataclass(frozen=True)
class Recorded:
    """An episode that was played to be looked at."""

    frames: list[Any]  # of a MuJoCo scene, or pictures
    caption: str
    failed: bool


def record_replays(
    config: EnvConfig, policy: Policy, title: str, cast: Cast = ANY_FOUR, ranked: Sequence[str] = ()
) -> list[replays.Page]:
    """Pages that show the policy's episodes, those that failed apart; none for what cannot be drawn.

    `ranked`: the pieces of an environment that has some, the worst first, so that of many both ends are shown.
    """
    env = drawable_env(config)
    if cast.rows > 1 and env.agents_per_env == 1 and not isinstance(env, Shown):
        env.close()
        env = drawable_env(config, num_envs=cast.rows)
    try:
        refuse_misfit(policy, env)
        scene = scene_of(env)
        if scene is None:
            return _picture_pages(env, policy, title, cast)
        dt = seconds_per_step(env)
        most = replays.MAX_FRAMES
        if isinstance(env, Shown):
            episodes, most = play_pieces(env, policy, ranked, dt, cast.failed_starts), _MOST_PIECE_FRAMES
        else:
            episodes = play_cast(env, policy, cast, pose_of, _MOST_FRAMES)
        groups = _groups(episodes)
        return [_scene_page(scene, dt, most // len(groups), about, group, title) for about, group in groups]
    finally:
        env.close()


def _groups(episodes: Sequence[Recorded]) -> list[tuple[str, list[Recorded]]]:
    """Failures and successes, each with a heading; without one where nothing failed."""
    failed, others = ([e for e in episodes if e.failed is kind] for kind in (True, False))
    if not failed or not others:
        return [("Failures" if failed else "", [*failed, *others])]
    told = "success" in others[0].caption or "tracked" in others[0].caption
    return [
        ("Failures" if told else "Lowest returns", failed),
        ("Successes" if told else "Highest returns", others),
    ]


def _scene_page(
    scene: mujoco.MjModel, dt: float, most: int, about: str, episodes: Sequence[Recorded], title: str
) -> replays.Page:
    replay = replays.Replay(scene, dt, most_frames=most)
    for episode in episodes:
        replay.add_episode(episode.frames, episode.caption)
    return replays.Page(replays.replay_html(replay, title), about, turns=True)


def play_cast(
    env: VecEnv, policy: Policy, cast: Cast, look: Callable[[VecEnv, int], Any], most_frames: int, every: int = 1
) -> list[Recorded]:
    """Play an evaluation again, as far as the cast needs it, and look at every `every`-th step of its episodes."""
    wanted, frames, seen = cast.numbers, dict[int, list[Any]](), dict[int, int]()
    over = False

    def watch(env: VecEnv, numbers: Tensor) -> None:
        nonlocal over
        present = {number: row for row, number in enumerate(numbers.tolist()) if number in wanted}
        for number, row in present.items():
            seen[number] = seen.get(number, -1) + 1
            if seen[number] % every == 0 and len(frames.setdefault(number, [])) < most_frames:
                frames[number].append(look(env, row))
        over = not present and len(frames) == len(wanted)

    episodes = max(wanted) + 1
    played = evaluate(policy, env, episodes, cast.seed, True, lambda: over, cast.most_steps, watch=watch)
    order = {number: place for place, number in enumerate(played.numbers)}
    success = played.metrics.get("success")
    return [
        Recorded(
            frames[number],
            _caption(number, played, order[number]),
            number in cast.failures if success is None else success[order[number]] < 0.5,
        )
        for number in [*cast.failures, *cast.successes]
        if number in order and frames.get(number)
    ]


def _caption(number: int, played: Evaluation, place: int) -> str:
    steps, success = played.lengths[place], played.metrics.get("success")
    if success is None:
        return f"episode {number}: return {text.number(played.returns[place])} after {steps} steps"
    return f"episode {number}: {'success' if success[place] >= 0.5 else 'failure'} after {steps} steps"


def play_pieces(
    env: VecEnv, policy: Policy, ranked: Sequence[str], dt: float, failed: Sequence[Start] = ()
) -> list[Recorded]:
    """One episode of every piece, or of a dozen from the worst to the best; as one began that `failed`, if any."""
    assert isinstance(env, Shown)
    starts = {env.piece_of(start): start for start in reversed(failed)}
    pieces = chosen_pieces(env.pieces, ranked, _MOST_PIECES)
    return [_play_piece(env, policy, piece, dt, starts.get(piece)) for piece in pieces]


def play_failed(env: VecEnv, policy: Policy, dt: float, failed: Sequence[Start]) -> list[Recorded]:
    """The episodes that began so, and no others."""
    assert isinstance(env, Shown)
    pieces = [(env.piece_of(start), start) for start in failed]
    return [_play_piece(env, policy, piece, dt, start) for piece, start in pieces if piece is not None]


def _play_piece(env: VecEnv, policy: Policy, piece: int, dt: float, start: Start | None) -> Recorded:
    """The beginning of a piece; of an episode that failed, its end, which shows how."""
    assert isinstance(env, Shown)
    env.show(piece, start)
    most = round(_PIECE_SECONDS / dt)
    frames, last, steps = _play_episode(env, policy.actor(), env.reset(_SEED), most, to_its_end=start is not None)
    failed = bool(last.metrics["success"][0] < 0.5)
    return Recorded(frames, f"{env.pieces[piece]}: {env.outcome(last, steps)}", failed)


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
    viewer.play(scene, live.advance, seconds_per_step(env), port, seconds, live.restart, title, next_label=label)


class _Live:
    """Episode after episode, without an end."""

    def __init__(self, env: VecEnv, policy: Policy) -> None:
        self._env, self._actor = env, policy.actor()
        self._obs = env.reset(_SEED)
        self._total, self._steps, self._restarts = 0.0, 0, 0
        self._ends, self._successes, self._last = 0, 0, ""
        self._tells_success = False

    def advance(self) -> viewer.StepResult:
        step = self._env.step(self._actor.act(self._obs))
        self._obs = step.obs
        self._actor.forget(step.done)
        self._total, self._steps = self._total + float(step.reward[0]), self._steps + 1
        if bool(step.done[0]):
            self._ended(step)
            self._total, self._steps = 0.0, 0
        frame = pose_of(self._env, 0)
        return frame["qpos"], frame.get("mocap_pos"), frame.get("mocap_quat"), self._told()

    def restart(self) -> None:
        self._restarts += 1
        self._obs, self._total, self._steps = self._env.reset(_SEED + self._restarts), 0.0, 0
        self._actor.forget()

    def _ended(self, last: Step) -> None:
        """The next episode has begun already."""
        self._ends += 1
        self._last = f"return {text.number(self._total)} after {self._steps} steps"
        if "success" in last.metrics:
            success = bool(last.metrics["success"][0] >= 0.5)
            self._successes, self._tells_success = self._successes + success, True
            self._last = f"{'success' if success else 'failure'}, {self._last}"

    def _told(self) -> dict[str, float | str]:
        told: dict[str, float | str] = {"episode": self._ends + 1, "step": self._steps, "return": self._total}
        if not self._ends:
            return told
        succeeded = {"succeeded": f"{self._successes} of {self._ends}"} if self._tells_success else {}
        return {**told, "last episode": self._last, **succeeded}


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
def _play_episode(
    env: VecEnv, actor: Actor, obs: Tensor, most: int, to_its_end: bool = False
) -> tuple[list[Frame], Step, int]:
    """At most so many frames of one episode, the last step that was played, and its number.

    Frames of its beginning; or, if it is to be played to its end, of that.
    """
    frames, steps = deque([pose_of(env, 0)], maxlen=most), 0
    while True:
        step = env.step(actor.act(obs))
        actor.forget(step.done)
        obs, steps = step.obs, steps + 1
        if bool(step.done[0]) or (steps == most and not to_its_end):
            return list(frames), step, steps
        frames.append(pose_of(env, 0))


def _picture_pages(env: VecEnv, policy: Policy, title: str, cast: Cast) -> list[replays.Page]:
    """Moving pictures, for environments that render themselves."""
    if not hasattr(env, "frame"):
        return []
    env.reset(_SEED)
    if picture_of(env, 0) is None:
        return []
    fps = getattr(env, "frame_rate", 30)
    if env.agents_per_env > 1:
        return [replays.Page(replays.frames_html([*team_pictures(env, policy)], fps, title))]
    few = replace(cast, failures=cast.failures[:_MOST_PICTURED], successes=cast.successes[:_MOST_PICTURED])
    most = _MOST_PICTURES // max(1, len(few.numbers))
    every = max(1, math.ceil(cast.longest / most))  # the end of an episode is what tells how it went
    episodes = play_cast(env, policy, few, picture_of, most, every)
    pages = []
    for about, group in _groups(episodes):
        films = [(episode.frames, episode.caption) for episode in group]
        pages.append(replays.Page(replays.films_html(films, fps / every, title), about))
    return pages


@torch.no_grad()
def team_pictures(env: VecEnv, policy: Policy) -> Iterator[np.ndarray]:
    """Of one episode of several agents, some of which may end before the others."""
    obs, actor = env.reset(_SEED), policy.actor()
    for _ in range(_MOST_PICTURES):
        picture = picture_of(env, 0)
        if picture is None:
            return
        yield picture
        present = torch.ones(env.num_rows, dtype=torch.bool) if env.present is None else env.present.clone()
        step = env.step(actor.act(obs))
        obs, ended = step.obs, step.done | ~present
        if bool(ended.all()):
            return
        actor.forget(ended)


def picture_of(env: VecEnv, row: int) -> np.ndarray | None:
    frame: Callable[[int], np.ndarray | None] = getattr(env, "frame")  # noqa: B009 (not every environment has it)
    try:
        return frame(row)
    except gym.error.Error as error:
        raise LudusError(f"{env.name} cannot draw itself: {error}") from error


def seconds_per_step(env: VecEnv) -> float:
    model: mujoco.MjModel = getattr(env, "mj_model")  # noqa: B009 (what is drawn may be another)
    return getattr(env, "substeps", 1) * float(model.opt.timestep)


def pose_of(env: VecEnv, row: int) -> Frame:
    if isinstance(env, Shown):
        return env.drawn()
    if isinstance(env, SimTask):
        field: Callable[[str], Any] = lambda name: env.sim.field(name)[row].numpy().copy()  # noqa: E731
    else:
        assert isinstance(env, GymVecEnv)
        data = env.mj_data(row)
        field = lambda name: np.array(getattr(data, name))  # noqa: E731
    return {name: field(name) for name in ("qpos", "mocap_pos", "mocap_quat")}
