"""What cameras see of many simulations of one model: drawn by processes on the CPU, or by MuJoCo Warp on a GPU."""

import itertools
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ludus.envs.mujoco.cameras import Motion, SceneCameras
from ludus.envs.mujoco.simulator import Simulator
from ludus.envs.mujoco.task import Rows


class Eyes(Protocol):
    """Cameras of every simulation."""

    def see(self, rows: Rows) -> list[Tensor]:
        """[n, size, size, 3] uint8 of each camera, upright: what the simulations `rows` look like now."""
        ...

    def close(self) -> None: ...


def make_eyes(sim: Simulator, scene: Path, cameras: tuple[str, ...], size: int, workers: int) -> Eyes:
    """Where the simulations are, there they are drawn."""
    if sim.capturable:
        from ludus.envs.mujoco.warp_eyes import WarpEyes

        return WarpEyes(sim, cameras, size)
    return DrawnEyes(sim, scene, cameras, size, workers)


class DrawnEyes:
    """`workers` processes that draw with OpenGL."""

    def __init__(self, sim: Simulator, scene: Path, cameras: tuple[str, ...], size: int, workers: int) -> None:
        self._names, self._workers = cameras, min(workers, sim.num_sims)
        self._qpos = sim.field("qpos")
        self._mocap = sim.field("mocap_pos") if sim.model.nmocap else torch.zeros((sim.num_sims, 0, 3))
        self._cameras = SceneCameras(scene, cameras, size, self._workers, sky=False)
        self._cameras.__enter__()

    def see(self, rows: Rows) -> list[Tensor]:
        qpos, mocap = self._qpos[rows].numpy(), self._mocap[rows].numpy()
        edges = np.linspace(0, len(qpos), self._workers + 1).astype(int)
        shares = [slice(a, b) for a, b in itertools.pairwise(edges) if a < b]
        drawn = list(self._cameras.draw(Motion(qpos[share], mocap[share]) for share in shares))
        return [torch.from_numpy(np.concatenate([part[name] for part in drawn])).flip(1) for name in self._names]

    def close(self) -> None:
        self._cameras.close()
