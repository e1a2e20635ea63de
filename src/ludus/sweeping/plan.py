"""sweep.json: what a sweep searches, with what, and how. A folder may be a stranger's: it is held to its types."""

import dataclasses
import json
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ludus.config import TrainConfig
from ludus.envs.importing import told_name
from ludus.errors import ConfigError, LudusError, plain_text
from ludus.files import read_json, write_whole
from ludus.ranges import MOST_STEPS, read_seeds
from ludus.settings import apply_overrides
from ludus.show.meanings import meaning
from ludus.sweeping.halving import rung_steps
from ludus.sweeping.space import Parameter, read_space
from ludus.sweeping.suggesting import SAMPLERS, Sampler
from ludus.training.run_folder import CONFIG, CONFIRMED, SWEEP, TRIALS
from ludus.trust import MARK

BASE, PAGE = "base", "sweep.html"
TRIAL = "trial.json"
MOST_TRIALS = 100_000
_USUAL_TRIALS = 40
_MOST_BYTES = 1_000_000
_EVALUATIONS = 2  # up to the first rung, at least

Direction = Literal["", "max", "min"]


@dataclass(frozen=True)
class Plan:
    """What a sweep does, as sweep.json has it."""

    preset: str
    parameters: dict[str, str]  # "log(1e-4,1e-2)" by the full name of a setting
    seeds: tuple[int, ...]
    trials: int
    rungs: int = 3
    eta: int = 3
    metric: str = ""  # empty: the success rate, else the return
    direction: Direction = ""  # empty: as the metric says
    sampler: Sampler = "tpe"
    sampler_seed: int = 0
    confirm: int = 3  # of the best trials
    confirm_seeds: int = 3
    flags: tuple[str, ...] = ()  # of `ludus train`, that make the preset what all trials share
    facts: dict[str, Any] = field(default_factory=dict)  # started, command, commit, hardware, versions, finished

    @property
    def told(self) -> str:
        return plain_text(told_name(self.preset), 100)

    @property
    def fresh_seeds(self) -> list[int]:
        """That no trial was trained with."""
        first = max(self.seeds) + 1
        return list(range(first, first + self.confirm_seeds))

    def higher_is_better(self, metric: str) -> bool:
        if self.direction:
            return self.direction == "max"
        known = meaning(metric)
        return known is None or not known.usual.startswith("falls")

    def check(self) -> None:
        limits = {
            "trials": (1, MOST_TRIALS), "rungs": (1, 10), "eta": (2, 100), "confirm": (0, 100),
            "confirm_seeds": (2, 1_000),
        }  # fmt: skip
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not least <= value <= most:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is {value}; it must be at least {least} and at most {most:,}.")
        if self.sampler not in SAMPLERS:
            raise ConfigError(f"--sampler is {self.sampler!r}; it must be {' or '.join(SAMPLERS)}.")
        if self.direction not in typing.get_args(Direction):
            raise ConfigError(f"--direction is {self.direction!r}; it must be max or min.")
        if max(self.seeds) + self.confirm_seeds > 2**62:
            raise ConfigError("--seeds are so large that none would be left for the confirmation.")


def plan_of(
    config: TrainConfig,
    parameters: Mapping[str, Any] | Iterable[str],
    seeds: Sequence[int],
    trials: int = 0,
    hours: float = 0.0,
    **given: Any,
) -> Plan:
    """Of what a user gave; what is missing (0, None, −1 of `confirm`) is as usual."""
    space = read_space(parameters, config)
    chosen = {name: value for name, value in given.items() if value or (name == "confirm" and value == 0)}
    if chosen.get("confirm") == -1:
        del chosen["confirm"]
    usual = MOST_TRIALS if hours else _USUAL_TRIALS
    return Plan(
        "", {name: parameter.text for name, parameter in space.items()}, tuple(seeds), trials or usual, **chosen
    )


@dataclass(frozen=True)
class SavedSweep:
    """A sweep as it lies on the disk, without its trials."""

    folder: Path
    plan: Plan
    base: TrainConfig  # what all trials share
    space: dict[str, Parameter]

    @property
    def steps(self) -> list[int]:
        """Where the rungs are."""
        return rung_steps(self.base.loop.total_steps, self.plan.rungs, self.plan.eta)

    def trial_folder(self, number: int) -> Path:
        return self.folder / TRIALS / f"trial_{number:04d}"

    def trial_config(self, values: dict[str, Any]) -> TrainConfig:
        """Evaluated often enough for the first rung; without what only the end of a single run needs."""
        every = min(self.base.eval.every, max(1, self.steps[0] // _EVALUATIONS))
        lean = {"eval.every": every, "eval.final_episodes": 0, "log.report": False, "log.tensorboard": False}
        return apply_overrides(self.confirm_config(values), lean)

    def confirm_config(self, values: dict[str, Any]) -> TrainConfig:
        """As `ludus train` would train it, but without a report of each run."""
        return apply_overrides(self.base, {**values, "log.report": False})


def write_plan(folder: Path, plan: Plan) -> None:
    write_whole(folder / SWEEP, json.dumps(dataclasses.asdict(plan), indent=1))


def read_plan(folder: Path) -> Plan:
    """Refused where a link would lead elsewhere, or the file is not what Ludus writes."""
    for name in (SWEEP, BASE, TRIALS, CONFIRMED, f"{BASE}/{CONFIG}", f"{BASE}/{MARK}"):
        if (folder / name).is_symlink():  # what is written there would land outside the sweep
            raise ConfigError(f"{folder / name} is a link. Put what it points to in its place.")
    try:
        found = read_json(folder / SWEEP, _MOST_BYTES)
        plan = _plan_of(found)
        plan.check()
    except FileNotFoundError:
        raise ConfigError(f"{folder} is no sweep: it has no {SWEEP}.") from None
    except (OSError, LudusError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder / SWEEP} does not describe a sweep: {plain_text(str(error), 300)}") from None
    return plan


_KINDS: dict[str, type | tuple[type, ...]] = {
    "preset": str, "parameters": dict, "seeds": list, "trials": int, "rungs": int, "eta": int, "metric": str,
    "direction": str, "sampler": str, "sampler_seed": int, "confirm": int, "confirm_seeds": int, "flags": list,
    "facts": dict,
}  # fmt: skip


def _plan_of(found: Any) -> Plan:
    if not isinstance(found, dict):
        raise TypeError("it is no table")
    for name, kind in _KINDS.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise TypeError(f"{name} is not what it should be")
    texts = [*found["parameters"].values(), *found["flags"]]
    if not all(isinstance(text, str) for text in texts) or not all(type(s) is int for s in found["seeds"]):
        raise TypeError("a part is not what it should be")
    seeds, flags = tuple(read_seeds(found["seeds"])), tuple(plain_text(flag, 500) for flag in found["flags"])
    own = {name: found[name] for name in _KINDS}
    plan = Plan(**(own | {"seeds": seeds, "flags": flags}))
    return replace(plan, preset=plain_text(plan.preset, 500), metric=plain_text(plan.metric, 200))


def make_sweep(folder: Path, plan: Plan, base: TrainConfig) -> SavedSweep:
    """Refused where what it asks for cannot be searched."""
    plan.check()
    if base.loop.epochs or not 1 <= base.loop.total_steps <= MOST_STEPS:
        raise ConfigError("A sweep divides the steps of a training into rungs: say how many, --total-steps 300k.")
    return SavedSweep(folder, plan, base, read_space(plan.parameters, base))
