"""Recorded episodes as a job sees them: some in a store to learn from, the others held out to measure by."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ludus.buffers.episodes import EpisodeStore, store_bytes
from ludus.buffers.replay import Fields
from ludus.data.config import DataConfig
from ludus.data.episode import Episode
from ludus.data.reading import DataSummary, EpisodeInfo, read_episodes, scan
from ludus.envs.vec import derive_seed
from ludus.errors import CheckpointError
from ludus.training.ram import refuse_what_cannot_fit

Obs = dict[str, Tensor]


@dataclass
class Recorded:
    """What was read, and how much memory it takes."""

    summary: DataSummary
    store: EpisodeStore
    held_out: list[Episode]
    bytes: int
    digest: str  # of all episodes

    @property
    def returns(self) -> list[float]:
        """Of the episodes that are learned from."""
        returns: list[float] = self.store.returns_and_lengths()[0].tolist()
        return returns

    def fingerprint(self) -> list[float | str]:
        """What a checkpoint remembers of the data, which is not in it."""
        return [self.store.episodes, self.store.steps, *self.returns, self.digest]

    def check_same(self, fingerprint: list[float | str]) -> None:
        own = self.fingerprint()
        if not isinstance(fingerprint[-1], str):  # an older checkpoint
            own.pop()
        if fingerprint != own:
            raise CheckpointError(
                f"The recorded episodes are not those this run began with ({int(fingerprint[0])} episodes of "
                f"{int(fingerprint[1]):,} steps then; {self.store.episodes} of {self.store.steps:,} now, or with "
                "other numbers): put them back, or begin a new run."
            )

    def line(self) -> str:
        good = sum(episode.success is True for episode in self.summary.episodes)
        bad = sum(episode.success is False for episode in self.summary.episodes)
        told = f" ({good} successes, {bad} failures)" if good or bad else ""
        held = f"; {len(self.held_out)} held out to measure by" if self.held_out else ""
        return f"{len(self.summary.episodes)} episodes{told}, {self.summary.total_steps:,} steps{held}"


def choose_held_out(episodes: list[EpisodeInfo], share: float, seed: int) -> set[tuple[Path, str]]:
    """File and name of the episodes to hold out: the same share of successes, of failures and of the others."""
    generator = np.random.default_rng(derive_seed(seed, 9))
    chosen: set[tuple[Path, str]] = set()
    for kind in (True, False, None):
        alike = [episode for episode in episodes if episode.success is kind]
        count = min(round(share * len(alike)), max(len(alike) - 1, 0))
        chosen |= {(alike[i].file, alike[i].name) for i in generator.permutation(len(alike))[:count]}
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
    learned = [episode for episode in summary.episodes if (episode.file, episode.name) not in held]
    # Two rows more than all: the ring never has to let an episode go.
    rows = sum(episode.length + 1 for episode in learned) + 2
    longest = max(episode.length for episode in learned)
    shape = (fields(summary), ((kept_action(summary),), torch.float32), rows, 0, longest)
    needed = store_bytes(*shape)
    beside = summary.memory_bytes * len(held) // max(1, len(summary.episodes))  # stays in the host's memory
    _refuse_what_cannot_fit(needed, beside, device, len(summary.episodes))
    recorded = Recorded(summary, EpisodeStore(*shape, device), [], needed + beside, "")
    digest = hashlib.sha256()
    for episode in read_episodes(config):
        for part in _numbers_of(episode):
            digest.update(np.ascontiguousarray(part).data)
        if (episode.file, episode.name) in held:
            recorded.held_out.append(episode)
        else:
            _put(recorded.store, episode, *prepare(episode))
    recorded.digest = digest.hexdigest()
    return recorded


def _numbers_of(episode: Episode) -> list[np.ndarray]:
    """What tells an episode from any other. Not its images: another library may scale them otherwise."""
    vectors = [episode.obs[name] for name in sorted(episode.obs) if episode.obs[name].dtype != np.uint8]
    ends = np.array([episode.length, episode.terminated, episode.success is True, episode.success is False])
    return [ends, episode.action, episode.reward, *vectors]


def _refuse_what_cannot_fit(needed: int, beside: int, device: torch.device, episodes: int) -> None:
    advice = (
        "Shrink images with --data.image-size, leave some out with --data.keys, or keep features instead of "
        "pixels with --reward.encoder frozen."
    )
    if device.type == "cpu":
        needed, beside = needed + beside, 0
    refuse_what_cannot_fit(needed, f"{episodes} recorded episodes", advice, device)
    refuse_what_cannot_fit(beside, "the episodes held out", advice, torch.device("cpu"))


def _put(store: EpisodeStore, episode: Episode, obs: Obs, action: Tensor) -> None:
    success = None if episode.success is None else float(episode.success)
    store.add(
        obs,
        action,
        torch.from_numpy(episode.reward).float(),
        terminated=episode.terminated,
        success=success,
        episode_return=episode.episode_return,
    )


def vector_of(episode: Episode, keys: list[str]) -> np.ndarray:
    """[T + 1, n] the named observations side by side."""
    parts = [episode.obs[key].reshape(len(episode.obs[key]), -1).astype(np.float32) for key in keys]
    return np.concatenate(parts, axis=1)
