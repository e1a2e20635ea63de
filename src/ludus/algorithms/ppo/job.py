"""PPO: an iteration is a rollout and the batches made of it."""

from torch import Tensor

from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.schedule import SegmentSchedule
from ludus.envs.vec import VecEnv
from ludus.training.job import Show


class PPOJob(OnPolicyJob):
    """Learns from each rollout once, then forgets it."""

    config: PPOTrainConfig
    learner: PPO

    def _make_learner(self, groups: list[VecEnv], schedule: SegmentSchedule) -> PPO:
        config = self.config
        return PPO(self.policy, config.ppo, schedule, config.seed, config.cuda_graphs)

    def learned_beside(self) -> dict[str, tuple[str, Tensor]]:
        """The value network thinks in units of the returns."""
        return {"the scale of returns": (f"{self.config.section}/returns/moments", self.learner.returns.moments)}

    def begin_with_new_weights(self) -> None:
        super().begin_with_new_weights()
        self.learner.begin_with_new_weights()

    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        metrics = super().iteration(number, progress, show)
        if self.config.ppo.kl_control == "adapt":
            self.learner.adapt_rate(float(metrics["train/approx_kl"]))
        return metrics
