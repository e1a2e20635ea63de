"""Pictures of any MuJoCo model from a camera that moves freely: what a video is made of."""

from typing import NamedTuple, Self

import mujoco
import numpy as np

from ludus.envs.mujoco.cameras import Cameras

PICTURES = "pictures"  # the name of what a `FilmCamera` draws


class Shot(NamedTuple):
    """Poses of a model, and where the camera is."""

    qpos: np.ndarray  # [frames, nq]
    mocap_pos: np.ndarray  # [frames, nmocap, 3]
    mocap_quat: np.ndarray  # [frames, nmocap, 4]
    look_at: np.ndarray  # [frames, 3]
    distance: float
    azimuth: float  # degrees, as the elevation
    elevation: float


class FilmCamera(Cameras[Shot]):
    """`with FilmCamera(model, 640, 480) as camera: for drawn in camera.draw(shots): drawn[PICTURES]`.

    Pictures are upright, [frames, height, width, 3] uint8.
    """

    def __init__(self, model: mujoco.MjModel, width: int, height: int, workers: int = 1) -> None:
        super().__init__(_FilmPainter, (model, width, height), workers)


class _FilmPainter:
    def __init__(self, model: mujoco.MjModel, width: int, height: int) -> None:
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        self._model, self._data = model, mujoco.MjData(model)
        self._renderer = mujoco.Renderer(model, height, width)
        self._camera = mujoco.MjvCamera()

    def __enter__(self) -> Self:
        mujoco.mj_forward(self._model, self._data)
        self._renderer.update_scene(self._data, self._camera)
        self._renderer.render()
        return self

    def __exit__(self, *failure: object) -> None:
        self._renderer.close()

    def draw(self, shot: Shot) -> dict[str, np.ndarray]:
        self._camera.distance, self._camera.azimuth = shot.distance, shot.azimuth
        self._camera.elevation = shot.elevation
        return {PICTURES: np.stack([self._picture(shot, i) for i in range(len(shot.qpos))])}

    def _picture(self, shot: Shot, i: int) -> np.ndarray:
        data = self._data
        data.qpos[:], data.mocap_pos[:], data.mocap_quat[:] = shot.qpos[i], shot.mocap_pos[i], shot.mocap_quat[i]
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_camlight(self._model, data)
        self._camera.lookat[:] = shot.look_at[i]
        self._renderer.update_scene(data, self._camera)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = 0  # without a graphics card they take most of the time
        return self._renderer.render().copy()
