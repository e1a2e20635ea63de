"""Tiny batched tasks with a known best, for what learns from a replay. `vec:replay_envs:make_…` trains on them."""

from abc import abstractmethod

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.vec import State, Step, VecEnv, restore_generator


class Task(VecEnv):
    """Episodes of `length` steps. In training the first of each row is cut short, so that rows end apart."""

    name = "replay-task"
    device = torch.device("cpu")
    truncate = True

    def __init__(self, num_envs: int, length: int, seen: int, discrete: bool, evaluation: bool) -> None:
        self.num_rows, self.length, self.max_steps, self.stagger = num_envs, length, length, not evaluation
        self.obs_space = gym.spaces.Box(-2.0, 2.0, (seen,), np.float32)
        self.discrete = discrete
        self.action_space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    @abstractmethod
    def draw(self) -> Tensor:
        """[rows, numbers] where episodes begin."""

    @abstractmethod
    def observe(self) -> Tensor: ...

    @abstractmethod
    def pay(self, move: Tensor) -> Tensor:
        """[rows] rewards of moves in −1 … 1."""

    def reset(self, seed: int) -> Tensor:
        self.random = torch.Generator().manual_seed(seed)
        self.at, self.left = self.draw(), torch.full((self.num_rows,), self.length)
        if self.stagger:
            self.left = torch.randint(1, self.length + 1, (self.num_rows,), generator=self.random)
        return self.observe()

    def begin_step(self, action: Tensor) -> None:
        self.move = (action.float() - 1.0 if self.discrete else action[:, 0]).clone()

    def end_step(self) -> Step:
        reward = self.pay(self.move)
        self.left = self.left - 1
        final, over, fresh = self.observe(), self.left == 0, self.draw()
        self.at = torch.where(over[:, None], fresh, self.at)
        self.left = torch.where(over, self.length, self.left)
        return Step(self.observe(), reward, over & (not self.truncate), over & self.truncate, final, {})

    def state(self) -> State:
        return {"at": self.at.clone(), "left": self.left.clone(), "random": self.random.get_state()}

    def load_state(self, state: State) -> None:
        self.at, self.left = state["at"].clone(), state["left"].clone()
        self.random = torch.Generator()
        restore_generator(self.random, state["random"])


class Line(Task):
    """A point must go to a goal, both on a line and both seen. Every step costs the distance left."""

    stride = 0.25

    def __init__(self, num_envs: int, length: int, discrete: bool, evaluation: bool) -> None:
        super().__init__(num_envs, length, 2, discrete, evaluation)

    def draw(self) -> Tensor:
        return torch.rand((self.num_rows, 2), generator=self.random) * 2 - 1

    def observe(self) -> Tensor:
        return self.at.clone()

    def pay(self, move: Tensor) -> Tensor:
        point = (self.at[:, 0] + self.stride * move).clamp(-1.0, 1.0)
        self.at = torch.stack([point, self.at[:, 1]], 1)
        return -(point - self.at[:, 1]).abs()

    def best_move(self) -> Tensor:
        """In the units of the action space."""
        move = ((self.at[:, 1] - self.at[:, 0]) / self.stride).clamp(-1.0, 1.0)
        return move.round().long() + 1 if self.discrete else move[:, None]


def make_line(num_envs: int, length: int = 20, discrete: bool = False, evaluation: bool = False) -> Line:
    return Line(num_envs, length, discrete, evaluation)


class Wage(Task):
    """Reward 1 a step, whatever is done. After five the task ends, which is foreseen, or time runs out, which
    is not."""

    def __init__(self, num_envs: int, truncate: bool, discrete: bool, evaluation: bool) -> None:
        super().__init__(num_envs, 5, 1, discrete, evaluation)
        self.truncate = truncate

    def draw(self) -> Tensor:
        return torch.ones((self.num_rows, 1))

    def observe(self) -> Tensor:
        return torch.ones((self.num_rows, 1)) if self.truncate else self.left[:, None] / 5

    def pay(self, move: Tensor) -> Tensor:
        return torch.ones(self.num_rows)


def make_wage(num_envs: int, truncate: bool, discrete: bool = False, evaluation: bool = False) -> Wage:
    return Wage(num_envs, truncate, discrete, evaluation)


class Match(Task):
    """Every step shows another number, which the move should equal: the distance is the cost. Paid at the end of
    the episode, one move's share is lost among the others'."""

    def __init__(self, num_envs: int, length: int, discrete: bool, evaluation: bool) -> None:
        super().__init__(num_envs, length, 1, discrete, evaluation)

    def draw(self) -> Tensor:
        return torch.rand((self.num_rows, 1), generator=self.random) * 2 - 1

    def observe(self) -> Tensor:
        return self.at.clone()

    def pay(self, move: Tensor) -> Tensor:
        reward = -(move - self.at[:, 0]).abs()
        self.at = self.draw()
        return reward


def make_match(num_envs: int, length: int = 20, discrete: bool = False, evaluation: bool = False) -> Match:
    return Match(num_envs, length, discrete, evaluation)


class UnlimitedMatch(Match):
    """In lanes; it does not say how long episodes may be."""

    capturable = True


def make_unlimited(num_envs: int, length: int = 60, evaluation: bool = False) -> UnlimitedMatch:
    env = UnlimitedMatch(num_envs, length, False, evaluation)
    env.max_steps, env.stagger = 0, False
    return env


class SeenMatch(Match):
    """The same, the number seen as the place of a bright bar in an image."""

    pixels = 16

    def __init__(self, num_envs: int, length: int, evaluation: bool) -> None:
        super().__init__(num_envs, length, False, evaluation)
        self.obs_space = gym.spaces.Box(0, 255, (self.pixels, self.pixels, 3), np.uint8)

    def observe(self) -> Tensor:
        place = (self.at + 1) / 2 * (self.pixels - 1)  # [rows, 1]
        bright = (1 - (torch.arange(self.pixels) - place).abs()).clamp(min=0) * 255
        return bright.to(torch.uint8)[:, None, :, None].repeat(1, self.pixels, 1, 3)


def make_seen_match(num_envs: int, length: int = 10, evaluation: bool = False) -> SeenMatch:
    return SeenMatch(num_envs, length, evaluation)


class Echo(Task):
    """The first step shows a number. It is seen no more, and the last move should equal it."""

    truncate = False

    def __init__(self, num_envs: int, length: int, discrete: bool, evaluation: bool) -> None:
        super().__init__(num_envs, length, 2, discrete, evaluation)

    def draw(self) -> Tensor:
        return torch.rand((self.num_rows, 1), generator=self.random) * 2 - 1

    def observe(self) -> Tensor:
        shown = torch.where(self.left == self.length, self.at[:, 0], 0.0)
        return torch.stack([shown, (self.left == 1).float()], 1)

    def pay(self, move: Tensor) -> Tensor:
        return torch.where(self.left == 1, -(move - self.at[:, 0]).abs(), 0.0)


def make_echo(num_envs: int, length: int = 4, discrete: bool = False, evaluation: bool = False) -> Echo:
    return Echo(num_envs, length, discrete, evaluation)


class Broken(Line):
    """After a while it gives what is no number: as a reward, or to see, or to see last in an episode."""

    def __init__(self, num_envs: int, what: str, evaluation: bool) -> None:
        super().__init__(num_envs, 20, False, evaluation)
        self.what, self.steps = what, 0

    def end_step(self) -> Step:
        step = super().end_step()
        self.steps += 1
        if self.steps > 60:
            getattr(step, self.what)[3] = float("nan")
        return step


def make_broken(num_envs: int, what: str, evaluation: bool = False) -> Broken:
    return Broken(num_envs, what, evaluation)


class Ragged(Task):
    """Episodes of 2 or 20 steps, of which the first observation is 1 and the others are 0."""

    def __init__(self, num_envs: int, evaluation: bool) -> None:
        super().__init__(num_envs, 20, 1, False, evaluation)

    def draw(self) -> Tensor:
        self.short = torch.rand((self.num_rows, 1), generator=self.random) < 0.5
        return torch.ones((self.num_rows, 1))

    def observe(self) -> Tensor:
        return self.at.clone()

    def pay(self, move: Tensor) -> Tensor:
        fresh = self.left == self.length
        self.left = torch.where(fresh & self.short[:, 0], 2, self.left)
        self.at = torch.zeros((self.num_rows, 1))
        return torch.ones(self.num_rows)


def make_ragged(num_envs: int, evaluation: bool = False) -> Ragged:
    return Ragged(num_envs, evaluation)


class Flawed(Match):
    """In lanes; one step of the training, the 75th, pays what is no number."""

    capturable = True

    def __init__(self, num_envs: int, evaluation: bool) -> None:
        super().__init__(num_envs, 20, False, evaluation)
        self.steps, self.evaluation = 0, evaluation

    def end_step(self) -> Step:
        step = super().end_step()
        self.steps += 1
        if self.steps == 75 and not self.evaluation:
            step.reward[0] = torch.nan
        return step


def make_flawed(num_envs: int, evaluation: bool = False) -> Flawed:
    return Flawed(num_envs, evaluation)
