"""PPO that is paid for moving as demonstrated, by a discriminator that learns along (AMP, ADD)."""

import dataclasses

import torch
from torch import Tensor

from ludus.algorithms.imitation.config import AMPTrainConfig
from ludus.algorithms.imitation.discriminator import Adversary, adversary_bytes
from ludus.algorithms.on_policy.ram import MemoryPlan
from ludus.algorithms.ppo.job import PPOJob
from ludus.buffers.segments import Segments
from ludus.envs.vec import State, Step, VecEnv
from ludus.envs.wrapper import WrappedEnv
from ludus.errors import ConfigError, EnvError
from ludus.training.job import OnBatch


class StyleReward(WrappedEnv):
    """Any environment that shows its motion, paid for that as well as for its task.

    The adversary may be on another device than the environments. An ended episode tells the means of both rewards
    over its steps, unweighted: `style_reward` and `task_reward`.
    """

    def __init__(self, env: VecEnv, adversary: Adversary, group: int = 0) -> None:
        if env.present is not None:
            raise EnvError(f"{env.name} has rows without an agent, whose motion cannot be judged.")
        super().__init__(env)
        self.adversary, self._group = adversary, group
        self._sums = torch.zeros((3, env.num_rows), device=env.device)  # style, task, steps of the episode

    def reset(self, seed: int) -> Tensor:
        self._sums.zero_()
        return super().reset(seed)

    def end_step(self) -> Step:
        step, adversary = super().end_step(), self.adversary
        assert self.motion is not None
        windows = self.motion.to(adversary.device)
        style = adversary.reward(windows).to(step.reward.device)
        adversary.record(windows, self._group)
        weights = adversary.config
        paid = weights.task_weight * step.reward + weights.style_weight * style
        return step._replace(reward=paid, metrics=step.metrics | self._means(style, step))

    def _means(self, style: Tensor, step: Step) -> dict[str, Tensor]:
        """Count the step, and the episode up to it; in place, as recorded graphs need."""
        self._sums += torch.stack([style, step.reward, torch.ones_like(style)])
        mean_style, mean_task = (self._sums[:2] / self._sums[2]).unbind()
        self._sums.masked_fill_(step.done, 0.0)
        return {"style_reward": mean_style, "task_reward": mean_task}

    def state(self) -> State:
        return super().state() | {"sums": self._sums.clone()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self._sums.copy_(state["sums"])


class ImitationJob(PPOJob):
    """An iteration is a rollout, the discriminator's batches and the policy's."""

    config: AMPTrainConfig

    def _plan_memory(self, groups: list[VecEnv]) -> MemoryPlan:
        if groups[0].motion is None:
            raise ConfigError(f"{groups[0].name} shows no motion to imitate: take --algo ppo.")
        steps, config = self.schedule.columns - 1, self.config.adversary
        adversary = adversary_bytes(_window_size(groups[0]), self.schedule.rows, steps, config)
        return dataclasses.replace(super()._plan_memory(groups), adversary=adversary)

    def _prepare(self, groups: list[VecEnv]) -> list[VecEnv]:
        config, env, schedule = self.config, groups[0], self.schedule
        if schedule.segments * schedule.horizon < schedule.rows:  # then some rollouts have no step at all
            raise ConfigError(
                "An adversary needs a step of every row in each iteration: take more --ppo.segments."
            )
        self.adversary = Adversary(
            _window_size(env),
            [group.num_rows for group in groups],
            schedule.columns - 1,
            config.adversary,
            config.seed,
            self.device,
            env.device,
            config.cuda_graphs,
        )
        self._demonstrator = env
        return [StyleReward(group, self.adversary, i) for i, group in enumerate(groups)]

    def _learn(self, segments: Segments, progress: float, on_batch: OnBatch) -> dict[str, Tensor]:
        """The two do not see each other's change: rewards were paid when the steps were made.

        The discriminator comes first because the caller waits for what PPO skipped: then both are done.
        """
        told = self.adversary.update(self._demonstrator)
        metrics = super()._learn(segments, progress, on_batch)
        # In the units of PPO's batches: an iteration in which most of the discriminator's failed is as bad.
        share = self.plan.batches_per_iteration / self.config.adversary.batches
        skipped = (self.adversary.optimizer.skipped * share).ceil()
        metrics["train/skipped_updates"] = metrics["train/skipped_updates"] + skipped
        return metrics | told

    def weights(self) -> list[Tensor]:
        return [*super().weights(), self.adversary.optimizer.flat]

    def set_rate_factor(self, factor: float) -> None:
        # PPO's own factor follows the divergence, too, which says nothing of the discriminator: falls count alone.
        self.adversary.rate_factor *= min(1.0, factor / self.learner.rate_factor)
        super().set_rate_factor(factor)

    def lines(self) -> list[str]:
        config, windows = self.config.adversary, _window_size(self._demonstrator)
        return [
            *super().lines(),
            f"adversary {' × '.join(map(str, config.hidden))} on windows of {windows:,} numbers, "
            f"{config.batches} batches × {config.batch_size:,} demonstrated and as many of the policy; "
            f"reward {config.task_weight:g} × task + {config.style_weight:g} × style",
        ]

    def state(self, whole: bool) -> State:
        return super().state(whole) | {"adversary": self.adversary.state()}

    def own_paths(self) -> tuple[str, ...]:
        own = (f"adversary/{name}" for name in ("replay", "generator", "demo_generator"))
        return (*super().own_paths(), *own)

    def load_state(self, state: State, iteration: int) -> bool:
        self.adversary.load_state(state["adversary"])
        return super().load_state(state, iteration)


def _window_size(env: VecEnv) -> int:
    assert env.motion is not None
    return env.motion.shape[1]
