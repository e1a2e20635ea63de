"""The step of every task on a batched simulator: act, simulate, score, restart the rows that ended.

A task says how an action becomes a control, what is seen, what it is worth and how an episode begins.
Episode ends, time limits, diverged simulations and exact state are handled here, once for all tasks.
"""

from abc import abstractmethod
from typing import NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.sim import Simulator
from ludus.envs.vec import State, Step, VecEnv

Rows = slice | Tensor  # all rows, or sorted indices
ALL_ROWS = slice(None)


class Score(NamedTuple):
    """What a step was worth to each row."""

    reward: Tensor  # [rows]
    terminated: Tensor  # [rows] bool
    metrics: dict[str, Tensor]  # each [rows]


class SimTask(VecEnv):
    """One row a simulation. Subclasses hold extra per-row tensors in `self.memory`, saved with the state."""

    def __init__(
        self, name: str, sim: Simulator, max_steps: int, obs_size: int, action_space: gym.spaces.Box
    ) -> None:
        self.name = name
        self.sim = sim
        self.num_rows = sim.num_sims
        self.device = sim.device
        self.max_steps = max_steps
        self.obs_space = gym.spaces.Box(-np.inf, np.inf, (obs_size,), np.float32)
        self.action_space = action_space
        self.generator = torch.Generator(device=sim.device)
        self.elapsed = torch.zeros(self.num_rows, dtype=torch.int64, device=self.device)
        self.memory: dict[str, Tensor] = {}
        self._obs = torch.zeros((self.num_rows, obs_size), device=self.device)
        self._none_diverged = torch.zeros(self.num_rows, device=self.device)

    # What a task says ---------------------------------------------------------------------------
    @abstractmethod
    def control(self, action: Tensor) -> None:
        """Write the simulator's controls for `action`, already clipped to the action space."""

    @abstractmethod
    def observe(self, rows: Rows) -> Tensor:
        """[n, obs] float32 observation of `rows`."""

    @abstractmethod
    def score(self) -> Score:
        """What the step just simulated was worth; may update `memory`."""

    @abstractmethod
    def begin_episode(self, rows: Tensor) -> None:
        """Write the start state of a new episode into the simulator, just reset to the model's defaults."""

    def episode_begun(self, rows: Tensor) -> None:
        """The new episodes' derived fields are current now: fill what `memory` keeps of them."""

    # The contract -------------------------------------------------------------------------------
    @property
    def substeps(self) -> int:
        """Physics steps of one control step."""
        return self.sim.substeps

    @property
    def mj_model(self) -> mujoco.MjModel:
        """The model, for viewers and replays."""
        return self.sim.model

    def reset(self, seed: int) -> Tensor:
        self.generator.manual_seed(seed)
        self._restart(torch.arange(self.num_rows, device=self.device))
        self._obs = self.observe(ALL_ROWS)
        return self._obs.clone()

    def restart(self, rows: Tensor) -> Tensor:
        """New episodes in `rows`, in the running random stream; their first observations."""
        self._restart(rows)
        self._obs[rows] = self.observe(rows)
        return self._obs[rows]

    def begin_step(self, action: Tensor) -> None:
        low, high = self._action_bounds
        self.control(action.to(self.device).clamp(low, high))
        self.sim.begin_step()

    def end_step(self) -> Step:
        diverged = self.sim.end_step()
        self.elapsed += 1
        reward, terminated, metrics = self.score()
        final_obs = self.observe(ALL_ROWS)
        truncated = (self.elapsed >= self.max_steps) & ~terminated
        metrics["diverged"] = self._none_diverged
        if diverged is not None:  # nothing such a row says of this step can be trusted
            final_obs = torch.where(diverged[:, None], self._obs, final_obs)
            reward = reward.masked_fill(diverged, 0.0)
            terminated, truncated = terminated & ~diverged, truncated | diverged
            metrics = {name: value.masked_fill(diverged, 0.0) for name, value in metrics.items()}
            metrics["diverged"] = diverged.float()
        self._obs = final_obs.clone()
        rows = (terminated | truncated).nonzero().squeeze(1)
        if rows.numel():
            self._restart(rows)
            self._obs[rows] = self.observe(rows)
        return Step(self._obs.clone(), reward.float(), terminated, truncated, final_obs, metrics)

    def state(self) -> State:
        return {
            "sim": self.sim.state(),
            "elapsed": self.elapsed.clone(),
            "memory": {name: value.clone() for name, value in self.memory.items()},
            "obs": self._obs.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: State) -> None:
        self.sim.load_state(state["sim"])
        self.elapsed.copy_(state["elapsed"])
        for name, value in self.memory.items():
            value.copy_(state["memory"][name])
        self._obs.copy_(state["obs"])
        self.generator.set_state(state["generator"])

    def close(self) -> None:
        self.sim.close()

    def _restart(self, rows: Tensor) -> None:
        self.sim.reset(rows)
        self.begin_episode(rows)
        self.sim.forward(rows)
        self.elapsed[rows] = 0
        self.episode_begun(rows)

    @property
    def _action_bounds(self) -> tuple[Tensor, Tensor]:
        if not hasattr(self, "_bounds"):
            space = self.action_space
            assert isinstance(space, gym.spaces.Box)
            self._bounds = tuple(torch.as_tensor(b, device=self.device) for b in (space.low, space.high))
        return self._bounds  # type: ignore[return-value]

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform random numbers from the task's own stream."""
        unit = torch.rand(shape, generator=self.generator, dtype=torch.float64, device=self.device)
        return low + (high - low) * unit
