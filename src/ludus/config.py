"""Typed configuration of a run. Every field exists once; files and flags are checked against it."""

import dataclasses
import math
import operator
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ludus.algorithms.ppo import PPOConfig, check_divides
from ludus.buffers.segments import SegmentSchedule
from ludus.envs import ENV_KINDS, EnvConfig
from ludus.envs.kuka.task import KukaConfig
from ludus.errors import ConfigError, did_you_mean
from ludus.policies.policy import PolicyConfig


@dataclass(frozen=True)
class LoopConfig:
    """How long to train: epoch › cycle › iteration › batch.

    A batch is one gradient step, an iteration one rollout and its batches, a cycle one row of metrics,
    an epoch one evaluation and checkpoint.
    """

    total_steps: int = 1_000_000
    """Environment steps in all; used where epochs is 0."""
    epochs: int = 0
    """Epochs in all; 0: as many as total_steps needs."""
    cycles: int = 0
    """Cycles an epoch; 0: as many as eval.every needs."""
    iterations: int = 1
    """Iterations a cycle."""


# The loop's own settings may be given without their section: total_steps for loop.total_steps.
LOOP_NAMES = tuple(f.name for f in dataclasses.fields(LoopConfig))


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on starts that training never uses."""

    every: int = 50_000
    """Environment steps between evaluations; used where loop.cycles is 0."""
    episodes: int = 20
    """Episodes of each evaluation."""
    stochastic: bool = True
    """Evaluate with sampled actions too, not only with the most likely ones."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving a run."""

    every: int = 0
    """Environment steps between checkpoints, besides the one at the end of every epoch."""
    keep: int = 3
    """Newest checkpoints kept; the best one is kept besides."""


@dataclass(frozen=True)
class LogConfig:
    """Where metrics go, besides the terminal and metrics.jsonl."""

    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: str = ""
    """Name of a Weights & Biases project to log to; empty: none."""
    report: bool = True
    """Write report.html, with a replay of the best policy, when the training ends."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that determines a run."""

    seed: int = 0
    """On a CPU, the same seed gives the same run, bit for bit."""
    device: str = "cpu"
    """Where policy and buffer live: cpu or cuda."""
    groups: int = 1
    """Groups of environments in flight: with 2, one simulates while the policy acts for the other."""
    torch_threads: int = 1
    """Threads of one network operation; small networks want 1."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Of the factors in matrix products; sums stay float32. Coarser is faster where the hardware has it."""
    cuda_graphs: bool = True
    """On a GPU, record steps and updates once and replay them; off, to find an error."""
    env: EnvConfig = field(default_factory=KukaConfig)
    """The environment."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The networks."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """The algorithm."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    """How long to train."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving."""
    log: LogConfig = field(default_factory=LogConfig)
    """Logging."""


@dataclass(frozen=True)
class Plan:
    """The loop in numbers. The last epoch and cycle may be shorter than the others."""

    schedule: SegmentSchedule
    batches_per_iteration: int
    iterations_per_cycle: int
    cycles_per_epoch: int
    total_iterations: int

    @property
    def steps_per_iteration(self) -> int:
        return self.schedule.segments * self.schedule.horizon

    @property
    def total_steps(self) -> int:
        return self.total_iterations * self.steps_per_iteration

    @property
    def iterations_per_epoch(self) -> int:
        return self.iterations_per_cycle * self.cycles_per_epoch

    @property
    def epochs(self) -> int:
        return math.ceil(self.total_iterations / self.iterations_per_epoch)

    def lines(self) -> list[str]:
        return [
            f"{self.total_steps:,} steps = {self.epochs} epochs › {self.cycles_per_epoch} cycles › "
            f"{self.iterations_per_cycle} iterations of {self.steps_per_iteration:,} steps › "
            f"{self.batches_per_iteration} batches"
        ]


# Settings that must be at least so large. What an environment adds of its own is checked where it is made.
_MINIMA = {
    0: ("seed", "loop.epochs", "loop.cycles", "checkpoint.every", "ppo.learning_rate", "ppo.learning_rate_final",
        "ppo.gamma", "ppo.gae_lambda", "ppo.clip", "ppo.value_clip", "ppo.std_final", "ppo.target_kl",
        "ppo.segments", "ppo.rho_clip", "ppo.c_clip", "ppo.prio_alpha", "ppo.prio_beta"),
    1: ("env.num_envs", "ppo.horizon", "ppo.minibatches", "ppo.update_epochs", "loop.iterations", "groups",
        "torch_threads", "eval.episodes", "eval.every", "checkpoint.keep", "policy.memory_size"),
}  # fmt: skip


def _check_numbers(config: TrainConfig) -> None:
    for least, names in _MINIMA.items():
        for name in names:
            value = operator.attrgetter(name)(config)
            if not value >= least:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is {value}; it must be at least {least}.")
    if not config.policy.initial_std > 0:
        raise ConfigError(f"--policy.initial-std is {config.policy.initial_std}; it must be more than 0.")
    if min(config.policy.hidden, default=1) < 1:
        raise ConfigError(f"--policy.hidden is {config.policy.hidden}; a layer has at least 1 unit.")


def check_config(config: TrainConfig) -> None:
    """A clear error where the numbers make no sense, before anything is built."""
    _check_numbers(config)
    if config.device.partition(":")[0] not in ("cpu", "cuda"):  # torch knows more, but not all work there
        raise ConfigError(f"--device {config.device} is neither cpu nor cuda; 'ludus doctor' shows what is here.")
    if config.env.num_envs % config.groups:
        raise ConfigError(
            f"--env.num-envs {config.env.num_envs} does not divide into --groups {config.groups}; "
            f"{config.env.num_envs + -config.env.num_envs % config.groups} does."
        )
    if not (config.loop.epochs or config.loop.total_steps >= 1):
        raise ConfigError("Say how long to train: --total-steps or --epochs.")


def make_plan(config: TrainConfig, rows: int) -> Plan:
    """How many of what, for so many rows (environments × agents)."""
    loop, ppo = config.loop, config.ppo
    schedule = SegmentSchedule(rows, ppo.segments or rows, ppo.horizon)
    check_divides(ppo, schedule, config.policy.memory != "none")
    steps = schedule.segments * schedule.horizon
    batches = ppo.minibatches * ppo.update_epochs
    if loop.epochs:
        cycles = loop.cycles or max(1, round(config.eval.every / (steps * loop.iterations)))
        return Plan(schedule, batches, loop.iterations, cycles, loop.epochs * cycles * loop.iterations)
    total = math.ceil(loop.total_steps / steps)
    epochs = max(1, round(loop.total_steps / config.eval.every))  # of equal length, near the wanted one
    cycles = loop.cycles or math.ceil(total / (epochs * loop.iterations))
    return Plan(schedule, batches, loop.iterations, cycles, total)


# Files and overrides ----------------------------------------------------------------------------
def to_dict(config: Any) -> Any:
    """Plain values for YAML and JSON; an environment's kind is written beside its fields."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values = {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        kind = next((name for name, cls in ENV_KINDS.items() if type(config) is cls), None)
        return {"kind": kind, **values} if kind else values
    return list(config) if isinstance(config, tuple) else config


def from_dict(values: dict[str, Any], base: TrainConfig) -> TrainConfig:
    """`base` with the given values; unknown names and wrong types are refused."""
    return _replace(base, values, "")


def load_config(path: Path, base: TrainConfig) -> TrainConfig:
    """A configuration file over a preset."""
    try:
        values = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} does not hold a configuration (names and values).")
    try:
        return from_dict(values, base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def apply_overrides(config: TrainConfig, overrides: dict[str, Any]) -> TrainConfig:
    """`{"seed": 1, "ppo.learning_rate": 1e-3}` or nested dicts over a configuration."""
    nested: dict[str, Any] = {}
    for name, value in overrides.items():
        *path, last = (f"loop.{name}" if name in LOOP_NAMES else name).split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = to_dict(value)
    return from_dict(nested, config)


def _replace(base: Any, values: dict[str, Any], path: str) -> Any:
    values = dict(values)
    kind = values.pop("kind", None)
    if kind is not None and path == "env.":
        if kind not in list(ENV_KINDS):  # a list, because YAML can say anything, also what has no hash
            raise ConfigError(f"unknown environment kind {kind!r}; one of {', '.join(ENV_KINDS)}.")
        if type(base) is not ENV_KINDS[kind]:
            base = ENV_KINDS[kind]()
    hints = typing.get_type_hints(type(base))
    changes = {}
    for name, value in values.items():
        if name not in hints:
            raise ConfigError(f"unknown setting '{path}{name}'.{did_you_mean(str(name), hints)}")
        current = getattr(base, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise ConfigError(f"{path + name} needs names and values, not {value!r}.")
            changes[name] = _replace(current, value, f"{path}{name}.")
        else:
            changes[name] = _coerce(value, hints[name], path + name)
    return dataclasses.replace(base, **changes)


def _coerce(value: Any, hint: Any, name: str) -> Any:
    """`value` as the field's type, or a clear error."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_coerce(v, arguments[0], name) for v in value)
    if origin is typing.Literal and value in arguments:
        return value
    if origin in (typing.Union, types.UnionType):
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str):  # YAML reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            pass
    if origin is dict and isinstance(value, dict):
        return value
    if hint in (int, bool, str) and type(value) is hint:
        return value
    wanted = " or ".join(map(repr, arguments)) if origin is typing.Literal else getattr(hint, "__name__", hint)
    raise ConfigError(f"{name} is {value!r}; it must be {wanted}.")
