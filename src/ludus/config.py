"""Typed configuration of a run. Every field exists once; files and flags are checked against it."""

import copy
import dataclasses
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from ludus.algorithms.adversary import AdversaryConfig
from ludus.algorithms.distill import DistillConfig
from ludus.algorithms.ppo import PPOConfig
from ludus.algorithms.replay_config import Algorithm, DQNConfig, ReplayConfig, SACConfig, TD3Config
from ludus.algorithms.rollouts import RolloutConfig, check_divides
from ludus.algorithms.rrd import RewardConfig, check_reward_config
from ludus.buffers.segments import SegmentSchedule
from ludus.data.config import DataConfig
from ludus.envs import ENV_KINDS, EnvConfig
from ludus.envs.kuka.task import KukaConfig
from ludus.errors import ConfigError, did_you_mean, plain_text
from ludus.files import read_bounded
from ludus.policies.policy import LAYER_SETTINGS, LAYERS_AFTER, PolicyConfig
from ludus.ranges import LARGEST_SEED, MOST_ENVS, MOST_STEPS, MOST_THREADS, Range, check_fields


@dataclass(frozen=True)
class LoopConfig:
    """How long to train: epoch › cycle › iteration › batch.

    A batch is one gradient step, an iteration some environment steps and their batches, a cycle one row of
    metrics, an epoch one evaluation and checkpoint.
    """

    total_steps: Annotated[int, Range(0, MOST_STEPS)] = 1_000_000
    """Environment steps in all (batches, where nothing is collected); used where epochs is 0."""
    epochs: Annotated[int, Range(0, MOST_STEPS)] = 0
    """Epochs in all; 0: as many as total_steps needs."""
    cycles: Annotated[int, Range(0, MOST_STEPS)] = 0
    """Cycles an epoch; 0: as many as eval.every needs."""
    iterations: Annotated[int, Range(1, MOST_STEPS)] = 1
    """Iterations a cycle."""


_FILE_BYTES = 200_000  # of a configuration file; what a run writes has about 5,000

# Settings that may be given without their section: total_steps for loop.total_steps.
SHORT_NAMES = {f.name: f"loop.{f.name}" for f in dataclasses.fields(LoopConfig)} | {
    "train_batches": "replay.train_batches",
    "batch_size": "replay.batch_size",
    "train_target": "replay.train_target",
    "rrd_batch_size": "reward.rrd_batch_size",
    "rrd_sample_size": "reward.rrd_sample_size",
    "data": "data.path",
    "clip": "env.clips",
}


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on starts that training never uses."""

    every: Annotated[int, Range(1, MOST_STEPS)] = 50_000
    """Environment steps between evaluations; used where loop.cycles is 0."""
    episodes: Annotated[int, Range(1, MOST_ENVS)] = 20
    """Episodes of each evaluation."""
    max_steps: Annotated[int, Range(0, MOST_STEPS)] = 0
    """Steps after which an episode is cut and counted as it is; 0: the environment's limit, 10,000 without one."""
    stochastic: bool = True
    """Evaluate with sampled actions too, not only with the most likely ones."""
    each_cycle: bool = False
    """Evaluate at the end of every cycle instead of every epoch."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving a run."""

    every: Annotated[int, Range(0, MOST_STEPS)] = 0
    """Environment steps between checkpoints, besides the one at the end of every epoch."""
    keep: Annotated[int, Range(1, 1_000_000)] = 3
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

    algo: Algorithm = "ppo"
    """ppo, sac, td3 or dqn; distill: learn from a trained policy that sees more (--distill.teacher); reward: learn
    a reward alone, from recorded episodes (--data)."""
    seed: Annotated[int, Range(0, LARGEST_SEED)] = 0
    """On a CPU, the same seed gives the same run, bit for bit."""
    device: str = "cpu"
    """Where policy and buffer live: cpu or cuda."""
    groups: Annotated[int, Range(1, MOST_THREADS)] = 1
    """Groups of environments in flight: with 2, one simulates while the policy acts for the other."""
    torch_threads: Annotated[int, Range(1, MOST_THREADS)] = 1
    """Threads of one network operation; small networks want 1."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Of the factors in matrix products; sums stay float32. Coarser is faster where the hardware has it."""
    cuda_graphs: bool = True
    """On a GPU, record steps and updates once and replay them; off, to find an error."""
    episodic_reward: bool = False
    """Pay the sum of an episode's rewards at its end, and nothing before."""
    env: EnvConfig = field(default_factory=KukaConfig)
    """The environment."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The networks."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Of --algo ppo."""
    adversary: AdversaryConfig = field(default_factory=AdversaryConfig)
    """Of --algo ppo, where the environment shows motion to imitate."""
    distill: DistillConfig = field(default_factory=DistillConfig)
    """Of --algo distill."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Of sac, td3 and dqn."""
    sac: SACConfig = field(default_factory=SACConfig)
    """Of --algo sac."""
    td3: TD3Config = field(default_factory=TD3Config)
    """Of --algo td3."""
    dqn: DQNConfig = field(default_factory=DQNConfig)
    """Of --algo dqn."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """A learned reward."""
    data: DataConfig = field(default_factory=DataConfig)
    """Recorded episodes, instead of an environment's."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    """How long to train."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving."""
    log: LogConfig = field(default_factory=LogConfig)
    """Logging."""

    @property
    def rollout(self) -> RolloutConfig:
        """The settings of the rollouts that ppo or distill learns from."""
        return self.distill if self.algo == "distill" else self.ppo

    @property
    def offline(self) -> bool:
        """Whether all is learned from recorded episodes, and no environment is stepped but to evaluate."""
        return bool(self.data.path) or self.algo == "reward"


@dataclass(frozen=True)
class Plan:
    """The loop in numbers. The last epoch and cycle may be shorter than the others."""

    steps_per_iteration: int
    batches_per_iteration: int
    iterations_per_cycle: int
    cycles_per_epoch: int
    total_iterations: int
    unit: str = "steps"  # "batches" where no environment is stepped

    @property
    def total_steps(self) -> int:
        return self.total_iterations * self.steps_per_iteration

    @property
    def iterations_per_epoch(self) -> int:
        return self.iterations_per_cycle * self.cycles_per_epoch

    @property
    def epochs(self) -> int:
        return math.ceil(self.total_iterations / self.iterations_per_epoch)

    @property
    def total_batches(self) -> int:
        return self.total_iterations * self.batches_per_iteration

    def lines(self) -> list[str]:
        if self.unit == "batches":
            levels = (self.epochs, self.cycles_per_epoch, self.iterations_per_cycle, self.batches_per_iteration)
            counts = " × ".join(f"{n:,}" for n in levels)
            whole = self.total_iterations == self.epochs * self.iterations_per_epoch
            sign = "=" if whole else "≥"  # the last epoch may be shorter
            return [f"epochs × cycles × iterations × batches: {counts} {sign} {self.total_batches:,} batches"]
        epochs = _count(self.epochs, "epoch", "epochs")
        cycles = _count(self.cycles_per_epoch, "cycle", "cycles")
        iterations = _count(self.iterations_per_cycle, "iteration", "iterations")
        batches = _count(self.batches_per_iteration, "batch", "batches")
        steps = f"{self.steps_per_iteration:,} steps"
        return [f"{self.total_steps:,} steps = {epochs} › {cycles} › {iterations} of {steps} › {batches}"]


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def check_values(config: TrainConfig) -> None:
    """A clear error where a number is out of its field's range or a name is unknown, wherever they come from."""
    check_fields(config)


def check_config(config: TrainConfig) -> None:
    """A clear error where the numbers make no sense, before anything is built."""
    check_values(config)
    if config.device.partition(":")[0] not in ("cpu", "cuda"):  # torch knows more, but not all work there
        raise ConfigError(f"--device {config.device} is neither cpu nor cuda; 'ludus doctor' shows what is here.")
    if config.env.num_envs % config.groups:
        raise ConfigError(
            f"--env.num-envs {config.env.num_envs} does not divide into --groups {config.groups}; "
            f"{config.env.num_envs + -config.env.num_envs % config.groups} does."
        )
    if not (config.loop.epochs or config.loop.total_steps >= 1):
        raise ConfigError("Say how long to train: --total-steps or --epochs.")
    check_reward_config(config.reward, None)
    _check_combination(config)


def _check_combination(config: TrainConfig) -> None:
    """What goes together and what does not."""
    algo, method = config.algo, config.reward.method
    if algo == "distill" and (method != "none" or config.data.path or config.episodic_reward):
        raise ConfigError("Distillation learns from its teacher alone: leave --data, --reward and returns out.")
    if algo == "ppo" and (method != "none" or config.data.path):
        what = "recorded episodes (--data)" if config.data.path else f"--reward.method {method}"
        raise ConfigError(f"PPO learns from its own rollouts; with {what} take --algo sac or td3.")
    if algo == "reward" and not config.data.path:
        raise ConfigError("Say which recorded episodes to learn from: --data FILE; 'ludus record' makes some.")
    if algo == "reward" and not config.reward.learned:
        raise ConfigError(f"--algo reward learns a reward network: --reward.method {method} has none; take rrd.")
    if algo in ("sac", "td3", "dqn") and config.data.path and method != "none":
        raise ConfigError(
            "Offline training takes the reward that is in the data. Learn one with --algo reward, write it into "
            "a copy with 'ludus label', and train on that with --data.reward learned_rewards."
        )
    shown = getattr(config.env, "discriminate", "nothing")
    if algo != "ppo" and shown != "nothing":
        raise ConfigError(
            f"--env.discriminate {shown} is for a discriminator, which only PPO has: take --algo ppo, "
            "or --env.discriminate nothing."
        )
    if method != "none" and config.replay.n_step > 1:
        raise ConfigError(f"--replay.n-step must be 1 with --reward.method {method}, which pays step by step.")
    if config.replay.bc > 0 and not config.offline:
        raise ConfigError("--replay.bc imitates recorded episodes: give some with --data, or leave it at 0.")
    if config.replay.bc > 0 and algo not in ("sac", "td3"):
        raise ConfigError(f"--replay.bc is of --algo sac and td3: with {algo} nothing is imitated; leave it at 0.")


def make_schedule(config: TrainConfig, rows: int) -> SegmentSchedule:
    """PPO's segments, for so many rows (environments × agents)."""
    rollout = config.rollout
    schedule = SegmentSchedule(rows, rollout.segments or rows, rollout.horizon)
    # Whether a network of the user's has a hidden state is known once it is made: PPO asks again.
    whole = config.policy.memory != "none" and not config.policy.network
    prioritized = config.algo == "ppo" and config.ppo.prio_alpha > 0
    check_divides(rollout, schedule, whole or prioritized, config.algo)
    return schedule


def make_plan(config: TrainConfig, steps: int, batches: int, unit: str = "steps") -> Plan:
    """How many of what, with so many steps and batches an iteration."""
    loop = config.loop
    if loop.epochs:
        cycles = loop.cycles or max(1, round(config.eval.every / (steps * loop.iterations)))
        return Plan(steps, batches, loop.iterations, cycles, loop.epochs * cycles * loop.iterations, unit)
    total = math.ceil(loop.total_steps / steps)
    iterations = min(loop.iterations, total)
    epochs = max(1, round(loop.total_steps / config.eval.every))  # of equal length, near the wanted one
    cycles = min(loop.cycles or math.ceil(total / (epochs * iterations)), math.ceil(total / iterations))
    return Plan(steps, batches, iterations, cycles, total, unit)


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
    values = _read_values(path)
    try:
        return from_dict(values, base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def algo_in(path: Path) -> str:
    """The algorithm a configuration file asks for, if any: it brings defaults of its own."""
    return str(_read_values(path).get("algo", ""))


class PlainDumper(yaml.SafeDumper):
    """Writes every value where it stands: readers refuse references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _PlainLoader(yaml.SafeLoader):
    """Refuses references to other values: a few lines of them can stand for more than any memory holds."""

    def construct_yaml_int(self, node: Any) -> int:
        number = int(super().construct_yaml_int(node))
        if abs(number) >= 2**64:
            raise ValueError("a whole number of more than 64 bits")
        return number

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers from one value to another (& and *): write the values out")
        return super().compose_node(parent, index)


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)


def _read_values(path: Path) -> dict[str, Any]:
    try:
        values = _PlainLoader(read_bounded(path, _FILE_BYTES).decode()).get_single_data()
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}.") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be read.") from None
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        reason = plain_text(" ".join(str(error).split()), 300)
        raise ConfigError(f"{path} cannot be read as YAML: {reason}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} does not hold a configuration (names and values).")
    return values


def apply_overrides(config: TrainConfig, overrides: dict[str, Any]) -> TrainConfig:
    """`{"seed": 1, "ppo.learning_rate": 1e-3}` or nested dicts over a configuration."""
    nested: dict[str, Any] = {}
    for name, value in overrides.items():
        *path, last = _full_name(name, value).split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = copy.deepcopy(to_dict(value))  # what is added to it is not the caller's
    return settle(from_dict(nested, config), _names(overrides))


# What a user asked for --------------------------------------------------------------------------
_OWNERS = {
    "ppo": "ppo",
    "adversary": "ppo",
    "distill": "distill",
    "replay": "sac, td3 and dqn",
    "sac": "sac",
    "td3": "td3",
    "dqn": "dqn",
}
_INSTEAD = {  # what does the same for another algorithm
    ("replay.batch_size", "ppo"): "PPO splits an iteration's steps into --ppo.minibatches parts.",
    (
        "replay.train_batches",
        "ppo",
    ): "PPO takes --ppo.minibatches × --ppo.update-epochs gradient steps an iteration.",
    ("replay.batch_size", "reward"): "The steps of a reward's batch are --reward.rrd-batch-size.",
}


def settle(config: TrainConfig, given: Iterable[str]) -> TrainConfig:
    """What a user gave, by these names, wins over what a preset says besides; what would do nothing is refused."""
    names = {SHORT_NAMES.get(name, name): name for name in given}
    _refuse_replaced(names, config)
    for full, name in names.items():
        if not _has_meaning(full, name, config):
            section, _, _ = full.partition(".")
            owner = _OWNERS.get(section, "a learned reward")
            raise ConfigError(
                f"--{name.replace('_', '-')} is a setting of {owner}: with --algo {config.algo} it would do "
                f"nothing. {_INSTEAD.get((full, config.algo), '')}".rstrip()
            )
    loop = config.loop
    if "loop.total_steps" in names and "loop.epochs" not in names:
        loop = dataclasses.replace(loop, epochs=0)
    elif "loop.total_steps" in names and loop.epochs:
        raise ConfigError("--total-steps and --epochs both say how long to train: give one of them.")
    if "eval.every" in names and "loop.cycles" not in names:
        loop = dataclasses.replace(loop, cycles=0)
    return dataclasses.replace(config, loop=loop)


def _refuse_replaced(names: Iterable[str], config: TrainConfig) -> None:
    """A network of the user's stands in the place of the built-in layers: their settings would do nothing."""
    kept = LAYERS_AFTER if config.algo in ("sac", "td3") else ()
    replaced = sorted(f"policy.{name}" for name in LAYER_SETTINGS if name not in kept)
    given, network = next((name for name in replaced if name in names), None), config.policy.network
    if network and given:
        raise ConfigError(
            f"--{given.replace('_', '-')} is a setting of the built-in layers, which {network} replaces. "
            "Give your network its settings by --policy.network-kwargs."
        )


def _has_meaning(full: str, name: str, config: TrainConfig) -> bool:
    section, algo = full.partition(".")[0], config.algo
    if section == "replay":
        if algo in ("ppo", "distill"):
            return False
        return algo != "reward" or (full, algo) not in _INSTEAD or name == full
    if section == "reward":
        return name == full or config.reward.learned
    return section not in _OWNERS or _OWNERS[section] == algo


def names_in(path: Path) -> list[str]:
    """What a configuration file asks for. A section with all its fields is no wish, but the record of a run."""
    values = _read_values(path)
    whole = {f.name: getattr(TrainConfig(), f.name) for f in dataclasses.fields(TrainConfig)}
    fields = {k: {f.name for f in dataclasses.fields(v)} for k, v in whole.items() if dataclasses.is_dataclass(v)}
    wishes = {k: v for k, v in values.items() if not (isinstance(v, dict) and fields.get(k, {""}) <= v.keys())}
    return _names(wishes)


def _names(values: dict[str, Any]) -> list[str]:
    """Dotted, of values that may be nested."""
    found = []
    for name, value in values.items():
        inner = _names(value) if isinstance(value, dict) else []
        found += [f"{name}.{part}" for part in inner] or [str(name)]
    return found


def _full_name(name: str, value: Any) -> str:
    """`total_steps` → `loop.total_steps`; but `data={...}` is the section."""
    return name if isinstance(value, dict) else SHORT_NAMES.get(name, name)


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
