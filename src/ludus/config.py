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

from ludus.algorithms.adversary import AdversaryConfig
from ludus.algorithms.ppo import PPOConfig, check_divides
from ludus.algorithms.replay_config import Algorithm, DQNConfig, ReplayConfig, SACConfig, TD3Config
from ludus.algorithms.rrd import RewardConfig, check_reward_config
from ludus.buffers.segments import SegmentSchedule
from ludus.data.config import DataConfig
from ludus.envs import ENV_KINDS, EnvConfig
from ludus.envs.kuka.task import KukaConfig
from ludus.errors import ConfigError, did_you_mean
from ludus.policies.policy import PolicyConfig


@dataclass(frozen=True)
class LoopConfig:
    """How long to train: epoch › cycle › iteration › batch.

    A batch is one gradient step, an iteration some environment steps and their batches, a cycle one row of
    metrics, an epoch one evaluation and checkpoint.
    """

    total_steps: int = 1_000_000
    """Environment steps in all (batches, where nothing is collected); used where epochs is 0."""
    epochs: int = 0
    """Epochs in all; 0: as many as total_steps needs."""
    cycles: int = 0
    """Cycles an epoch; 0: as many as eval.every needs."""
    iterations: int = 1
    """Iterations a cycle."""


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

    every: int = 50_000
    """Environment steps between evaluations; used where loop.cycles is 0."""
    episodes: int = 20
    """Episodes of each evaluation."""
    max_steps: int = 0
    """Steps after which an episode is cut and counted as it is; 0: the environment's limit, 10,000 without one."""
    stochastic: bool = True
    """Evaluate with sampled actions too, not only with the most likely ones."""
    each_cycle: bool = False
    """Evaluate at the end of every cycle instead of every epoch."""


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

    algo: Algorithm = "ppo"
    """ppo, sac, td3 or dqn; reward: learn a reward alone, from recorded episodes (--data)."""
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


# Settings that must be at least so large. What an environment adds of its own is checked where it is made.
_MINIMA = {
    0: ("seed", "loop.epochs", "loop.cycles", "checkpoint.every", "eval.max_steps",
        "ppo.learning_rate", "ppo.learning_rate_final",
        "ppo.gamma", "ppo.gae_lambda", "ppo.clip", "ppo.value_clip", "ppo.std_final", "ppo.target_kl",
        "ppo.bound_coef", "ppo.l2_init", "ppo.segments", "ppo.rho_clip", "ppo.c_clip", "ppo.prio_alpha",
        "ppo.prio_beta", "replay.warmup", "replay.learning_rate", "replay.gamma", "replay.polyak",
        "replay.longest", "replay.bc", "td3.exploration",
        "td3.target_noise", "td3.target_noise_clip", "dqn.epsilon", "dqn.epsilon_final", "dqn.epsilon_until",
        "data.held_out", "adversary.task_weight", "adversary.style_weight", "adversary.style_scale",
        "adversary.learning_rate", "adversary.replay", "adversary.replay_share", "adversary.gradient_penalty",
        "adversary.logit_regularizer", "adversary.weight_decay"),
    1: ("replay.steps", "replay.train_batches", "replay.batch_size", "replay.n_step", "replay.train_target",
        "replay.capacity", "td3.policy_delay",
        "env.num_envs", "ppo.horizon", "ppo.minibatches", "ppo.update_epochs", "loop.iterations", "groups",
        "torch_threads", "eval.episodes", "eval.every", "checkpoint.keep", "policy.memory_size",
        "adversary.batches", "adversary.batch_size"),
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
    if config.algo != "ppo":
        _check_replay_numbers(config)
    for name, hidden in {"policy": config.policy.hidden, "adversary": config.adversary.hidden}.items():
        if min(hidden, default=1) < 1:
            raise ConfigError(f"--{name}.hidden is {hidden}; a layer has at least 1 unit.")
    if config.adversary.replay_share > 1:
        share = config.adversary.replay_share
        raise ConfigError(f"--adversary.replay-share is {share}; it must be at most 1.")


def _check_replay_numbers(config: TrainConfig) -> None:
    positive = {"replay.learning_rate": config.replay.learning_rate, "sac.alpha": config.sac.alpha}
    for name, value in positive.items():
        if not value > 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be more than 0.")
    shares = {
        "replay.gamma": config.replay.gamma,
        "dqn.epsilon": config.dqn.epsilon,
        "dqn.epsilon_final": config.dqn.epsilon_final,
    }
    for name, value in shares.items():
        if value > 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at most 1.")


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
    check_reward_config(config.reward, None)
    _check_combination(config)


def _check_combination(config: TrainConfig) -> None:
    """What goes together and what does not."""
    algo, method = config.algo, config.reward.method
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
    if config.algo != "ppo" and not config.replay.polyak < 1:
        raise ConfigError(f"--replay.polyak is {config.replay.polyak}; it must be less than 1.")


def make_schedule(config: TrainConfig, rows: int) -> SegmentSchedule:
    """PPO's segments, for so many rows (environments × agents)."""
    ppo = config.ppo
    schedule = SegmentSchedule(rows, ppo.segments or rows, ppo.horizon)
    check_divides(ppo, schedule, config.policy.memory != "none")
    return schedule


def make_plan(config: TrainConfig, steps: int, batches: int, unit: str = "steps") -> Plan:
    """How many of what, with so many steps and batches an iteration."""
    loop = config.loop
    if loop.epochs:
        cycles = loop.cycles or max(1, round(config.eval.every / (steps * loop.iterations)))
        return Plan(steps, batches, loop.iterations, cycles, loop.epochs * cycles * loop.iterations, unit)
    total = math.ceil(loop.total_steps / steps)
    epochs = max(1, round(loop.total_steps / config.eval.every))  # of equal length, near the wanted one
    cycles = loop.cycles or math.ceil(total / (epochs * loop.iterations))
    return Plan(steps, batches, loop.iterations, cycles, total, unit)


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


def _read_values(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
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
        place[last] = to_dict(value)
    return from_dict(nested, config)


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
