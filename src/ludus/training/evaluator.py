"""Evaluation: whole episodes from held-out starts, each counted exactly once."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ludus.config import TrainConfig, to_dict
from ludus.envs import EnvConfig, GymConfig, make_eval_env
from ludus.envs.mujoco.terms import TABLES
from ludus.envs.vec import Step, VecEnv, derive_seed
from ludus.errors import EnvError
from ludus.graphs import Graphed
from ludus.policies.policy import Policy

# Steps after which an episode is cut where the environment knows no limit. Gymnasium's own limits are 50 to 2,000;
# an evaluation in which every episode is endless takes seconds.
UNKNOWN_LIMIT = 10_000
LONGEST_ABSENCE = 1_000  # steps without any agent whose episodes are still wanted: they will not come


@dataclass
class Evaluation:
    """What every episode gave."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    labels: dict[str, list[float]] = field(default_factory=dict)  # which episode it was; see VecEnv.labels
    cut: set[int] = field(default_factory=set)  # numbers of the episodes that were not played to their end

    def summary(self) -> dict[str, float]:
        """Means, and a 95 % confidence interval of the success rate where the task has one."""
        result: dict[str, float] = {}
        metrics = dict(self.metrics)
        if "success" in metrics:  # who was cut has not succeeded
            metrics["success"] = [0.0 if i in self.cut else v for i, v in enumerate(metrics["success"])]
        told = {name: self._mean(values) for name, values in metrics.items()}
        means = {name: mean for name, mean in told.items() if mean == mean}
        if (rate := means.pop("success", None)) is not None:
            n = self._effective_number(metrics["success"])
            low, high = wilson_interval(rate * n, n)
            result |= {"success_rate": rate, "success_low": low, "success_high": high}
        result["mean_reward"] = mean = self._mean(self.returns)
        result["std_reward"] = math.sqrt(self._mean([(value - mean) ** 2 for value in self.returns]))
        result["mean_ep_length"] = self._mean(self.lengths)
        means.pop("diverged", None)
        result |= {"cut_episodes": len(self.cut)} if self.cut else {}
        return result | means | {"episodes": len(self.returns)}

    def _effective_number(self, values: Sequence[float]) -> float:
        """How many equally weighted episodes would tell as much (Kish 1965)."""
        weights = self.labels.get("weight", [1.0] * len(values))
        told = [weight for value, weight in zip(values, weights, strict=True) if value == value]
        return sum(told) ** 2 / sum(weight**2 for weight in told)

    def _mean(self, values: Sequence[float]) -> float:
        """Over the episodes that told it (NaN: not told), each by its weight; NaN if none did."""
        weights = self.labels.get("weight", [1.0] * len(values))
        told = [(value, weight) for value, weight in zip(values, weights, strict=True) if value == value]
        if not told:
            return math.nan
        return sum(value * weight for value, weight in told) / sum(weight for _, weight in told)


@torch.no_grad()
def evaluate(
    policy: Policy,
    env: VecEnv,
    episodes: int,
    seed: int,
    deterministic: bool,
    should_stop: Callable[[], bool] = lambda: False,
    max_steps: int = 0,
    cuda_graphs: bool = True,
) -> Evaluation:
    """Run `episodes` episodes, shared out evenly over the environments.

    Every environment plays a number of episodes fixed beforehand, and all its agents count: taking the first that
    end, whichever the row, would favour short ones. With several agents the number is rounded up to whole ones.
    An environment with fixed starts plays each of them once.

    An episode that has not ended after `max_steps` steps (0: what the environment says, else `UNKNOWN_LIMIT`) is
    cut and counts as it is; its row plays no further one, because it cannot be told to begin anew. That favours
    nobody: whether a row goes on depends on what it has shown, not on what it would show (Wald's identity).
    """
    limit = max_steps or env.max_steps or UNKNOWN_LIMIT
    episodes = env.num_rows if env.fixed_starts else episodes
    actor = policy.actor(deterministic, torch.Generator(device=policy.device).manual_seed(seed))
    rows, agents = env.num_rows, env.agents_per_env
    wanted, envs = -(-episodes // agents), rows // agents
    share = torch.tensor([wanted // envs + (i < wanted % envs) for i in range(envs)])
    left = share.repeat_interleave(agents)
    returns, lengths = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64)
    result = Evaluation()
    step_all = _Stepper(env, cuda_graphs)
    obs, nobody = env.reset(seed), 0
    while bool((left > 0).any()) and nobody < LONGEST_ABSENCE and not should_stop():
        present = None if env.present is None else env.present.cpu().clone()
        nobody = 0 if present is None or bool(present[left > 0].any()) else nobody + 1
        step = step_all(actor.act(obs))
        obs = step.obs
        actor.forget(step.done if present is None else step.done | ~present.to(step.done.device))
        returns += step.reward.cpu()
        lengths += 1 if present is None else present
        done = step.done.cpu()
        _count(result, done & (left > 0), returns, lengths, step.metrics, env.labels)
        left -= done.int()
        if int(lengths.max()) >= limit:
            cut = (lengths >= limit) & ~done & (left > 0)
            _count_cut(result, cut, returns, lengths, step.metrics, env.labels)
            left[cut] = 0
        returns[done], lengths[done] = 0.0, 0
    if not result.returns and not should_stop():
        raise EnvError(f"No episode ended in {env.name}: its agents stayed away for {LONGEST_ABSENCE:,} steps.")
    return result


class _Stepper:
    """Steps an environment; one that is all on a GPU as a recorded graph, which saves most of the time."""

    def __init__(self, env: VecEnv, cuda_graphs: bool) -> None:
        self._env = env
        self._action: Tensor | None = None
        self._step: Step | None = None
        recorded = cuda_graphs and env.capturable and env.device.type == "cuda"
        self._graph = Graphed(self._work, env.device, generators=env.generators) if recorded else None

    def _work(self) -> None:
        assert self._action is not None
        self._step = self._env.step(self._action)

    def __call__(self, action: Tensor) -> Step:
        if self._graph is None:
            return self._env.step(action)
        if self._action is None:
            self._action = action.clone()
        self._action.copy_(action)
        self._graph()
        assert self._step is not None
        return self._step


def _count(
    result: Evaluation,
    ended: Tensor,
    returns: Tensor,
    lengths: Tensor,
    metrics: dict[str, Tensor],
    labels: tuple[str, ...],
) -> None:
    if not bool(ended.any()):
        return
    before = len(result.returns)
    result.returns += returns[ended].tolist()
    result.lengths += lengths[ended].tolist()
    for name, values in metrics.items():
        kept = result.labels if name in labels else result.metrics
        kept.setdefault(name, [math.nan] * before).extend(values.cpu()[ended].tolist())


def _count_cut(
    result: Evaluation,
    cut: Tensor,
    returns: Tensor,
    lengths: Tensor,
    metrics: dict[str, Tensor],
    labels: tuple[str, ...],
) -> None:
    """Episodes that did not come to their end have told nothing but which they were."""
    before = len(result.returns)
    known = {name: v if name in labels else torch.full_like(v, math.nan) for name, v in metrics.items()}
    _count(result, cut, returns, lengths, known, labels)
    result.cut |= set(range(before, len(result.returns)))


def limit_warnings(config: TrainConfig, env: VecEnv) -> tuple[str, ...]:
    """What to say before training in an environment whose episodes may never end."""
    if not isinstance(config.env, GymConfig) or env.max_steps:
        return ()
    limit = config.eval.max_steps or UNKNOWN_LIMIT
    return (
        f"{env.name} has no time limit: an episode lasts until the task ends it. Evaluations cut one after "
        f"{limit:,} steps (--eval.max-steps) and say how many; --env.max-steps gives training a limit, too.",
    )


# Settings of an environment that change how it is trained in or simulated, not what an evaluation measures.
_NOT_JUDGED = ("num_envs", "threads", "workers", "simulator", "assist", "assist_final", "resample",
               "resample_every", "resample_floor", "resample_smoothing")  # fmt: skip


def judged_task(config: EnvConfig) -> str:
    """The same for two configurations if evaluations in them can be compared."""
    settings = to_dict(config).items()
    # Empty tables say nothing: runs from before there were any are judged alike.
    judged = {k: v for k, v in settings if k not in _NOT_JUDGED and not (k in TABLES and not v)}
    return hashlib.sha256(json.dumps(judged, sort_keys=True, default=repr).encode()).hexdigest()[:16]


class PolicyEvaluator:
    """Evaluates a run's policy on its evaluation environments, which are made when they are first needed."""

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        self._config, self._policy = config, policy
        self._env: VecEnv | None = None
        self.newest: Evaluation | None = None  # with the most likely actions

    def measure(self, deterministic: bool, interrupted: Callable[[], bool] = lambda: False) -> Evaluation:
        """The episodes of one evaluation, with the most likely actions or sampled ones."""
        config = self._config
        if self._env is None:
            self._env = make_eval_env(config.env, config.eval.episodes, self._policy.device)
        seed, limits = derive_seed(config.seed, 3), (config.eval.max_steps, config.cuda_graphs)
        return evaluate(self._policy, self._env, config.eval.episodes, seed, deterministic, interrupted, *limits)

    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, float]:
        """`eval/…` with the most likely actions and, if wanted, `eval_stochastic/…`; empty when interrupted."""
        metrics: dict[str, float] = {}
        for prefix, deterministic in (("eval", True), ("eval_stochastic", False)):
            if deterministic or self._config.eval.stochastic:
                result = self.measure(deterministic, interrupted)
                if interrupted():
                    return {}
                if deterministic:
                    self.newest = result
                metrics |= {f"{prefix}/{name}": value for name, value in result.summary().items()}
        return metrics

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


def wilson_interval(successes: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """95 % confidence interval of a rate; honest at 0 % and 100 %, unlike the normal approximation."""
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    center = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, center - half), min(1.0, center + half)
