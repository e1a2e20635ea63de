"""Typed configuration of a run. Every field exists once; files and flags are checked against it.

`TrainConfig` is what every run has. An algorithm adds its own sections in a subclass (algorithms/*/config.py).
"""

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from ludus.envs.config import ENV_KINDS, EnvConfig, why_useless
from ludus.envs.kuka.config import KukaConfig
from ludus.errors import ConfigError
from ludus.policies.config import PolicyConfig
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


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on starts that training never uses."""

    every: Annotated[int, Range(1, MOST_STEPS)] = 50_000
    """Environment steps between evaluations; used where loop.cycles is 0."""
    episodes: Annotated[int, Range(1, MOST_ENVS)] = 20
    """Episodes of each evaluation."""
    max_steps: Annotated[int, Range(0, MOST_STEPS)] = 0
    """Steps after which an episode is cut and counted as it is; 0: the environment's limit, 10,000 without one."""
    final_episodes: Annotated[int, Range(0, MOST_ENVS)] = 100
    """Episodes on new starts that measure the best policy after the training; 0: none. Fewer, but at least
    `episodes`, where they would take more than a quarter of the training's steps."""
    stochastic: bool = True
    """Evaluate with sampled actions too, not only with the most likely ones."""
    each_cycle: bool = False
    """Evaluate at the end of every cycle instead of every epoch."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving a run."""

    every: Annotated[int, Range(0, MOST_STEPS)] = 0
    """Environment steps between checkpoints, as near as iterations allow; 0: one at the end of every epoch."""
    every_epochs: Annotated[int, Range(0, MOST_STEPS)] = 0
    """Epochs between checkpoints, in place of steps."""
    keep: Annotated[int, Range(1, 1_000_000)] | Literal["all"] = 3
    """Newest checkpoints kept, or 'all'; the best one is kept besides."""


@dataclass(frozen=True)
class LogConfig:
    """Where metrics go, besides the terminal and metrics.jsonl."""

    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: str = ""
    """Name of a Weights & Biases project to log to; empty: none."""
    report: bool = True
    """Write report.html, with a replay of the best policy, when the training ends."""
    every_row: bool = False
    """In a log without a terminal, show every row, evaluation and iteration, and the loss of every 100 batches;
    off: about 50 rows over the whole training."""


@dataclass(frozen=True)
class TrainConfig:
    """What determines a run, whatever its algorithm, which adds sections of its own."""

    algo: str = ""
    """What learns; each algorithm brings settings and defaults of its own ('ludus list' shows all)."""
    seed: Annotated[int, Range(0, LARGEST_SEED)] = 0
    """On a CPU, the same seed gives the same run, bit for bit."""
    device: str = "cpu"
    """Where policy and buffer live: cpu or cuda."""
    procs: Annotated[int, Range(1, MOST_THREADS)] = 1
    """Processes that train one policy together. Each has env.num_envs environments. With --device
    cuda each takes a GPU, in turn."""
    groups: Annotated[int, Range(1, MOST_THREADS)] = 1
    """Groups of environments in flight: with 2, one simulates while the policy acts for the other."""
    torch_threads: Annotated[int, Range(1, MOST_THREADS)] = 1
    """Threads of one network operation; small networks want 1."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Of the factors in matrix products; sums stay float32. Coarser is faster where the hardware has it."""
    cuda_graphs: bool = True
    """On a GPU, record steps and updates once and replay them; off, to find an error."""
    start_from: str = ""
    """A run whose best policy the training starts with, or RUN@STEP; --from for short. What fits is taken."""
    episodic_reward: bool = False
    """Pay the sum of an episode's rewards at its end, and nothing before."""
    env: EnvConfig = field(default_factory=KukaConfig)
    """The environment."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The networks."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    """How long to train."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving."""
    log: LogConfig = field(default_factory=LogConfig)
    """Logging."""
    stages: tuple[dict[str, Any], ...] = ()
    """A curriculum: other settings before the run's own, each until a step or a success rate (docs)."""

    short_names: ClassVar[Mapping[str, str]] = {}
    """Settings of the algorithm's sections that may be given without the section: batch_size."""
    layers_after_network: ClassVar[bool] = False
    """Whether built-in layers follow the features of a network of the user's."""
    can_remember: ClassVar[bool] = False
    """Whether its policy may have a memory."""
    has_ranks: ClassVar[bool] = False
    """Whether several processes can train one policy together: all that is learned goes through `ranks`."""
    imitates: ClassVar[bool] = False
    """Whether a discriminator judges the motion that an environment shows."""

    @property
    def memory_advice(self) -> str:
        """What to reduce where memory does not suffice."""
        return "Make --env.num-envs or --policy.hidden smaller."

    @property
    def per_rank(self) -> tuple[str, ...]:
        """Settings of which every process has so many for itself. Other processes share them out anew."""
        return ("env.num_envs",)

    @property
    def offline(self) -> bool:
        """Whether all is learned from recorded episodes, and no environment is stepped but to evaluate."""
        return False

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that are imported because the configuration names them."""
        named = (self.algo.partition(":")[0],) if ":" in self.algo else ()
        return tuple(dict.fromkeys((*named, *getattr(self.env, "imports", ()), *self.policy.imports)))

    def check(self) -> None:
        """A clear error where settings make no sense together; an algorithm adds what it knows."""
        check_fields(self)
        if self.device.partition(":")[0] not in ("cpu", "cuda"):  # torch knows more, but not all work there
            raise ConfigError(
                f"--device {self.device}: take cpu, or cuda for an NVIDIA GPU; 'ludus doctor' shows what is here."
            )
        self._check_procs()
        if self.env.num_envs % self.groups:
            raise ConfigError(
                f"--env.num-envs {self.env.num_envs} does not divide into --groups {self.groups}; "
                f"{self.env.num_envs + -self.env.num_envs % self.groups} does."
            )
        if self.checkpoint.every and self.checkpoint.every_epochs:
            raise ConfigError(
                "--checkpoint.every and --checkpoint.every-epochs both say how often to save: give one of them."
            )
        if not (self.loop.epochs or self.loop.total_steps >= 1):
            raise ConfigError("Say how long to train: --total-steps or --epochs.")
        shown = getattr(self.env, "discriminate", "nothing")
        if shown != "nothing" and not self.imitates:
            raise ConfigError(
                f"--env.discriminate {shown} is for a discriminator: take --algo amp, or "
                "--env.discriminate nothing."
            )

    def _check_procs(self) -> None:
        if self.procs > 1 and not self.has_ranks:
            raise ConfigError(f"--procs {self.procs}: --algo {self.algo} trains in one process; leave it out.")

    def why_useless(self, setting: str, given: Collection[str]) -> str:
        """A sentence where a setting (`replay.batch_size`), given beside others, would do nothing; else empty."""
        section, _, name = setting.partition(".")
        return why_useless(self.env, name) if section == "env" else ""

    def settled(self, given: Collection[str]) -> Self:
        """What a user gave, by these full names, wins over what a preset says besides."""
        loop = self.loop
        if "loop.total_steps" in given and "loop.epochs" not in given:
            loop = dataclasses.replace(loop, epochs=0)
        elif "loop.total_steps" in given and loop.epochs:
            raise ConfigError("--total-steps and --epochs both say how long to train: give one of them.")
        if "eval.every" in given and "loop.cycles" not in given:
            loop = dataclasses.replace(loop, cycles=0)
        return dataclasses.replace(self, loop=loop)

    def with_whole_paths(self) -> Self:
        """The same, with files that are found again from any folder."""
        changed = getattr(self.env, "with_whole_paths", None)
        return self if changed is None else dataclasses.replace(self, env=changed())

    def with_pinned_runs(self, pin: Callable[[str, str], str]) -> Self:
        """The same, naming one checkpoint of every run it takes from; `pin` takes a flag and what it says."""
        return dataclasses.replace(self, start_from=pin("--from", self.start_from)) if self.start_from else self


C = TypeVar("C", bound=TrainConfig)


def convert(config: TrainConfig, kind: type[C], **changes: Any) -> C:
    """`config` as the configuration of another algorithm: what both have is kept, but for `changes`."""
    names = {f.name for f in dataclasses.fields(kind)} - {"algo"}
    kept = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return kind(**(kept | changes))


@dataclass(frozen=True)
class Plan:
    """The loop in numbers. The last epoch and cycle may be shorter than the others."""

    steps_per_iteration: int
    batches_per_iteration: int
    iterations_per_cycle: int
    cycles_per_epoch: int
    total_iterations: int
    unit: str = "steps"  # "batches" where no environment is stepped
    eval_asked: int = 0  # steps between evaluations that were asked for; 0: the loop says when

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
            told = f"epochs × cycles × iterations × batches: {counts} {sign} {self.total_batches:,} batches"
            return [told, *self._cadence()]
        epochs = _count(self.epochs, "epoch", "epochs")
        cycles = _count(self.cycles_per_epoch, "cycle", "cycles")
        iterations = _count(self.iterations_per_cycle, "iteration", "iterations")
        batches = _count(self.batches_per_iteration, "batch", "batches")
        steps = f"{self.steps_per_iteration:,} steps"
        told = f"{self.total_steps:,} steps = {epochs} › {cycles} › {iterations} of {steps} › {batches}"
        return [told, *self._cadence()]

    def _cadence(self) -> list[str]:
        """Evaluations come after whole cycles, so not always as often as was asked."""
        every = self.iterations_per_epoch * self.steps_per_iteration
        if not self.eval_asked or every == self.eval_asked or self.total_steps <= self.eval_asked:
            return []
        return [f"evaluation every {every:,} {self.unit} ({self.eval_asked:,} asked)"]


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def make_plan(config: TrainConfig, steps: int, batches: int, unit: str = "steps") -> Plan:
    """How many of what, with so many steps and batches an iteration."""
    loop, every = config.loop, config.eval.every
    asked = 0 if loop.cycles or config.eval.each_cycle else every
    nearest = max(1, round(every / (steps * loop.iterations)))
    if loop.epochs:
        cycles = loop.cycles or nearest
        return Plan(steps, batches, loop.iterations, cycles, loop.epochs * cycles * loop.iterations, unit, asked)
    total = math.ceil(loop.total_steps / steps)
    iterations = min(loop.iterations, total)
    epochs = max(1, round(loop.total_steps / every))  # of equal length …
    cycles = math.ceil(total / (epochs * iterations))
    if abs(cycles * iterations * steps - every) > every / 10:  # … where that is near the wanted one
        cycles = nearest
    cycles = min(loop.cycles or cycles, math.ceil(total / iterations))
    return Plan(steps, batches, iterations, cycles, total, unit, asked)


def to_dict(config: Any) -> Any:
    """Plain values for YAML and JSON; an environment's kind is written beside its fields."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values = {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        kind = next((name for name, cls in ENV_KINDS.items() if type(config) is cls), None)
        return {"kind": kind, **values} if kind else values
    if isinstance(config, os.PathLike):  # a Run is one
        return os.fspath(config)
    return list(config) if isinstance(config, tuple) else config


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """{"ppo.gamma": 0.97}; tables of the user's own (kwargs, terms) stay whole."""
    if not isinstance(values, dict) or not values or prefix.count(".") > 1:
        return {prefix.rstrip("."): values}
    return {name: value for key in values for name, value in flat(values[key], f"{prefix}{key}.").items()}
