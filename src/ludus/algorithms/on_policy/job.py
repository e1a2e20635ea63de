"""What all learning from rollouts has in common: an iteration is a rollout and the batches made of it."""

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.average import AveragedPolicy, load_average
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.on_policy.config import OnPolicyTrainConfig, make_schedule, with_minibatches
from ludus.algorithms.on_policy.ram import MemoryPlan, plan_memory
from ludus.algorithms.optimizer import FlatAdam
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import Segments
from ludus.config import make_plan
from ludus.envs import make_groups
from ludus.envs.abilities import doubts, interface_of, plan_lines, tabulate
from ludus.envs.mujoco.simulator import lacks_warp
from ludus.envs.row_space import numbers_in
from ludus.envs.vec import State, VecEnv, advice_on_faults, derive_seed
from ludus.policies.factory import make_actor_critic
from ludus.training.callbacks import Watcher
from ludus.training.evaluator import Evaluation, PolicyEvaluator, limit_warnings
from ludus.training.job import Job, OnBatch, Show
from ludus.training.ram import refuse_large_networks, refuse_what_cannot_fit


class Learner(Protocol):
    """Improves a policy from rollouts."""

    optimizer: FlatAdam
    rate_factor: float  # of the set step size, made smaller after trouble

    def update(self, segments: Segments, progress: float, on_batch: OnBatch) -> dict[str, Tensor]:
        """All gradient steps that a rollout is good for; `on_batch` is told how many are done.

        Metrics hold `train/skipped_updates`, a tensor.
        """
        ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


class OnPolicyJob(Job):
    """Learns from each rollout once, then forgets it. A subclass says what learns (`_make_learner`)."""

    learner: Learner

    def __init__(self, config: OnPolicyTrainConfig, device: torch.device) -> None:
        groups = make_groups(config.env, config.groups, device, config.episodic_reward)
        self.schedule = schedule = make_schedule(config, sum(env.num_rows for env in groups))
        config = with_minibatches(config, schedule)
        self.config, self.device = config, device
        self.rate_name = f"{config.section}.learning-rate"
        batches = config.rollout.minibatches * config.rollout.update_epochs
        self.plan = make_plan(config, schedule.segments * schedule.horizon * ranks.size(), batches)
        inputs = numbers_in(groups[0].obs_space)
        refuse_large_networks(inputs, config.policy, 2 - config.policy.shared_trunk, device)
        self.policy = make_actor_critic(groups[0], config.policy, derive_seed(config.seed, 4)).to(device)
        self.policy.interface = interface_of(groups[0])
        horizon = config.rollout.average
        self._average = AveragedPolicy(self.policy, horizon) if horizon else None
        judged = self.policy if self._average is None else self._average.policy
        self.models = {"policy": judged}
        self.memory_plan = self._plan_memory(groups)
        refuse_what_cannot_fit(self.memory_plan.total, self.memory_plan.line(), config.memory_advice, device)
        self.cautions = (*limit_warnings(config, groups[0]), *doubts(groups[0]))
        if lacks_warp(getattr(config.env, "simulator", "threads"), device, groups[0].num_rows):
            self.warnings = (
                "MuJoCo Warp is not installed, so the CPU's threads simulate, which is much slower: "
                "pip install 'ludus[gpu]'",
            )
        groups = self._prepare(groups)
        self.learner = self._make_learner(groups, schedule)
        self.collector = Collector(groups, self.policy, schedule, config.gamma, config.seed, config.cuda_graphs)
        self.timing = self.collector.timing
        self._evaluator = PolicyEvaluator(config, judged)
        self._segments: Segments | None = None

    @abstractmethod
    def _make_learner(self, groups: list[VecEnv], schedule: SegmentSchedule) -> Learner:
        """What improves `policy`."""

    def _plan_memory(self, groups: list[VecEnv]) -> MemoryPlan:
        rollout = self.config.rollout
        averaged = rollout.average > 0
        return plan_memory(self.policy, self.schedule, rollout.minibatches, self.config.groups, averaged)

    def _prepare(self, groups: list[VecEnv]) -> list[VecEnv]:
        """The environments as they are stepped in; a subclass may pay for other things than they do."""
        return groups

    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        self.collector.set_progress(progress)
        steps = max(1, self.schedule.steps(number))
        self._segments = self.collector.collect(number, lambda t: show(min(1.0, (t + 1) / steps), 0))
        started = time.perf_counter()
        metrics = self._learn(self._segments, progress, lambda batch: show(1.0, batch))
        metrics["train/skipped_updates"] = metrics["train/skipped_updates"].cpu()  # which waits for the update
        if self._average is not None:
            self._average.follow(self.plan.batches_per_iteration)
        self.timing.learn += time.perf_counter() - started
        self._adapt_if_due(number)
        return metrics

    def _adapt_if_due(self, number: int) -> None:
        """Where the environments are to be told of evaluations at an interval of their own."""
        every, steps = self.collector.adapt_every, self.plan.steps_per_iteration
        if every and (number + 1) * steps // every > number * steps // every:
            self._adapt(self._evaluator.measure(deterministic=True))

    def _adapt(self, evaluation: Evaluation) -> None:
        heard = evaluation.undecided()
        if heard.returns:
            self.collector.adapt(heard.metrics, heard.labels)

    def _learn(self, segments: Segments, progress: float, on_batch: OnBatch) -> dict[str, Tensor]:
        """All gradient steps that a rollout is good for."""
        return self.learner.update(segments, progress, on_batch)

    def watch(self, watcher: Watcher) -> bool:
        self.collector.watch(watcher)
        return True

    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, float]:
        metrics = self._evaluator.evaluate(interrupted)
        if metrics and not self.collector.adapt_every:
            assert self._evaluator.newest is not None
            self._adapt(self._evaluator.newest)
        return metrics

    def table(self) -> list[dict[str, Any]]:
        newest = self._evaluator.newest
        return [] if newest is None else tabulate(self.collector.groups[0].env, newest.metrics, newest.labels)

    def evaluated_episodes(self) -> list[dict[str, Any]]:
        return list(self._evaluator.records)

    def start_words(self) -> dict[str, list[str]]:
        return self._evaluator.start_words()

    def cycle_metrics(self) -> dict[str, float]:
        return self.collector.episode_metrics()

    def fault_advice(self) -> dict[str, str]:
        return advice_on_faults(self.collector.groups[0].env)

    def weights(self) -> list[Tensor]:
        return [self.learner.optimizer.flat]

    @property
    def rate_factor(self) -> float:
        return self.learner.rate_factor

    def set_rate_factor(self, factor: float) -> None:
        self.learner.rate_factor = factor

    def suspects(self) -> dict[str, Tensor]:
        return {name: getattr(self._segments, name) for name in ("obs", "action", "reward")}

    def lines(self) -> list[str]:
        config, schedule = self.config, self.schedule
        steps, parts = schedule.segments * schedule.horizon, config.rollout.minibatches
        each = f"on each of {ranks.size()} ranks " if ranks.size() > 1 else ""
        groups = f"{config.groups} group{'s' * (config.groups > 1)}"
        passes = config.rollout.update_epochs
        per_env = schedule.rows // config.env.num_envs
        agents = f" × {per_env} agents" if per_env > 1 else ""
        whole = self.policy.recurrent
        part = f"{schedule.segments // parts:,} segments" if whole else f"{steps // parts:,} steps"
        return [
            *plan_lines(self.collector.groups[0].env),
            f"{each}{config.env.num_envs:,} environments{agents} in {groups}; "
            f"networks {config.policy.told()}; seed {config.seed}",
            f"{schedule.segments:,} segments × {schedule.horizon} = {steps:,} steps → {parts} minibatches × "
            f"{part}, {passes} pass{'es' * (passes > 1)}; {self.memory_plan.line()}",
        ]

    def state(self, whole: bool) -> State:
        return {
            self.config.section: self.learner.state(),
            "collector": self.collector.state() if whole else None,
            "lessons": self.collector.lessons(),  # for a rank that has no collector in it
            "average": None if self._average is None else self._average.state(),
        }

    def own_paths(self) -> tuple[str, ...]:
        return "collector", f"{self.config.section}/generator"

    def carried(self) -> State:
        return super().carried() | {"lessons": []}  # those of other environments

    def begin_with_new_weights(self) -> None:
        if self._average is not None:
            self._average.hand_back()

    def load_state(self, state: State, iteration: int) -> bool:
        load_average(self._average, self.policy, state.get("average"))
        self.learner.load_state(state[self.config.section])
        if state["collector"] is None:
            self.collector.begin_at(iteration, state.get("lessons", []))
            return False
        self.collector.load_state(state["collector"])
        return True

    def close(self) -> None:
        self.collector.close()
        self._evaluator.close()
