"""Hindsight experience replay (HER, Andrychowicz et al. 2017, arXiv:1707.01495), strategy "future".

Some of the drawn transitions get another goal: one that their own episode reached at that step or later. What
they were worth, and whether they ended the episode, is then judged anew by the environment. Nothing is stored
twice: a goal that was reached is part of every observation.
"""

import torch
from torch import Generator, Tensor

from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.buffers.replay import Replay, TransitionDraw
from ludus.envs.abilities import goals_of
from ludus.envs.goals import ACHIEVED, DESIRED, Goals, goal_parts
from ludus.envs.row_space import RowSpace
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, EnvError

_SHARE = 0.8  # of the transitions: four with another goal to one with its own


class Hindsight:
    """Gives the first `count` transitions of every batch another goal."""

    def __init__(self, goals: Goals, space: RowSpace, share: float, batch_size: int) -> None:
        parts = goal_parts(space)
        assert parts is not None
        self.count, self._batch_size = round(share * batch_size), batch_size
        self._goals, self._space = goals, space
        self._achieved, self._desired = parts

    def line(self) -> str:
        """What a user should know."""
        return (
            f"HER: {self.count} of the {self._batch_size} transitions of a batch get a goal that their episode "
            "reached later (--replay.her 0: none)"
        )

    def relabel(
        self, store: Replay, drawn: TransitionDraw, n_step: int, gamma: float, generator: Generator
    ) -> tuple[TransitionDraw, Tensor]:
        """(the transitions with new rewards and ends, [batches, count, size] the new goals)."""
        some = TransitionDraw(*(field[:, : self.count] for field in drawn))
        achieved = self._space.part_of(store.obs["obs"], self._achieved)
        goal = achieved[store.draw_later(some, generator)]
        judged = self._judge(store, some, goal, n_step, gamma)
        whole = TransitionDraw(
            *(torch.cat([new, old[:, self.count :]], 1) for new, old in zip(judged, drawn, strict=True))
        )
        return whole, goal

    def show(self, obs: Tensor, goal: Tensor) -> None:
        """Write the goals of a batch into its observations, the first of which they belong to."""
        self._space.part_of(obs[: len(goal)], self._desired).copy_(goal)

    def _judge(
        self, store: Replay, drawn: TransitionDraw, goal: Tensor, n_step: int, gamma: float
    ) -> TransitionDraw:
        """Up to `n_step` steps of each transition, as far as no step reaches the goal and so ends the episode."""
        slot, t, device = drawn.slot, drawn.t, goal.device
        ahead = torch.arange(n_step, device=device)
        inside = ahead < (store.length[slot] - t)[..., None]  # [batches, count, n_step]
        after = store.rows(slot[..., None], t[..., None] + 1 + ahead * inside)
        reached = self._space.part_of(store.obs["obs"], self._achieved)[after]
        wanted = goal[..., None, :].expand_as(reached)
        reward, ended = self._ask(reached.flatten(0, 2), wanted.flatten(0, 2))
        ended = ended.view(inside.shape) & inside
        taken = inside & (ended.cumsum(-1) - ended.long() == 0)
        steps = taken.sum(-1)
        powers = gamma ** torch.arange(n_step + 1, dtype=torch.float64, device=device)
        total = (reward.view(inside.shape).double() * taken * powers[:-1]).sum(-1).float()
        over = ended.any(-1) | (drawn.discount == 0)
        return TransitionDraw(
            row=drawn.row,
            next_row=store.rows(slot, t + steps),
            reward=total,
            discount=powers.float()[steps].masked_fill_(over, 0.0),
            slot=slot,
            t=t,
        )

    def _ask(self, achieved: Tensor, desired: Tensor) -> tuple[Tensor, Tensor]:
        """([n] rewards, [n] bool whether the goal ended the episode)."""
        goals = self._goals
        reward = goals.reward(achieved, desired)
        if reward.shape != achieved.shape[:1]:
            raise EnvError(f"Goals.reward gave the shape {tuple(reward.shape)} for {len(achieved)} goals.")
        if reward.device.type == "cpu" and not bool(reward.isfinite().all()):
            raise EnvError("The reward of a goal that was reached later is not finite.")
        ended = None if goals.ended is None else goals.ended(achieved, desired)
        return reward, torch.zeros_like(reward, dtype=torch.bool) if ended is None else ended


def make_hindsight(config: ReplayTrainConfig, env: VecEnv) -> Hindsight | None:
    """None where no transition is to have another goal; a clear error where that is asked for and cannot be."""
    asked = config.replay.her
    if asked == 0 or config.why_no_hindsight:
        return None
    goals = goals_of(env)
    if goals is None:
        if asked > 0:
            raise ConfigError(f"--replay.her replaces goals, but {env.name} has {_missing(env)}.")
        return None
    space = env.obs_space
    assert isinstance(space, RowSpace)
    made = Hindsight(goals, space, _SHARE if asked < 0 else asked, config.replay.batch_size)
    return made if made.count else None


def hindsight_warnings(config: ReplayTrainConfig, env: VecEnv) -> tuple[str, ...]:
    """What a user of an environment should know that observes goals, where no other goals are judged."""
    if config.replay.her == 0 or goal_parts(env.obs_space) is None:
        return ()
    if why := config.why_no_hindsight:
        alike = "While chance reaches no goal, returns are equal and teach nothing. --replay.her 0 says so, too."
        return (f"{env.name} observes goals, but HER is off with {why}. {alike}",)
    goals = goals_of(env)
    if goals is None:
        return (f"{env.name} observes goals, but has {_missing(env)}: HER is off. --replay.her 0 says so, too.",)
    if not goals.changed_by:
        return ()
    return (
        f"{env.name}: {goals.changed_by} changes rewards, but not compute_reward(), by which HER judges other "
        "goals: batches mix two units. Leave it out, or take --replay.her 0.",
    )


def _missing(env: VecEnv) -> str:
    if goal_parts(env.obs_space) is None:
        return f"none: a goal environment observes a Dict with the vectors {ACHIEVED!r} and {DESIRED!r}"
    return "no compute_reward(achieved_goal, desired_goal, info), by which steps are judged anew"
