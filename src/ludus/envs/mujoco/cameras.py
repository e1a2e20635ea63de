"""Small pictures of MuJoCo scenes, drawn by processes of their own, without a screen.

MuJoCo chooses its way to OpenGL once, when it is imported: processes started for drawing can try one after
the other, and draw on all cores.
"""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

import mujoco
import numpy as np

from ludus import ranks
from ludus.envs.processes import start_conditions
from ludus.errors import DataError

_WAYS = ("egl", "osmesa", "glfw")  # to OpenGL; the first two need no screen
_START_SECONDS = 60.0
_MOST_WORKERS = 8


class Motion(NamedTuple):
    """What has to be known of each frame to draw it."""

    qpos: np.ndarray  # [frames, nq]
    mocap_pos: np.ndarray  # [frames, nmocap, 3]


M = TypeVar("M")  # what is drawn


class Cameras(Generic[M]):
    """Processes that draw. A painter, made of `arguments` in each of them, says how."""

    def __init__(self, painter: type, arguments: tuple[Any, ...], workers: int = 0) -> None:
        self._recipe = painter, *arguments
        self._count = workers or min(ranks.available_cores(), _MOST_WORKERS)
        self._workers: list[tuple[Any, Connection]] = []

    def __enter__(self) -> Self:
        told = os.environ.get("MUJOCO_GL")
        reasons = []
        for way in [told] if told else _WAYS:
            try:
                self._start(way)
                return self
            except DataError as error:
                self.close()
                reasons.append(f"{way}: {error}")
        raise DataError(
            f"No images can be drawn on this machine ({'; '.join(reasons)}). Install Mesa's libEGL (Debian: "
            "apt install libegl1) or libosmesa6 and set MUJOCO_GL=egl or osmesa."
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process, connection in self._workers:
            connection.close()  # which ends it
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
        self._workers = []

    def draw(self, motions: Iterable[M]) -> Iterator[dict[str, np.ndarray]]:
        """Images of each motion by camera, each [frames, height, width, 3] uint8, in the order given."""
        busy: list[Connection] = []
        waiting = iter(motions)
        for (_, connection), motion in zip(self._workers, waiting, strict=False):
            connection.send(motion)
            busy.append(connection)
        while busy:
            connection = busy.pop(0)
            images = _receive(connection)
            following = next(waiting, None)
            if following is not None:
                connection.send(following)
                busy.append(connection)
            yield images

    def _start(self, way: str) -> None:
        context = multiprocessing.get_context("spawn")
        # Mesa's own threads would only get in each other's way: there is a process for every core.
        wanted = {"MUJOCO_GL": way, "LP_NUM_THREADS": "0"}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            with start_conditions(self._recipe):
                for _ in range(self._count):
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_serve, args=(theirs, *self._recipe), daemon=True)
                    process.start()
                    theirs.close()
                    self._workers.append((process, ours))
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        for _, connection in self._workers:
            if not connection.poll(_START_SECONDS):
                raise DataError(f"no answer in {_START_SECONDS:.0f} s")
            _receive(connection)


class SceneCameras(Cameras[Motion]):
    """`with SceneCameras(scene, ("agentview",), 64) as cameras: for images in cameras.draw(motions)`.

    Images are as OpenGL draws them, upside down. Without `sky` what lies behind everything is black, which is
    drawn twice as fast.
    """

    def __init__(self, scene: Path, names: tuple[str, ...], size: int, workers: int = 0, sky: bool = True) -> None:
        super().__init__(_Painter, (str(scene), names, size, sky), workers)


def _receive(connection: Connection) -> dict[str, np.ndarray]:
    try:
        answer = connection.recv()
    except (EOFError, OSError) as error:
        raise DataError("the process that draws has died") from error
    if isinstance(answer, str):
        raise DataError(answer)
    return answer


# In the processes that draw -----------------------------------------------------------------------
def _serve(connection: Connection, make_painter: Any, *arguments: Any) -> None:
    """Says first whether it can draw, then draws motions until the pipe is closed."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        try:
            with make_painter(*arguments) as painter:
                connection.send({})
                while True:
                    connection.send(painter.draw(connection.recv()))
        except (EOFError, KeyboardInterrupt):
            return
        except Exception as error:  # noqa: BLE001 (whatever a driver raises, the parent has to hear of it)
            connection.send(" ".join(str(error).split()) or type(error).__name__)


class _Painter:
    def __init__(self, scene: str, names: tuple[str, ...], size: int, sky: bool) -> None:
        self._names, self._size, self._sky = names, size, sky
        self._model = mujoco.MjModel.from_xml_path(scene)
        # Without a graphics card, shadows and smooth edges take twenty times as long as all the rest, and round
        # things of many faces twice as long; at this size nobody sees them.
        quality = self._model.vis.quality
        quality.offsamples = 0
        quality.numslices, quality.numstacks, quality.numquads = 8, 4, 1
        self._model.vis.global_.offwidth = self._model.vis.global_.offheight = size
        self._data = mujoco.MjData(self._model)
        self._renderer = mujoco.Renderer(self._model, size, size)

    def __enter__(self) -> Self:
        mujoco.mj_forward(self._model, self._data)
        self._picture(self._names[0])
        return self

    def __exit__(self, *failure: object) -> None:
        self._renderer.close()

    def draw(self, motion: Motion) -> dict[str, np.ndarray]:
        frames = len(motion.qpos)
        images = {name: np.empty((frames, self._size, self._size, 3), np.uint8) for name in self._names}
        for i in range(frames):
            self._data.qpos[:], self._data.mocap_pos[:] = motion.qpos[i], motion.mocap_pos[i]
            mujoco.mj_kinematics(self._model, self._data)
            mujoco.mj_camlight(self._model, self._data)
            for name in self._names:
                images[name][i] = self._picture(name)[::-1]  # the renderer has turned it upright
        return images

    def _picture(self, camera: str) -> np.ndarray:
        self._renderer.update_scene(self._data, camera)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = 0
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = self._sky
        return self._renderer.render()
