"""A batched environment of one's own, in torch, that needs a memory: trained by its name, then acted in.

python examples/batched_memory.py
cd examples && ludus train vec:batched_memory:Recall --policy.memory lstm     (on a GPU: --device cuda)
"""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

import ludus
from ludus.envs.vec import State, Step, VecEnv
from ludus.policies.policy import Policy

COLOURS, LENGTH = 4, 10


class Recall(VecEnv):
    """A colour is shown in the first step of an episode; in the last one it must be named.

    The state is tensors that are changed in place, and nothing in a step asks for a value: a GPU can replay it as
    a CUDA graph (`capturable`).
    """

    name = "recall"
    obs_space = gym.spaces.Box(0.0, 1.0, (COLOURS + 1,), np.float32)  # the colour, if it is shown; "name it now"
    action_space = gym.spaces.Discrete(COLOURS)
    truncates = False
    capturable = True

    def __init__(self, num_envs: int, device: torch.device | str = "cpu") -> None:
        self.num_rows, self.device = num_envs, torch.device(device)
        # Random numbers, colour and step of every row; each random number makes the next one.
        self.random, self.colour, self.at = (
            torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.signs = torch.eye(COLOURS, device=device)
        self.never = torch.zeros(num_envs, dtype=torch.bool, device=device)

    def reset(self, seed: int) -> Tensor:
        numbers = torch.randint(2**62, (self.num_rows,), generator=torch.Generator().manual_seed(seed))
        self.random.copy_(2 * numbers + 1)
        self.colour.copy_(self.draw())
        self.at.zero_()
        return self.observe()

    def begin_step(self, action: Tensor) -> None:
        last = self.at == LENGTH - 1
        right = (last & (action == self.colour)).float()
        torch.where(last, self.draw(), self.colour, out=self.colour)
        self.at.add_(1).masked_fill_(last, 0)
        self.outcome = right, last

    def end_step(self) -> Step:
        obs, (right, last) = self.observe(), self.outcome
        return Step(obs, right, last, self.never, obs, {"success": right})

    def draw(self) -> Tensor:
        self.random.mul_(6364136223846793005)  # modulo 2⁶⁴; the high bits look random
        return (self.random >> 40) % COLOURS

    def observe(self) -> Tensor:
        shown = self.signs.index_select(0, self.colour) * (self.at == 0)[:, None]
        return torch.cat([shown, (self.at == LENGTH - 1)[:, None]], dim=1)

    def state(self) -> State:
        return {name: getattr(self, name).clone() for name in ("random", "colour", "at")}

    def load_state(self, state: State) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)


def share_right(policy: Policy, remember: bool) -> float:
    env = Recall(500)
    obs, actor = env.reset(seed=7), policy.actor()
    for _ in range(LENGTH):
        step = env.step(actor.act(obs))
        obs = step.obs
        actor.forget(step.done if remember else None)  # where an episode ended; without an argument, everywhere
    return float(step.metrics["success"].mean())


if __name__ == "__main__":
    folder = ludus.train(
        "vec:batched_memory:Recall",
        env={"num_envs": 256},
        policy={"hidden": (32,), "memory": "lstm", "memory_size": 32},
        ppo={"horizon": 20, "minibatches": 4, "update_epochs": 2, "learning_rate": 5e-3, "entropy_coef": 0.01},
        loop={"total_steps": 400_000},
        eval={"every": 200_000, "episodes": 256},
    )
    policy = ludus.load(folder)
    print(f"with its memory {share_right(policy, True):.0%} right, without it {share_right(policy, False):.0%}")
