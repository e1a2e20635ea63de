"""A reward term, a termination and randomisation of one's own, with no change to Ludus.

python examples/own_reward.py        # half a minute: a half-cheetah that is paid for running without jerks
"""

import torch
from torch import Tensor

import ludus
from ludus.envs.mujoco.task import SimTask
from ludus.show.jsonl import read_metrics


def jerk(task: SimTask, power: float = 2.0) -> Tensor:
    """[rows] how much the action changed since the last step."""
    return (task.action - task.last_action).abs().pow(power).sum(1)


def on_its_back(task: SimTask) -> Tensor:
    """[rows] bool: the torso has turned over."""
    return task.sim.field("qpos")[:, 2].abs() > torch.pi / 2


def main(steps: int = 60_000, episodes: int = 10) -> None:
    run = ludus.train(
        "half-cheetah",
        env={
            "rewards": {"control": -0.05, "jerk": {"function": jerk, "weight": -0.05, "power": 1.5}},
            "terminations": {"on_its_back": on_its_back},
            "randomization": {
                "mass": {"kind": "body_mass", "scale": [0.8, 1.2], "independent": True},
                "push": {"kind": "push", "joints": ["rootx", "rootz"], "speed": 0.5, "every": [50, 150]},
            },
        },
        loop={"total_steps": steps},
        eval={"every": steps, "episodes": episodes},
        log={"report": False},
    )
    last = [row for row in read_metrics(run / "metrics.jsonl") if "eval/mean_reward" in row][-1]
    for name in ("reward/forward", "reward/control", "reward/jerk", "ended/on_its_back"):
        print(f"{name:20} {last[f'eval/{name}']:8.2f}")


if __name__ == "__main__":
    main()
