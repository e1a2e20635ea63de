"""The KUKA that sees: images of both cameras in its observations, and a policy that learns to use them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import ludus
from ludus.envs import make_vec_env
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.pixels import CAMERAS, KukaPixels
from ludus.envs.kuka.task import KukaPickPlace
from ludus.envs.mujoco.simulator import _warp_installed
from ludus.errors import DataError
from ludus.presets import find_preset
from ludus.show.console import Console
from stopped_runs import StopAfter, assert_same_run

SIZE = 32


def drawn(num_envs: int = 3, **settings: Any) -> KukaPixels:
    try:
        env = make_vec_env(KukaConfig(image_size=SIZE, **settings), num_envs)
    except DataError as error:
        pytest.skip(f"nothing draws here: {error}")
    assert isinstance(env, KukaPixels)
    return env


def test_the_state_is_that_of_the_task_without_images_and_the_arm_feels_its_part_of_it() -> None:
    env, plain = drawn(), make_vec_env(KukaConfig(), 3)
    assert isinstance(plain, KukaPickPlace)
    row, state = env.reset(0), plain.reset(0)
    for _ in range(3):
        parts = env.obs_space.split(row)
        assert torch.equal(parts["state"], state)
        assert torch.equal(parts["proprioception"], torch.cat([state[:, :8], state[:, -5:]], 1))
        action = torch.rand(3, 4) * 2 - 1
        row, state = env.step(action).obs, plain.step(action).obs
    env.close()


def test_both_cameras_see_the_cube_and_each_arm_its_own() -> None:
    """The cube is the only red thing on the table."""
    env = drawn(4)
    row = env.reset(0)
    images = env.obs_space.split(row)
    for name in CAMERAS:
        image = images[name].float()
        assert image.shape == (4, SIZE, SIZE, 3)
        assert len({bytes(picture.numpy().tobytes()) for picture in images[name]}) == 4
    red = (images["agentview"][..., 0] > 130) & (images["agentview"][..., 1:] < 90).all(-1)
    seen = red.flatten(1).any(1)
    assert seen.sum() >= 3, "the arm hides it now and then"
    # Further from the camera, which looks at the arm from the front, is higher in the image.
    cubes = images["state"][:, 8:11]
    heights = [float(pixels.nonzero()[:, 0].float().mean()) for pixels in red]
    near, far = int(cubes[:, 0].argmax()), int(cubes[:, 0].argmin())
    if seen[near] and seen[far]:
        assert heights[near] > heights[far]
    env.close()


@pytest.mark.skipif(not _warp_installed(), reason="MuJoCo Warp is not installed")
def test_warp_draws_what_opengl_draws() -> None:
    alike: dict[str, Any] = {"fixed": True, "assist": 0.0, "assist_final": 0.0}  # the two draw in other precisions
    env, warp = drawn(2, **alike), make_vec_env(KukaConfig(image_size=SIZE, simulator="warp", **alike), 2)
    assert isinstance(warp, KukaPixels)
    ours, theirs = env.obs_space.split(env.reset(0)), warp.obs_space.split(warp.reset(0))
    for name in CAMERAS:
        difference = (ours[name][0].float() - theirs[name][0].float()).abs().mean(-1)
        assert float(difference.median()) < 30, "light and shade differ"
        assert float((difference > 80).float().mean()) < 0.1, "something stands elsewhere"
    env.close()


def test_a_resumed_run_from_pixels_is_the_same(tmp_path: Path) -> None:
    drawn(1).close()
    settings: dict[str, Any] = {
        "device": "cpu", "env.num_envs": 4, "env.image_size": SIZE, "env.simulator": "threads",
        "policy.image_features": 8, "policy.hidden": (8,), "ppo.horizon": 4, "ppo.minibatches": 2,
        "loop.total_steps": 64, "eval.every": 64, "eval.episodes": 2, "log.report": False, "checkpoint.every": 16,
    }  # fmt: skip
    quiet: dict[str, Any] = {"console": Console("quiet"), "overrides": settings}
    whole = ludus.train("kuka-pixels", tmp_path / "whole", **quiet)
    cut = ludus.train("kuka-pixels", tmp_path / "cut", callbacks=[StopAfter(3)], **quiet)
    ludus.resume(cut, console=Console("quiet"))
    assert_same_run(cut, whole)


def test_the_actor_of_the_preset_does_not_see_the_state() -> None:
    for name in ("kuka-pixels", "kuka-pixels-distill"):
        policy = find_preset(name).config.policy
        assert "state" not in policy.actor_parts
        assert policy.critic_parts == ("state",)


def test_the_images_of_a_preset_can_be_left_out() -> None:
    config: Any = find_preset("kuka-pixels").config.env
    assert type(make_vec_env(dataclasses.replace(config, image_size=0), 2)) is KukaPickPlace
