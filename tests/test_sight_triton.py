"""What a tracker sees by the kernels, against the same worked out step by step.

On a GPU the real kernels run; elsewhere Triton's interpreter (conftest.py), where Triton is installed.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
from conftest import ON_GPU
from humanoid_envs import make, random_actions, standing_clip, walk_clip
from ludus.envs.humanoid.mimic import MimicTask
from ludus.envs.humanoid.sight_triton import Bodies, Coming, coming, feel
from ludus.envs.mujoco.task import ALL_ROWS

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
ROWS = 40
pytestmark = pytest.mark.gpu


def scattered(**settings: Any) -> MimicTask:
    """A task whose rows are in the midst of three clips, turned in every direction, one of them not at all."""
    clips = [walk_clip(), walk_clip("turning", fps=30.0, turn=2.0), standing_clip()]
    task = make(clips, rows=ROWS, future=(1, 5, 15), **settings)
    task.reset(0)
    for action in random_actions(task, 6):
        task.begin_step(action)
        task.end_step()
    qpos = task.sim.field("qpos")
    turns = torch.randn((ROWS - 1, 4), generator=torch.Generator().manual_seed(0), dtype=qpos.dtype)
    qpos[1:, 3:7] = torch.nn.functional.normalize(turns, dim=1)
    qpos[0, 3:7] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    qpos[1, 3:7] = torch.tensor([0.0, 0.0, 0.0, 1.0])  # half round
    task.memory["time"][2] = 100.0  # past the end of any clip
    task.sim.forward(torch.arange(ROWS))
    task._advance()  # what is one step ahead of the new times
    return task


def on_device(value: Tensor) -> Tensor:
    return value.to(DEVICE)


def state_of(task: MimicTask) -> Bodies:
    qpos, qvel, places = (on_device(task.sim.field(name).float()) for name in ("qpos", "qvel", "xpos"))
    return Bodies(qpos, qvel, places, on_device(task._key_numbers))


def reference_of(task: MimicTask) -> Coming:
    table, first, last, fps = map(on_device, task.library.frames)
    clip, time, rate = (task.memory.get(name) for name in ("clip", "time", "rate"))
    assert clip is not None
    assert time is not None
    pace = None if rate is None else on_device(rate)
    return Coming(table, first, last, fps, on_device(clip), on_device(time), pace, on_device(task._seconds_ahead))


def test_a_body_feels_the_same() -> None:
    task = scattered()
    task.look_at(ALL_ROWS)
    felt, facing = feel(state_of(task))
    slow = torch.cat([*task.sight.felt, task.sight.around], dim=1)
    torch.testing.assert_close(felt.cpu(), slow, atol=3e-5, rtol=1e-5)
    torch.testing.assert_close(facing.cpu(), task.sight.facing, atol=1e-6, rtol=0)


@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("playback", [(1.0, 1.0), (0.7, 1.4)])
def test_the_coming_frames_are_the_same(places: bool, playback: tuple[float, float]) -> None:
    task = scattered(playback=playback)
    task.look_at(ALL_ROWS)
    seen = coming(state_of(task), reference_of(task), places)
    torch.testing.assert_close(seen.cpu(), task.coming(ALL_ROWS, places), atol=3e-5, rtol=1e-5)


def test_a_body_without_a_heading_faces_forward() -> None:
    """Its x axis points up: no direction seen from above is more right than another, but none may be NaN."""
    task = scattered()
    up = torch.tensor([0.5**0.5, 0.0, -(0.5**0.5), 0.0])
    task.sim.field("qpos")[:, 3:7] = up
    felt, facing = feel(state_of(task))
    assert felt.isfinite().all()
    assert facing.isfinite().all()
    torch.testing.assert_close(facing.norm(dim=1).cpu(), torch.ones(ROWS))
