"""The motion library: many clips in one table, read by clip and time on any device.

What a reference is asked for at every step is worked out once, when the clips are loaded: velocities, and where
all bodies are. Reading it is then two rows of a table and a line between them. Looping clips are laid out for as
long as an episode can last, each cycle beginning where the one before ended, so that nothing has to wrap around.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor

from ludus.envs.bodies.rotations import conjugate, heading, multiply, rotate, rotation_vector
from ludus.envs.humanoid.clip import Clip, with_unit_rotations
from ludus.envs.humanoid.feedforward import Stretch, motor_lead
from ludus.envs.humanoid.flight import LAUNCH_SIZE, launches
from ludus.envs.humanoid.seam import cycle_later
from ludus.errors import ConfigError, DataError

BIN_SECONDS = 1.0  # failures are counted for so long a part of a clip
_WORKING_BYTES = {False: 16_000, True: 55_000}  # of a frame, without and with leads; measured with two bodies
_FRAMES_AT_ONCE = 8192  # whose bodies are found together: a thousand short clips one by one would take a minute


class Reference(NamedTuple):
    """The pose that is to be imitated, at one time of each row."""

    qpos: Tensor  # [..., 7 + joints] as MuJoCo orders it: root position, root rotation, joints
    qvel: Tensor  # [..., 6 + joints] likewise: the root's velocity in the world, its turning in its own frame, …
    body_pos: Tensor  # [..., key bodies, 3]
    body_quat: Tensor  # [..., key bodies, 4]
    lead: (
        Tensor  # [..., motors] rad by which motors' targets are ahead (feedforward.py); [..., 0] if not asked for
    )


class MotionLibrary:
    """Clips of one body on a device. Times are in seconds from a clip's beginning."""

    def __init__(
        self,
        clips: Sequence[Clip],
        seconds: float,
        device: torch.device | str = "cpu",
        ahead: float = 1.0,
        lead: bool = False,
        known: "MotionLibrary | None" = None,
    ) -> None:
        """A looping clip can be followed from any start in its first cycle for `seconds`, and for a cycle; in both
        it can be looked `ahead` seconds farther. `lead`: know by how much motors' targets have to be ahead.
        `known`: laid out alike; what it begins with, as these clips do, is not worked out again.
        """
        if not clips:
            raise DataError("There are no clips of motion to imitate.")
        self._given, shared = tuple(clips), 0 if known is None else _alike(clips, known._given)
        self.clips = clips = tuple(with_unit_rotations(clip) for clip in clips)
        self.names = [clip.name for clip in clips]
        self.body = clips[0].body
        other = next((clip for clip in clips if clip.body is not self.body), None)
        if other is not None:
            raise DataError(
                f"{clips[0].name} is of the body {self.body.name}, but {other.name} of {other.body.name}: "
                "a policy has one body."
            )
        joints, bodies = len(self.body.joints), len(self.body.key)
        self._widths = [7 + joints, 6 + joints, 3 * bodies, 4 * bodies, len(self.body.motors) * lead]
        self.device = torch.device(device)
        laid_out = [_laid_out(clip, seconds, ahead) for clip in clips]
        lengths = torch.tensor([clip.frames for clip in laid_out])
        _refuse_too_large(int(lengths.sum()), sum(self._widths) + LAUNCH_SIZE, self.device)
        _refuse_too_long(laid_out, lead)
        parts = [known._first_tables(shared)] if known is not None and shared else []
        if shared < len(clips):
            parts += _tables(laid_out[shared:], clips[shared:], lead)
        tables, flights = zip(*parts, strict=True)
        self.table = torch.cat(tables).to(self.device)  # [frames of all clips, width]
        self._launches = torch.cat(flights).to(self.device)  # [frames of all clips, 7]
        self._first = (lengths.cumsum(0) - lengths).to(self.device)
        self._last = (lengths - 2).to(self.device)  # the last frame that has one after it
        self._fps = torch.tensor([clip.fps for clip in clips], dtype=torch.float64, device=self.device)
        self.loops = torch.tensor([clip.loop for clip in clips], device=self.device)
        # Where episodes may start, and where they must end.
        self.durations = torch.tensor([c.duration for c in clips], dtype=torch.float64, device=self.device)
        self.ends = ((lengths - 1).to(self.device) / self._fps).double()

    def __len__(self) -> int:
        return len(self.clips)

    def _first_tables(self, clips: int) -> tuple[Tensor, Tensor]:
        """Of so many clips, in main memory."""
        frames = int(self._first[clips - 1] + self._last[clips - 1]) + 2
        return self.table[:frames].cpu(), self._launches[:frames].cpu()

    def mean_pose(self) -> Tensor:
        """[joints] the mean angles, all clips alike."""
        return mean_pose(self.clips).to(self.device)

    @property
    def velocities(self) -> slice:
        """Columns of the table that grow with the rate at which a clip is played."""
        return slice(self._widths[0], self._widths[0] + self._widths[1])

    @property
    def frames(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The table, each clip's first frame in it, its last that has one after it, and its frames a second."""
        return self.table, self._first, self._last, self._fps

    def rows(self, clip: Tensor, time: Tensor) -> Tensor:
        """[n, width] of the clips `clip` [n] at `time` [n], which stops at the first and last pose."""
        return self._between(self.table, clip, time)

    def launch(self, clip: Tensor, time: Tensor) -> Tensor:
        """[n, 7] what a start adds to the root's velocity, so that it lands with the clip (flight.py)."""
        return self._between(self._launches, clip, time)

    def _between(self, table: Tensor, clip: Tensor, time: Tensor) -> Tensor:
        frame = (time.double() * self._fps[clip]).clamp(min=0.0)
        before = torch.minimum(frame.long(), self._last[clip])
        share = (frame - before).clamp(max=1.0).to(table.dtype)
        at = self._first[clip] + before
        # Quaternions keep their sign from frame to frame: the line between two is nearly the arc.
        return torch.lerp(table[at], table[at + 1], share[:, None])

    def at(self, clip: Tensor, time: Tensor) -> Reference:
        return self.reference_of(self.rows(clip, time))

    def reference_of(self, rows: Tensor) -> Reference:
        """The parts of rows of the table, with rotations of unit length."""
        qpos, qvel, body_pos, body_quat, lead = rows.split(self._widths, dim=-1)
        quat = body_quat.unflatten(-1, (len(self.body.key), 4))
        quat = quat / torch.linalg.vector_norm(quat, dim=-1, keepdim=True)
        whole = torch.cat([qpos[..., :3], quat[..., 0, :], qpos[..., 7:]], dim=-1)
        return Reference(whole, qvel, body_pos.unflatten(-1, (len(self.body.key), 3)), quat, lead)


def _alike(clips: Sequence[Clip], others: Sequence[Clip]) -> int:
    """With how many of the same clips both begin."""
    pairs = zip(clips, others, strict=False)
    return next((i for i, (clip, other) in enumerate(pairs) if clip is not other), min(len(clips), len(others)))


def unrolled(clip: Clip, seconds: float) -> Clip:
    """A looping clip repeated until it lasts `seconds`; others as they are."""
    if not clip.loop or clip.duration >= seconds:
        return clip
    cycles = int(np.ceil(seconds / clip.duration))
    position, rotation = torch.as_tensor(clip.root_pos), torch.as_tensor(clip.root_quat)
    frames = len(position) - 1  # the last is the first of the next cycle
    positions, rotations = [], []
    for cycle in range(cycles + 1):
        turn, shift = cycle_later(clip, cycle)
        whole = slice(frames if cycle < cycles else 1)
        positions.append(rotate(turn, position[whole]) + shift)
        rotations.append(multiply(turn, rotation[whole]))
    joints = np.concatenate([*[clip.joint_pos[:-1]] * cycles, clip.joint_pos[:1]])
    return replace(
        clip, root_pos=torch.cat(positions).numpy(), root_quat=torch.cat(rotations).numpy(), joint_pos=joints
    )


def mean_pose(clips: Sequence[Clip]) -> Tensor:
    """[joints] the mean angles, all clips alike."""
    means = [torch.as_tensor(clip.joint_pos.mean(0)) for clip in clips]
    return torch.stack(means).mean(0).to(torch.float32)


def table_bytes(frames: int, width: int) -> int:
    """What a table of so many frames takes on its device."""
    return 4 * frames * width


def _refuse_too_large(frames: int, width: int, device: torch.device) -> None:
    """A sentence before the memory runs out, and before minutes were spent on the table."""
    needed = table_bytes(frames, width)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"The clips are {frames:,} frames, which take {needed / 1e9:.1f} GB on {device.type}, but "
            f"{free / 1e9:.1f} GB are free. Take fewer with --env.clips, import them at fewer frames a second "
            "(--fps), or leave out --env.mirror, which doubles them."
        )


def _refuse_too_long(clips: Sequence[Clip], lead: bool) -> None:
    """A clip is worked out as a whole, by the CPU."""
    longest = max(clips, key=lambda clip: clip.frames)
    needed, free = _WORKING_BYTES[lead] * longest.frames, psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"{longest.name} has {longest.frames:,} frames; working them out takes {needed / 1e9:.1f} GB, "
            f"but {free / 1e9:.1f} GB are free. Cut it, or import it at fewer frames a second (--fps)."
        )


def _laid_out(clip: Clip, seconds: float, ahead: float) -> Clip:
    """A looping clip long enough for any start in its first cycle; others as they are."""
    # A whole cycle also where `seconds` are fewer: an evaluation follows it, and some look back from a start.
    return unrolled(clip, clip.duration + max(seconds, clip.duration) + ahead)


def _tables(laid_out: Sequence[Clip], clips: Sequence[Clip], lead: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """([frames, width], [frames, 7] launches) of every clip, float32; `clips` as before they were laid out."""
    batch: list[tuple[Clip, Clip]] = []
    for pair in zip(laid_out, clips, strict=True):
        if batch and sum(clip.frames for clip, _ in batch) + pair[0].frames > _FRAMES_AT_ONCE:
            yield from _batch_of_tables(batch, lead)
            batch = []
        batch.append(pair)
    yield from _batch_of_tables(batch, lead)


def _batch_of_tables(batch: Sequence[tuple[Clip, Clip]], lead: bool) -> Iterator[tuple[Tensor, Tensor]]:
    body, lengths = batch[0][0].body, [clip.frames for clip, _ in batch]
    poses = torch.as_tensor(np.concatenate([clip.qpos for clip, _ in batch]))
    places, turns = body.kinematics.forward(poses[:, :3], poses[:, 3:7], poses[:, 7:])
    parts = zip(batch, places[:, body.key].split(lengths), turns[:, body.key].split(lengths), strict=True)
    tables = [_table(clip, old.frames - 1, body_pos, body_quat) for (clip, old), body_pos, body_quat in parts]
    joints, stretches = len(body.joints), [Stretch(clip.frames, clip.fps) for clip, _ in batch]
    qvel = torch.cat(tables)[:, 7 + joints : 13 + 2 * joints]
    flights = launches(body, poses, qvel, (places, turns), stretches).split(lengths)
    if lead:
        leads = motor_lead(body, poses, qvel, (places, turns), stretches).split(lengths)
        tables = [torch.cat(both, dim=1) for both in zip(tables, leads, strict=True)]
    yield from ((table.float(), flight.float()) for table, flight in zip(tables, flights, strict=True))


def _table(clip: Clip, cycle: int, body_pos: Tensor, body_quat: Tensor) -> Tensor:
    """[frames, width] float64 of a clip that is laid out, with its key bodies; `cycle`: steps of one."""
    position, joints = torch.as_tensor(clip.root_pos), torch.as_tensor(clip.joint_pos)
    rotation = torch.as_tensor(clip.root_quat)
    qvel = torch.cat([_rate(position, clip.fps), _turning(rotation, clip.fps), _rate(joints, clip.fps)], dim=1)
    if clip.loop:  # the frame before the first is the last of a cycle, which only later cycles know
        turned = multiply(heading(rotation[0]), conjugate(heading(rotation[cycle])))
        qvel[0] = torch.cat([rotate(turned, qvel[cycle, :3]), qvel[cycle, 3:]])
    body_quat = _without_sign_changes(body_quat)
    return torch.cat([position, rotation, joints, qvel, body_pos.flatten(1), body_quat.flatten(1)], dim=1)


def _rate(values: Tensor, fps: float) -> Tensor:
    """[frames, n] per second: from the frame before to the one after."""
    return torch.gradient(values, spacing=1 / fps, dim=0)[0]


def _turning(rotation: Tensor, fps: float) -> Tensor:
    """[frames, 3] angular velocity in the turning body's own frame, from the frame before to the one after."""
    frames = len(rotation)
    before = torch.arange(frames).sub(1).clamp(min=0)
    after = torch.arange(frames).add(1).clamp(max=frames - 1)
    seconds = (after - before)[:, None] / fps
    world = rotation_vector(multiply(rotation[after], conjugate(rotation[before]))) / seconds
    return rotate(conjugate(rotation), world)


def _without_sign_changes(quat: Tensor) -> Tensor:
    """The same rotations [frames, bodies, 4], each with the sign nearer to the frame before."""
    near = (quat[1:] * quat[:-1]).sum(-1, keepdim=True) >= 0
    signs = torch.where(near, 1.0, -1.0).cumprod(0)
    return torch.cat([quat[:1], quat[1:] * signs])
