"""A MuJoCo model in a browser, by viser and mjviser: what the recorded replay and the live viewer share."""

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import mujoco
import numpy as np
import rich

from ludus.errors import ConfigError, LudusError
from ludus.show.same_origin import own_pages_only

Frame = Mapping[str, Any]  # qpos, and mocap_pos and mocap_quat where the model has mocap bodies

_FIELD_OF_VIEW = math.radians(40)
_MUJOCO_DEFAULT_VIEW = (90.0, -45.0)  # azimuth, elevation of a model that does not say
_PLEASANT_VIEW = (130.0, -22.0)
_FILL = 0.8  # corners of the box around a robot are mostly air
_ROOM = 1.2  # but the ends of a long or tall one are not: its head, and the caption over it, have to be seen


@contextlib.contextmanager
def browser_server(host: str = "127.0.0.1", port: int = 0) -> Iterator[Any]:
    """A viser server that says nothing; port 0 takes a free one. It is stopped on the way out."""
    if not 0 <= port <= 65_535:
        raise ConfigError(f"--port is {port}; it must be from 0 (any that is free) to 65535.")
    try:
        import mjviser  # noqa: F401 (asked for here, so that the sentence comes before any work)
        import viser
    except ImportError as error:
        raise LudusError("The 3-D view needs viser and mjviser: `pip install 'ludus[viz]'`.") from error
    with _silent_rich(), own_pages_only(host):
        server = viser.ViserServer(host=host, port=port, verbose=False)
    server.gui.configure_theme(show_logo=False, show_share_button=False)  # sharing would leave this machine
    try:
        yield server
    finally:
        with _silent_rich():
            server.stop()


@contextlib.contextmanager
def _silent_rich() -> Iterator[None]:
    """Viser prints banners through rich's global console, whatever `verbose` says."""
    console = rich.get_console()
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


class MujocoScene:
    """Shows frames of one model on a server."""

    def __init__(self, server: Any, model: mujoco.MjModel) -> None:
        from mjviser import ViserMujocoScene

        self._server = server
        self._model = copy.copy(model)  # mjviser writes its own taste into the model's visual settings
        self._data = mujoco.MjData(self._model)
        # mjviser's environment map would be loaded anew, with a flash, whenever a recording starts over.
        server.scene.configure_environment_map = lambda **_: None
        with _translucent_meshes(server.scene):
            self._scene = ViserMujocoScene(server, self._model, num_envs=1)
        self._scene.camera_tracking_enabled = False  # it would also follow the body's bobbing up and down
        for unused in ("/hull", "/fixed_bodies/hull"):  # hidden convex hulls that only cost bytes
            server.scene.remove_by_name(unused)

    def show(self, frame: Frame, camera_xy: np.ndarray | None = None) -> None:
        """Pose the model; `camera_xy` is the ground point that stays in the middle of the picture."""
        data = self._data
        pose(self._model, data, frame)
        offset = np.zeros(3) if camera_xy is None else np.array([-camera_xy[0], -camera_xy[1], 0.0])
        data.xpos[1:] += offset
        data.mocap_pos[:] += offset
        with self._server.atomic():
            self._scene.update_from_mjdata(data)
            if camera_xy is not None:
                self._scene.fixed_bodies_frame.position = offset

    def aim(self, center: np.ndarray, radius: float) -> None:
        """Put the first camera where a sphere of `radius` around `center` fills the picture."""
        camera = self._server.initial_camera
        camera.fov = _FIELD_OF_VIEW
        camera.position = center - _view_direction(self._model) * radius / math.sin(_FIELD_OF_VIEW / 2)
        camera.look_at = center
        self._lay_floor(radius)

    def _lay_floor(self, radius: float) -> None:
        """Calmer floors than mjviser's: lines in steps that suit the picture's size, fading out early."""
        cell = _round_step(radius)
        for geom in np.flatnonzero(self._model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE):
            body = self._model.body(int(self._model.geom_bodyid[geom])).name or "world"
            # The same name as mjviser's grid, which this one replaces.
            name = mujoco.mj_id2name(self._model, mujoco.mjtObj.mjOBJ_GEOM, int(geom))
            self._server.scene.add_grid(
                f"/fixed_bodies/{body}/{name}",
                infinite_grid=True,
                cell_size=cell / 2,
                section_size=cell,
                cell_color=(205, 210, 216),
                section_color=(170, 178, 188),
                fade_distance=15 * radius,
                shadow_opacity=0.25,
                plane_color=(235, 238, 242),
                plane_opacity=0.5,
                position=self._model.geom_pos[geom],
                wxyz=self._model.geom_quat[geom],
            )


@contextlib.contextmanager
def _translucent_meshes(scene: Any) -> Iterator[None]:
    """Bodies of one translucent colour are drawn so. mjviser writes opacity into the colours of a mesh's corners,
    where the browser does not look for it; viser's plainer meshes have it as a property."""
    add_as_it_is = scene.add_batched_meshes_trimesh

    def add(name: str, mesh: Any, **settings: Any) -> Any:
        colours = (
            np.unique(mesh.visual.vertex_colors, axis=0) if mesh.visual.kind == "vertex" else np.empty((0, 4))
        )
        if len(colours) != 1 or colours[0, 3] == 255:
            return add_as_it_is(name, mesh, **settings)
        *colour, opacity = (int(part) for part in colours[0])
        return scene.add_batched_meshes_simple(
            name,
            mesh.vertices,
            mesh.faces,
            batched_colors=tuple(colour),
            opacity=opacity / 255,
            cast_shadow=False,
            **settings,
        )

    scene.add_batched_meshes_trimesh = add
    try:
        yield
    finally:
        del scene.add_batched_meshes_trimesh  # the class's own shows again


def _round_step(size: float) -> float:
    """The 1, 2 or 5 times a power of ten just below `size`."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(power * step for step in (5.0, 2.0, 1.0) if power * step <= size * 1.0001)


def pose(model: mujoco.MjModel, data: mujoco.MjData, frame: Frame) -> None:
    """Put `data` into the frame's pose; only positions, no dynamics."""
    data.qpos[:] = frame["qpos"]
    if model.nmocap:
        for name in ("mocap_pos", "mocap_quat"):
            if frame.get(name) is not None:
                getattr(data, name)[:] = frame[name]
    mujoco.mj_kinematics(model, data)


def bounds(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and highest corner [things, 3] of each thing in the scene; endless floors do not count."""
    solid = (model.geom_rbound > 0) & (model.geom_rbound < 10 * model.stat.extent)  # planes have radius 0
    if not solid.any():
        half = model.stat.extent / 2
        return model.stat.center[None] - half, model.stat.center[None] + half
    reach = model.geom_rbound[solid][:, None]
    return data.geom_xpos[solid] - reach, data.geom_xpos[solid] + reach


def framing(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, float]:
    """Center and radius of the sphere a camera should show, for a box of these corners."""
    size = high - low
    return (low + high) / 2, max(_FILL * float(np.linalg.norm(size)), _ROOM * float(size.max())) / 2


def traveller(model: mujoco.MjModel) -> int:
    """The body a camera would follow: the heaviest that stands free in the world."""
    roots = [b for b in range(1, model.nbody) if model.body_parentid[b] == 0]
    return max(roots, key=lambda b: float(model.body_subtreemass[b]), default=0)


def view_angles(model: mujoco.MjModel) -> tuple[float, float]:
    """Azimuth and elevation in degrees: as the model's author wished, or from a side that suits most robots."""
    view = (float(model.vis.global_.azimuth), float(model.vis.global_.elevation))
    return _PLEASANT_VIEW if view == _MUJOCO_DEFAULT_VIEW else view


def _view_direction(model: mujoco.MjModel) -> np.ndarray:
    """Where the camera looks."""
    azimuth, elevation = np.radians(view_angles(model))
    return np.array(
        [
            math.cos(elevation) * math.cos(azimuth),
            math.cos(elevation) * math.sin(azimuth),
            math.sin(elevation),
        ]
    )
