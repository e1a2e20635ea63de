"""A robot in its default pose, to look at: as a picture, or as a page that can be turned."""

import io
from pathlib import Path

import mujoco
import numpy as np

from ludus.envs.bodies import Body
from ludus.envs.mujoco.film import PICTURES, FilmCamera, Shot
from ludus.files import write_whole
from ludus.show import playback as replays
from ludus.show.mujoco_scene import bounds, framing, pose, view_angles

_SIZE = (960, 720)  # pixels
_FIELD_OF_VIEW = 45.0  # degrees, MuJoCo's own


def draw_picture(body: Body, file: Path) -> None:
    """A PNG file. DataError where this machine cannot draw."""
    from PIL import Image

    with FilmCamera(body.new_model(), *_SIZE) as camera:
        drawn = next(iter(camera.draw([_shot(body)])))[PICTURES][0]
    picture = io.BytesIO()
    Image.fromarray(drawn).save(picture, format="PNG")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, picture.getvalue())


def draw_page(body: Body, file: Path) -> None:
    """A page that any browser draws in 3-D."""
    replay = replays.Replay(body.model, 1.0)
    replay.add_episode([{"qpos": body.default_qpos}], f"{body.name}: default pose")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, replays.replay_html(replay, body.name))


def _shot(body: Body) -> Shot:
    data = mujoco.MjData(body.model)
    pose(body.model, data, {"qpos": body.default_qpos})
    low, high = bounds(body.model, data)
    center, radius = framing(low.min(axis=0), high.max(axis=0))
    azimuth, elevation = view_angles(body.model)
    distance = radius / np.sin(np.radians(_FIELD_OF_VIEW) / 2)
    return Shot(
        qpos=body.default_qpos[None],
        mocap_pos=np.zeros((1, 0, 3)),
        mocap_quat=np.zeros((1, 0, 4)),
        look_at=center[None],
        distance=float(distance),
        azimuth=azimuth,
        elevation=elevation,
    )
