"""Episodic reward: whatever an environment pays, the sum of it at the end of the episode and nothing before."""

import torch
from torch import Tensor

from ludus.envs.vec import State, Step, VecEnv


class EpisodicReward(VecEnv):
    """Any environment, paid once per episode. What a step was worth stays to be seen in `hidden_reward`."""

    def __init__(self, env: VecEnv) -> None:
        self._env = env
        self.name, self.num_rows, self.agents_per_env = env.name, env.num_rows, env.agents_per_env
        self.obs_space, self.action_space, self.device = env.obs_space, env.action_space, env.device
        self.max_steps, self.truncates, self.capturable = env.max_steps, env.truncates, env.capturable
        self.hidden_reward: Tensor = torch.zeros(env.num_rows, device=env.device)
        self._owed = torch.zeros(env.num_rows, device=env.device)

    @property
    def present(self) -> Tensor | None:  # type: ignore[override]
        return self._env.present

    def reset(self, seed: int) -> Tensor:
        self._owed.zero_()
        return self._env.reset(seed)

    def begin_step(self, action: Tensor) -> None:
        self._env.begin_step(action)

    def end_step(self) -> Step:
        step = self._env.end_step()
        self.hidden_reward.copy_(step.reward)  # in place, as recorded graphs need
        self._owed += step.reward
        paid = torch.where(step.done, self._owed, 0.0)
        self._owed.masked_fill_(step.done, 0.0)
        return step._replace(reward=paid)

    def state(self) -> State:
        return {"env": self._env.state(), "owed": self._owed.clone()}

    def load_state(self, state: State) -> None:
        self._env.load_state(state["env"])
        self._owed.copy_(state["owed"])

    def set_progress(self, fraction: float) -> None:
        self._env.set_progress(fraction)

    def close(self) -> None:
        self._env.close()
