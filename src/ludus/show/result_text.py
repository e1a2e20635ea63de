"""A measurement in words: its result, and the starts that failed."""

from collections.abc import Sequence

from ludus.display import Display
from ludus.errors import plain_text
from ludus.show import text
from ludus.show.results import Episode, Measurement

_WORST_SHARE, _FEWEST_WORST = 0.1, 3  # of the episodes of an environment that does not tell success


def result_lines(measurement: Measurement, display: Display) -> list[str]:
    """Which policy was measured, on what, and how good it is."""
    which = f"Result of {measured_policy(measurement)}"
    return [which, f"on {measured_on(measurement)}:", f"  {result_line(measurement, display)}"]


def measured_policy(m: Measurement) -> str:
    """'the best policy (step 40,960; the final one is of step 51,200)'."""
    if not m.best:
        return f"the policy of step {m.step:,}"
    if m.step == m.trained:
        return f"the best policy (step {m.step:,}, also the final one)"
    return f"the best policy (step {m.step:,}; the final one is of step {m.trained:,})"


def measured_on(m: Measurement) -> str:
    """'200 new starts, deterministic actions, seed 0'."""
    number = round(m.result.get("episodes", 0))
    starts = f"{number:,} {'fixed' if m.fixed_starts else 'new'} start{'s' * (number != 1)}"
    if m.chose_the_best:
        starts = f"the {starts} by which the best was chosen"
    others = "".join(f", {name} {plain_text(str(value), 200)}" for name, value in m.settings.items())
    return f"{starts}, {m.actions} actions, seed {m.seed}{others}"


def result_line(measurement: Measurement, display: Display) -> str:
    """'success 97.5 % (95 % interval 94.3–98.9) · reward 92.31 ± 5.10 · length 36.2 steps'."""
    told = {f"eval/{name}": value for name, value in measurement.result.items()}
    line = text.evaluation_line(told, display=display)
    low, high = (measurement.result.get(f"success_{edge}") for edge in ("low", "high"))
    if low is not None and high is not None:
        rough = f"({100 * low:.0f}–{100 * high:.0f})"
        line = line.replace(rough, f"(95 % interval {100 * low:.1f}–{100 * high:.1f})", 1)
    length = measurement.result.get("mean_ep_length")
    return line if length is None else f"{line} · length {length:,.1f} steps"


# Failures -------------------------------------------------------------------------------------------
def failures_of(episodes: Sequence[Episode]) -> list[Episode]:
    """Those that failed; where the environment does not tell success, a tenth with the lowest returns."""
    if any(episode.success is not None for episode in episodes):
        return [episode for episode in episodes if episode.failed]
    if len({episode.total for episode in episodes}) < 2:
        return []
    number = min(len(episodes), max(_FEWEST_WORST, round(_WORST_SHARE * len(episodes))))
    return sorted(episodes, key=lambda episode: episode.total)[:number]


def failures_title(episodes: Sequence[Episode], failed: Sequence[Episode]) -> str:
    if any(episode.success is not None for episode in episodes):
        return f"{len(failed)} of {len(episodes)} episodes failed"
    return f"The {len(failed)} lowest returns of {len(episodes)} episodes (this environment does not tell success)"


def failure_lines(episodes: Sequence[Episode], most: int) -> list[str]:
    """The failing episodes, one a line."""
    failed = failures_of(episodes)
    title = failures_title(episodes, failed)
    if not failed:
        return [f"{title}."] if episodes and episodes[0].success is not None else ["All returns are the same."]
    rows = [("episode", "return", "length", "start" if any(e.start for e in failed) else "")]
    rows += [(str(e.number), text.number(e.total), _length(e), told_start(e)) for e in failed[:most]]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(c.rjust(w) for c, w in zip(r, widths, strict=False)), r[3]]).rstrip() for r in rows]
    more = [f"… and {len(failed) - most} more"] if len(failed) > most else []
    return [f"{title}:", *lines, *more]


def _length(episode: Episode) -> str:
    return f"{episode.length:,}" + (" cut" if episode.cut else "")


def _brief(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def told_start(episode: Episode) -> str:
    """'cube (0.512, -0.231) pad (0.660, 0.120)', 'clip stroll time 1.2', 'obs (0.013, 0, -0.004, 0.02)'."""
    start, parts = dict(episode.start), []
    for thing in dict.fromkeys(name.rpartition("[")[0] for name in start if name.endswith("]")):
        columns = [name for name in start if name.endswith("]") and name.rpartition("[")[0] == thing]
        parts.append(f"{thing} ({', '.join(_brief(start.pop(name)) for name in columns)})")
    for name in [*start]:
        thing, _, axis = name.rpartition("_")
        x, y = start.get(f"{thing}_x"), start.get(f"{thing}_y")
        if axis == "x" and isinstance(x, float | int) and isinstance(y, float | int):
            parts.append(f"{thing} ({x:.3f}, {y:.3f})")
        elif not (axis == "y" and f"{thing}_x" in start):
            value = start[name]
            parts.append(f"{name} {value if isinstance(value, str) else text.number(value)}")
    return "  ".join(parts)
