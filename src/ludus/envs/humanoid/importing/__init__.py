"""Brings motions from other sources onto a body."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from ludus.envs.bodies import Body, find_body
from ludus.envs.humanoid.clip import Clip, is_clip_of_another, load_clip
from ludus.envs.humanoid.importing.bvh import read_bvh
from ludus.envs.humanoid.importing.deepmimic import read_deepmimic
from ludus.envs.humanoid.importing.motion import Motion, make_clip, read_text
from ludus.envs.humanoid.importing.poselib import read_poselib
from ludus.envs.humanoid.importing.robot import ROBOT_SUFFIXES, import_robot_motion, is_ludus_clip
from ludus.envs.humanoid.importing.table import read_csv
from ludus.errors import ConfigError, DataError, did_you_mean

READ = "DeepMimic (.txt, .json), poselib (.npy), BVH (.bvh), CSV (.csv) and Ludus' own clips (.npz)"
READ_OF_ROBOTS = "CSV (.csv), BeyondMimic, mjlab and holosoma (.npz), GMR (.pkl) and Ludus' own clips (.npz)"
SOURCE_SUFFIXES = (".txt", ".json", ".npy", ".bvh", ".csv", ".pkl", ".pickle")
_DEEPMIMIC_PREFIX = "humanoid3d_"  # the body's name, which is of no use in a clip's


def import_motion(
    path: Path,
    name: str | None = None,
    fps: float | None = None,
    loop: bool | None = None,
    body: Body | None = None,
    quaternion: str = "",
) -> list[Clip]:
    """The clips in a file of another format. `fps`, `loop` and `quaternion` go before what the file says.

    `body`: onto which they are brought, by default the humanoid, and of Ludus' own clips the body that they name.
    """
    path = Path(path)
    _check_there(path)
    if fps is not None and not 1 <= fps <= 1000:
        raise ConfigError(f"--fps is {fps:g}; it must be from 1 to 1000.")
    is_npz = path.suffix.lower() == ".npz"
    own = is_npz and is_ludus_clip(path)
    _refuse_useless(path, own, fps, quaternion)
    if own or (is_npz and body is None):
        return [_ludus_clip(path, name, loop, body)]
    if body is not None and body is not find_body("humanoid"):  # not by its name: a file of a user's may have it
        if path.suffix.lower() in ROBOT_SUFFIXES:
            return [import_robot_motion(path, body, name or clip_name(path), fps, loop, quaternion)]
        return [_onto(body, clip) for clip in import_motion(path, name, fps, loop)]  # a human's
    motion = _with_rate(read_motion(path, fps, quaternion), fps)
    if loop is not None:
        motion = replace(motion, loop=loop)
    return [make_clip(motion, name or clip_name(path), source=path.name, where=str(path))]


def _refuse_useless(path: Path, own: bool, fps: float | None, quaternion: str) -> None:
    """Of one file: others of its folder may need what it does not."""
    if own and fps is not None:
        raise DataError(f"{path} is a clip of Ludus, which says its rate: leave out --fps.")
    if quaternion and (own or path.suffix.lower() not in ROBOT_SUFFIXES):
        raise DataError(f"{path} leaves no doubt where the w of its quaternions is: leave out --quaternion.")


def _ludus_clip(path: Path, name: str | None, loop: bool | None, body: Body | None) -> Clip:
    if body is None or not is_clip_of_another(path, body):
        return load_clip(path, body)
    clip = load_clip(path)
    return _onto(body, replace(clip, name=name or clip.name, loop=clip.loop if loop is None else loop))


def _onto(body: Body, clip: Clip) -> Clip:
    from ludus.envs.humanoid.retargeting import retarget  # it needs this package's floor

    return retarget(clip, body)


def clip_name(path: Path) -> str:
    """What a clip is called that is imported from a file and not given a name: humanoid3d_walk.txt gives walk."""
    return path.stem.removeprefix(_DEEPMIMIC_PREFIX) or path.stem


def _check_there(path: Path) -> None:
    if not os.path.lexists(path):
        beside = [p.name for p in path.parent.iterdir()] if os.path.isdir(path.parent) else []
        raise DataError(f"There is no file {path}.{did_you_mean(path.name, beside)}")


def read_motion(path: Path, fps: float | None = None, quaternion: str = "") -> Motion:
    """A motion onto the humanoid. `fps` and `quaternion` go before what the file says."""
    suffix = path.suffix.lower()
    _check_there(path)
    if suffix in (".pkl", ".pickle"):
        raise DataError(f"{path} is of a robot, if GMR made it: say of which, --body g1.")
    if suffix not in SOURCE_SUFFIXES:
        raise DataError(f"{path}: this kind of file is not read. Motions are read from {READ}.")
    if suffix == ".npy":
        return read_poselib(path, fps)
    text = read_text(path)
    if suffix == ".bvh" or text.lstrip().upper().startswith("HIERARCHY"):
        return read_bvh(path, text, fps)
    return read_csv(path, text, fps, quaternion) if suffix == ".csv" else read_deepmimic(path, text)


def _with_rate(motion: Motion, fps: float | None) -> Motion:
    """The same poses at another rate."""
    if fps is None or len(motion.times) < 2:
        return motion
    return replace(motion, times=torch.arange(len(motion.times), dtype=torch.float64) / fps)
