"""A policy that learns from a replay, whether environments fill it (`online.py`) or files (`offline.py`)."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.average import AveragedPolicy, load_average
from ludus.algorithms.replay.agents import Agent, make_agent
from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.algorithms.replay.hindsight import Hindsight
from ludus.algorithms.replay.learner import ReplayLearner
from ludus.algorithms.replay.ram import plan_memory
from ludus.algorithms.replay.reward_view import RewardView, view_of_rows
from ludus.algorithms.replay.store_job import StoreJob
from ludus.algorithms.reward.metrics import correlation
from ludus.algorithms.reward.rrd import RewardLearner, make_reward_model
from ludus.buffers.replay import Replay
from ludus.envs.row_space import numbers_in, parts_of
from ludus.envs.vec import ActionSpace, State, derive_seed
from ludus.policies.factory import make_replay_policy
from ludus.policies.replay_heads import REPLAY_KINDS
from ludus.policies.replay_policy import ReplayPolicy
from ludus.training.checkpoint import Model
from ludus.training.evaluator import PolicyEvaluator
from ludus.training.job import REWARD_SCALE
from ludus.training.ram import refuse_large_networks, refuse_what_cannot_fit

_MEASURED = 2048  # transitions on which the learned reward is held against the true one
_NETWORKS = 3  # a policy and two critics


class ReplayJob(StoreJob):
    """A policy that learns from a store, which subclasses fill."""

    rate_name = "replay.learning-rate"
    config: ReplayTrainConfig
    reward_scale = 1.0  # what rewards were divided by before they were stored

    def __init__(
        self,
        config: ReplayTrainConfig,
        device: torch.device,
        policy: ReplayPolicy,
        store: Replay,
        hindsight: Hindsight | None = None,
        reward_view: RewardView | None = None,
    ) -> None:
        """`reward_view`: what a learned reward sees; None: rows as the policy does."""
        self.policy = policy
        self.learner = make_learner(config, self._make_agent(policy, config), store, hindsight, reward_view)
        horizon = config.replay.average
        self._average = AveragedPolicy(policy, horizon) if horizon else None
        judged = policy if self._average is None else self._average.policy
        models: dict[str, Model] = {"policy": judged}
        if self.learner.reward_learner is not None:
            models["reward"] = self.learner.reward_learner.model
        super().__init__(config, device, store, self.learner, models)
        self.waits = device.type == "cpu"
        self._fitted = False  # the reward's units
        self._evaluator = PolicyEvaluator(config, judged)

    def _plan_memory(self, store: int) -> None:
        """With a replay of so many bytes; refused where it cannot fit."""
        optimizers = self.learner.optimizers()
        self.memory_plan = plan_memory(self.learner.agent, optimizers, self.config, store)
        beside = self.memory_plan.total - store  # the replay is there already
        refuse_what_cannot_fit(beside, self.memory_plan.line(), self.config.memory_advice, self.device)

    def _make_agent(self, policy: ReplayPolicy, config: ReplayTrainConfig) -> Agent:
        """What improves the policy; an algorithm of one's own may have another."""
        return make_agent(policy, config, derive_seed(config.seed, 6))

    def _learn(self, on_batch: Callable[[int], None]) -> dict[str, Tensor]:
        self._fit_units()
        metrics = super()._learn(on_batch)
        if self._average is not None and self.learner.agent.policy_learns:
            self._average.follow(self.config.replay.train_batches)
        return metrics

    def _fit_units(self) -> None:
        reward = self.learner.reward_learner
        if reward is not None and not self._fitted:
            reward.fit(*self._returns_and_lengths())
            self._fitted = True

    def _returns_and_lengths(self) -> tuple[Tensor, Tensor]:
        """Of the finished episodes of all ranks, whose reward networks have the same units."""
        returns, lengths = self.store.returns_and_lengths()
        if ranks.size() == 1:
            return returns, lengths
        told = ranks.gather_plain([returns.tolist(), lengths.tolist()])
        everyones = ([value for part in column for value in part] for column in zip(*told, strict=True))
        returns, lengths = (torch.tensor(column, device=self.device) for column in everyones)
        return returns, lengths

    def own_paths(self) -> tuple[str, ...]:
        reward = self.learner.reward_learner is not None
        return (*super().own_paths(), *(("batches/reward/generator",) if reward else ()))

    def state(self, whole: bool) -> State:
        scale = torch.tensor(self._agents_scale, dtype=torch.float64)
        average = None if self._average is None else self._average.state()
        return super().state(whole) | {"average": average, REWARD_SCALE: scale}

    @property
    def _agents_scale(self) -> float:
        """Of the rewards that the agent learns from: learned ones have units of their own."""
        return self.reward_scale if self.config.reward.method == "none" else 1.0

    @torch.no_grad()
    def take_reward_scale(self, scale: float) -> None:
        self.learner.agent.scale_values(scale / self._agents_scale)

    def load_state(self, state: State, iteration: int) -> bool:
        self._note_units()
        load_average(self._average, self.policy, state.get("average"))
        return super().load_state(state, iteration)

    def learned_beside(self) -> dict[str, tuple[str, Tensor]]:
        """What judges the policy, and how much it is to explore."""
        return {
            f"the {name.replace('log_alpha', 'temperature')}": (f"batches/agent/learned/{name}", tensor)
            for name, tensor in self.learner.agent.learned().items()
        }

    @torch.no_grad()
    def begin_with_new_weights(self) -> None:
        if self._average is not None:
            self._average.hand_back()
        self.learner.agent.move_targets_there()
        self._note_units()

    def _note_units(self) -> None:
        """Whether the reward has units already: known here, because asking the model would wait for a GPU."""
        reward = self.learner.reward_learner
        self._fitted = reward is not None and int(reward.model.return_episodes) > 0

    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, float]:
        return self._evaluator.evaluate(interrupted)

    def evaluated_episodes(self) -> list[dict[str, Any]]:
        return list(self._evaluator.records)

    def start_words(self) -> dict[str, list[str]]:
        return self._evaluator.start_words()

    def cycle_metrics(self) -> dict[str, float]:
        rate = {"train/learning_rate": self.config.replay.learning_rate * self.rate_factor}
        return {**super().cycle_metrics(), **rate, **self._reward_metrics()}

    def _reward_metrics(self) -> dict[str, float]:
        """The learned reward against the true one, where a wrapper hides that from the learner."""
        store = self.store
        if store.hidden_reward is None or self.learner.reward_learner is None or not store.steps:
            return {}
        drawn = store.draw_transitions(1, _MEASURED, self.learner.generator)
        label, truth = self.learner.label(drawn.row[0], drawn.next_row[0]), store.hidden_reward[drawn.row[0]]
        return {"reward/correlation": correlation(label.cpu(), truth.cpu())}

    def close(self) -> None:
        self._evaluator.close()

    def _setting_line(self) -> str:
        config, replay = self.config, self.config.replay
        reward = ""
        if config.reward.learned:
            reward = f"; {config.reward.told()}"
        name = REPLAY_KINDS.get(config.algo, config.algo.upper())
        layers, batches = config.policy.told(config.layers_after_network), f"batches of {replay.batch_size}"
        if self.policy.recurrent:
            segments = f"{replay.batch_size // replay.segment:,} segments of {replay.segment} steps"
            batches = f"batches of {segments} after {replay.burn_in} of burn-in"
        return f"{name}, networks {layers}, {batches}{reward}; seed {config.seed}"


def make_policy(
    config: ReplayTrainConfig, obs_space: gym.spaces.Box, action_space: ActionSpace, device: torch.device
) -> ReplayPolicy:
    images = sum(part.kind == "image" for part in parts_of(obs_space))
    inputs = numbers_in(obs_space) + config.policy.image_features * images
    refuse_large_networks(inputs, config.policy, _NETWORKS, device)
    seed = derive_seed(config.seed, 4)
    return make_replay_policy(config.head, obs_space, action_space, config.policy, seed).to(device)


def make_learner(
    config: ReplayTrainConfig,
    agent: Agent,
    store: Replay,
    hindsight: Hindsight | None = None,
    view: RewardView | None = None,
) -> ReplayLearner:
    """The agent and, where it is learned, a reward."""
    policy, reward = agent.policy, None
    if config.reward.learned:
        view, seed = view or view_of_rows(policy), derive_seed(config.seed, 7)
        model = make_reward_model(view.shapes, view.actions, view.discrete, config.reward, seed)
        reward = RewardLearner(model.to(policy.device), config.reward, config.seed)
    return ReplayLearner(
        agent, store, config.replay, config.reward, reward, config.seed, config.cuda_graphs, hindsight, view
    )


def obs_field(space: gym.spaces.Box) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(space.shape), torch.uint8 if space.dtype == np.uint8 else torch.float32
