"""MuJoCo Warp's renderer: one ray a pixel, all simulations at once, on the GPU that simulates them."""

import mujoco_warp as mjw
import torch
import warp as wp
from torch import Tensor

from ludus.envs.mujoco.simulator import Simulator
from ludus.envs.mujoco.task import Rows
from ludus.envs.mujoco.warp import WarpSimulator


class WarpEyes:
    """Cameras of a `WarpSimulator`. Nothing waits for the device: a step can be recorded as a CUDA graph."""

    def __init__(self, sim: Simulator, cameras: tuple[str, ...], size: int) -> None:
        assert isinstance(sim, WarpSimulator)
        self._sim, self._size = sim, size
        with sim.here():
            self._context = mjw.create_render_context(
                sim.model,
                nworld=sim.num_sims,
                cam_res=(size, size),
                render_rgb=True,
                render_depth=False,
                render_seg=False,
                cam_active=list(cameras),
                use_shadows=False,
            )
        # Which of the drawn images is which camera's: they lie in the order of the model.
        ids = [int(sim.model.camera(name).id) for name in cameras]
        self._order = [sorted(ids).index(camera) for camera in ids]
        packed = wp.to_torch(self._context.rgb_data.view(wp.int32))  # [sims, cameras · pixels]: one number a pixel
        self._bytes = packed.view(torch.uint8).view(sim.num_sims, len(cameras), size, size, 4)

    def see(self, rows: Rows) -> list[Tensor]:
        with self._sim.here():
            mjw.refit_bvh(self._sim.warp_model, self._sim.warp_data, self._context)
            mjw.render(self._sim.warp_model, self._sim.warp_data, self._context)
        return [self._bytes[rows, camera, :, :, :3].flip(-1) for camera in self._order]

    def close(self) -> None:
        pass
