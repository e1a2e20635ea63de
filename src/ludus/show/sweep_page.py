"""A sweep as one page: the best command, the confirmation, scores, what matters, and all trials."""

from collections.abc import Sequence

from ludus.show import text
from ludus.show.comparison_page import figure_html, table_html
from ludus.show.pages import page_html, safe, tile
from ludus.show.sweep import ShownParameter, ShownTrial, SweepNumbers, verdict_lines
from ludus.show.sweep_charts import importance_chart, parallel_chart, scatter_chart, tone, trials_chart
from ludus.show.sweep_view import winning_command

_MOST_ROWS = 1_000
_STYLE = """<style>
.plot { margin: 0; padding: 12px 14px 8px; }
.plot svg { display: block; width: 100%; height: auto; overflow: visible; }
.plot figcaption { justify-content: flex-start; font-weight: 600; margin-bottom: 4px; }
.spot0 { fill: var(--c7); } .spot1 { fill: var(--c0); } .spot2 { fill: var(--c2); } .spot3 { fill: var(--c1); }
.way0 { stroke: var(--c7); opacity: .25; } .way1 { stroke: var(--c0); opacity: .45; }
.way2 { stroke: var(--c2); opacity: .8; } .way3 { stroke: var(--c1); opacity: .9; }
.way { fill: none; stroke-width: 1.4; } .way.top { stroke: var(--good); stroke-width: 3; opacity: 1; }
.spot { opacity: .85; } .ring { fill: none; stroke: var(--good); stroke-width: 2; }
.axis { stroke: var(--soft); stroke-width: 1; } .share { fill: var(--c0); opacity: .75; }
.default { fill: none; stroke: var(--ink); stroke-width: 1.6; }
.rungs { display: flex; gap: 16px; flex-wrap: wrap; font-size: 12.5px; color: var(--soft); margin-top: 4px; }
.rungs b { display: inline-block; width: 9px; height: 9px; border-radius: 5px; margin-right: 6px; }
.rungs .k0 { background: var(--c7); } .rungs .k1 { background: var(--c0); } .rungs .k2 { background: var(--c2); }
.rungs .k3 { background: var(--c1); } .rungs .kd { background: none; border: 1.6px solid var(--ink); }
.copy { display: flex; gap: 12px; align-items: flex-start; padding: 12px 16px; }
.copy pre { flex: 1; padding: 2px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
</style>"""
_SCRIPT = """<script>
for (const button of document.querySelectorAll('[data-copy]')) button.onclick = () => {
  const words = button.previousElementSibling, range = document.createRange();
  range.selectNodeContents(words); getSelection().removeAllRanges(); getSelection().addRange(range);
  const done = () => { button.textContent = 'copied'; };
  (navigator.clipboard?.writeText(words.textContent) ?? Promise.reject()).then(done,
    () => { if (document.execCommand('copy')) done(); });
};
</script>"""


def sweep_page(numbers: SweepNumbers) -> str:
    """The page as HTML; it needs nothing beside it."""
    seeds = f"seed{'s' * (len(numbers.seeds) > 1)} {', '.join(map(str, numbers.seeds))}"
    about = f"{len(numbers.trials)} trials of {seeds}, judged by {numbers.metric or 'nothing yet'}"
    about += "" if numbers.higher_is_better else " (lower is better)"
    scored = any(trial.scores for trial in numbers.trials)
    body = [
        _STYLE,
        f"<header><h1>{safe(numbers.title)}: sweep</h1><p>{safe(about)} · {safe(numbers.folder)}</p></header>",
        _tiles(numbers),
        _command(numbers),
        _confirmation(numbers),
        *([_charts(numbers)] if scored else []),
        _rungs(numbers),
        _trials(numbers),
        _SCRIPT,
    ]
    return page_html(f"{numbers.title}: sweep", "".join(body))


def _tiles(numbers: SweepNumbers) -> str:
    shown = {trial.number: trial for trial in numbers.trials}
    tiles = []
    if numbers.best:
        top = shown[numbers.best[0]]
        tiles.append(
            tile(
                f"best {numbers.label} in the search ({top.name}, rung {top.rung})",
                numbers.show(top.scores[-1]),
                good=True,
            )
        )
    if (default := numbers.default) is not None and default.scores:
        tiles.append(
            tile(
                f"the preset's own settings in the search (rung {default.rung})", numbers.show(default.scores[-1])
            )
        )
    planned = f" of {numbers.planned}" if numbers.planned else ""
    failed = f", {len(numbers.failed)} failed" if numbers.failed else ""
    tiles.append(tile(f"trials begun{failed}", f"{len(numbers.trials)}{planned}"))
    if numbers.steps_used:
        words = f"steps of {numbers.steps_anew:,} that halving without resume takes"
        tiles.append(tile(words if numbers.steps_anew else "steps", f"{numbers.steps_used:,}"))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _command(numbers: SweepNumbers) -> str:
    command = winning_command(numbers)
    if not command:
        return ""
    return (
        '<h2>The best command</h2><div class="card copy">'
        f"<pre>{safe(command)}</pre><button data-copy>copy</button></div>"
    )


def _confirmation(numbers: SweepNumbers) -> str:
    confirmed = numbers.confirmation
    if confirmed is None:
        told = (
            "The best trials are not confirmed on fresh seeds yet. Their scores in the search are those by which "
            "they were chosen, so they are too good."
        )
        return f'<h2>Confirmation</h2><div class="card note">{told}</div>' if numbers.best else ""
    lines = "".join(f"<p class='note' style='margin:0'>{safe(line)}</p>" for line in verdict_lines(confirmed))
    tables = "".join(figure_html(confirmed, figure) for figure in confirmed.figures)
    seeds = ", ".join(run.seed for run in confirmed.groups[0].runs)
    hint = f"Seeds {seeds}, which no trial was trained with. The default has the preset's own settings."
    hint = f'<p class="hint above">{safe(hint)}</p>'
    return f'<h2>Confirmation on fresh seeds</h2>{hint}<div class="card">{lines}</div>{tables}'


def _charts(numbers: SweepNumbers) -> str:
    importance = ""
    if numbers.importances:
        hint = (
            "PED-ANOVA (Optuna): how much each setting tells the best quarter of the trials from the others, by "
            "the scores at the first rung, which all trials have."
        )
        importance = f'<h2>What matters</h2>{importance_chart(numbers)}<p class="hint">{hint}</p>'
    scatters = "".join(scatter_chart(numbers, parameter) for parameter in numbers.parameters)
    parallel = f"<h2>All settings together</h2>{parallel_chart(numbers)}" if len(numbers.parameters) > 1 else ""
    return (
        f"<h2>Scores</h2>{trials_chart(numbers)}{_legend(numbers)}{importance}{parallel}"
        f'<h2>Setting by setting</h2><div class="charts small">{scatters}</div>{_legend(numbers)}'
    )


def _legend(numbers: SweepNumbers) -> str:
    rungs = len(numbers.rung_steps)
    keys = [f'<span><b class="k{tone(rung + 1, rungs)}"></b>rung {rung + 1}: {steps:,} steps</span>'
            for rung, steps in enumerate(numbers.rung_steps)]  # fmt: skip
    keys += ['<span><b class="kd"></b>the preset\'s own settings</span>'] * (numbers.default is not None)
    return f'<div class="rungs">{"".join(keys)}</div>'


def _rungs(numbers: SweepNumbers) -> str:
    counts = numbers.at_rung()
    rows, before = [], 0
    for rung, steps in enumerate(numbers.rung_steps):
        scores = [t.scores[rung] for t in numbers.trials if t.rung > rung and not t.failed]
        pick = max if numbers.higher_is_better else min
        best = numbers.show(pick(scores)) if scores else text.MISSING
        middle = numbers.show(sorted(scores)[len(scores) // 2]) if scores else text.MISSING
        rows.append([f"rung {rung + 1}", f"{steps:,}", f"{steps - before:,}", str(counts[rung]), best, middle])
        before = steps
    head = ["", "at step", "new steps of a run", "trials", f"best {safe(numbers.label)}", "median"]
    hint = f"The best 1/{numbers.eta} of a rung go on from their checkpoint: no step is trained twice."
    return f'<h2>Rungs</h2>{table_html(head, rows)}<p class="hint">{hint}</p>'


def _trials(numbers: SweepNumbers) -> str:
    place = {number: i for i, number in enumerate(numbers.best)}
    ordered = sorted(numbers.trials, key=lambda trial: (place.get(trial.number, len(place)), trial.number))
    head = ["trial", numbers.label, "rung", *(parameter.name for parameter in numbers.parameters), "steps", ""]
    rows = [_row(numbers, trial, numbers.parameters) for trial in ordered[:_MOST_ROWS]]
    table = table_html([safe(cell) for cell in head], rows)
    return f"<h2>All trials</h2>{table}"


def _row(numbers: SweepNumbers, trial: ShownTrial, parameters: Sequence[ShownParameter]) -> list[str]:
    score = numbers.show(trial.scores[-1]) if trial.scores else text.MISSING
    values = [safe(trial.values[parameter.name]) for parameter in parameters]
    note = f"failed: {trial.failed}" if trial.failed else ("default" if trial.is_default else "")
    return [
        str(trial.number),
        safe(score),
        str(trial.rung or text.MISSING),
        *values,
        f"{trial.steps:,}",
        safe(note[:200]),
    ]
