"""The best trials once more on seeds that no trial has seen, beside the preset's own settings on these seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.comparing.face import Comparison, compare
from ludus.errors import ConfigError, LudusError
from ludus.experiment import create_experiment, is_experiment, seeds_of
from ludus.run_end import is_finished
from ludus.saved_run import run_folder, trusted_config
from ludus.seed_processes import Seed
from ludus.sweeping.plan import SavedSweep
from ludus.sweeping.trials import Trial
from ludus.training.run_folder import CONFIRMED

DEFAULT = "default"


def confirmed_folder(sweep: SavedSweep, trial: Trial | None) -> Path:
    """Of a trial; of None, the preset's own settings."""
    return sweep.folder / CONFIRMED / (DEFAULT if trial is None else trial.folder.name)


def chosen_trials(sweep: SavedSweep, best: Sequence[Trial]) -> list[Trial]:
    """The best; the one with the preset's own values is there anyway."""
    return [trial for trial in best if not trial.is_default][: sweep.plan.confirm]


def runs_to_confirm(sweep: SavedSweep, chosen: Sequence[Trial], trust: bool) -> list[Seed]:
    """Of the preset's own settings first: all runs, those that are trained to their end as finished."""
    found = []
    for trial in (None, *chosen):
        folder = confirmed_folder(sweep, trial)
        if folder.is_symlink():
            raise ConfigError(f"{folder} is a link. Put what it points to in its place.")
        if not is_experiment(folder):
            values: dict[str, Any] = {} if trial is None else trial.values
            create_experiment(folder, sweep.plan.preset, sweep.confirm_config(values), sweep.plan.fresh_seeds)
        for number, run in seeds_of(folder).items():
            trusted_config(run_folder(run), trust)
            seed = Seed(number, run, options=["--trust"])
            seed.read_rows()
            if is_finished(run):
                seed.state = "finished"
            found.append(seed)
    return found


def confirmation(sweep: SavedSweep, metric: str) -> Comparison | None:
    """What came out, the preset's own settings as the first group; None where nothing is finished yet."""
    folder = sweep.folder / CONFIRMED
    if not is_experiment(folder / DEFAULT):
        return None
    others = [found for found in sorted(folder.glob("trial_*")) if is_experiment(found) and _is_trained(found)]
    if not others or not _is_trained(folder / DEFAULT):
        return None
    try:
        return compare([folder / DEFAULT, *others], metric)
    except LudusError:
        return None


def _is_trained(folder: Path) -> bool:
    try:
        return all(map(is_finished, seeds_of(folder).values()))
    except LudusError:
        return False
