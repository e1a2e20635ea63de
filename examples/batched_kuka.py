"""64 KUKA arms at once, driven by a scripted controller: what a batch of environments looks like.

python examples/batched_kuka.py
"""

import torch

import ludus
from ludus.envs.kuka.scripted import scripted_action

if __name__ == "__main__":
    env = ludus.make_env("kuka-pick-place", num_envs=64, evaluation=True)  # evaluation: no assisted starts
    obs = env.reset(seed=0)  # [64, 34]
    ended, succeeded = 0, 0
    for _ in range(100):
        step = env.step(scripted_action(obs))
        obs = step.obs  # rows whose episode ended already hold the next one's first observation
        ended += int(step.done.sum())
        succeeded += int(step.metrics["success"][step.done].sum())
    print(f"{ended} episodes ended, {succeeded} with the cube at rest on the pad")
    print(f"rows still at work: {int((~step.done).sum())}; reward of the last step: {torch.mean(step.reward):.2f}")
    env.close()
