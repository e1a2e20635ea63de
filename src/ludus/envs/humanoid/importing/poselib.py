"""Poselib's SkeletonMotion: a pickle in a .npy file. Read without running anything that the file names."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies.rotations import multiply
from ludus.envs.humanoid.importing.motion import Motion, check_size, read_source
from ludus.envs.humanoid.importing.pickles import BROKEN, Array, numbers, unpickled
from ludus.envs.humanoid.importing.retarget import LIMBS, from_rotations, our_leg, shortest_turn
from ludus.envs.humanoid.importing.skeleton import BODIES
from ludus.errors import DataError

_MOST_BYTES = 100_000_000


def read_poselib(path: Path, fps: float | None = None) -> Motion:
    """`fps` goes before what the file says."""
    content = _read_pickle(path)
    if not isinstance(content, dict) or "skeleton_tree" not in content:
        raise DataError(f"{path} is not a SkeletonMotion of poselib: it has no skeleton_tree.")
    try:
        tree = content["skeleton_tree"]
        names = _texts(tree["node_names"])
        parents, offsets = (_tensor(tree[key]) for key in ("parent_indices", "local_translation"))
        quats, root_pos = _tensor(content["rotation"]), _tensor(content["root_translation"])
        rate, local = fps or float(numbers(content["fps"])), bool(numbers(content["is_local"]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a whole SkeletonMotion of poselib: {error} is wrong or missing."
        ) from error
    _check(path, names, parents, offsets, quats, root_pos, rate)
    order = [names.index(body) for body in BODIES]
    turned = _global(quats[..., [3, 0, 1, 2]], parents.long().tolist(), local)
    tree_offsets = {body: offsets[i] for body, i in zip(BODIES, order, strict=True)}
    zero = _zero_turns(tree_offsets)
    rotations = {
        body: multiply(turned[:, i], zero[body].expand_as(turned[:, i]))
        for body, i in zip(BODIES, order, strict=True)
    }
    leg = sum(float(torch.linalg.vector_norm(tree_offsets[body])) for body in ("right_shin", "right_foot"))
    if leg < 1e-6:
        raise DataError(f"{path}: its legs have no length.")
    times = torch.arange(len(quats), dtype=torch.float64) / rate
    return from_rotations(times, root_pos * (our_leg() / leg), rotations)


def _check(
    path: Path, names: list[str], parents: Tensor, offsets: Tensor, quats: Tensor, root_pos: Tensor, fps: float
) -> None:
    missing = [body for body in BODIES if body not in names]
    if missing:
        raise DataError(
            f"{path} is of another skeleton: it lacks {', '.join(missing)}; it has {', '.join(names[:50])}."
        )
    count, frames = len(names), len(quats) if quats.ndim else 0
    shapes = (parents.shape, offsets.shape, quats.shape, root_pos.shape)
    if shapes != ((count,), (count, 3), (frames, count, 4), (frames, 3)):
        raise DataError(
            f"{path}: its arrays do not fit {count} bodies: {', '.join(str(list(s)) for s in shapes)}."
        )
    check_size(str(path), frames, count)
    if any(not -1 <= float(parent) < i for i, parent in enumerate(parents)):
        raise DataError(f"{path}: a body comes before its parent in parent_indices.")
    if not 1 <= fps <= 1000:
        raise DataError(f"{path} has {fps:g} frames a second; say the true rate with --fps.")
    if frames == 0 or not torch.isfinite(offsets).all():
        raise DataError(f"{path} has no frames, or an offset of a body that is not a finite number.")


def _global(quats: Tensor, parents: list[int], local: bool) -> Tensor:
    """[frames, bodies, 4] in the world."""
    length = torch.linalg.vector_norm(quats, dim=-1, keepdim=True)
    quats = quats / torch.where(length > 1e-6, length, torch.nan)
    turned: list[Tensor] = []
    for body, parent in enumerate(parents):
        alone = quats[:, body]
        turned.append(multiply(turned[parent], alone) if local and parent >= 0 else alone)
    return torch.stack(turned, dim=1)


def _zero_turns(offsets: dict[str, Tensor]) -> dict[str, Tensor]:
    """How far the file's zero pose is from ours, body by body: its arms may hang, or be stretched as ours are."""
    same = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    zero = dict.fromkeys(BODIES, same)
    for upper, lower, bone, hinge, _ in LIMBS.values():
        zero[upper] = zero[lower] = shortest_turn(bone, offsets[lower], hinge)
    return zero


def _texts(value: Any) -> list[str]:
    """Names of bodies. Nothing else is made text of: lists within lists may stand for more than memory holds."""
    names = value.values if isinstance(value, Array) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and len(name) < 200 for name in names):
        raise ValueError("node_names")
    return names


def _tensor(value: Any) -> Tensor:
    """An array, also where poselib has wrapped it."""
    return torch.as_tensor(numbers(value["arr"] if isinstance(value, dict) else value).astype(np.float64))


def _read_pickle(path: Path) -> Any:
    """What `numpy.save` pickled."""
    data = read_source(path, _MOST_BYTES)
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read_header(stream)
    except BROKEN as error:
        raise DataError(f"{path} is not a .npy file, or it is cut off.") from error
    if dtype != np.dtype(object):
        raise DataError(f"{path} is an array of {dtype} {list(shape)}; a SkeletonMotion of poselib is expected.")
    content = unpickled(path, data[stream.tell() :], "a SkeletonMotion")
    values = content.values if isinstance(content, Array) else content
    return values.item() if isinstance(values, np.ndarray) and values.size == 1 else values
