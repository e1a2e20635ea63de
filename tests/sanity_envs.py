"""Tiny tasks, each unsolvable under a typical bug of recurrent, multi-agent or segment PPO, batched in torch.

`vec:sanity_envs:make_…` trains on them. What a policy can reach at best, and without a memory, is known exactly.
"""

from abc import abstractmethod

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ludus.envs.vec import State, Step, VecEnv, restore_generator


class Task(VecEnv):
    """Episodes of `length` steps, for each of which a row draws a symbol. A task says what is seen and paid.

    In training environments begin somewhere within an episode, whose first observation nobody saw, so that rows
    end at different times and yet no whole episode is shorter. A row begins its episode when `enter` steps of
    the environment are left and ends it when `leave` are; before and after nobody is there.
    """

    name = "sanity"
    device = torch.device("cpu")
    symbols = 2
    truncate = False  # else episodes terminate
    end_chance = 0.0  # above 0, each step may be the last, unforeseen, and `length` does not matter

    def __init__(self, num_envs: int, length: int, seen: int, actions: int, agents: int, evaluation: bool) -> None:
        self.num_envs, self.num_rows, self.agents_per_env = num_envs, num_envs * agents, agents
        self.obs_space = gym.spaces.Box(-1.0, 1.0, (seen,), np.float32)
        self.action_space = gym.spaces.Discrete(actions)
        self.length, self.stagger = length, not evaluation
        self.agent = torch.arange(self.num_rows) % agents
        self.enter, self.leave = torch.full_like(self.agent, length), torch.zeros_like(self.agent)

    @abstractmethod
    def observe(self) -> Tensor:
        """[rows, seen], from the tensors alone."""

    @abstractmethod
    def pay(self, action: Tensor) -> Tensor:
        """[rows] rewards. May note what was done, and set `left` to 1 where the episode is over."""

    @property
    def here(self) -> Tensor:
        return (self.left <= self.enter) & (self.left > self.leave)

    @property
    def last(self) -> Tensor:
        """Rows whose next action is the last of their episode."""
        return self.left == self.leave + 1

    def draw_symbols(self) -> Tensor:
        return torch.randint(self.symbols, (self.num_rows,), generator=self.random)

    def reset(self, seed: int) -> Tensor:
        self.random = torch.Generator().manual_seed(seed)
        left = torch.full((self.num_envs,), self.length)
        if self.stagger:
            left = torch.randint(1, self.length + 1, (self.num_envs,), generator=self.random)
        self.left = left.repeat_interleave(self.agents_per_env)  # steps of the environment's episode
        self.symbol, self.noted = self.draw_symbols(), torch.zeros_like(self.left)
        self.fresh = self.left == self.enter  # rows that see the first observation of an episode
        self._say_who_is_present()
        return self._seen()

    def begin_step(self, action: Tensor) -> None:
        self.action = action.clone()

    def end_step(self) -> Step:
        if self.end_chance > 0:
            over = torch.rand(self.num_rows, generator=self.random) < self.end_chance
            self.left = torch.where(over, 1, 2)
        here = self.here
        reward = torch.where(here, self.pay(self.action), 0.0)
        self.left = self.left - 1
        self.fresh = torch.zeros_like(self.fresh)
        over, final = here & (self.left == self.leave), self.observe()
        self._go_on()
        return Step(self._seen(), reward, over & (not self.truncate), over & self.truncate, final, {})

    def _go_on(self) -> None:
        self.left = torch.where(self.left == 0, self.length, self.left)
        self.fresh = self.left == self.enter
        # All draw, also those that need none: so no row's luck depends on what others do.
        self.symbol = torch.where(self.fresh, self.draw_symbols(), self.symbol)
        self.noted = torch.where(self.fresh, 0, self.noted)
        self._say_who_is_present()

    def _say_who_is_present(self) -> None:
        if bool((self.enter - self.leave < self.length).any()):
            self.present = self.here

    def _seen(self) -> Tensor:
        return torch.where(self.here[:, None], self.observe(), 0.0)

    def state(self) -> State:
        tensors = {name: getattr(self, name).clone() for name in ("left", "symbol", "noted", "fresh")}
        return {**tensors, "random": self.random.get_state()}

    def load_state(self, state: State) -> None:
        self.left, self.symbol, self.noted, self.fresh = (
            state[name].clone() for name in ("left", "symbol", "noted", "fresh")
        )
        self.random = torch.Generator()
        restore_generator(self.random, state["random"])
        self._say_who_is_present()


class Recall(Task):
    """The symbol is seen in the first step, then nothing for `delay` steps; in the last it must be named."""

    def __init__(self, num_envs: int, delay: int, symbols: int, agents: int, evaluation: bool) -> None:
        super().__init__(num_envs, delay + 1, symbols + 1, symbols, agents, evaluation)
        self.symbols = symbols

    def observe(self) -> Tensor:
        shown = one_hot(self.symbol, self.symbols) * self.fresh[:, None]
        return torch.cat([shown, self.last[:, None]], dim=1).float()

    def pay(self, action: Tensor) -> Tensor:
        return (self.last & (action == self.symbol)).float()


def make_recall(num_envs: int, delay: int, symbols: int = 2, evaluation: bool = False) -> Task:
    return Recall(num_envs, delay, symbols, 1, evaluation)


def make_half_absent(num_envs: int, delay: int, late: bool, evaluation: bool = False) -> Task:
    """Recall of two agents, the second of which comes late or goes early: it is there for half of the steps."""
    task = Recall(num_envs, delay, 2, 2, evaluation)
    (task.enter if late else task.leave)[task.agent == 1] = task.length // 2
    return task


class Doors(Task):
    """The exit is behind one of two doors, more often the first; every step costs 1. A third action does nothing.

    A wrong door changes nothing that is seen, so without a memory the best is to mix: with the exit behind the
    first door in `first` of the episodes, p / (1 − p) = √(first / (1 − first)) takes the fewest steps.
    """

    def __init__(self, num_envs: int, first: float, evaluation: bool) -> None:
        super().__init__(num_envs, length=20, seen=1, actions=3, agents=1, evaluation=evaluation)
        self.first = first

    def draw_symbols(self) -> Tensor:
        return (torch.rand(self.num_rows, generator=self.random) >= self.first).long()

    def observe(self) -> Tensor:
        return torch.ones((self.num_rows, 1))

    def pay(self, action: Tensor) -> Tensor:
        self.left = torch.where(action == self.symbol, 1, self.left)
        return torch.full((self.num_rows,), -1.0)


def make_doors(num_envs: int, first: float, evaluation: bool = False) -> Task:
    return Doors(num_envs, first, evaluation)


class Rivals(Task):
    """Two agents, each with a bit of its own to see: the first is paid for naming it, the second for the other."""

    def __init__(self, num_envs: int, evaluation: bool) -> None:
        super().__init__(num_envs, length=4, seen=2, actions=2, agents=2, evaluation=evaluation)

    def observe(self) -> Tensor:
        return torch.stack([self.agent, self.symbol], dim=1).float() * 2 - 1

    def pay(self, action: Tensor) -> Tensor:
        return (action == self.symbol ^ self.agent).float() / self.length


def make_rivals(num_envs: int, evaluation: bool = False) -> Task:
    return Rivals(num_envs, evaluation)


class Promise(Task):
    """The first action must name the symbol. Whether it did is seen from then on, and paid `delay` steps later."""

    symbols = 4

    def __init__(self, num_envs: int, delay: int, evaluation: bool) -> None:
        super().__init__(num_envs, delay + 1, self.symbols + 2, self.symbols, agents=1, evaluation=evaluation)

    def observe(self) -> Tensor:
        shown = one_hot(self.symbol, self.symbols) * self.fresh[:, None]
        return torch.cat([shown, self.noted[:, None], self.left[:, None] / self.length], dim=1).float()

    def pay(self, action: Tensor) -> Tensor:
        promised = torch.where(action == self.symbol, 1, -1)
        self.noted = torch.where(self.fresh, promised, self.noted)
        return (self.last & (self.noted == 1)).float()


def make_promise(num_envs: int, delay: int, evaluation: bool = False) -> Task:
    return Promise(num_envs, delay, evaluation)


class Wage(Task):
    """Reward 1 a step, whatever is done. After five steps the task ends; or after five on average time runs out.

    It does so unforeseen, so that the future is worth the same whatever has been seen.
    """

    def __init__(self, num_envs: int, truncate: bool, evaluation: bool) -> None:
        super().__init__(num_envs, length=5, seen=1, actions=2, agents=1, evaluation=evaluation)
        self.truncate, self.end_chance = truncate, 0.2 if truncate else 0.0

    def observe(self) -> Tensor:
        left = torch.ones(self.num_rows) if self.truncate else self.left / self.length
        return left[:, None]

    def pay(self, action: Tensor) -> Tensor:
        return torch.ones(self.num_rows)


def make_wage(num_envs: int, truncate: bool, evaluation: bool = False) -> Task:
    return Wage(num_envs, truncate, evaluation)


class Debut(Task):
    """Nothing is ever seen. Action 1 is right in the first step of an episode, 0 in the others, of as many."""

    end_chance = 0.5

    def __init__(self, num_envs: int, evaluation: bool) -> None:
        super().__init__(num_envs, length=4, seen=1, actions=2, agents=1, evaluation=evaluation)

    def observe(self) -> Tensor:
        return torch.ones((self.num_rows, 1))

    def pay(self, action: Tensor) -> Tensor:
        return (action == self.fresh).float()


def make_debut(num_envs: int, evaluation: bool = False) -> Task:
    return Debut(num_envs, evaluation)
