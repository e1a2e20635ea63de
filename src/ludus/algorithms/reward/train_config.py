"""Everything that determines a run which learns a reward alone."""

from collections.abc import Collection
from dataclasses import dataclass

from ludus.algorithms.replay.config import StoreTrainConfig
from ludus.errors import ConfigError


@dataclass(frozen=True)
class RewardTrainConfig(StoreTrainConfig):
    """A run of return decomposition on recorded episodes. Of `replay` it uses train_batches."""

    algo: str = "reward"

    @property
    def offline(self) -> bool:
        return True

    def check(self) -> None:
        super().check()
        if not self.data.path:
            raise ConfigError("Say which recorded episodes to learn from: --data FILE; 'ludus record' makes some.")
        if not self.reward.learned:
            method = self.reward.method
            raise ConfigError(
                f"--algo reward learns a reward network: --reward.method {method} has none; take rrd."
            )

    def why_useless(self, setting: str, given: Collection[str]) -> str:
        if setting == "replay.batch_size":
            return "the steps of a reward's batch are --reward.rrd-batch-size."
        if setting.startswith("replay.") and setting != "replay.train_batches":
            return "nobody acts here, and no critic learns; leave it out."
        return super().why_useless(setting, given)
