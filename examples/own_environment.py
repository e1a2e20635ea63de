"""An environment of one's own, written for Gymnasium: trained as a class, or by the name it is registered under.

python examples/own_environment.py
PYTHONPATH=examples ludus eval runs/gym-own_environment-Follow/…       (the module's name finds it again)
PYTHONPATH=examples ludus train gym:own_environment:Follow-v0
"""

import gymnasium as gym
import numpy as np

import ludus


class Follow(gym.Env):
    """Move a point on a line to a mark. Reward: minus the distance; within 5 cm it is a success."""

    observation_space = gym.spaces.Box(-4.0, 4.0, (2,), np.float32)  # point, mark
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random, the only randomness to use
        self.point, self.mark = self.np_random.uniform(-1.0, 1.0, 2)
        return self.observation(), {}

    def step(self, action):
        self.point = float(np.clip(self.point + 0.2 * action[0], -2.0, 2.0))
        distance = abs(self.point - self.mark)
        solved = bool(distance < 0.05)
        return self.observation(), -distance, solved, False, {"is_success": solved}

    def observation(self):
        return np.array([self.point, self.mark], dtype=np.float32)


if "Follow-v0" not in gym.registry:
    gym.register("Follow-v0", entry_point=Follow, max_episode_steps=50)

if __name__ == "__main__":
    run = ludus.train(Follow, env={"max_steps": 50}, total_steps=60_000, eval={"every": 20_000})
    print(run.evaluate(episodes=100))
