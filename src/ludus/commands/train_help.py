"""`ludus train PRESET --help`: the settings that matter, one line each, of this preset and its algorithm alone.

Names, defaults and words are those of the configuration's own classes; only which come first is said here.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from ludus.algorithms.registry import find_algorithm
from ludus.algorithms.summaries import algorithm_summaries
from ludus.config import TrainConfig
from ludus.presets.preset import Preset
from ludus.setting_names import flag_of
from ludus.stages import read_stages

MOST_LINES, WIDTH = 60, 80
_MOST_OF_A_SECTION = 12  # lines, of one that FIRST does not name
_MOST_OF_AN_ENVIRONMENT = 8
_GIVEN_BY_NAME = ("id", "task", "factory", "env")  # of an environment: `gym:ID` says it

# What comes first in each section, in this order.
FIRST = {
    "loop": ("total_steps",),
    "ppo": ("learning_rate", "learning_rate_final", "gamma", "gae_lambda", "horizon", "minibatches", "batch_size",
            "update_epochs", "clip", "entropy_coef", "value_coef"),
    "distill": ("teacher", "teacher_part", "learning_rate", "horizon", "minibatches", "batch_size",
                "update_epochs"),
    "adversary": ("task_weight", "style_weight", "learning_rate"),
    "replay": ("learning_rate", "gamma", "batch_size", "train_batches", "steps", "capacity", "warmup", "n_step",
               "polyak"),
    "sac": ("alpha", "learn_alpha"),
    "td3": ("exploration", "policy_delay"),
    "flash": ("critic_width", "target_std", "longest_noise"),
    "dqn": ("epsilon", "epsilon_final", "epsilon_until"),
    "reward": ("method", "rrd_batch_size", "rrd_sample_size", "learning_rate"),
    "data": ("path", "keys", "held_out"),
    "policy": ("hidden", "activation", "memory", "network"),
    "eval": ("every", "episodes", "stochastic"),
    "checkpoint": ("every", "keep"),
    "log": ("tensorboard", "wandb", "report"),
}  # fmt: skip
_BESIDES = ("reward", "data")  # after the algorithm's own


_LAST_WORDS = [
    "1e5, 100_000 and 100k are numbers; a section may be left out: --gamma 0.9.",
    "Names of Stable-Baselines3 and CleanRL are understood: --n-steps 64.",
    "--help-all shows all settings.",
]


class Line(NamedTuple):
    flag: str
    value: str
    what: str


def help_text(preset: Preset, config: TrainConfig, width: int | None = None) -> str:
    """At most MOST_LINES lines of WIDTH columns; of more where the terminal has them."""
    width = width or max(WIDTH, min(shutil.get_terminal_size((WIDTH, 24)).columns, 120))
    groups = list(_groups(config))
    columns = [max(len(line[i]) for _, lines in groups for line in lines) for i in (0, 1)]
    head = [f"usage: ludus train {preset.name} [settings]", *textwrap.wrap(preset.summary, width)]
    bodies = [[title, *(_shown(line, columns, width) for line in lines)] for title, lines in groups]
    bodies.append(_LAST_WORDS)
    roomy = len(head) + sum(len(body) + 1 for body in bodies) <= MOST_LINES
    return "\n".join([*head, *(line for body in bodies for line in ([""] * roomy + body))])


def _groups(config: TrainConfig) -> Iterator[tuple[str, list[Line]]]:
    """Titles and what stands below them."""
    acts = find_algorithm(config.algo).acts
    shared = {field.name for field in dataclasses.fields(TrainConfig)}
    own = [field.name for field in dataclasses.fields(config) if field.name not in shared]
    own.sort(key=lambda section: section in _BESIDES)
    yield "Run", list(_run_lines(config))
    if acts:
        yield "Environment", list(_section_lines(config, "env", _MOST_OF_AN_ENVIRONMENT))
    lines = [line for section in own for line in _section_lines(config, section)]
    yield f"Algorithm ({config.algo})", lines
    if acts:
        yield "Networks", list(_section_lines(config, "policy"))
    rest = [line for section in ("eval", "checkpoint", "log") for line in _section_lines(config, section)]
    yield "Evaluation, checkpoints, logs", rest


def _run_lines(config: TrainConfig) -> Iterator[Line]:
    steps, docs = config.loop.total_steps, field_docs(type(config))
    length = str(config.loop.epochs) if config.loop.epochs else value_text(steps)
    name = "epochs" if config.loop.epochs else "total_steps"
    yield Line(flag_of(name), length, field_docs(type(config.loop))[name])
    yield Line("--algo", config.algo, " ".join(algorithm_summaries()))
    for name in ("seed", "device", *(("procs",) if config.has_ranks else ())):
        yield Line(flag_of(name), value_text(getattr(config, name)), docs[name])
    yield Line("--seeds", "", "Several runs at once: 5, 0-4 or 3,7,11; --at-once N of them.")
    yield Line("--ray", "", "Processes on the nodes of a Ray cluster, HOST:PORT or the one here.")
    yield Line("--run-dir", "runs/…", "Where the run goes.")
    yield Line("--name", "", "Of the run, and of its folder below runs/; also --tags a,b and --note TEXT.")
    yield Line("--stop-at", "", "Save and stop at this step; 'ludus resume' goes on exactly.")
    yield Line("--config", "", "Settings from a YAML file, before the flags.")
    yield Line("--from", "", "Start with the policy of a run or of RUN@100000.")
    for number, stage in enumerate(read_stages(config)[:-1], 1):
        yield Line("--stages" if number == 1 else "", f"stage {number}", stage.told)


def _section_lines(config: TrainConfig, section: str, most: int = _MOST_OF_A_SECTION) -> Iterator[Line]:
    part = getattr(config, section)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return
    names = [field.name for field in dataclasses.fields(part)]
    shown = [name for name in FIRST.get(section, names) if _applies(config, section, name)][:most]
    docs = field_docs(type(part))
    for name in shown:
        value = getattr(part, name)
        prefix = "[no-]" if isinstance(value, bool) else ""
        flag = f"--{section}.{prefix}{name.replace('_', '-')}"
        yield Line(flag, value_text(value), " | ".join(choices_of(part, name)) or docs.get(name, ""))


def choices_of(part: Any, name: str) -> tuple[str, ...]:
    """The values that a setting of a section may have, where they are few words."""
    hint = typing.get_type_hints(type(part))[name]
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _applies(config: TrainConfig, section: str, name: str) -> bool:
    value, setting = getattr(getattr(config, section), name), f"{section}.{name}"
    tree = isinstance(value, dict) and setting != "env.kwargs"  # which no flag can give whole
    if tree or dataclasses.is_dataclass(value) or config.why_useless(setting, (setting,)):
        return False
    if section == "data" and name != "path":
        return config.offline
    if setting == "policy.memory":
        return config.can_remember
    if section == "eval" and name != "every":
        return find_algorithm(config.algo).acts
    return not (section == "env" and name in _GIVEN_BY_NAME)


def value_text(value: Any) -> str:
    """As a flag takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return " ".join(f"{name} {value_text(given)}" for name, given in value.items())
    return " ".join(map(value_text, value)) if isinstance(value, tuple) else str(value)


def _shown(line: Line, columns: list[int], width: int) -> str:
    start = f"  {line.flag:{columns[0]}} {line.value:{columns[1]}}  "
    return (start + _shortened(line.what, width - len(start))).rstrip()


def _shortened(text: str, most: int) -> str:
    """The first sentence, or as much of it as there is room for."""
    text = " ".join(text.split())
    sentence = text.partition(". ")[0].removesuffix(".")
    while len(sentence) > most and ";" in sentence:
        sentence = sentence.rpartition(";")[0]
    if len(sentence) <= most:
        return sentence
    for marks in ((":", " ("), (",",)):
        clause = max(sentence.rfind(mark, 0, most) for mark in marks)
        if clause > most // 3:
            return sentence[:clause]
    return textwrap.shorten(sentence, most, placeholder=" …")


def field_docs(kind: type) -> dict[str, str]:
    """The words below each field of a dataclass, those of its bases included."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        docs |= _docs_of(base.__module__, base.__qualname__) if dataclasses.is_dataclass(base) else {}
    return docs


@functools.cache
def _docs_of(module: str, name: str) -> dict[str, str]:
    """Without those of its bases; none where the class is not at the top of a file."""
    kind = getattr(sys.modules.get(module), name, None)
    try:
        return _docs_in(textwrap.dedent(inspect.getsource(kind))) if isinstance(kind, type) else {}
    except OSError:
        return {}


def _docs_in(source: str) -> dict[str, str]:
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, after in itertools.pairwise(body):
        named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[field.target.id] = str(after.value.value)
    return found
