"""The KUKA sees its task through two cameras: one over the table, one in the hand."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.task import OBS_SIZE, KukaPickPlace, scene_path
from ludus.envs.mujoco.eyes import make_eyes
from ludus.envs.mujoco.task import Rows
from ludus.envs.row_space import RowSpace

CAMERAS = ("agentview", "eye_in_hand")
# What of the state an arm feels: its hand, its gripper, how far it lags behind, touch. Not where cube and pad are.
_FELT = (*range(8), *range(OBS_SIZE - 5, OBS_SIZE))


class KukaPixels(KukaPickPlace):
    """Observes two images, `proprioception` (13 numbers that a real arm measures) and `state` (all 34).

    The state is there for a critic, which is not needed once the policy is trained.
    """

    obs_space: RowSpace

    def __init__(
        self,
        config: KukaConfig,
        num_envs: int,
        threads: int,
        evaluation: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        size = config.image_size
        parts: dict[str, gym.Space] = {name: gym.spaces.Box(0, 255, (size, size, 3), np.uint8) for name in CAMERAS}
        parts["proprioception"] = gym.spaces.Box(-np.inf, np.inf, (len(_FELT),), np.float32)
        parts["state"] = gym.spaces.Box(-np.inf, np.inf, (OBS_SIZE,), np.float32)
        super().__init__(config, num_envs, threads, evaluation, device, RowSpace(gym.spaces.Dict(parts)))
        self._felt = torch.tensor(_FELT, device=self.device)
        self._images = [part for part in self.obs_space.parts if part.kind == "image"]
        names = tuple(part.name for part in self._images)
        self._eyes = make_eyes(self.sim, scene_path(), names, size, threads)

    def observe(self, rows: Rows) -> Tensor:
        state = super().observe(rows)
        row = torch.zeros((len(state), *self.obs_space.shape), dtype=torch.uint8, device=self.device)
        self.obs_space.numbers_of(row).copy_(torch.cat([state.index_select(1, self._felt), state], 1))
        for part, image in zip(self._images, self._eyes.see(rows), strict=True):
            self.obs_space.part_of(row, part).copy_(image)
        return row

    def close(self) -> None:
        self._eyes.close()
        super().close()
