"""How good the best policies are on new starts: what the runs have kept, as far as it was measured alike."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from ludus.comparing.reading import SavedRun
from ludus.show.results import Measurement

COMMON_SEED = 0  # of the starts on which `measure_all` plays all runs


def measure_all(found: list[SavedRun], episodes: int, trust: bool) -> None:
    """Play every run's best policy on the same new starts, unless the run has kept that already."""
    from ludus.measuring import measure_run

    for i, run in enumerate(found):
        if any(_protocol(m) == (COMMON_SEED, episodes) for m in run.measurements):
            continue
        print(f"Measuring {run.path} on {episodes:,} new starts …", file=sys.stderr)
        measured = measure_run(run.path, episodes, seed=COMMON_SEED, trust=trust)
        assert measured is not None  # nothing stops it
        found[i] = replace(run, measurements=[*run.measurements, measured.kept])


def _protocol(measurement: Measurement) -> tuple[int, int]:
    """What makes the starts of two measurements the same."""
    return measurement.seed, int(measurement.result.get("episodes", 0))


def measured_alike(found: Sequence[SavedRun], metric: str, asked: int) -> tuple[str, list[float | None]]:
    """On which new starts all runs were measured, and what came out; nothing where that was not done alike."""
    prefix, _, name = metric.partition("/")
    chosen = _common(found, asked) or _own(found)
    if prefix != "eval" or not chosen or not all(name in m.result for m in chosen):
        return "", [None] * len(found)
    return _told_starts(chosen), [m.result[name] for m in chosen]


def _common(found: Sequence[SavedRun], asked: int) -> list[Measurement]:
    """One measurement a run, all on the same starts: on those that are asked for, else the most."""
    if any(m.fixed_starts for run in found for m in run.measurements):
        return []  # of each run its newest will do: their starts never change
    shared = set.intersection(*(set(map(_protocol, run.measurements)) for run in found))
    wanted = {(COMMON_SEED, asked)} & shared or shared
    if not wanted:
        return []
    most = max(wanted, key=lambda protocol: protocol[1])
    return [next(m for m in reversed(run.measurements) if _protocol(m) == most) for run in found]


def _own(found: Sequence[SavedRun]) -> list[Measurement]:
    """Of every run what was measured at the end of its training, if all have that."""
    ends = [[m for m in run.measurements if m.by == "train" or m.chose_the_best][-1:] for run in found]
    return [m for end in ends for m in end] if all(ends) else []


def _told_starts(chosen: Sequence[Measurement]) -> str:
    counts = sorted({int(m.result.get("episodes", 0)) for m in chosen})
    number = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    if all(m.chose_the_best for m in chosen):
        return f"{number} fixed starts, by which the best policy was chosen"
    seeds = {m.seed for m in chosen}
    if len({_protocol(m) for m in chosen}) == 1:
        return f"{number} new starts, the same for every run (seed {chosen[0].seed})"
    return f"{number} new starts, drawn by each run's own seed" if len(seeds) > 1 else f"{number} new starts"
