"""Pictures of clips, a row of poses each: what numbers do not show about an import, a glance does.

python benchmarks/contact_sheet.py FILES… --out sheet.png
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

os.environ.setdefault("MUJOCO_GL", "egl")

import mujoco
import numpy as np
from PIL import Image, ImageDraw

from ludus.envs.humanoid.body import load_body
from ludus.envs.humanoid.catalogue import find_clips
from ludus.envs.humanoid.clip import Clip

WIDTH, HEIGHT = 240, 240


@dataclass
class Arguments:
    files: Annotated[tuple[str, ...], tyro.conf.Positional]  # names of clips, files or folders
    out: Path = Path("sheet.png")
    poses: int = 6
    azimuth: float = 130.0  # degrees; 90 looks along y, 180 along x


def main(arguments: Arguments) -> None:
    clips = find_clips(",".join(arguments.files))
    model = load_body()
    with mujoco.Renderer(model, HEIGHT, WIDTH) as renderer:
        rows = [_row(model, renderer, clip, arguments) for clip in clips]
    Image.fromarray(np.concatenate(rows)).save(arguments.out)
    print(f"{arguments.out}: {len(rows)} clips of {arguments.poses} poses")


def _row(model: mujoco.MjModel, renderer: mujoco.Renderer, clip: Clip, arguments: Arguments) -> np.ndarray:
    """[height, poses · width, 3]"""
    data, camera = mujoco.MjData(model), mujoco.MjvCamera()
    camera.azimuth, camera.elevation, camera.distance = arguments.azimuth, -12, 3.0
    pictures = []
    for frame in np.linspace(0, clip.frames - 1, arguments.poses).round().astype(int):
        data.qpos[:] = np.concatenate([clip.root_pos[frame], clip.root_quat[frame], clip.joint_pos[frame]])
        mujoco.mj_forward(model, data)
        camera.lookat[:] = [*clip.root_pos[frame, :2], 0.8]
        renderer.update_scene(data, camera)
        picture = Image.fromarray(renderer.render())
        ImageDraw.Draw(picture).text((4, 4), f"{clip.name} {frame / clip.fps:.2f} s", fill=(0, 0, 0))
        pictures.append(np.asarray(picture))
    return np.concatenate(pictures, axis=1)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
