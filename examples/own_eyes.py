"""An environment with a camera, numbers and a mask of valid actions, and a network of one's own that sees them.

python examples/own_eyes.py        # learns in about half a minute on two cores
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import ludus

SIZE = 8


class Catch(gym.Env):
    """A ball falls; a paddle at the bottom must be under it. Only the image shows where the ball is."""

    observation_space = gym.spaces.Dict(
        {
            "camera": gym.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
            "paddle": gym.spaces.Box(0.0, 1.0, (1,), np.float32),
            "action_mask": gym.spaces.MultiBinary(3),  # left, stay, right
        }
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.height, self.ball, self.paddle = 0, *(int(n) for n in self.np_random.integers(SIZE, size=2))
        return self._look(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.paddle += int(action) - 1
        assert 0 <= self.paddle < SIZE, "masked actions never come"
        self.height += 1
        done = self.height == SIZE - 1
        caught = done and self.ball == self.paddle
        return self._look(), float(caught), done, False, {"is_success": caught}

    def _look(self) -> dict[str, Any]:
        camera = np.zeros((SIZE, SIZE, 3), np.uint8)
        camera[self.height, self.ball] = (255, 60, 60)
        camera[SIZE - 1, self.paddle] = (60, 255, 60)
        mask = np.array([self.paddle > 0, True, self.paddle < SIZE - 1], np.int8)
        return {"camera": camera, "paddle": np.array([self.paddle / SIZE], np.float32), "action_mask": mask}


class Eyes(nn.Module):
    """A convolutional network beside the numbers, one for the actor and one for the critic."""

    def __init__(self, obs: dict[str, tuple[int, ...]], width: int = 64) -> None:  # {"camera": (3, 8, 8), …}
        super().__init__()
        self.actor, self.critic = (ludus.nn.NatureCNN(obs["camera"], width) for _ in range(2))

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        actor, critic = (torch.cat([net(obs["camera"]), obs["paddle"]], 1) for net in (self.actor, self.critic))
        return actor, critic


gym.register("Catch-v0", entry_point=Catch)


def main(steps: int = 40_000) -> None:
    run = ludus.train(
        "gym:Catch-v0",
        network=Eyes,
        network_kwargs={"width": 64},
        env={"num_envs": 32},
        ppo={"horizon": 16, "minibatches": 4, "update_epochs": 4, "learning_rate": 2e-3, "entropy_coef": 0.01},
        loop={"total_steps": steps},
        eval={"every": steps, "episodes": 100, "stochastic": False},
        log={"report": False},
    )
    policy = ludus.load(run, network=Eyes)
    env = gym.make("Catch-v0")
    caught = 0.0
    for episode in range(100):
        obs, _ = env.reset(seed=10_000 + episode)
        done = False
        while not done:
            obs, reward, done, _, _ = env.step(policy.act(obs))
            caught += float(reward)
    print(f"{caught:.0f} of 100 balls caught")


if __name__ == "__main__":
    main()
