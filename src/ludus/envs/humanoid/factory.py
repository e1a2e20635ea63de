"""A group of bodies that imitate motion, as a configuration asks for it."""

from functools import lru_cache
from pathlib import Path

import torch

from ludus.bodies import Body, find_body
from ludus.envs.humanoid.catalogue import find_files, load_all
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.mimic import MimicTask, evaluation_plan
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.envs.humanoid.speed import SpeedTask
from ludus.envs.humanoid.task import HumanoidTask
from ludus.envs.mujoco.settings import SimulatorChoice
from ludus.envs.mujoco.simulator import make_simulator, wants_warp
from ludus.errors import ConfigError
from ludus.ranges import check_fields


def make_humanoid(
    config: HumanoidConfig,
    num_envs: int,
    threads: int,
    evaluation: bool,
    device: torch.device | str,
    starts: slice = slice(None),
) -> HumanoidTask:
    """`num_envs` bodies; in an evaluation as many as there are `starts` to be tried."""
    _check(config)
    on_warp = wants_warp(config.simulator, device, num_envs)
    simulator: SimulatorChoice = "warp" if on_warp else "threads"
    library = library_of(config, device if on_warp else "cpu")
    if evaluation and config.goal == "track":
        plan = evaluation_plan(config, library)[0]
        if starts.step and len(plan) < starts.step:  # then every rank plays all
            starts = slice(None)
        num_envs = len(plan[starts])
    body = library.body
    sim = make_simulator(body.new_model(), num_envs, body.substeps, threads, device, simulator, "positions")
    if config.goal == "track":
        return MimicTask(config, library, sim, evaluation, starts)
    return SpeedTask(config, library, sim, evaluation)


def library_of(config: HumanoidConfig, device: torch.device | str) -> MotionLibrary:
    """The clips of a configuration, laid out for as long as an episode can look ahead."""
    body = find_body(config.body)
    versions = tuple((path.absolute(), *_version(path)) for path in find_files(config.clips, body))
    ahead = body.dt * (max(config.future) + config.window + 1)
    return MotionLibrary(_clips(versions, body), body.dt * config.max_steps, device, ahead)


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
    if config.goal == "speed" and (config.discriminate == "error" or config.actions == "residual"):
        raise ConfigError(
            "--env.goal speed follows no clip: take --env.actions absolute, "
            "and --env.discriminate motion, or nothing to be paid for the speed alone."
        )
    if len(config.speed) != 2 or config.speed[0] > config.speed[1]:
        raise ConfigError(f"--env.speed is {config.speed}; it needs the slowest and the fastest, in m/s.")
