"""Brings motions from other sources onto a body."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from ludus.bodies import Body
from ludus.envs.humanoid.clip import Clip, load_clip
from ludus.envs.humanoid.importing.bvh import read_bvh
from ludus.envs.humanoid.importing.deepmimic import read_deepmimic
from ludus.envs.humanoid.importing.motion import Motion, make_clip, read_source
from ludus.envs.humanoid.importing.poselib import read_poselib
from ludus.envs.humanoid.importing.table import read_csv
from ludus.errors import ConfigError, DataError, did_you_mean

READ = "DeepMimic (.txt, .json), poselib (.npy), BVH (.bvh), CSV (.csv) and Ludus' own clips (.npz)"
SOURCE_SUFFIXES = (".txt", ".json", ".npy", ".bvh", ".csv")
_MOST_TEXT_BYTES = 50_000_000  # an hour of a robot's motion has 40
_DEEPMIMIC_PREFIX = "humanoid3d_"  # the body's name, which is of no use in a clip's


def import_motion(
    path: Path,
    name: str | None = None,
    fps: float | None = None,
    loop: bool | None = None,
    body: Body | None = None,
) -> list[Clip]:
    """The clips in a file of another format. `fps` and `loop` go before what the file says.

    `body`: onto which they are brought, by default the humanoid, and of Ludus' own clips the body that they name.
    """
    path = Path(path)
    if path.suffix.lower() == ".npz":
        return [load_clip(path, body)]
    motion = _with_rate(read_motion(path, fps), fps)
    if loop is not None:
        motion = replace(motion, loop=loop)
    return [make_clip(motion, name or clip_name(path), source=path.name, where=str(path))]


def clip_name(path: Path) -> str:
    """What a clip is called that is imported from a file and not given a name: humanoid3d_walk.txt gives walk."""
    return path.stem.removeprefix(_DEEPMIMIC_PREFIX) or path.stem


def read_motion(path: Path, fps: float | None = None) -> Motion:
    suffix = path.suffix.lower()
    if not os.path.lexists(path):
        beside = [p.name for p in path.parent.iterdir()] if os.path.isdir(path.parent) else []
        raise DataError(f"There is no file {path}.{did_you_mean(path.name, beside)}")
    if suffix not in SOURCE_SUFFIXES:
        raise DataError(f"{path}: this kind of file is not read. Motions are read from {READ}.")
    if suffix == ".npy":
        return read_poselib(path)
    text = read_text(path)
    if suffix == ".bvh" or text.lstrip().upper().startswith("HIERARCHY"):
        return read_bvh(path, text)
    return read_csv(path, text, fps) if suffix == ".csv" else read_deepmimic(path, text)


def _with_rate(motion: Motion, fps: float | None) -> Motion:
    """The same poses at another rate."""
    if fps is None or len(motion.times) < 2:
        return motion
    if not 1 <= fps <= 1000:
        raise ConfigError(f"--fps is {fps:g}; it must be from 1 to 1000.")
    return replace(motion, times=torch.arange(len(motion.times), dtype=torch.float64) / fps)


def read_text(path: Path) -> str:
    try:
        return read_source(path, _MOST_TEXT_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text, though its name says so.") from error
