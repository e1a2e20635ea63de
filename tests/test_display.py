"""A task of any kind is shown by what it says of itself, and does besides the contract what it has methods for."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from ludus.display import Column, Curves, Display, Measure, Table
from ludus.envs import display_of
from ludus.envs.abilities import adapt, lessons_of, load_lessons, tabulate
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.vec import State
from ludus.envs.wrapper import WrappedEnv
from ludus.show.console import Console
from ludus.show.dashboard import Dashboard
from ludus.show.episode_table import ranked_kinds, table_lines
from ludus.show.report import write_report
from replay_envs import Line, make_line

GOLF = Display(
    measures=(Measure("strokes", "strokes"), Measure("distance", "to the hole", "cm", everywhere=False)),
    section="Golf",
    curves=(Curves("Strokes of a round", {"evaluation": "eval/strokes"}),),
    table=Table(
        kind="hole",
        title="Holes",
        columns=(
            Column("strokes", "strokes", lambda v: f"{v:.1f}"),
            Column("holed", "success_rate", lambda v: f"{100 * v:.0f} %", bar=True, hint="Holed: in ten strokes."),
        ),
        solved="holes played without a loss",
        rules=("Par is three.",),
    ),
)
METRICS = {"eval/success_rate": 0.5, "eval/mean_reward": 7.0, "eval/strokes": 4.4, "eval/distance": 31.0}
HOLES = [
    {"hole": "pond", "strokes": 9.25, "success_rate": 0.5},
    {"hole": "meadow", "strokes": 3, "success_rate": 1.0},
]


def test_the_terminal_shows_the_measures_of_a_task() -> None:
    stream = io.StringIO()
    console = Console("plain", stream)
    console.state.display = GOLF
    console.start(100)
    for step in (10, 20):
        console.row(step, METRICS | {"rollout/strokes": 5.0, "time/fps": 9.0})
    console.evaluation(20, METRICS)
    head, first, second, line = stream.getvalue().splitlines()
    assert head.split()[-4:-2] == ["succ", "strokes"]  # between the evaluation's success and its reward
    assert first.split()[-2:] == second.split()[-2:] == ["4", "7"]
    assert line.startswith("eval at 20: success 50.0 % · strokes 4 · to the hole 31 cm · reward 7")


def test_the_dashboard_shows_the_measures_of_a_task() -> None:
    console = Console("plain", io.StringIO())
    console.state.display = GOLF
    console.row(10, METRICS | {"rollout/strokes": 5.0, "rollout/ep_rew_mean": 6.0})
    page = io.StringIO()
    RichConsole(file=page, width=100).print(Dashboard(io.StringIO(), console.state).draw())
    assert "strokes 4" in page.getvalue()
    assert "to the hole" not in page.getvalue()


def test_the_report_shows_measures_curves_and_table_of_a_task(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": s, **METRICS}) + "\n" for s in (1, 2)))
    (tmp_path / "evaluation.json").write_text(json.dumps({"step": 2, "rows": HOLES}))
    page = write_report(tmp_path, display=GOLF).read_text()
    for part in ("<h2>Golf</h2>", "Strokes of a round", "strokes in the newest evaluation", "<h2>Holes</h2>"):
        assert part in page
    assert "1 of 2 holes played without a loss." in page
    assert "Holed: in ten strokes." in page
    assert ranked_kinds(GOLF.table, tmp_path) == ["pond", "meadow"]
    assert ranked_kinds(None, tmp_path) == []
    assert "Holes" not in write_report(tmp_path).read_text()
    assert GOLF.table is not None
    assert table_lines(GOLF.table, HOLES)[0].split() == ["hole", "strokes", "holed"]


def test_most_tasks_have_nothing_to_show_besides() -> None:
    assert display_of(KukaConfig()) == Display()


# Abilities --------------------------------------------------------------------------------------------
class Learning(Line):
    """Has all of them."""

    taught: State | None = None

    def adapt(self, metrics: dict[str, list[float]], labels: dict[str, list[float]]) -> bool:
        return metrics == {"success": [1.0]}

    def lessons(self) -> State:
        return {"lesson": 1}

    def load_lessons(self, lessons: State) -> None:
        self.taught = lessons

    def tabulate(self, metrics: dict[str, list[float]], labels: dict[str, list[float]]) -> list[dict[str, Any]]:
        return [{"kind": "a", **metrics}]


class Stubborn(WrappedEnv):
    def adapt(self, metrics: dict[str, list[float]], labels: dict[str, list[float]]) -> bool:
        return False


def test_what_an_environment_is_able_to_do_is_found_under_its_wrappers() -> None:
    env = Learning(2, 5, False, False)
    for wrapped in (env, WrappedEnv(env), WrappedEnv(WrappedEnv(env))):
        assert adapt(wrapped, {"success": [1.0]}, {})
        assert not adapt(wrapped, {}, {})
        assert lessons_of(wrapped) == {"lesson": 1}
        assert tabulate(wrapped, {"success": [1.0]}, {}) == [{"kind": "a", "success": [1.0]}]
        load_lessons(wrapped, {"lesson": 2})
        assert env.taught == {"lesson": 2}
    assert not adapt(Stubborn(env), {"success": [1.0]}, {})


def test_an_environment_without_abilities_is_asked_in_vain() -> None:
    env = WrappedEnv(make_line(2))
    assert not adapt(env, {}, {})
    assert lessons_of(env) == {}
    assert tabulate(env, {}, {}) == []
    load_lessons(env, {"lesson": 1})
