"""What a policy with a memory learns from: segments of stored episodes, and the hidden states stored with them."""

from typing import NamedTuple

from torch import Generator, Tensor

from ludus.algorithms.replay.config import ReplayConfig, ReplayTrainConfig
from ludus.algorithms.replay.hindsight import make_hindsight
from ludus.buffers.episodes import EpisodeStore
from ludus.buffers.replay import Replay, TransitionDraw
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError
from ludus.policies.recurrent import BurnIn
from ludus.policies.replay_policy import ReplayPolicy


class SegmentDraw(NamedTuple):
    """Segments of several batches, time first."""

    learned: TransitionDraw  # [batches, learned · m]
    burn_in: TransitionDraw  # [batches, burn-in · m] what comes before them
    first: Tensor  # [batches, m] rows before which the hidden state was stored
    keep: Tensor  # [batches, burn-in + learned, m] float32: 0 where an episode begins


class Segments:
    """Draws m segments a batch from a replay that holds hidden states."""

    def __init__(self, store: Replay, config: ReplayConfig) -> None:
        assert isinstance(store, EpisodeStore)
        self.m, self._steps, self._burn_in = config.batch_size // config.segment, config.segment, config.burn_in
        self.burn_in_rows = self.m * config.burn_in  # of a batch
        self._store, self._gamma = store, config.gamma

    def draw(self, batches: int, generator: Generator) -> SegmentDraw:
        drawn = self._store.draw_segments(batches, self.m, self._burn_in + self._steps, generator, self._gamma)
        burn_in, learned = (
            TransitionDraw(*(field[:, part].flatten(1) for field in drawn))
            for part in (slice(self._burn_in), slice(self._burn_in, None))
        )
        return SegmentDraw(learned, burn_in, drawn.row[:, 0], (drawn.t > 0).float())

    def lead(self, x: Tensor, first: Tensor, keep: Tensor) -> BurnIn:
        """Of one batch, given the prepared rows of its burn-in."""
        assert self._store.hidden_state is not None
        return BurnIn(x, self._store.hidden_state.index_select(0, first), keep)


def check_memory(config: ReplayTrainConfig, policy: ReplayPolicy, env: VecEnv) -> None:
    """A clear error where a policy with a memory cannot learn as it is told."""
    replay = config.replay
    if not policy.recurrent:
        return
    if replay.batch_size % replay.segment:
        below = replay.batch_size // replay.segment * replay.segment
        near = " or ".join(f"{size:,}" for size in (below, below + replay.segment) if size)
        raise ConfigError(
            f"A batch of {replay.batch_size:,} transitions cannot be made of segments of {replay.segment:,}: take "
            f"--replay.batch-size {near}, or another --replay.segment."
        )
    if config.offline:
        raise ConfigError(
            "A policy with a memory learns from hidden states that were stored when it acted. Recorded episodes "
            "(--data) have none: leave the memory out."
        )
    if replay.n_step > 1:
        raise ConfigError("A memory does not go with --replay.n-step: take --replay.n-step 1.")
    if (method := config.reward.method) != "none":
        raise ConfigError(f"A memory does not go with --reward.method {method}: leave one of them out.")
    if make_hindsight(config, env) is not None:
        raise ConfigError(
            "A memory does not go with HER, which replaces goals that the hidden state has seen: give "
            "--replay.her 0."
        )
