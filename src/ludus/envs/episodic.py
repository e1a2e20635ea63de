"""Episodic reward: whatever an environment pays, the sum of it at the end of the episode and nothing before."""

import torch
from torch import Tensor

from ludus.envs.vec import State, Step, VecEnv
from ludus.envs.wrapper import WrappedEnv


class EpisodicReward(WrappedEnv):
    """Any environment, paid once per episode. What a step was worth stays to be seen in `hidden_reward`."""

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self.hidden_reward: Tensor = torch.zeros(env.num_rows, device=env.device)
        self._owed = torch.zeros(env.num_rows, device=env.device)

    def reset(self, seed: int) -> Tensor:
        self._owed.zero_()
        return super().reset(seed)

    def end_step(self) -> Step:
        step = super().end_step()
        self.hidden_reward.copy_(step.reward)  # in place, as recorded graphs need
        self._owed += step.reward
        paid = torch.where(step.done, self._owed, 0.0)
        self._owed.masked_fill_(step.done, 0.0)
        return step._replace(reward=paid)

    def state(self) -> State:
        return super().state() | {"owed": self._owed.clone()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self._owed.copy_(state["owed"])
