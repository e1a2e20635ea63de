"""Rows as a training logs them, and what the terminal makes of them."""

import io
import re
import sys
from collections import Counter
from collections.abc import Callable

from rich.console import Console as RichConsole

from ludus.show.dashboard import Dashboard
from ludus.show.run_state import RunState

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def row(step: int = 0) -> dict[str, float]:
    return {
        "rollout/ep_rew_mean": 12.5 + step / 1000,
        "rollout/ep_len_mean": 99.0,
        "rollout/success_rate": 0.25,
        "time/fps": 1234.0,
        "time/simulate_share": 0.6,
        "time/act_share": 0.1,
        "time/learn_share": 0.3,
        "train/approx_kl": 0.0123,
        "train/value_loss": 0.5,
        "train/explained_variance": 0.9,
        "loop/epoch": 1.0,
        "loop/cycle": 2.0,
        "system/memory_mb": 512.0,
    }


EVALUATION = {
    "eval/success_rate": 0.93,
    "eval/success_low": 0.88,
    "eval/success_high": 0.96,
    "eval/mean_reward": 221.0,
    "eval/std_reward": 12.0,
    "eval/episodes": 100.0,
    "eval_stochastic/success_rate": 0.9,
    "eval_stochastic/mean_reward": 200.0,
}

PUBLIC = {
    "Epoch": 3,
    "Cycle": 12,
    "Episodes": 340,
    "Timesteps": 120_000,
    "TimeCost(sec)/train": 12.25,
    "TimeCost(sec)/test": 1.5,
    "R_loss": 0.0125,
    "Q_loss": 1.25,
    "Pi_loss": -12.5,
}


def state_after(rows: int = 30) -> RunState:
    state = RunState()
    state.title = "kuka-pick-place"
    state.start(40_000, 0)
    for i in range(1, rows + 1):
        state.add_row(1000 * i, row(1000 * i))
    state.add_evaluation(30_000, EVALUATION)
    return state


def drawn(dashboard: Dashboard) -> str:
    """On a terminal of the size that the environment tells."""
    stream = io.StringIO()
    RichConsole(file=stream, highlight=False).print(dashboard.draw())
    return stream.getvalue()


def calls_of(work: Callable[[], None]) -> int:
    """How many functions are called: a measure of cost that no other load of the machine changes."""
    events: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: events.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return events["call"] + events["c_call"]
