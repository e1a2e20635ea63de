"""Train with an algorithm of your own: advantage actor-critic (A2C, Mnih et al. 2016), registered from outside.

python examples/own_algorithm.py
ludus train gym:CartPole-v1 --algo own_algorithm:A2C_ALGORITHM --a2c.learning-rate 1e-3    (from this folder)

An installed package makes it known by name instead, with two lines in its pyproject.toml:

    [project.entry-points."ludus.algorithms"]
    a2c = "my_package.own_algorithm:A2C_ALGORITHM"
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

import ludus
from ludus.algorithms.on_policy.advantage import generalized_advantage, next_values
from ludus.algorithms.on_policy.config import OnPolicyTrainConfig, RolloutConfig
from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.algorithms.optimizer import FlatAdam
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import Segments
from ludus.config import EvalConfig, TrainConfig, convert
from ludus.envs.vec import State, VecEnv
from ludus.errors import ConfigError
from ludus.policies.actor_critic import ActorCritic
from ludus.ranges import SHARE, Range
from ludus.runs import evaluate_run
from ludus.training.job import OnBatch


# 1. Its settings: a section of its own, in a configuration that has all the others.
@dataclass(frozen=True)
class A2CConfig(RolloutConfig):
    """Advantage actor-critic."""

    horizon: Annotated[int, Range(1, 10_000)] = 8
    """Steps of a segment."""
    minibatches: Annotated[int, Range(1, 1)] = 1
    """A rollout is one gradient step."""
    update_epochs: Annotated[int, Range(1, 1)] = 1
    """And is used once."""
    learning_rate: Annotated[float, Range(0, 1_000)] = 2e-3
    """Adam's step size at the start."""
    learning_rate_final: Annotated[float, Range(0, 1_000)] = 1e-5
    """Step size at the end."""
    gamma: Annotated[float, SHARE] = 0.99
    """Discount of the future."""
    gae_lambda: Annotated[float, SHARE] = 0.95
    """How far advantages look ahead."""
    value_coef: Annotated[float, Range(0)] = 0.5
    """Weight of the value loss."""
    entropy_coef: Annotated[float, Range(0)] = 0.01
    """Weight of the entropy bonus."""


@dataclass(frozen=True)
class A2CTrainConfig(OnPolicyTrainConfig):
    """A run of A2C."""

    algo: str = "a2c"
    a2c: A2CConfig = field(default_factory=A2CConfig)
    """Advantage actor-critic."""

    section: ClassVar[str] = "a2c"

    def check(self) -> None:
        super().check()
        if self.policy.memory != "none":
            raise ConfigError("This A2C has no hidden state: leave --policy.memory at none.")


# 2. What learns: with any head, any feed-forward network, on any device.
class A2C:
    """One gradient step a rollout: −mean A log π(a|s) + c_v mean (V − R)² − c_e mean entropy."""

    def __init__(self, policy: ActorCritic, config: A2CConfig) -> None:
        self.policy, self.config = policy, config
        self.optimizer = FlatAdam(policy.parameters(), config.max_grad_norm)
        self.rate_factor = 1.0
        self._entropy_coef = torch.tensor(config.entropy_coef, device=policy.device)

    @torch.inference_mode()
    def update(self, segments: Segments, progress: float, on_batch: OnBatch) -> dict[str, Tensor]:
        policy, head, config = self.policy, self.policy.head, self.config
        obs, action = segments.obs.flatten(0, 1), segments.action.flatten(0, 1)
        done = policy.forward_pass(policy.prepare(obs), segments.state, None)
        value = done.value.view_as(segments.reward)
        last = policy.value_of(policy.prepare(segments.track.obs[segments.following]), segments.state)
        following = next_values(value, last, segments.done, segments.final_value)
        advantage = generalized_advantage(
            segments.reward, value, following, segments.done, config.gamma, config.gae_lambda
        )
        log_prob, saved = head.score(done.params, action)
        share = 1 / len(log_prob)
        standardized = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gradient = head.seed_gradient(saved, -share * standardized.flatten(), share, self._entropy_coef)
        policy.backward(done, gradient, -2 * share * config.value_coef * advantage.flatten())  # V − R is −A
        self.optimizer.skipped.zero_()
        rate = (config.learning_rate * (1 - progress) + config.learning_rate_final * progress) * self.rate_factor
        self.optimizer.step(rate)
        on_batch(1)
        policy.learn_scales([obs])
        return {
            "train/policy_gradient_loss": -(standardized.flatten() * log_prob).mean(),
            "train/value_loss": advantage.square().mean(),
            "train/skipped_updates": self.optimizer.skipped.clone(),
        }

    def state(self) -> State:
        return {"optimizer": self.optimizer.state(), "rate_factor": self.rate_factor}

    def load_state(self, state: State) -> None:
        self.optimizer.load_state(state["optimizer"])
        self.rate_factor = state["rate_factor"]


class A2CJob(OnPolicyJob):
    """Rollouts, checkpoints, evaluations and metrics are those of every algorithm that learns from rollouts."""

    config: A2CTrainConfig

    def _make_learner(self, groups: list[VecEnv], schedule: SegmentSchedule) -> A2C:
        return A2C(self.policy, self.config.a2c)


# 3. The registration.
def adapt(config: TrainConfig) -> A2CTrainConfig:
    """Any preset, as A2C would train it."""
    loop, evaluation = replace(config.loop, iterations=50), EvalConfig(every=10_000, stochastic=False)
    return convert(config, A2CTrainConfig, loop=loop, eval=evaluation)


A2C_ALGORITHM = ludus.Algorithm("a2c", "Advantage actor-critic.", A2CTrainConfig, A2CJob, adapt)


def main(steps: int = 100_000, episodes: int = 100) -> float:
    run = ludus.train("gym:CartPole-v1", algo=A2C_ALGORITHM, total_steps=steps)
    score = evaluate_run(run, episodes, deterministic=True).summary()["mean_reward"]
    print(f"mean return of {episodes} new episodes: {score:.0f} of 500")
    return score


if __name__ == "__main__":
    main()
