"""Recorded episodes as a job sees them: some in a store to learn from, the others held out to measure by."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ludus.buffers.episodes import EpisodeStore, Fields, store_bytes
from ludus.data.config import DataConfig
from ludus.data.episode import Episode
from ludus.data.reading import DataSummary, EpisodeInfo, read_episodes, scan
from ludus.envs.vec import derive_seed
from ludus.errors import CheckpointError, ConfigError
from ludus.training.memory import refuse_what_cannot_fit

Obs = dict[str, Tensor]


@dataclass
class Recorded:
    """What was read, and how much memory it takes."""

    summary: DataSummary
    store: EpisodeStore
    held_out: list[Episode]
    bytes: int

    @property
    def returns(self) -> list[float]:
        """Of the episodes that are learned from."""
        returns: list[float] = self.store.returns_and_lengths()[0].tolist()
        return returns

    def fingerprint(self) -> list[float]:
        """What a checkpoint remembers of the data, which is not in it."""
        return [self.store.episodes, self.store.steps, *self.returns]

    def check_same(self, fingerprint: list[float]) -> None:
        if fingerprint != self.fingerprint():
            raise CheckpointError(
                f"The recorded episodes are not those this run began with ({int(fingerprint[0])} episodes of "
                f"{int(fingerprint[1]):,} steps then; {self.store.episodes} of {self.store.steps:,} now, or other "
                "returns): put them back, or begin a new run."
            )

    def line(self) -> str:
        good = sum(episode.success is True for episode in self.summary.episodes)
        bad = sum(episode.success is False for episode in self.summary.episodes)
        told = f" ({good} successes, {bad} failures)" if good or bad else ""
        held = f"; {len(self.held_out)} held out to measure by" if self.held_out else ""
        return f"{len(self.summary.episodes)} episodes{told}, {self.summary.total_steps:,} steps{held}"


def choose_held_out(episodes: list[EpisodeInfo], share: float, seed: int) -> set[int]:
    """Numbers of the episodes to hold out: the same share of successes, of failures and of the others."""
    generator = np.random.default_rng(derive_seed(seed, 9))
    chosen: set[int] = set()
    for kind in (True, False, None):
        numbers = [i for i, episode in enumerate(episodes) if episode.success is kind]
        count = round(share * len(numbers))
        chosen |= set(generator.permutation(numbers)[: min(count, max(len(numbers) - 1, 0))].tolist())
    return chosen


def load_recorded(
    config: DataConfig,
    seed: int,
    device: torch.device,
    fields: Callable[[DataSummary], Fields],
    prepare: Callable[[Episode], tuple[Obs, Tensor]],
    kept_action: Callable[[DataSummary], int],
) -> Recorded:
    """Read everything once. `fields` says what the store keeps of an observation, and `prepare` makes that."""
    summary = scan(config)
    held = choose_held_out(summary.episodes, config.held_out, seed)
    learned = [episode for i, episode in enumerate(summary.episodes) if i not in held]
    # Two rows more than all: the ring never has to let an episode go.
    rows = sum(episode.length + 1 for episode in learned) + 2
    shape = (fields(summary), ((kept_action(summary),), torch.float32), rows, 0, 0)
    hidden = summary.has_true_reward
    needed = store_bytes(*shape, hidden)
    beside = summary.memory_bytes * len(held) // max(1, len(summary.episodes))
    refuse_what_cannot_fit(
        needed,
        f"{len(learned)} episodes of {sum(e.length for e in learned):,} steps",
        "Shrink images with --data.image-size, leave some out with --data.keys, or keep features instead of "
        "pixels with --reward.encoder frozen.",
        device,
    )
    store = EpisodeStore(*shape, device, hidden)
    recorded = Recorded(summary, store, [], needed + beside)
    for i, episode in enumerate(read_episodes(config)):
        if i in held:
            recorded.held_out.append(episode)
        else:
            _put(store, episode, *prepare(episode))
    return recorded


def _put(store: EpisodeStore, episode: Episode, obs: Obs, action: Tensor) -> None:
    success = None if episode.success is None else float(episode.success)
    hidden = None
    if store.hidden_reward is not None:
        truth = episode.true_reward
        hidden = torch.zeros(episode.length) if truth is None else torch.from_numpy(truth).float()
    store.add(
        obs,
        action,
        torch.from_numpy(episode.reward).float(),
        terminated=episode.terminated,
        success=success,
        hidden_reward=hidden,
        episode_return=episode.episode_return,
    )


def vector_of(episode: Episode, keys: list[str]) -> np.ndarray:
    """[T + 1, n] the named observations side by side."""
    parts = [episode.obs[key].reshape(len(episode.obs[key]), -1).astype(np.float32) for key in keys]
    return np.concatenate(parts, axis=1)


def vector_keys(summary: DataSummary) -> list[str]:
    """The observations a policy can learn from; images are refused."""
    images = [key for key, spec in summary.obs.items() if spec.is_image]
    if images:
        vectors = [key for key in summary.obs if key not in images]
        raise ConfigError(
            f"A policy learns from numbers, not from {', '.join(images)}: say which with --data.keys, of "
            f"{', '.join(vectors) or 'which this file has none'}."
        )
    return list(summary.obs)
