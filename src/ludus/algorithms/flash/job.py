"""FlashSAC in environments, and on recorded episodes."""

from collections.abc import Callable

import torch
from torch import Tensor

from ludus.algorithms.flash.agent import FlashSAC, critic_bytes, make_flash_agent
from ludus.algorithms.flash.config import FlashTrainConfig
from ludus.algorithms.flash.exploration import CollectedReturns, HeldNoise
from ludus.algorithms.flash.reward_factor import RewardFactor, discounted_returns
from ludus.algorithms.replay.agents import Agent
from ludus.algorithms.replay.collector import ReplayCollector
from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.algorithms.replay.job import ReplayJob
from ludus.algorithms.replay.offline import OfflineJob
from ludus.algorithms.replay.online import OffPolicyJob
from ludus.envs.vec import State, VecEnv, derive_seed
from ludus.policies.flash_policy import FlashPolicy
from ludus.policies.replay_policy import ReplayPolicy
from ludus.training.job import Show
from ludus.training.ram import refuse_what_cannot_fit

# The scale of a learned reward.
_LABEL_EVERY = 100  # updates
_EPISODES, _STEPS = 10, 10_000  # that are labelled: so many episodes, or fewer where they are long
_FORGOTTEN = 0.01  # of what earlier labels told: half after 69 times


def make_flash_job(config: FlashTrainConfig, device: torch.device) -> ReplayJob:
    """From recorded episodes if there are some, else from environments."""
    return OfflineFlashJob(config, device) if config.offline else FlashJob(config, device)


class ScaledJob(ReplayJob):
    """As SAC's; but rewards are scaled by the returns of what was paid or learned."""

    config: FlashTrainConfig
    _agent: FlashSAC
    _factor: RewardFactor
    _progress = 0.0

    @property
    def _is_paid(self) -> bool:
        """Else a learned reward is the agent's."""
        return self.config.reward.method == "none"

    def _make_agent(self, policy: ReplayPolicy, config: ReplayTrainConfig) -> Agent:
        assert isinstance(policy, FlashPolicy)
        assert isinstance(config, FlashTrainConfig)
        width = config.flash.critic_width
        needed, advice = critic_bytes(policy, config.flash), "Make --flash.critic-width smaller."
        refuse_what_cannot_fit(needed, f"critics of width {width:,}", advice, policy.device)
        self._agent = make_flash_agent(policy, config, derive_seed(config.seed, 6))
        return self._agent

    def _learn(self, on_batch: Callable[[int], None]) -> dict[str, Tensor]:
        batches = self.config.replay.train_batches
        if not self._is_paid and self.learner.updates % _LABEL_EVERY < batches:
            self._fit_units()
            self._scale_learned_rewards()
        self._agent.reward_factor.copy_(self._factor.value(), non_blocking=True)
        return super()._learn(on_batch)

    def _scale_learned_rewards(self) -> None:
        """By what the reward says now of some finished episodes. Nothing here waits for the device."""
        count = max(1, min(_EPISODES, _STEPS // self.store.longest))
        reward, inside = self.learner.label_episodes(count)
        self._factor.forget(_FORGOTTEN)
        self._factor.add(discounted_returns(reward, self.config.replay.gamma) * inside, inside)

    def cycle_metrics(self) -> dict[str, float]:
        metrics = super().cycle_metrics()
        left = self._agent.rate_left(self._progress)  # of the critics' rate
        own = {"train/learning_rate": metrics["train/learning_rate"] * left}
        if self.learner.updates:
            own["train/reward_scale"] = 1.0 / float(self._agent.reward_factor)
        return metrics | own

    # State ----------------------------------------------------------------------------------------
    @property
    def _kept_as(self) -> str:
        """Learned rewards may have other units than those that are paid."""
        return "collected_returns" if self._is_paid else "learned_returns"

    def learned_beside(self) -> dict[str, tuple[str, Tensor]]:
        """The critics think in units of these returns."""
        spread = (f"{self._kept_as}/scale/moments", self._factor.scale.moments)
        largest = (f"{self._kept_as}/largest", self._factor.largest)
        return super().learned_beside() | {"the spread of returns": spread, "the largest return": largest}

    def state(self, whole: bool) -> State:
        return super().state(whole) | {self._kept_as: self._factor.state()}

    def load_state(self, state: State, iteration: int) -> bool:
        self._factor.load_state(state[self._kept_as])
        return super().load_state(state, iteration)


class FlashJob(ScaledJob, OffPolicyJob):
    """In environments, where noise is held."""

    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        self._progress = progress
        return OffPolicyJob.iteration(self, number, progress, show)

    def _make_collector(self, envs: list[VecEnv], policy: ReplayPolicy) -> ReplayCollector:
        config, rows = self.config, sum(env.num_rows for env in envs)
        noise = HeldNoise(policy.head, config.flash.longest_noise, derive_seed(config.seed, 11))
        self._factor = RewardFactor(config.flash.highest_value, envs[0].device if self._is_paid else self.device)
        returns = CollectedReturns(rows, config.replay.gamma, self._factor) if self._is_paid else None
        graphs, beside = config.cuda_graphs, self._stream is not None
        return ReplayCollector(envs, policy, self.store, config.seed, noise, returns, graphs, beside)

    def load_state(self, state: State, iteration: int) -> bool:
        collector = state["collector"] or {}
        saved = state.get(self._kept_as) or collector.get("follower")  # where older checkpoints kept it
        return super().load_state(state | {self._kept_as: saved or self._factor.state()}, iteration)


class OfflineFlashJob(ScaledJob, OfflineJob):
    """On recorded episodes, whose returns are all known before the first gradient step."""

    divides_rewards = False

    def __init__(self, config: FlashTrainConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self._factor = RewardFactor(config.flash.highest_value, device)
        if self._is_paid:
            store = self.recorded.store
            for slot in store.length.nonzero()[:, 0].tolist():
                start = int(store.start[slot])
                reward = store.reward[start : start + int(store.length[slot])]
                self._factor.add(discounted_returns(reward[None], config.replay.gamma))

    def load_state(self, state: State, iteration: int) -> bool:
        known = {self._kept_as: self._factor.state()} if self._is_paid else {}  # by the data alone
        return super().load_state(state | known, iteration)

    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        self._progress = progress
        return OfflineJob.iteration(self, number, progress, show)
