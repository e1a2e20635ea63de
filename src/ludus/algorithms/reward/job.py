"""A reward learned from recorded episodes, each with its return; nobody acts."""

from collections.abc import Callable

import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.replay.learner import RewardBatches
from ludus.algorithms.replay.recorded import Recorded, load_recorded
from ludus.algorithms.replay.store_job import StoreJob
from ludus.algorithms.reward.config import check_reward_config
from ludus.algorithms.reward.metrics import RewardReport, equal_returns_warning
from ludus.algorithms.reward.rrd import RewardLearner, make_reward_model
from ludus.algorithms.reward.train_config import RewardTrainConfig
from ludus.buffers.episodes import EpisodeStore
from ludus.buffers.replay import Fields
from ludus.config import make_plan
from ludus.data.episode import Episode
from ludus.data.reading import DataSummary
from ludus.envs.vec import derive_seed
from ludus.policies.reward import RewardModel
from ludus.training.job import Show
from ludus.training.ram import size


class RewardJob(StoreJob):
    """An iteration is batches of sub-sequences. The data is not in a checkpoint: it is read again."""

    rate_name = "reward.learning-rate"
    recorded: Recorded

    def __init__(self, config: RewardTrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self._model: RewardModel | None = None  # made when the data has been looked at, before it is read
        self.recorded = load_recorded(
            config.data, config.seed, device, self._fields, self._prepare, self._action_size
        )
        self.model, store = self._made_model(), self.recorded.store
        learner = RewardLearner(self.model, config.reward, config.seed)
        learner.fit(*store.returns_and_lengths())
        self._fit_normalizer(store)
        count = config.replay.train_batches
        batches = RewardBatches(store, config.reward, learner, count, config.seed, config.cuda_graphs)
        super().__init__(config, device, store, batches, {"reward": self.model})
        self.plan = make_plan(config, count, count, "batches")
        equal = equal_returns_warning(self.recorded.returns)
        self.warnings = (
            *check_reward_config(config.reward, store.longest_finished),
            *([] if equal is None else [equal]),
        )
        self._report = RewardReport(self.recorded.held_out)

    # Data ---------------------------------------------------------------------------------------
    def _fields(self, summary: DataSummary) -> Fields:
        """What the store keeps: pixels, or where the encoder is frozen the features of each frame."""
        config = self.config
        shapes = {key: (spec.shape, _torch_dtype(spec.is_image)) for key, spec in summary.obs.items()}
        discrete = summary.num_actions > 0
        actions = summary.num_actions or summary.action_size
        seed = derive_seed(config.seed, 7)
        self._model = make_reward_model(shapes, actions, discrete, config.reward, seed).to(self.device)
        if self._model.learned or not self._model.cameras:
            return shapes
        features = ((config.reward.image_features,), torch.float32)
        return {key: features if key in self._model.cameras else shape for key, shape in shapes.items()}

    def _action_size(self, summary: DataSummary) -> int:
        return 1 if summary.num_actions else summary.action_size

    def _prepare(self, episode: Episode) -> tuple[dict[str, Tensor], Tensor]:
        model = self._made_model()
        obs = {key: torch.from_numpy(value) for key, value in episode.obs.items()}
        if model.cameras and not model.learned:
            with torch.no_grad():
                on_device = {key: value.to(self.device) for key, value in obs.items()}
                obs = {key: value.cpu() for key, value in model.encode_frames(on_device).items()}
        return obs, torch.from_numpy(episode.action).float().reshape(episode.length, -1)

    def _made_model(self) -> RewardModel:
        assert self._model is not None
        return self._model

    def _fit_normalizer(self, store: EpisodeStore) -> None:
        """From all that is stored, at once: recorded data does not grow."""
        used = int(store.length.sum()) + store.episodes
        for rows in torch.arange(used, device=self.device).split(4096):
            self.model.update_normalizer({key: value.index_select(0, rows) for key, value in store.obs.items()})

    # The loop -----------------------------------------------------------------------------------
    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        count = self.plan.batches_per_iteration
        return self._learn(lambda batch: show(batch / count, batch))

    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, float]:
        """On the episodes held out; a measure that they do not allow is left out, maybe all but their number.

        Rank 0 measures for all: every rank has the same network and the same episodes.
        """
        measured = ranks.told_by_first(self._report(self.model) if ranks.is_first() else None)
        known = {f"reward/{name}": value for name, value in measured.items() if value == value}
        return {"Timesteps": self.store.steps, "reward/episodes": len(self.recorded.held_out), **known}

    def lines(self) -> list[str]:
        config = self.config
        return [
            f"{config.reward.told()} a batch, of {', '.join(self.model.obs)}; seed {config.seed}",
            f"{self.recorded.line()}; {size(self.recorded.bytes)}",
            self._batches_line(),
        ]

    def close(self) -> None:
        """Nothing is held."""


def _torch_dtype(is_image: bool) -> torch.dtype:
    return torch.uint8 if is_image else torch.float32
