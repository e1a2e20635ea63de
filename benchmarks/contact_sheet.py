"""Pictures of clips, a strip of poses each: what numbers do not show about an import, a glance does.

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

HEIGHT, GAP = 240, 8  # pixels; the gap is between strips, where several lie beside each other


@dataclass
class Arguments:
    files: Annotated[tuple[str, ...], tyro.conf.Positional]  # names of clips, files or folders
    out: Path = Path("sheet.png")
    poses: int = 6
    azimuth: float = 130.0  # degrees; 90 looks along y, 180 along x
    width: int = 240  # pixels of a pose; narrower ones are cut off at both sides
    columns: int = 1  # clips beside each other
    colors: int = 0  # of the file, for a small one; 0: all


def main(arguments: Arguments) -> None:
    clips = find_clips(",".join(arguments.files))
    model = load_body()
    with mujoco.Renderer(model, HEIGHT, arguments.width) as renderer:
        strips = [_strip(model, renderer, clip, arguments) for clip in clips]
    sheet = _sheet(strips, arguments.columns)
    sheet = sheet.quantize(arguments.colors) if arguments.colors else sheet
    sheet.save(arguments.out, optimize=True)
    kilobytes = arguments.out.stat().st_size / 1024
    print(f"{arguments.out}: {len(strips)} clips of {arguments.poses} poses, {sheet.size}, {kilobytes:.0f} kB")


def _sheet(strips: list[np.ndarray], columns: int) -> Image.Image:
    gap = GAP if columns > 1 else 0
    width, height = strips[0].shape[1] + gap, HEIGHT + gap
    rows, columns = -(-len(strips) // columns), min(columns, len(strips))
    sheet = Image.new("RGB", (columns * width - gap, rows * height - gap), "white")
    for number, strip in enumerate(strips):
        sheet.paste(Image.fromarray(strip), (number % columns * width, number // columns * height))
    return sheet


def _strip(model: mujoco.MjModel, renderer: mujoco.Renderer, clip: Clip, arguments: Arguments) -> np.ndarray:
    """[height, poses · width, 3]"""
    data, camera = mujoco.MjData(model), mujoco.MjvCamera()
    camera.azimuth, camera.elevation, camera.distance = arguments.azimuth, -12, 3.0
    pictures = []
    # A loop's last pose is its first.
    frames = np.linspace(0, clip.frames - 1, arguments.poses, endpoint=not clip.loop)
    for frame in frames.round().astype(int):
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
