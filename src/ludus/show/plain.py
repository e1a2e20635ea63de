"""The terminal view for pipes, files and CI: aligned lines, no control codes."""

import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

from ludus.show import text
from ludus.show.run_state import RunState

_HEADER_EVERY = 20
_MOST_LOGGED, _LONGEST_HEAD = 4, 16  # columns of a user's own, and letters of their heads
_ROWS = 50  # over the whole training, however long it is; log.every_row shows all
_HEARTBEAT_S = 60.0  # a silent log looks like a hung job; each next silence may last twice as long


class Column(NamedTuple):
    header: str
    width: int
    metric: str
    show: Callable[[float], str]


def _whole(value: float) -> str:
    return f"{value:.0f}"


_RATE = Column("rate", 8, "train/learning_rate", lambda v: f"{v:.2g}")
_COLUMNS = [
    Column("steps/s", 9, "time/fps", lambda v: f"{v:,.0f}" if v >= 10 else f"{v:.1f}"),
    Column("return", 9, "rollout/ep_rew_mean", text.number),
    Column("length", 7, "rollout/ep_len_mean", _whole),
    Column("success", 8, "rollout/success_rate", text.percent),
    Column("eval succ", 9, "eval/success_rate", text.percent),
]
_LEARNING_COLUMNS = [  # after those of the task's own measures
    Column("eval rew", 9, "eval/mean_reward", text.number),
    Column("imitation", 9, "train/imitation_loss", text.number),
    Column("kl", 8, "train/approx_kl", text.number),
    Column("clip", 7, "train/clip_fraction", text.number),
    Column("expl.var", 8, "train/explained_variance", text.number),
    Column("pi loss", 9, "train/policy_gradient_loss", text.number),
    Column("v loss", 8, "train/value_loss", text.number),
    Column("ent.loss", 8, "train/entropy_loss", text.number),
    Column("entropy", 8, "train/entropy", text.number),
    Column("critic", 8, "train/critic_loss", text.number),
    Column("actor", 8, "train/actor_loss", text.number),
    Column("ent.coef", 8, "train/ent_coef", text.number),
    Column("R loss", 8, "train/r_loss", text.number),
    _RATE,
]
_REWARD_COLUMNS = [
    Column("AUC", 6, "reward/AUC", lambda v: text.reward_value("reward/AUC", v)),
    Column("R²", 6, "reward/R2", lambda v: text.reward_value("reward/R2", v)),
    Column("corr.", 6, "reward/correlation", lambda v: text.reward_value("reward/correlation", v)),
    Column("corr/ep", 7, "reward/correlation_within", lambda v: text.reward_value("reward/correlation_within", v)),
]
# Return decomposition is told by the names that its public versions print, letter for letter.
_PUBLIC_COLUMNS = [
    Column("Epoch", 5, "Epoch", text.number),
    Column("Cycle", 5, "Cycle", text.number),
    Column("Episodes", 8, "Episodes", text.number),
    Column("Timesteps", 10, "Timesteps", text.number),
    Column("TimeCost(sec)/train", 19, "TimeCost(sec)/train", lambda v: f"{v:,.1f}"),
    Column("TimeCost(sec)/test", 18, "TimeCost(sec)/test", lambda v: f"{v:,.1f}"),
    Column("R_loss", 9, "R_loss", text.number),
    Column("Q_loss", 9, "Q_loss", text.number),
    Column("Pi_loss", 9, "Pi_loss", text.number),
    Column("return", 9, "rollout/ep_rew_mean", text.number),
    Column("success", 8, "rollout/success_rate", text.percent),
    _RATE,
]


class PlainView:
    """Writes a table that grows by one line a row. Columns appear when their metric first does.

    About _ROWS rows and as many evaluations are shown, evenly over the training, unless all are asked for.
    """

    def __init__(self, stream: TextIO, state: RunState) -> None:
        self._stream = stream
        self._state = state
        self._columns: list[Column] = []
        self._rows_since_header = _HEADER_EVERY
        self._last_output = time.monotonic()
        self._silence_s = _HEARTBEAT_S
        self._shown_at: dict[str, int] = {}  # which of the _ROWS parts of the training a kind was last shown in
        self._iteration = ""  # the newest, for the next row

    def plan(self, lines: list[str]) -> None:
        self._write(self._state.title, *(f"  {line}" for line in lines), "")

    def start(self) -> None:
        """Nothing: the plan has said it."""

    def progress(self) -> None:
        if time.monotonic() - self._last_output > self._silence_s:
            self._silence_s *= 2
            state = self._state
            where = " · ".join(f"{name} {at:,}/{total:,}" for name, at, total in state.levels)
            words = "  ".join(part for part in (where, state.note) if part)
            self._write(f"{state.step:>{self._step_width},} {self._done:>7}  … {words}".rstrip())

    def iteration(self, line: str) -> None:
        self._iteration = line

    def losses(self, lines: list[str]) -> None:
        self._write(*(f"  {line}" for line in lines))

    def row(self) -> None:
        if not self._due("row"):
            return
        if self._iteration and not self._state.every_row:  # else `losses` has said it
            self._write(f"  {self._iteration}")
        self._iteration = ""
        if "Epoch" in self._state.metrics:
            self._public_row()
        else:
            self._own_row()
        self._rows_since_header += 1

    def _due(self, kind: str) -> bool:
        """Whether one of this kind is to be shown now."""
        state = self._state
        part = int(_ROWS * state.fraction)
        if self._shown_at.get(kind) == part and state.total_steps and not state.every_row:
            return False
        self._shown_at[kind] = part
        return True

    def _own_row(self) -> None:
        state = self._state
        columns = self._present(
            [*_COLUMNS, *self._measures(), *self._logged(), *_LEARNING_COLUMNS, *_REWARD_COLUMNS]
        )
        first = "step" if state.unit == "steps" else state.unit
        self._header(columns, f"{first:>{self._step_width}} {'done':>7} {'ETA':>9} ", "")
        start = f"{state.step:>{self._step_width},} {self._done:>7} {text.duration(state.eta):>9}"
        self._write(f"{start} {self._cells(columns)}".rstrip())

    def _public_row(self) -> None:
        columns = self._present([*_PUBLIC_COLUMNS, *_REWARD_COLUMNS])
        self._header(columns, "", f" {'done':>7} {'ETA':>9}")
        self._write(f"{self._cells(columns)} {self._done:>7} {text.duration(self._state.eta):>9}")

    def _measures(self) -> list[Column]:
        heads = {f"{m.label} {m.unit}".rstrip(): f"eval/{m.metric}" for m in self._state.display.headline}
        return [Column(head, max(6, len(head)), metric, _whole) for head, metric in heads.items()]

    def _logged(self) -> list[Column]:
        """What a user's callbacks log."""
        heads = {name: text.label(name)[:_LONGEST_HEAD] for name in self._state.logged[:_MOST_LOGGED]}
        return [Column(head, max(7, len(head)), name, text.number) for name, head in heads.items()]

    def _present(self, columns: list[Column]) -> list[Column]:
        return [c for c in columns if c.metric in self._state.metrics]

    def _header(self, columns: list[Column], before: str, after: str) -> None:
        if columns != self._columns or self._rows_since_header >= _HEADER_EVERY:
            self._columns, self._rows_since_header = columns, 0
            heads = " ".join(self._head(c).rjust(c.width) for c in columns)
            self._write(f"{before}{heads}{after}".rstrip())

    def _head(self, column: Column) -> str:
        return f"{self._state.unit}/s" if column.metric == "time/fps" else column.header

    def _cells(self, columns: list[Column]) -> str:
        return " ".join(c.show(self._state.metrics[c.metric]).rjust(c.width) for c in columns)

    @property
    def _done(self) -> str:
        return f"{100 * self._state.fraction:.1f} %"

    @property
    def _step_width(self) -> int:
        return max(9, len(f"{self._state.total_steps:,}"))

    def evaluation(self, line: str) -> None:
        if self._due("evaluation"):
            self._write(line)

    def message(self, line: str) -> None:
        self._write(line)

    def warning(self, line: str) -> None:
        self._write(f"WARNING: {line}")

    def finish(self, lines: list[str]) -> None:
        self._write("", *lines)

    def close(self) -> None:
        self._stream.flush()

    def _write(self, *lines: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        page = "".join(f"{line}\n" for line in lines)
        self._stream.write(page.encode(encoding, "replace").decode(encoding))
        self._stream.flush()
        self._last_output = time.monotonic()
