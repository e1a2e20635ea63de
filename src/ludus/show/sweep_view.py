"""What a person sees of a sweep while it runs, and at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.text import Text

from ludus.show import text
from ludus.show.live import LiveView, bar
from ludus.show.sweep import ShownTrial, SweepNumbers, number_of, told_group, verdict_lines, verdicts

_BAR = 12
_LEADERS = 5
_LONGEST_VALUES = 70


@dataclass(frozen=True)
class RunningLine:
    """A process that trains."""

    name: str  # "trial 7 seed 0"
    aim: str  # "rung 2 of 3"
    share: float
    evaluation: str


@dataclass(frozen=True)
class Progress:
    numbers: SweepNumbers
    running: Sequence[RunningLine]
    share: float  # of all steps
    eta: float | None
    phase: str = "search"


class SweepView(LiveView):
    """Trials, the best so far, and what trains now; in a log, a line for every trial that comes to a rung."""

    def __init__(self, title: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(title, quiet, stream)
        self._progress: Progress | None = None
        self._confirmed = -1

    def show(self, progress: Progress) -> None:
        self._progress = progress
        self.refresh()

    def note(self, numbers: SweepNumbers, trial: ShownTrial, eta: float | None) -> None:
        """A trial has come to a rung, or failed. The dashboard shows that anyway, but for a failure."""
        if self._console is not None and not trial.failed:
            return
        self._write(note_line(numbers, trial, eta))

    def _log(self) -> None:
        progress = self._progress
        if progress is None or progress.phase == "search" or int(10 * progress.share) == self._confirmed:
            return
        self._confirmed = int(10 * progress.share)
        self._write(f"{progress.phase}  {100 * progress.share:3.0f} %  ETA {text.duration(progress.eta)}")

    def _lines(self, inside: int, most: int) -> Sequence[Text]:
        progress = self._progress
        assert progress is not None
        numbers = progress.numbers
        times = f"elapsed {text.duration(self.elapsed)}   ETA {text.duration(progress.eta)}"
        room = max(5, inside - len(times) - 10)
        head = Text.assemble(bar(progress.share, room), (f" {100 * progress.share:5.1f} %", "bold"), f"  {times}")
        running = [_running(line) for line in progress.running]
        leaders = [_leader(numbers, number, place) for place, number in enumerate(numbers.best[:_LEADERS])]
        leaders = leaders[: max(1, most - len(running) - 2)]
        shown = running[: max(1, most - len(leaders) - 2)]
        if left := len(running) - len(shown):
            shown.append(Text(f"… and {left} more", style="dim"))
        return [head, Text(counts(numbers, progress.phase)), Text(), *leaders, Text(), *shown]


def counts(numbers: SweepNumbers, phase: str = "search") -> str:
    """'17 of 40 trials · 12, 4, 1 at the rungs · 2 failed'."""
    planned = f" of {numbers.planned}" if numbers.planned else ""
    rungs = ", ".join(map(str, numbers.at_rung()))
    failed = f" · {len(numbers.failed)} failed" if numbers.failed else ""
    told = (
        f"{len(numbers.trials)}{planned} trials · {rungs} at the rung{'s' * (len(numbers.rung_steps) > 1)}{failed}"
    )
    return told if phase == "search" else f"{phase} · {told}"


def note_line(numbers: SweepNumbers, trial: ShownTrial, eta: float | None) -> str:
    if trial.failed:
        return f"{trial.name:10} failed: {trial.failed} ({values_line(trial, numbers)})"
    best = numbers.best[0] if numbers.best else trial.number
    top = next(t for t in numbers.trials if t.number == best)
    planned = f" of {numbers.planned}" if numbers.planned else ""
    whole = f"({len(numbers.trials)}{planned} trials, ETA {text.duration(eta)})"
    told = f"best so far {numbers.show(top.scores[-1])}, {top.name}" if best != trial.number else "the best so far"
    rung = f"rung {trial.rung} of {len(numbers.rung_steps)}"
    score = f"{numbers.label} {numbers.show(trial.scores[-1])}"
    return f"{trial.name:10} {rung}  {score}  {values_line(trial, numbers)}; {told}  {whole}"


def values_line(trial: ShownTrial, numbers: SweepNumbers) -> str:
    """'learning_rate 0.003, minibatches 8'."""
    shorts = [parameter.short for parameter in numbers.parameters]
    names = {p.name: p.short if shorts.count(p.short) == 1 else p.name for p in numbers.parameters}
    return ", ".join(f"{names[name]} {value}" for name, value in trial.values.items())


def _leader(numbers: SweepNumbers, number: int, place: int) -> Text:
    trial = next(t for t in numbers.trials if t.number == number)
    score = numbers.show(trial.scores[-1])
    return Text.assemble(
        (f"{'best' if place == 0 else '':5}", "bold green"),
        f"{numbers.label} {score:>9}  rung {trial.rung}  ",
        (f"{trial.name:10} ", "bold"),
        (values_line(trial, numbers), "" if place == 0 else "dim"),
    )


def _running(line: RunningLine) -> Text:
    return Text.assemble(
        (f"{line.name:16} ", "bold"), bar(line.share, _BAR), f" {100 * line.share:3.0f} %  ",
        (f"{line.aim:12} ", "dim"), line.evaluation,
    )  # fmt: skip


# The end -------------------------------------------------------------------------------------------
def summary_lines(numbers: SweepNumbers) -> list[str]:
    """The best trials, what the confirmation says of them, and the command to copy."""
    lines = [f"{counts(numbers)[0].upper()}{counts(numbers)[1:]}; {numbers.steps_used:,} steps."]
    if numbers.steps_anew > numbers.steps_used:
        saved = 1 - numbers.steps_used / numbers.steps_anew
        lines[0] += f" Promotion by resume saved {100 * saved:.0f} % of the steps of beginning again."
    lines += [f"  {trial.name} failed: {_shortened(trial.failed)}" for trial in numbers.failed[:3]]
    if more := numbers.failed[3:]:
        lines.append(f"  and {len(more)} more failed")
    if numbers.best:
        seeds = f"{len(numbers.seeds)} seed{'s' * (len(numbers.seeds) > 1)}"
        lines.append(f"Best in the search ({numbers.label}, mean of {seeds}):")
    shown = {trial.number: trial for trial in numbers.trials}
    lines += [_leading_line(numbers, shown[number]) for number in numbers.best[:3]]
    default = numbers.default
    if default is not None and default.scores and default.number not in numbers.best[:3]:
        lines.append(_leading_line(numbers, default))
    if numbers.confirmation is not None:
        fresh = ", ".join(run.seed for run in numbers.confirmation.groups[0].runs)
        lines.append(f"Confirmed on fresh seeds {fresh} ({numbers.confirmation.figures[0].title.lower()}):")
        figure = numbers.confirmation.figures[0]
        for group, own in zip(numbers.confirmation.groups, figure.summaries, strict=True):
            lines.append(f"  {told_group(group):12} {numbers.confirmation.show_estimate(own.mean)}")
        lines += verdict_lines(numbers.confirmation)
    if command := winning_command(numbers):
        lines += ["", command]
    return lines


def _leading_line(numbers: SweepNumbers, trial: ShownTrial) -> str:
    score = f"{numbers.show(trial.scores[-1]):>9}"
    return f"  {score}  rung {trial.rung}  {trial.name}: {values_line(trial, numbers)}"


def _shortened(words: str) -> str:
    return words if len(words) <= 150 else f"{words[:150]}…"


def winning_command(numbers: SweepNumbers) -> str:
    """Of what the confirmation puts first, be it the preset's own settings; else of the best in the search."""
    if numbers.confirmation is not None and (found := verdicts(numbers.confirmation)):
        if found[0].gain.value <= 0:
            return numbers.default_command
        number = number_of(found[0].group)
        return "" if number is None else numbers.commands.get(number, "")
    return numbers.commands.get(numbers.best[0], "") if numbers.best else ""
