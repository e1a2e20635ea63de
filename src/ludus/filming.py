"""A video of a run's policy, for every environment that can be drawn."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from ludus.config import TrainConfig
from ludus.envs.mujoco.film import PICTURES, FilmCamera, Shot
from ludus.envs.showing import Shown, drawable_env, make_shown_env, scene_of
from ludus.envs.vec import VecEnv, derive_seed
from ludus.errors import ConfigError, LudusError
from ludus.measuring import cast_of, measure_run, with_seed
from ludus.policies.fit import refuse_misfit
from ludus.policies.policy import Policy
from ludus.saved_run import load_from, run_folder, trusted_config
from ludus.show.mujoco_scene import Frame, bounds, framing, pose, traveller, view_angles
from ludus.show.results import headline, read_measurements
from ludus.show.video import Clip, Spool, Spooled, has_ffmpeg, refuse_ending, write_video
from ludus.training.evaluator import NEW_STREAM
from ludus.training.run_folder import RESULTS
from ludus.viewing import (
    Cast,
    Recorded,
    picture_of,
    play_cast,
    play_failed,
    play_pieces,
    pose_of,
    seconds_per_step,
    team_pictures,
)

_FASTEST, _FASTEST_GIF = 50.0, 20.0  # pictures a second, unless the user says otherwise
_LONGEST = 60.0  # seconds of one episode that are filmed
_SIZES = (64, 3840)  # pixels of a side
_AT_ONCE = 20  # pictures that are drawn before they are written


def film_run(
    run: str | Path,
    file: Path | None = None,
    episodes: int = 4,
    failures: bool = False,
    fps: float | None = None,
    size: str = "640x480",
    seed: int | None = None,
    clips: str = "",
    trust: bool = False,
) -> Path:
    """Write a film of a run's policy and return its path; by default video.mp4 in the run, or .gif without ffmpeg.

    It plays in real time. `failures`: of the episodes that failed when the policy was measured. `clips` as in
    `measure_run`.
    """
    folder = run_folder(run)
    file = file or folder / ("video.mp4" if has_ffmpeg() else "video.gif")
    refuse_ending(file)
    width, height = _read_size(size)
    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1.")
    if fps is not None and not 1 <= fps <= 240:
        raise ConfigError(f"--fps is {fps:g}; it must be from 1 to 240.")
    config = with_seed(trusted_config(folder, trust), seed)
    policy, checkpoint = load_from(run, trust)
    cast = _cast(run, config, checkpoint.name, episodes, failures, seed, trust)
    env = _stage(config, cast, clips)
    try:
        refuse_misfit(policy, env)
        fastest = _FASTEST_GIF if file.suffix.lower() == ".gif" else _FASTEST
        with Spool(file.parent) as spool:
            shown, rate = _film(env, policy, cast, episodes, failures, fps or -fastest, (width, height), spool)
            write_video(file, shown, rate)
    finally:
        env.close()
    return file


def _read_size(size: str) -> tuple[int, int]:
    low, high = _SIZES
    sides = [int(side) for side in size.lower().split("x") if side.isdecimal() and len(side) < 6]
    if len(sides) != 2 or size.count("x") != 1 or not all(low <= side <= high for side in sides):
        raise ConfigError(f"--size is {size!r}; say width and height in pixels, from {low} to {high}: 640x480.")
    return sides[0], sides[1]


def _cast(
    run: str | Path,
    config: TrainConfig,
    checkpoint: str,
    episodes: int,
    failures: bool,
    seed: int | None,
    trust: bool,
) -> Cast:
    """Which episodes are filmed: the first ones on new starts, or those of a measurement that failed."""
    if not failures:
        stream = derive_seed(config.seed, NEW_STREAM)
        rows = min(episodes, config.env.num_envs)
        return Cast(stream, rows, (), range(episodes), config.eval.max_steps)
    measured = headline(read_measurements(run_folder(run) / RESULTS), checkpoint) if seed is None else None
    if measured is None:
        found = measure_run(run, seed=seed, trust=trust)
        assert found is not None  # nothing stops it
        measured = found.kept
    cast = cast_of(measured, episodes)
    if cast is None or not cast.failures:
        number = f"{measured.result.get('episodes', 0):.0f}"
        raise LudusError(f"None of the {number} episodes that were measured failed: film it without --failures.")
    return replace(cast, successes=())


def _stage(config: TrainConfig, cast: Cast, clips: str) -> VecEnv:
    """The environment to film in, with as many rows as the cast needs."""
    if clips:
        return make_shown_env(config.env, clips)
    env = drawable_env(config.env)
    if cast.rows > 1 and env.agents_per_env == 1 and not isinstance(env, Shown):
        env.close()
        env = drawable_env(config.env, num_envs=cast.rows)
    return env


def _film(
    env: VecEnv,
    policy: Policy,
    cast: Cast,
    episodes: int,
    failures: bool,
    fps: float,
    size: tuple[int, int],
    spool: Spool,
) -> tuple[Iterable[Clip], float]:
    """The episodes and how many pictures a second they have: `fps`, or, where that is negative, at most -fps."""
    scene = scene_of(env)
    natural = getattr(env, "frame_rate", 30) if scene is None else 1 / seconds_per_step(env)
    every = max(1, round(natural / fps) if fps > 0 else math.ceil(natural / -fps))
    rate, most = (fps if fps > 0 else natural / every), round(_LONGEST * natural / every)
    if scene is None:
        return _pictured(env, policy, cast, most, every, spool), rate
    if isinstance(env, Shown):
        starts = cast.failed_starts[:episodes]
        played = play_failed(env, policy, 1 / natural, starts) or play_pieces(env, policy, (), 1 / natural)
        played = [replace(p, frames=p.frames[::every]) for p in played if p.failed or not failures][:episodes]
    else:
        played = play_cast(env, policy, cast, pose_of, most, every)
    if not played:
        raise LudusError("Every episode succeeded: film it without --failures.")
    return _drawn(scene, played, size), rate


def _pictured(env: VecEnv, policy: Policy, cast: Cast, most: int, every: int, spool: Spool) -> list[Clip]:
    """Of an environment that draws itself, in its own size."""

    def draw(env: VecEnv, row: int) -> Spooled | None:
        picture = picture_of(env, row)
        return None if picture is None else spool.add(picture)

    env.reset(cast.seed)
    if not hasattr(env, "frame") or picture_of(env, 0) is None:
        raise LudusError(
            f"{env.name} cannot be drawn: a Gymnasium environment needs render_mode 'rgb_array', one of your own "
            "a method frame(row) that returns [height, width, 3] bytes."
        )
    if env.agents_per_env > 1:
        return [Clip(team_pictures(env, policy), "")]
    return [
        Clip(map(spool.read, filter(None, played.frames)), played.caption)
        for played in play_cast(env, policy, cast, draw, most, every)
    ]


def _drawn(scene: mujoco.MjModel, played: Sequence[Recorded], size: tuple[int, int]) -> Iterator[Clip]:
    """Of a MuJoCo scene, by a process that draws it while the film is written: all at once may take gigabytes."""
    with FilmCamera(scene, *size) as camera:
        for recorded in played:
            drawn = camera.draw(_pieces(_shot(scene, recorded.frames)))
            yield Clip((picture for some in drawn for picture in some[PICTURES]), recorded.caption)


def _pieces(shot: Shot) -> Iterator[Shot]:
    """The same, a few frames at a time."""
    for start in range(0, len(shot.qpos), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        yield shot._replace(
            qpos=shot.qpos[some],
            mocap_pos=shot.mocap_pos[some],
            mocap_quat=shot.mocap_quat[some],
            look_at=shot.look_at[some],
        )


def _shot(scene: mujoco.MjModel, frames: Sequence[Frame]) -> Shot:
    """The camera sees the whole scene, and goes along with a robot that walks away."""
    data, body = mujoco.MjData(scene), traveller(scene)
    path = []
    for frame in frames:
        pose(scene, data, frame)
        path.append(data.xpos[body].copy())
    pose(scene, data, frames[0])
    low, high = bounds(scene, data)
    center, radius = framing(low.min(axis=0), high.max(axis=0))
    away = np.stack(path) - path[0]
    away[:, 2] = 0.0
    if np.ptp(away[:, :2], axis=0).max() < 0.5 * radius:
        away[:] = 0.0
    azimuth, elevation = view_angles(scene)
    distance = 1.1 * radius / math.sin(math.radians(float(scene.vis.global_.fovy)) / 2)

    def column(name: str, shape: tuple[int, ...]) -> np.ndarray:
        values: list[Any] = [frame.get(name) for frame in frames]
        return np.stack([np.zeros(shape) if value is None else value for value in values])

    mocap = scene.nmocap
    return Shot(
        column("qpos", (scene.nq,)),
        column("mocap_pos", (mocap, 3)),
        column("mocap_quat", (mocap, 4)),
        center + away,
        distance,
        azimuth,
        elevation,
    )
