"""Load a trained run and act with its best policy, in plain Gymnasium.

python examples/act_with_a_policy.py runs/gym-CartPole-v1/20260101-120000-0
"""

import sys

import gymnasium as gym

import ludus

if __name__ == "__main__":
    policy = ludus.load(sys.argv[1])  # weights, observation normaliser and action bounds in one
    env = gym.make("CartPole-v1")
    for episode in range(3):
        obs, _ = env.reset(seed=episode)
        total, done = 0.0, False
        while not done:
            action = policy.act(obs, deterministic=True)  # array in, array out, in the environment's units
            obs, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
        print(f"episode {episode}: return {total:.0f}")
    env.close()
