"""The reference, written from the code: commands, presets, algorithms, settings and the Python interface."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import ludus
from ludus.algorithms.registry import built_in
from ludus.commands import COMMANDS
from ludus.commands.train_help import field_docs, value_text
from ludus.config import TrainConfig
from ludus.envs.config import ENV_KINDS
from ludus.presets import OPEN_KINDS, all_presets
from ludus.show.meanings import MEANINGS
from pages.figures import table


def pages() -> dict[str, str]:
    """Name → text of every page."""
    return {
        "commands": commands(),
        "settings": settings(),
        "presets": presets(),
        "metrics": metrics(),
        "python": python(),
    }


def commands() -> str:
    verbs = [[f"`{f'ludus {name} {command.takes}'.strip()}`", command.what] for name, command in COMMANDS.items()]
    presets = [[f"`{name}`", preset.config.algo, preset.summary] for name, preset in all_presets().items()]
    open_kinds = [[f"`{example}`", "", what] for _, example, what in OPEN_KINDS.values()]
    algorithms = [[f"`{name}`", algorithm.summary] for name, algorithm in built_in().items()]
    parts = [
        "# Commands, presets, algorithms",
        "`ludus COMMAND --help` tells more about each.",
        table(["command", "what it does"], verbs),
        "## Presets",
        table(["preset", "algorithm", "what it trains"], presets + open_kinds),
        "## Algorithms",
        table(["`--algo`", "what learns"], algorithms),
    ]
    return "\n\n".join(parts) + "\n"


def settings() -> str:
    """Every setting of every algorithm and environment, with its default; a preset may have another."""
    parts = [
        "# Settings",
        "Every setting is a flag of `ludus train`, and a name in a YAML file and in Python. The defaults here are "
        "those of the classes; `ludus train PRESET --help-all` shows a preset's own.",
        "## Every run",
        _settings_table(TrainConfig(), "", skipped=("env",)),
    ]
    shared = {field.name for field in dataclasses.fields(TrainConfig)}
    for name, algorithm in built_in().items():
        config = algorithm.config()
        own = [field.name for field in dataclasses.fields(config) if field.name not in shared]
        parts += [f"## `--algo {name}`", _settings_table(config, "", only=tuple(own))]
    parts.append("## Environments")
    for kind, config_class in ENV_KINDS.items():
        parts += [f"### {kind}", _settings_table(config_class(), "env.")]
    return "\n\n".join(parts) + "\n"


def presets() -> str:
    """What each preset sets otherwise than the defaults."""
    parts = ["# Settings of the presets", "What a preset changes; all else is as in [settings](settings.md)."]
    for name, preset in all_presets().items():
        usual = _values(type(preset.config)()) | _values(type(preset.config.env)(), "env.")
        changed = {flag: text for flag, text in _values(preset.config).items() if usual.get(flag) != text}
        rows = [[f"`--{flag}`", f"`{text}`"] for flag, text in changed.items() if flag != "algo" and text]
        parts += [f"## {name}", preset.summary, table(["flag", "value"], rows)]
    return "\n\n".join(parts) + "\n"


def _values(config: Any, prefix: str = "") -> dict[str, str]:
    """Every setting by its flag, as a flag takes it."""
    return {flag.strip("`-"): value.strip("`") for flag, value, _ in _rows(config, prefix, (), ())}


def metrics() -> str:
    """Every metric by its name."""
    rows = [[f"`{name}`", what, usual] for name, (what, usual) in MEANINGS.items()]
    note = "`eval_stochastic/…` and `final/…` have the names of `eval/…`. [How to read them](../metrics.md)."
    return f"# Metrics by name\n\n{note}\n\n{table(['name', 'meaning', 'usual'], rows)}\n"


def _settings_table(config: Any, prefix: str, only: tuple[str, ...] = (), skipped: tuple[str, ...] = ()) -> str:
    rows = list(_rows(config, prefix, only, skipped))
    return table(["flag", "default", "meaning"], rows) if rows else "No settings of its own."


def _rows(config: Any, prefix: str, only: tuple[str, ...], skipped: tuple[str, ...]) -> Iterator[list[str]]:
    docs, types = field_docs(type(config)), typing.get_type_hints(type(config), include_extras=False)
    for field in dataclasses.fields(config):
        if field.name in skipped or (only and field.name not in only):
            continue
        value = getattr(config, field.name)
        flag = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from _rows(value, f"{flag}.", (), ())
            continue
        kind = types[field.name]
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        meaning = " ".join(docs.get(field.name, "").split())
        chosen = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
        yield [f"`--{flag}`", f"`{value_text(value)}`" if value_text(value) else "", meaning + chosen]


def python() -> str:
    """What `import ludus` gives, by its docstrings."""
    names = [name for name in ludus.__all__ if not name.startswith("__")]
    homes = {name: f"{ludus._HOMES[name]}.{name}" for name in names if name != "nn"}
    first = ("train", "Run", "load", "resume", "list_runs", "make_env", "Callback", "Algorithm")
    ordered = sorted(homes, key=lambda name: first.index(name) if name in first else len(first))
    options = "    options:\n      heading: ludus.{name}\n      toc_label: {name}\n"
    blocks = [f"::: {homes[name]}\n{options.format(name=name)}" for name in ordered]
    blocks.append("::: ludus.nn\n    options:\n      toc_label: nn\n")
    return "# Python\n\n" + "\n".join(blocks)
