"""What a reader of a comparison must know before believing it."""

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.comparing.reading import SavedRun
from ludus.envs.config import NOT_JUDGED
from ludus.errors import plain_text
from ludus.show.comparison import FEWEST_SEEDS, Group, Numbers, told_value


def warnings_of(numbers: Numbers, found: Sequence[SavedRun]) -> list[str]:
    groups, runs = numbers.groups, numbers.runs
    few = [
        f"{group.name} has {_count(len(group.runs), 'seed')}" for group in groups if len(group.runs) < FEWEST_SEEDS
    ]
    warnings = [f"{_listed(few)}: take at least {FEWEST_SEEDS}, or luck decides."] if few else []
    warnings += _repeated_seeds(groups)
    if unfinished := [f"{run.path} (step {run.step:,})" for run in runs if not run.finished]:
        warnings.append(f"Not trained to the end: {_listed(unfinished)}.")
    budgets = {group.name: sorted({run.step for run in group.runs}) for group in groups}
    if len({run.step for run in runs}) > 1:
        told = [f"{name}: {' to '.join(f'{step:,}' for step in (steps[0], steps[-1])[: len(steps)])} steps"
                for name, steps in budgets.items()]  # fmt: skip
        warnings.append(
            f"Unequal budgets: {'; '.join(told[:6])}. Their ends are compared at step {numbers.common_step:,}."
        )
    if len(versions := list(dict.fromkeys(run.version or "unknown" for run in runs))) > 1:
        warnings.append(f"Trained by different versions: {_listed(versions)}.")
    if other := _other_tasks(numbers.settings):
        warnings.append(f"Different environments: {_listed(other)}. Their figures may not be comparable.")
    if len({repr(run.facts.get("hardware")) for run in found}) > 1:
        warnings.append("Trained on different machines: the times cannot be compared.")
    if not numbers.measured_on and numbers.metric.startswith("eval/"):
        warnings.append("The runs were not all measured alike on new starts; --measure 100 does that.")
    return warnings


def _repeated_seeds(groups: Sequence[Group]) -> list[str]:
    """The same seed twice is the same training twice, not two samples."""
    told = []
    for group in groups:
        seeds = [run.seed for run in group.runs]
        if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            told.append(
                f"{group.name} has several runs of seed {_listed(twice)}: they are no independent samples."
            )
    return told


def _other_tasks(settings: Mapping[str, Sequence[Any]]) -> list[str]:
    """Settings of the environment that differ and change what an evaluation measures."""
    names = [name for name in settings if name.startswith("env.") and name.split(".")[1] not in NOT_JUDGED]
    return [f"{plain_text(name, 100)} is {' or '.join(map(told_value, settings[name]))}" for name in names]


def _listed(parts: Sequence[str], most: int = 6) -> str:
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
