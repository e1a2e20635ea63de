"""A group of bodies that imitate motion, as a configuration asks for it."""

import warnings
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ludus.envs.bodies import Body, find_body
from ludus.envs.humanoid.catalogue import find_files, load_all
from ludus.envs.humanoid.clip import Clip, mirrored, motion_of
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.evaluation_starts import evaluation_plan, fewest_rows
from ludus.envs.humanoid.mimic import ClipRoles, MimicTask
from ludus.envs.humanoid.motions import MotionLibrary, mean_pose
from ludus.envs.humanoid.speed import SpeedTask
from ludus.envs.humanoid.task import HumanoidTask
from ludus.envs.mujoco.settings import SimulatorChoice
from ludus.envs.mujoco.simulator import make_simulator, wants_warp
from ludus.errors import ConfigError, did_you_mean
from ludus.ranges import check_fields


def make_humanoid(
    config: HumanoidConfig,
    num_envs: int,
    threads: int,
    evaluation: bool,
    device: torch.device | str,
    starts: slice = slice(None),
) -> HumanoidTask:
    """`num_envs` bodies; in an evaluation as many as its `starts` need."""
    _check(config)
    on_warp = wants_warp(config.simulator, device, num_envs)
    simulator: SimulatorChoice = "warp" if on_warp else "threads"
    tried = evaluation and config.goal == "track"
    library = library_of(config, device if on_warp else "cpu", tried)
    if tried:
        _, _, steps = evaluation_plan(config, library)
        if starts.step and len(steps) < starts.step:  # then every rank plays all
            starts = slice(None)
        num_envs = fewest_rows(steps[starts].tolist())
    body = library.body
    sim = make_simulator(body.new_model(), num_envs, body.substeps, threads, device, simulator, "positions")
    if config.goal == "track":
        seen, unseen = clip_sets(config)
        roles = ClipRoles(len(seen), tuple(clip.name for clip in unseen))
        task: HumanoidTask = MimicTask(config, library, sim, evaluation, starts, roles)
    else:
        task = SpeedTask(config, library, sim, evaluation)
    # Absolute actions are taken around the pose of the training, which has other clips.
    if tried and config.actions == "absolute" and (config.test_clips or config.mirror):
        task.act_around(trained_pose(config))
    return task


def library_of(config: HumanoidConfig, device: torch.device | str, evaluation: bool = False) -> MotionLibrary:
    """The clips of a configuration, laid out for as long as an episode can look ahead.

    Groups of one run, and its evaluations where they play the same clips, share it while one of them lives; an
    evaluation that plays others, too, takes over what the training has.
    """
    body = find_body(config.body)
    fastest = max(1.0, *config.playback)
    seconds, ahead = (body.dt * fastest * n for n in (config.max_steps, max(config.future) + config.window + 1))
    chosen = config.test_clips, config.mirror, evaluation and bool(config.test_clips or config.mirror)
    lead = config.actions == "feedforward"
    alike = _versions(config, body), body, seconds, ahead, lead
    key = alike, (*chosen, str(device))
    library = _libraries.get(key)
    if library is None:
        known = next((other for (how, _), other in _libraries.items() if how == alike), None)
        played = played_clips(config, evaluation)
        library = _libraries[key] = MotionLibrary(played, seconds, device, ahead, lead, known)
    return library


_libraries: WeakValueDictionary[tuple[tuple[object, ...], tuple[object, ...]], MotionLibrary] = (
    WeakValueDictionary()
)


def played_clips(config: HumanoidConfig, evaluation: bool) -> tuple[Clip, ...]:
    """In training those that are seen, and their mirrored ones; in an evaluation the seen and then the unseen."""
    seen, unseen = clip_sets(config)
    return seen + (unseen if evaluation else tuple(map(mirrored, seen)) if config.mirror else ())


def trained_pose(config: HumanoidConfig) -> Tensor:
    """[joints] what absolute actions are added to: the mean pose of the clips of the training."""
    return mean_pose(played_clips(config, evaluation=False))


def clip_sets(config: HumanoidConfig) -> tuple[tuple[Clip, ...], tuple[Clip, ...]]:
    """(the clips that are trained on, those that are kept out)."""
    body = find_body(config.body)
    return _clip_sets(_versions(config, body), body, config.test_clips)


@lru_cache(maxsize=4)
def _clip_sets(
    versions: tuple[tuple[Path, int, int], ...], body: Body, test_clips: str
) -> tuple[tuple[Clip, ...], tuple[Clip, ...]]:
    clips = _clips(versions, body)
    patterns = [part.strip() for part in test_clips.split(",") if part.strip()]
    for pattern in patterns:
        if not any(fnmatchcase(clip.name, pattern) for clip in clips):
            hint = did_you_mean(pattern, [clip.name for clip in clips])
            raise ConfigError(f"--env.test-clips names {pattern!r}, which means none of the clips.{hint}")
    unseen = {clip.name for clip in clips if any(fnmatchcase(clip.name, pattern) for pattern in patterns)}
    seen = tuple(clip for clip in clips if clip.name not in unseen)
    if not seen:
        raise ConfigError(f"--env.test-clips {test_clips} leaves no clip to train on: keep fewer out.")
    kept_out = tuple(clip for clip in clips if clip.name in unseen)
    _warn_of_twins(seen, kept_out)
    return seen, kept_out


def _warn_of_twins(seen: tuple[Clip, ...], unseen: tuple[Clip, ...]) -> None:
    """Collections have motions twice, under other names: what a policy was trained on is no test of it."""
    names = {motion_of(clip): clip.name for clip in seen} if unseen else {}
    twins = [(clip.name, names[motion]) for clip in unseen if (motion := motion_of(clip)) in names]
    if twins:
        warnings.warn(
            f"{len(twins)} of the {len(unseen)} clips that --env.test-clips keeps out are trained on under other "
            f"names ({twins[0][0]} is {twins[0][1]}): they are no test. Keep both out, or leave one away.",
            stacklevel=2,
        )


def _versions(config: HumanoidConfig, body: Body) -> tuple[tuple[Path, int, int], ...]:
    return tuple((path.absolute(), *_version(path)) for path in find_files(config.clips, body))


def _version(path: Path) -> tuple[int, int]:
    """Another one where a file was written anew."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=4)
def _clips(versions: tuple[tuple[Path, int, int], ...], body: Body) -> tuple[Clip, ...]:
    """Groups and evaluations of one run share what was read, as long as the files are the same."""
    return tuple(load_all((path for path, *_ in versions), body))


def _check(config: HumanoidConfig) -> None:
    """What goes together; the range of each number stands beside its field."""
    check_fields(config, "env.")
    if not config.future:
        raise ConfigError(f"--env.future is {config.future}; it needs frames from 1 (the next) on.")
    if config.goal == "speed" and (config.discriminate == "error" or config.actions != "absolute"):
        raise ConfigError(
            "--env.goal speed follows no clip: take --env.actions absolute, "
            "and --env.discriminate motion, or nothing to be paid for the speed alone."
        )
    if len(config.playback) != 2 or config.playback[0] > config.playback[1]:
        raise ConfigError(
            f"--env.playback is {config.playback}; it needs the slowest rate and the fastest: 0.8 1.25."
        )
    if config.playback != (1.0, 1.0) and (config.goal == "speed" or config.discriminate == "motion"):
        raise ConfigError(
            "--env.playback changes the rate at which a clip is followed; --env.goal speed follows none, and the "
            "windows of --env.discriminate motion show clips as they are. Leave it at 1 1."
        )
    if len(config.speed) != 2 or config.speed[0] > config.speed[1]:
        raise ConfigError(f"--env.speed is {config.speed}; it needs the slowest and the fastest, in m/s.")
