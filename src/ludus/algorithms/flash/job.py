"""FlashSAC in environments."""

from collections.abc import Callable

from torch import Tensor

from ludus.algorithms.flash.agent import FlashSAC, critic_bytes, make_flash_agent
from ludus.algorithms.flash.config import FlashTrainConfig
from ludus.algorithms.flash.exploration import HeldNoise, RewardFactor
from ludus.algorithms.replay.agents import Agent
from ludus.algorithms.replay.collector import ReplayCollector
from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.algorithms.replay.online import OffPolicyJob
from ludus.envs.vec import VecEnv, derive_seed
from ludus.policies.flash_policy import FlashPolicy
from ludus.policies.replay_policy import ReplayPolicy
from ludus.training.job import Show
from ludus.training.ram import refuse_what_cannot_fit


class FlashJob(OffPolicyJob):
    """As SAC's; but noise is held, and rewards are scaled by the returns that were collected."""

    config: FlashTrainConfig
    _agent: FlashSAC
    _factor: RewardFactor
    _progress = 0.0

    def _make_agent(self, policy: ReplayPolicy, config: ReplayTrainConfig) -> Agent:
        assert isinstance(policy, FlashPolicy)
        assert isinstance(config, FlashTrainConfig)
        width = config.flash.critic_width
        needed, advice = critic_bytes(policy, config.flash), "Make --flash.critic-width smaller."
        refuse_what_cannot_fit(needed, f"critics of width {width:,}", advice, policy.device)
        self._agent = make_flash_agent(policy, config, derive_seed(config.seed, 6))
        return self._agent

    def _make_collector(self, envs: list[VecEnv], policy: ReplayPolicy) -> ReplayCollector:
        config, rows = self.config, sum(env.num_rows for env in envs)
        noise = HeldNoise(policy.head, config.flash.longest_noise, derive_seed(config.seed, 11))
        self._factor = RewardFactor(rows, config.replay.gamma, config.flash.highest_value, envs[0].device)
        return ReplayCollector(envs, policy, self.store, config.seed, noise, self._factor, config.cuda_graphs)

    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        self._progress = progress
        return super().iteration(number, progress, show)

    def _learn(self, on_batch: Callable[[int], None]) -> dict[str, Tensor]:
        self._agent.reward_factor.copy_(self._factor.value(), non_blocking=True)
        return super()._learn(on_batch)

    def cycle_metrics(self) -> dict[str, float]:
        metrics = super().cycle_metrics()
        left = self._agent.rate_left(self._progress)  # of the critics' rate
        return metrics | {"train/learning_rate": metrics["train/learning_rate"] * left}
