"""What a run writes beside its metrics: the loss of every batch, evaluations and their episodes.

How far the files go is in the counters of a checkpoint. A resumed run cuts off what it will make again.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ludus import ranks
from ludus.config import Plan
from ludus.files import TRANSIENT, persistently, write_whole
from ludus.show.batch_log import BatchLog
from ludus.show.console import Console
from ludus.show.episode_log import MOST_BYTES, EpisodeLog
from ludus.training.counters import Counters
from ludus.training.run_folder import EPISODES

_SUMMARY_BATCHES = 100  # whose mean loss is one point of a curve


class RunLogs:
    """`batch_loss` is the name of the loss that is kept of every batch."""

    def __init__(self, run_dir: Path, batch_loss: str, console: Console, every_batch: bool) -> None:
        self._console, self._batch_loss, self._every_batch = console, batch_loss, every_batch
        self._run_dir = run_dir
        self._batches = BatchLog(run_dir / f"{batch_loss}.f32")
        self._episodes = EpisodeLog(run_dir / EPISODES)
        self._recent: list[float] = []
        self._full = False

    def cut_to(self, counters: Counters) -> None:
        """Forget what was logged later: it will be made again."""
        if not ranks.is_first():
            return
        self._batches.cut_to(counters.logged_batches)
        self._episodes.cut_to(counters.episode_lines)

    def show_losses(self, losses: Tensor, iteration: int) -> None:
        """The mean of 100 batches for its curve, and that of the iteration as a line."""
        self._recent += losses.tolist()
        while len(self._recent) >= _SUMMARY_BATCHES:
            some, self._recent = self._recent[:_SUMMARY_BATCHES], self._recent[_SUMMARY_BATCHES:]
            self._console.recent(f"train/{self._batch_loss.lower()}", sum(some) / len(some))
        self._console.iteration(f"iteration {iteration:,}: {self._batch_loss} {losses.mean():.4g}")

    def add_losses(self, losses: Tensor, counters: Counters, plan: Plan) -> None:
        """Those of the batches since the last time."""
        self._try(
            lambda: self._batches.append(losses.cpu().numpy(), counters.logged_batches),
            f"The losses of {len(losses)} batches",
        )
        if self._every_batch:
            place = counters.iteration, plan.batches_per_iteration
            self._console.losses(self._batch_loss, counters.logged_batches, losses.tolist(), *place)
        counters.logged_batches += len(losses)
        known = losses[torch.isfinite(losses)].double()
        counters.epoch_loss += float(known.sum())
        counters.epoch_batches += len(known)

    def end_epoch(self, counters: Counters, plan: Plan) -> None:
        """One line about the losses of the epoch, where there are any."""
        if counters.epoch_batches:
            epoch = math.ceil(counters.iteration / plan.iterations_per_epoch)
            mean, batches = counters.epoch_loss / counters.epoch_batches, counters.epoch_batches
            self._console.message(
                f"epoch {epoch} of {plan.epochs}: mean {self._batch_loss} {mean:.4g} over {batches:,} "
                f"batch{'es' * (batches > 1)}"
            )
        counters.epoch_loss, counters.epoch_batches = 0.0, 0

    def write_table(self, table: list[dict[str, Any]], step: int) -> None:
        """evaluation.json: the newest evaluation, kind by kind of episode."""
        if table and ranks.is_first():
            text = json.dumps({"step": step, "rows": table}, indent=1)
            self._run_dir.mkdir(parents=True, exist_ok=True)  # which may have been deleted
            persistently(lambda: write_whole(self._run_dir / "evaluation.json", text))

    def add_episodes(
        self, records: list[dict[str, Any]], words: dict[str, list[str]], step: int, counters: Counters
    ) -> None:
        """What every episode of an evaluation gave; `words` is what numbers of their starts stand for."""
        if records and not counters.episode_lines:  # which is said once
            records = [{**records[0], "words": words}, *records[1:]]

        def append() -> None:
            if self._episodes.append(step, records):
                counters.episode_lines += len(records)
            elif not self._full:
                self._full = True
                self._console.warning(f"{EPISODES} has {MOST_BYTES:,} bytes: later evaluations are not recorded.")

        self._try(append, "The episodes of an evaluation")

    def _try(self, write: Callable[[], None], what: str) -> None:
        """A disk that fails for a moment costs these lines and not the training. One rank writes for all."""
        if not ranks.is_first():
            return
        try:
            write()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            self._console.warning(f"{what} could not be written: {error.strerror}.")
