"""Renders docs/images/kuka.png: four moments of one episode of a trained policy.

MUJOCO_GL=egl python docs/images/render_kuka.py runs/demo
"""

import sys
from pathlib import Path

import mujoco
import numpy as np
import torch
from PIL import Image

import ludus
from ludus.envs.mujoco.task import SimTask

SIZE = (480, 360)
MOMENTS = (0.0, 0.4, 0.7, 1.0)  # of the episode: reach, grasp, carry, placed


def frames(run: str, seed: int) -> list[np.ndarray]:
    """Pictures of the whole episode, control step by control step."""
    policy, env = ludus.load(run), ludus.make_env("kuka-pick-place", num_envs=1, evaluation=True)
    assert isinstance(env, SimTask)
    model, pictures = env.mj_model, []
    data, camera = mujoco.MjData(model), mujoco.MjvCamera()
    camera.lookat[:], camera.distance, camera.azimuth, camera.elevation = (0.46, 0, 0.38), 1.35, 215, -20
    obs, done = env.reset(seed), False
    with mujoco.Renderer(model, SIZE[1] * 2, SIZE[0] * 2) as renderer:
        while not done:
            for name in ("qpos", "mocap_pos", "mocap_quat"):
                getattr(data, name)[:] = env.sim.field(name)[0].numpy()
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            pictures.append(renderer.render().copy())
            with torch.no_grad():
                step = env.step(policy.act(obs))
            obs, done = step.obs, bool(step.done[0])
    env.close()
    return pictures


def main() -> None:
    pictures = frames(sys.argv[1], seed=int(sys.argv[2]) if len(sys.argv) > 2 else 11)
    chosen = [pictures[round(moment * (len(pictures) - 1))] for moment in MOMENTS]
    strip = Image.new("RGB", (SIZE[0] * len(chosen), SIZE[1]))
    for i, picture in enumerate(chosen):  # drawn at twice the size: smooth edges
        strip.paste(Image.fromarray(picture).resize(SIZE, Image.Resampling.LANCZOS), (i * SIZE[0], 0))
    target = Path(__file__).with_name("kuka.png")
    strip.quantize(256).save(target, optimize=True)
    print(f"{target}: {target.stat().st_size / 1024:.0f} kB, {len(pictures)} steps")


if __name__ == "__main__":
    main()
