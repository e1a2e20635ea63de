"""What a person sees of several seeds that are trained at once: a line for each, and what came out in the end."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TextIO

from rich.text import Text

from ludus.display import Display
from ludus.show import text
from ludus.show.live import LiveView, bar
from ludus.show.result_text import measured_on, result_line
from ludus.show.results import Measurement
from ludus.show.statistics import mean

_BAR = 12
_PARTS = 10  # lines of a plain log for each seed
_MARKS = {"finished": "green", "failed": "bold red", "stopped": "yellow"}
_ORDER = ("training", "failed", "stopped", "waiting", "finished")  # of what is shown where there is room for few


class SeedLine(NamedTuple):
    """How far a seed is."""

    number: int
    state: str  # waiting, training, finished, stopped, failed
    share: float  # of its training that is done
    eta: float | None
    evaluation: str  # the newest, in words
    why: str = ""  # it failed

    @property
    def told(self) -> str:
        if self.state != "training":
            return self.state
        if self.share >= 1.0:
            return "measuring"
        return f"{100 * self.share:.0f} %" if self.share else "starting"


class SeedsView(LiveView):
    """A line for each seed."""

    def __init__(self, title: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(title, quiet, stream)
        self._seeds: Sequence[SeedLine] = ()
        self._eta: float | None = None
        self._shown: dict[int, tuple[str, int]] = {}  # state and part of every seed in the newest line about it

    def show(self, seeds: Sequence[SeedLine], eta: float | None) -> None:
        """Where all of them are, and how long the whole will take."""
        self._seeds, self._eta = seeds, eta
        self.refresh()

    # Lines --------------------------------------------------------------------------------------
    def _log(self) -> None:
        """About every seed whenever its state changes, and ten times on its way."""
        for seed in self._seeds:
            now = seed.told if seed.state != "training" else "training", int(_PARTS * seed.share)
            if self._shown.get(seed.number) == now or seed.state == "waiting":
                continue
            if seed.number not in self._shown and seed.state == "finished":
                self._shown[seed.number] = now  # before this training
                continue
            self._shown[seed.number] = now
            eta = f"ETA {text.duration(seed.eta)}" if seed.state == "training" and seed.share else ""
            parts = (f"seed {seed.number}", f"{seed.told:>9}", eta, seed.why or seed.evaluation, self._whole())
            self._write("  ".join(part for part in parts if part))

    def _whole(self) -> str:
        return "" if self._eta is None else f"(all: ETA {text.duration(self._eta)})"

    # Dashboard ----------------------------------------------------------------------------------
    def _lines(self, inside: int, most: int) -> Sequence[Text]:
        seeds = self._seeds
        share = sum(seed.share for seed in seeds) / max(1, len(seeds))
        times = f"elapsed {text.duration(self.elapsed)}   ETA {text.duration(self._eta)}"
        room = max(5, inside - len(times) - 10)
        head = Text.assemble(bar(share, room), (f" {100 * share:5.1f} %", "bold"), f"  {times}")
        chosen = sorted(seeds, key=lambda seed: _ORDER.index(seed.state))[:most] if len(seeds) > most else seeds
        digits = max((len(str(seed.number)) for seed in seeds), default=1)
        lines = [head, Text(), *(_line(seed, digits) for seed in sorted(chosen))]
        if left := len(seeds) - len(chosen):
            lines.append(Text(f"… and {left} more", style="dim"))
        return lines


def _line(seed: SeedLine, digits: int) -> Text:
    eta = f"ETA {text.duration(seed.eta)}" if seed.state == "training" and 0 < seed.share < 1 else ""
    return Text.assemble(
        (f"seed {seed.number:<{digits}} ", "bold"),
        bar(seed.share, _BAR),
        (f" {seed.told:>9} ", _MARKS.get(seed.state, "")),
        (f" {eta:<11} ", "dim"),
        seed.why or seed.evaluation,
    )


# What came out ----------------------------------------------------------------------------------
def summary_lines(measured: Mapping[int, Measurement], display: Display) -> list[str]:
    """Every seed's result on new starts, their mean with its interval, and the worst seed."""
    first = next(iter(measured.values()))
    digits = max(len(str(seed)) for seed in measured)
    starts = measured_on(first).partition(", seed ")[0]
    lines = [f"The best policy of each seed on {starts}:"]
    lines += [f"  seed {seed:<{digits}}  {result_line(m, display)}" for seed, m in measured.items()]
    judged = next(
        (n for n in ("success_rate", "mean_reward") if all(n in m.result for m in measured.values())), ""
    )
    if not judged:
        return lines
    values = {seed: m.result[judged] for seed, m in measured.items()}
    worst = min(values, key=lambda seed: values[seed])
    tell = text.percent if judged == "success_rate" else text.number
    name, estimate = judged.removesuffix("_rate").removeprefix("mean_"), mean([*values.values()])
    told = f"Mean over {len(values)} seed{'s' * (len(values) > 1)}: {name} {tell(estimate.value)}"
    if estimate.low is not None and estimate.high is not None:
        half = (estimate.high - estimate.low) / 2
        told += f" ± {tell(half)} (95 % t interval)"
    return [*lines, f"{told}; worst: seed {worst}, {tell(values[worst])}"]
