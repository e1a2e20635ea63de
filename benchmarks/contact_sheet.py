"""Pictures of motion, a strip of poses each: what numbers do not show about it, a glance does.

Clips as they are; what a policy makes of them, beside the ghost of what it should do; or one that follows none:

    python benchmarks/contact_sheet.py all --out clips.png
    python benchmarks/contact_sheet.py --run RUN --clip walk,motions/jump.npz --out policy.png
    python benchmarks/contact_sheet.py --run AMP_RUN ANOTHER --out amp.png
"""

import copy
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

os.environ.setdefault("MUJOCO_GL", "egl")

import mujoco
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps

from ludus.envs.bodies import Body, find_body
from ludus.envs.humanoid.catalogue import find_clips, find_files, load_any
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.factory import make_humanoid
from ludus.envs.humanoid.ghost import ghost_model
from ludus.envs.humanoid.other_clips import ShownMimic, make_shown, on_clips
from ludus.envs.vec import Step, VecEnv
from ludus.errors import ConfigError, LudusError, did_you_mean
from ludus.policies.fit import refuse_misfit
from ludus.policies.policy import Policy
from ludus.saved_run import load, run_config, run_folder

VIEW = 3.2  # m, the side of the square that is drawn of a pose: room for a flip
SCALE = 100  # pixels of a metre, the same in all strips
SMOOTH = 2  # drawn so many times larger, for smooth edges
MARGIN = 16  # pixels, around strips
SPEED_SECONDS = 1.2  # that are shown of a policy which follows no clip
INK, GREY = (25, 30, 40), (95, 103, 115)
TITLE, SMALL = ImageFont.load_default(20), ImageFont.load_default(16)


@dataclass
class Arguments:
    files: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of clips, files or folders."""
    clip: str = ""
    """The same with commas between. Of a run also its own clips by name; by default all of them."""
    body: str = "humanoid"
    """Whose clips they are, or become; a run has its own."""
    run: tuple[Path, ...] = ()
    """Draw the best policies of these runs: of loops the last whole cycle of an episode, of others all; where no
    clip is followed, some seconds from the middle of an episode."""
    out: Path = Path("sheet.png")
    poses: int = 10
    beside: float = 0.6
    """Metres from a policy to its ghost; 0 lays one over the other."""
    azimuth: float = 110.0
    """Degrees from the way that a clip takes to the look at it: 90 from its right side, 180 from the front."""
    width: int = 150
    """Pixels from one pose to the next; wide poses reach over."""
    columns: int = 1
    """Clips beside each other."""
    colors: int = 128
    """Of the file, for a small one; 0: all."""

    @property
    def names(self) -> str:
        return ",".join(filter(None, (*self.files, self.clip)))


@dataclass
class Strip:
    title: str
    qpos: np.ndarray  # [poses, nq], or twice as many: of a policy, then of its reference
    seconds: np.ndarray  # [poses]
    body: Body

    @property
    def nq(self) -> int:
        return 7 + len(self.body.joints)

    @property
    def model(self) -> mujoco.MjModel:
        return ghost_model(self.body) if self.qpos.shape[1] > self.nq else self.body.new_model()

    @property
    def way(self) -> float:
        """Degrees: where the reference goes, or forward where it stays about where it is."""
        reference = slice(-self.nq, 2 - self.nq)
        x, y = self.qpos[-1, reference] - self.qpos[0, reference]
        return math.degrees(math.atan2(y, x)) if math.hypot(x, y) > 0.5 else 0.0


def main(arguments: Arguments) -> None:
    _check(arguments)
    if arguments.run:
        strips = [s for run in arguments.run for s in _policy_strips(run, arguments.names, arguments.poses)]
    else:
        strips = [
            _clip_strip(clip, arguments.poses) for clip in find_clips(arguments.names, find_body(arguments.body))
        ]
    sheet = _sheet([_draw(strip, arguments) for strip in strips], arguments.columns)
    sheet = sheet.quantize(arguments.colors) if arguments.colors else sheet
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(arguments.out, "PNG", optimize=True)
    kilobytes = arguments.out.stat().st_size / 1024
    print(f"{arguments.out}: {len(strips)} strips of {arguments.poses} poses, {sheet.size}, {kilobytes:.0f} kB")


def _check(arguments: Arguments) -> None:
    for name, most in {"poses": 100, "width": 1000, "columns": 100}.items():
        if not 1 <= getattr(arguments, name) <= most:
            raise ConfigError(f"--{name} is {getattr(arguments, name)}; it must be from 1 to {most}.")
    if not 0 <= arguments.colors <= 256:
        raise ConfigError(f"--colors is {arguments.colors}; it must be from 1 to 256, or 0 for all.")


# What is shown ----------------------------------------------------------------------------------
def _evenly(frames: int, poses: int, loop: bool) -> np.ndarray:
    """[poses] numbers of frames; a loop's last frame is its first."""
    return np.linspace(0, frames - 1, poses, endpoint=not loop).round().astype(int)


def _clip_strip(clip: Clip, poses: int) -> Strip:
    qpos = np.concatenate([clip.root_pos, clip.root_quat, clip.joint_pos], axis=1)
    frames = _evenly(clip.frames, poses, clip.loop)
    return Strip(clip.name, qpos[frames], frames / clip.fps, clip.body)


def _policy_strips(run: Path, names: str, poses: int) -> Iterator[Strip]:
    trained, policy = run_config(run_folder(run)).env, load(run)
    if isinstance(trained, HumanoidConfig) and trained.goal == "speed" and not names:
        yield _speed_strip(trained, policy, run_folder(run).name, poses)
        return
    own = getattr(trained, "clips", "")
    config = on_clips(trained, _with_own(names, own) if names else own)
    assert isinstance(trained, HumanoidConfig)  # others were refused
    env = make_shown(config, trained)
    try:
        refuse_misfit(policy, env)
        for piece in range(len(env.pieces)):
            yield _policy_strip(env, policy, piece, poses)
    finally:
        env.close()


def _with_own(names: str, own: str) -> str:
    """The same names, but files for those of the run's `own` clips."""
    try:
        files = {name: path for path in find_files(own) for name in (path.stem, *(c.name for c in load_any(path)))}
    except LudusError:  # they are gone; others can be followed all the same
        files = {}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    return ",".join(str(files.get(name) or _other(name, files)) for name in wanted)


def _other(name: str, own: Iterable[str]) -> str:
    """A name that is no clip of the run's own; refused where it is nothing else either."""
    try:
        find_files(name)
    except ConfigError as error:
        hint = did_you_mean(name, own)
        raise ConfigError(f"The run has no clip {name!r}, nor is there such a file or folder.{hint}") from error
    return name


def _policy_strip(env: ShownMimic, policy: Policy, piece: int, poses: int) -> Strip:
    env.show(piece)
    qpos, last = _episode(env, policy, lambda: env.drawn()["qpos"])
    clip, lost = env.library.clips[piece], not bool(last.metrics["success"][0])
    dt = env.body.dt
    first, frames = 0, max(1, int(clip.duration / dt + 1e-6))
    if clip.loop:  # its last cycle, or what led to the fall: in the first one everybody is near the clip still
        cycle = clip.duration / dt
        first = max(0, len(qpos) - round(cycle) if lost else round(cycle * (int(len(qpos) / cycle) - 1)))
        frames = round(cycle) + 1
    title = f"{clip.name}: {env.outcome(last, len(qpos))}"
    return _strip(title, qpos, first + _evenly(frames, poses, clip.loop), env.body)


def _speed_strip(config: HumanoidConfig, policy: Policy, name: str, poses: int) -> Strip:
    env = make_humanoid(config, 1, 1, evaluation=True, device="cpu")
    try:
        refuse_misfit(policy, env)
        qpos, last = _episode(env, policy, lambda: env.sim.field("qpos")[0].numpy().copy())
    finally:
        env.close()
    told = {measure: float(values[0]) for measure, values in last.metrics.items()}
    dt = env.body.dt
    how = f"{'upright for' if told['success'] else 'fell after'} {len(qpos) * dt:.1f} s"
    style = f", nearest pose {told['pose_error']:.0f} mm" if "pose_error" in told else ""
    title = f"{name}: {how}, {told['speed_error']:.2f} m/s off{style}"
    return _strip(title, qpos, len(qpos) // 2 + _evenly(round(SPEED_SECONDS / dt), poses, loop=False), env.body)


def _strip(title: str, qpos: np.ndarray, frames: np.ndarray, body: Body) -> Strip:
    """Of a policy, whose episode may have ended before the last of the frames."""
    shown = frames[frames < len(qpos)]
    return Strip(title, qpos[shown], shown * body.dt, body)


@torch.no_grad()
def _episode(env: VecEnv, policy: Policy, pose: Callable[[], np.ndarray]) -> tuple[np.ndarray, Step]:
    """[steps, …] the poses of an episode, and its last step."""
    obs, actor, poses = env.reset(0), policy.actor(), []
    while True:
        poses.append(pose())
        step = env.step(actor.act(obs))
        obs = step.obs
        if bool(step.done[0]):
            return np.array(poses), step


# How it is drawn --------------------------------------------------------------------------------
def _on_white(model: mujoco.MjModel) -> mujoco.MjModel:
    """The model on white paper: of the floor nothing is seen but shadows."""
    model = copy.copy(model)
    model.tex_data[:] = 255  # sky and floor
    floor = model.geom_matid[model.geom("floor").id]
    model.mat_reflectance[floor] = model.mat_specular[floor] = 0
    model.mat_emission[floor] = 0.35  # white in the sun, a light grey without
    model.light_type[:] = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    model.vis.global_.orthographic, model.vis.global_.fovy = 1, VIEW
    model.vis.global_.offwidth = model.vis.global_.offheight = round(VIEW * SCALE * SMOOTH)
    return model


def _draw(strip: Strip, arguments: Arguments) -> Image.Image:
    model, side = _on_white(strip.model), round(VIEW * SCALE * SMOOTH)
    with mujoco.Renderer(model, side, side) as renderer:
        return _picture(strip, list(_poses(renderer, strip, arguments)), arguments)


def _poses(renderer: mujoco.Renderer, strip: Strip, arguments: Arguments) -> Iterator[Image.Image]:
    """Squares of VIEW metres, the body in the middle."""
    data, camera = mujoco.MjData(renderer.model), mujoco.MjvCamera()
    camera.azimuth, camera.elevation, camera.distance = strip.way + arguments.azimuth, -12, 5
    camera.lookat[:], camera.orthographic = (0, 0, 1), 1
    left = math.radians(strip.way + 90)
    for qpos in strip.qpos:
        data.qpos[:] = qpos
        # Bodies are moved before the camera instead of it after them: so the light, too, is always the same.
        data.qpos[:2] -= qpos[:2]
        if len(qpos) > strip.nq:
            data.qpos[strip.nq : strip.nq + 2] += (
                arguments.beside * np.array([math.cos(left), math.sin(left)]) - qpos[:2]
            )
        mujoco.mj_forward(renderer.model, data)
        renderer.update_scene(data, camera)
        yield Image.fromarray(renderer.render()).reduce(SMOOTH)


def _picture(strip: Strip, poses: list[Image.Image], arguments: Arguments) -> Image.Image:
    """The poses in a row, with captions; as high as it has to be, but with room at the sides."""
    side, width = poses[0].width, arguments.width
    row = np.full((side, (arguments.poses - 1) * width + side, 3), 255, dtype=np.uint8)
    for number, pose in enumerate(poses):
        place = row[:, number * width : number * width + side]
        np.minimum(place, np.asarray(pose), out=place)  # they are on white: none cuts off another
    _, top, _, bottom = _drawn_box(Image.fromarray(row))
    picture = ImageOps.expand(Image.fromarray(row[top:bottom]), (0, 32, 0, 28), "white")
    pen = ImageDraw.Draw(picture)
    pen.text(((side - width) // 2, 2), strip.title, INK, TITLE)
    for number, seconds in enumerate(strip.seconds):
        pen.text((number * width + side // 2, picture.height - 4), f"{seconds:.2f} s", GREY, SMALL, anchor="ms")
    return picture


def _drawn_box(picture: Image.Image) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of what is not white."""
    return ImageOps.invert(picture).getbbox() or (0, 0, *picture.size)


def _sheet(pictures: list[Image.Image], columns: int) -> Image.Image:
    boxes = [_drawn_box(picture) for picture in pictures]
    left, right = min(box[0] for box in boxes) - MARGIN, max(box[2] for box in boxes) + MARGIN
    rows = [pictures[first : first + columns] for first in range(0, len(pictures), columns)]
    heights = [max(picture.height for picture in row) + 2 * MARGIN for row in rows]
    sheet = Image.new("RGB", (len(rows[0]) * (right - left), sum(heights)), "white")
    for row, below in zip(rows, np.cumsum(heights).tolist(), strict=True):
        for column, picture in enumerate(row):
            place = column * (right - left), below - MARGIN - picture.height  # captions in one line
            sheet.paste(picture.crop((left, 0, right, picture.height)), place)
    return sheet


if __name__ == "__main__":
    try:
        main(tyro.cli(Arguments, description=__doc__))
    except LudusError as error:
        sys.exit(f"contact_sheet: {error}")
