"""What a MuJoCo task pays, ends on and shows: named terms with weights, which settings change.

A term is a plain function of the task. The terms of a task are a table beside its functions; `env.rewards`,
`env.terminations` and `env.observations` change it, from Python, YAML or the command line:

    rewards: {success: 30, fallen: null, smooth: {function: "my_module:smooth", weight: -0.01}}

A reward term gives [rows] numbers, a termination term [rows] bool, an observation term, which is asked for some
`rows`, [n, size] numbers. Each reward term is summed over the episode, which makes the metric `reward/NAME`; each
termination term makes `ended/NAME`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ludus.envs.importing import find_callable
from ludus.errors import ConfigError, EnvError, LudusError, did_you_mean, tell_exception

if TYPE_CHECKING:
    from ludus.envs.mujoco.task import Rows, SimTask

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Term:
    """A function of a task (of an observation: of a task and rows), its weight and its further arguments."""

    function: Function
    weight: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False  # the user's: what it returns is looked at

    def __call__(self, *arguments: Any) -> Tensor:
        if not self.own:
            return self.function(*arguments)
        try:
            return self.function(*arguments, **self.params)
        except LudusError:
            raise
        except Exception as error:
            name = f"{self.function.__module__}:{self.function.__qualname__}"
            raise EnvError(f"The term {name} raised {tell_exception(error)}") from error


Table = Mapping[str, Term]


# Terms that every task has, at weight 0 --------------------------------------------------------------
def action_size(task: "SimTask") -> Tensor:
    """Squared length of the action."""
    return task.action.square().sum(1)


def action_change(task: "SimTask") -> Tensor:
    """Squared difference to the action of the step before; an episode begins after an action of zeros."""
    return (task.action - task.last_action).square().sum(1)


def last_actions(task: "SimTask", rows: "Rows") -> Tensor:
    """The two newest actions that were chosen, be they carried out yet or not."""
    return torch.cat([task.action[rows], task.last_action[rows]], dim=1)


EVERYWHERE: dict[str, Table] = {
    "rewards": {function.__name__: Term(function, 0.0, own=True) for function in (action_size, action_change)},
    "terminations": {},
    "observations": {"last_actions": Term(last_actions, 0.0, own=True)},
}


# A task's terms ------------------------------------------------------------------------------------
def choose(kind: str, defaults: Table, settings: Mapping[str, Any]) -> dict[str, Term]:
    """The terms of a task with what the settings change; those of weight 0 are left out."""
    known = {**defaults, **EVERYWHERE[kind]}
    chosen = dict(known)
    for name, value in settings.items():
        chosen[name] = _changed(kind, name, value, known.get(name), known)
    return {name: term for name, term in chosen.items() if term.weight != 0}


def _changed(kind: str, name: str, value: Any, default: Term | None, known: Iterable[str]) -> Term:
    if isinstance(value, str):
        value = {"function": value}
    elif value is True:
        value = {}  # with its usual weight
    settings: dict[str, Any] = dict(value) if isinstance(value, dict) else {"weight": value or 0.0}
    path, weight = settings.pop("function", None), settings.pop("weight", None)
    if path is not None:
        what = f"{kind[:-1]} term"
        function = find_callable(path, "", what, ())
        _refuse_misfit(function, kind, name, path, settings)
        return Term(function, 1.0 if weight is None else float(weight), settings, own=True)
    if default is None:
        raise ConfigError(
            f"--env.{kind} names {name!r}, which is no term of this task.{did_you_mean(name, known)} There are "
            f'{", ".join(known) or "none"}; one of your own needs {{"function": "my_module:{name}"}}.'
        )
    if settings:
        raise ConfigError(
            f"--env.{kind} gives {name!r} the arguments {', '.join(settings)}; it takes a weight alone."
        )
    usual = default.weight or 1.0
    return Term(default.function, usual if weight is None else float(weight), default.params, default.own)


def _refuse_misfit(function: Function, kind: str, name: str, path: str, params: Mapping[str, Any]) -> None:
    arguments = ("task", "rows") if kind == "observations" else ("task",)
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **params)
    except TypeError as error:
        given = ", ".join([*arguments, *params])
        raise ConfigError(
            f"--env.{kind}: the term {name!r}, {path}{signature}, cannot be called with {given}: {error}."
        ) from error


class Rewards:
    """Pays the sum of weighted terms, in their order, and keeps each one's sum over the running episodes."""

    def __init__(
        self, terms: Table, rows: int, dtype: torch.dtype, device: torch.device, fused: bool = True
    ) -> None:
        """`fused`: a term is multiplied and added in one operation, which rounds once; else each rounds."""
        self.terms, self._rows, self._fused = dict(terms), rows, fused
        self._dtype = dtype
        self.totals = torch.zeros((len(terms), rows), dtype=dtype, device=device)
        self._names = [f"reward/{name}" for name in terms]
        self._paid = list(zip(self.terms.items(), self.totals.unbind(), strict=True))

    def pay(self, task: "SimTask") -> Tensor:
        """[rows] what the newest step is worth."""
        reward: Tensor | None = None
        for (name, term), total in self._paid:
            value = term(task)
            if term.own:
                _refuse_other_shapes(value, (self._rows,), f"The reward term {name!r}")
            if self._fused and reward is not None:
                reward.add_(value, alpha=term.weight)
                total.add_(value, alpha=term.weight)
                continue
            paid = value * term.weight
            total += paid
            reward = paid if reward is None else reward.add_(paid)
        return self.totals.new_zeros(self._rows) if reward is None else reward

    def blame(self, reward: Tensor, task: str) -> None:
        """A sentence for the term that made a reward NaN or infinite, if one did."""
        wrong = ~self.totals.isfinite() & ~reward.isfinite()  # [terms, rows]
        for name, rows in zip(self.terms, wrong, strict=True):
            if bool(rows.any()):
                row = int(rows.nonzero()[0])
                raise EnvError(
                    f"The reward term {name!r} of {task} is not a finite number (row {row}): find the division, "
                    "the root or the logarithm in it that goes wrong."
                )

    def metrics(self) -> dict[str, Tensor]:
        """`reward/NAME`: the weighted sum over the episode so far."""
        now = self.totals.to(torch.float32, copy=True)
        return dict(zip(self._names, now.unbind(), strict=True))

    def forget(self, rows: Tensor) -> None:
        """New episodes in `rows`: sorted indices, or [rows] bool."""
        if rows.dtype == torch.bool:
            self.totals.masked_fill_(rows, 0.0)
        else:
            self.totals[:, rows] = 0.0


class Terminations:
    """Ends an episode where any term says so."""

    def __init__(self, terms: Table, never: Tensor) -> None:
        self.terms, self._never = dict(terms), never

    def judge(self, task: "SimTask") -> tuple[Tensor, dict[str, Tensor]]:
        """([rows] bool, `ended/NAME` of every term)."""
        terminated, metrics = self._never, {}
        for name, term in self.terms.items():
            value = term(task)
            if term.own:
                _refuse_other_shapes(value, tuple(self._never.shape), f"The termination term {name!r}")
                value = value.bool()
            terminated = value if terminated is self._never else terminated | value
            metrics[f"ended/{name}"] = value.float()
        return terminated, metrics


class Observations:
    """Shows the terms side by side."""

    def __init__(self, terms: Table) -> None:
        self.terms = dict(terms)
        self._shown = list(self.terms.items())
        self._plain = all(term.weight == 1.0 and not term.own for term in self.terms.values())

    def show(self, task: "SimTask", rows: "Rows") -> Tensor:
        """[n, size]"""
        if self._plain:
            return torch.cat([term(task, rows) for _, term in self._shown], dim=1)
        return torch.cat(self.parts(task, rows), dim=1)

    def parts(self, task: "SimTask", rows: "Rows") -> list[Tensor]:
        return [self._part(name, term, task, rows) for name, term in self._shown]

    def _part(self, name: str, term: Term, task: "SimTask", rows: "Rows") -> Tensor:
        value = term(task, rows)
        if term.own:
            n = task.num_rows if isinstance(rows, slice) else len(rows)
            if not isinstance(value, Tensor) or value.dim() != 2 or len(value) != n:
                raise EnvError(
                    f"The observation term {name!r} must return [{n}, size] numbers, not {_shape(value)}."
                )
            value = value.to(task.device)
        return value if term.weight == 1.0 else value * term.weight

    def columns(self, task: "SimTask", rows: "Rows") -> dict[str, slice]:
        """Where each term stands in a row."""
        places, start = {}, 0
        for name, part in zip(self.terms, self.parts(task, rows), strict=True):
            places[name] = slice(start, start + part.shape[1])
            start += part.shape[1]
        return places


def _refuse_other_shapes(value: Any, shape: tuple[int, ...], what: str) -> None:
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        raise EnvError(f"{what} must return a tensor of shape {list(shape)}, not {_shape(value)}.")


def _shape(value: Any) -> str:
    return f"one of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
