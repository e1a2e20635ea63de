"""Evaluation: whole episodes from held-out starts, each counted exactly once."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ludus import ranks
from ludus.config import TrainConfig, to_dict
from ludus.envs import make_eval_env
from ludus.envs.abilities import describe_starts, names_of_few, start_words
from ludus.envs.config import NOT_JUDGED, ONCE_JUDGED, SAY_NOTHING, EnvConfig
from ludus.envs.gym.config import GymConfig
from ludus.envs.mujoco.settings import TABLES
from ludus.envs.vec import Step, VecEnv, derive_seed
from ludus.errors import EnvError
from ludus.graphs import Graphed
from ludus.policies.policy import Policy

# Steps after which an episode is cut where the environment knows no limit. Gymnasium's own limits are 50 to 2,000;
# an evaluation in which every episode is endless takes seconds.
UNKNOWN_LIMIT = 10_000
LONGEST_ABSENCE = 1_000  # steps without any agent whose episodes are still wanted: they will not come
EVAL_STREAM, NEW_STREAM = 3, 5  # of random numbers: evaluations during the training; new starts

# Told before every step which episode each row is in, [rows]; -1 where it does not count.
Watch = Callable[[VecEnv, Tensor], None]


@dataclass
class Evaluation:
    """What every episode gave."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    labels: dict[str, list[float]] = field(default_factory=dict)  # which episode it was; see VecEnv.labels
    cut: set[int] = field(default_factory=set)  # places here of the episodes that were not played to their end
    numbers: list[int] = field(default_factory=list)  # row + rows × the episodes that its row played before
    starts: dict[str, list[float]] = field(default_factory=dict)  # how they began; see abilities.DescribesStarts
    rows: int = 0  # that played side by side

    def summary(self) -> dict[str, float]:
        """Means, and a 95 % confidence interval of the success rate where the task has one.

        Of episodes that show what was kept out of the training (label `unseen`), apart: test_….
        """
        unseen = self.labels.get("unseen", [])
        if not any(unseen):
            return self._means()
        known, test = (self._chosen([i for i, v in enumerate(unseen) if bool(v) == which]) for which in (0, 1))
        told = {f"test_{name}": value for name, value in test._means().items() if "/" not in name}
        return known._means() | told

    def _chosen(self, places: Sequence[int]) -> "Evaluation":
        """Some of the episodes."""
        return Evaluation(
            returns=[self.returns[i] for i in places],
            lengths=[self.lengths[i] for i in places],
            metrics={name: [values[i] for i in places] for name, values in self.metrics.items()},
            labels={name: [values[i] for i in places] for name, values in self.labels.items()},
            cut={new for new, i in enumerate(places) if i in self.cut},
        )

    def undecided(self) -> "Evaluation":
        """The same, but of episodes that were cut nobody knows whether they would have succeeded: NaN."""
        if not (self.cut and "success" in self.metrics):
            return self
        success = [math.nan if i in self.cut else value for i, value in enumerate(self.metrics["success"])]
        return replace(self, metrics=self.metrics | {"success": success})

    def _means(self) -> dict[str, float]:
        result: dict[str, float] = {}
        told = {name: self._mean(values) for name, values in self.metrics.items()}
        means = {name: mean for name, mean in told.items() if mean == mean}
        if (rate := means.pop("success", None)) is not None:
            n = self._effective_number(self.metrics["success"])
            low, high = wilson_interval(rate * n, n)
            result |= {"success_rate": rate, "success_low": low, "success_high": high}
        result["mean_reward"] = mean = self._mean(self.returns)
        result["std_reward"] = math.sqrt(self._mean([(value - mean) ** 2 for value in self.returns]))
        result["mean_ep_length"] = self._mean(self.lengths)
        means.pop("diverged", None)
        result |= {"cut_episodes": len(self.cut)} if self.cut else {}
        return result | means | {"episodes": len(self.returns)}

    def record(self, most: int | None = None) -> dict[str, Any]:
        """The episodes, or the first so many, as columns of plain numbers, in the order of `numbers`.

        The same policy plays the same episode again with the same seed, `rows` and number.
        """
        order = sorted(range(len(self.numbers)), key=self.numbers.__getitem__)[:most]

        def column(values: Sequence[float]) -> list[float | None]:
            return [_brief(values[i]) for i in order]

        told: dict[str, Any] = {"rows": self.rows, "episode": [self.numbers[i] for i in order]}
        told |= {"return": column(self.returns), "length": [self.lengths[i] for i in order]}
        if "success" in self.metrics:
            told["success"] = column(self.metrics["success"])
        if self.cut:
            told["cut"] = [self.numbers[i] for i in order if i in self.cut]
        if self.starts:
            told["starts"] = {name: column(values) for name, values in self.starts.items()}
        return told

    def plain(self) -> dict[str, Any]:
        """What `Evaluation(**plain)` makes again."""
        return {**vars(self), "cut": sorted(self.cut)}

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


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """The episodes of several evaluations as those of one; their numbers are no longer told apart."""
    if len(parts) == 1:
        return parts[0]
    whole = Evaluation()
    for part in parts:
        before, more = len(whole.returns), len(part.returns)
        for kept, new in ((whole.metrics, part.metrics), (whole.labels, part.labels), (whole.starts, part.starts)):
            for name in {**kept, **new}:  # what a part does not tell is NaN there
                kept.setdefault(name, [math.nan] * before).extend(new.get(name, [math.nan] * more))
        whole.cut |= {before + place for place in part.cut}
        whole.returns += part.returns
        whole.lengths += part.lengths
        whole.numbers += part.numbers
        whole.rows += part.rows
    return whole


def _brief(value: float) -> float | None:
    """Six digits, without a point where there is nothing behind it; JSON has no NaN."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")


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
    watch: Watch | None = None,
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
    actor = policy.actor(deterministic, torch.Generator(device=policy.device).manual_seed(seed))
    left = _episodes_of_rows(env, episodes)
    step_all = _Stepper(env, cuda_graphs)
    obs, nobody = env.reset(seed), 0
    tally = _Tally(env, obs)
    while bool((left > 0).any()) and nobody < LONGEST_ABSENCE and not should_stop():
        present = None if env.present is None else env.present.cpu().clone()
        nobody = 0 if present is None or bool(present[left > 0].any()) else nobody + 1
        if watch is not None:
            watch(env, tally.numbers.masked_fill(left <= 0, -1))
        step = step_all(actor.act(obs))
        obs = step.obs
        actor.forget(step.done if present is None else step.done | ~present.to(step.done.device))
        tally.add(step, present)
        done = step.done.cpu()
        tally.count(done & (left > 0), step.metrics)
        left -= done.int()
        if int(tally.lengths.max()) >= limit:
            cut = (tally.lengths >= limit) & ~done & (left > 0)
            tally.count_cut(cut, step.metrics)
            left[cut] = 0
        tally.begin_anew(done, obs)
    if not tally.result.returns and not should_stop():
        raise EnvError(f"No episode ended in {env.name}: its agents stayed away for {LONGEST_ABSENCE:,} steps.")
    return tally.result


def _episodes_of_rows(env: VecEnv, episodes: int) -> Tensor:
    """[rows] how many episodes each plays."""
    if env.fixed_starts is not None:
        return env.fixed_starts.clone()
    agents = env.agents_per_env
    wanted, envs = -(-episodes // agents), env.num_rows // agents
    share = torch.tensor([wanted // envs + (i < wanted % envs) for i in range(envs)])
    return share.repeat_interleave(agents)


class _Tally:
    """The episode that is under way in every row, and what those that ended gave."""

    def __init__(self, env: VecEnv, obs: Tensor) -> None:
        """To be made when the first episodes have just begun, with these observations."""
        rows = env.num_rows
        self.result = Evaluation(rows=rows)
        self.lengths = torch.zeros(rows, dtype=torch.int64)
        self.numbers = torch.arange(rows)
        self._env = env
        self._returns = torch.zeros(rows, dtype=torch.float64)
        self._columns = names_of_few(env)
        self._starts = {name: values.cpu().clone() for name, values in self._described(obs).items()}

    def add(self, step: Step, present: Tensor | None) -> None:
        self._returns += step.reward.cpu()
        self.lengths += 1 if present is None else present

    def count(self, ended: Tensor, metrics: dict[str, Tensor]) -> None:
        """Rows whose episodes ended, and what their last step said."""
        if not bool(ended.any()):
            return
        result, before = self.result, len(self.result.returns)
        result.returns += self._returns[ended].tolist()
        result.lengths += self.lengths[ended].tolist()
        result.numbers += self.numbers[ended].tolist()
        for name, values in self._starts.items():
            result.starts.setdefault(name, []).extend(values[ended].tolist())
        for name, values in metrics.items():
            kept = result.labels if name in self._env.labels else result.metrics
            kept.setdefault(name, [math.nan] * before).extend(values.cpu()[ended].tolist())

    def count_cut(self, cut: Tensor, metrics: dict[str, Tensor]) -> None:
        """Episodes that did not come to their end have not succeeded, and told nothing but which they were."""
        before = len(self.result.returns)
        self.count(cut, {name: self._of_cut(name, values) for name, values in metrics.items()})
        self.result.cut |= set(range(before, len(self.result.returns)))

    def _of_cut(self, name: str, values: Tensor) -> Tensor:
        if name in self._env.labels:
            return values
        return torch.full_like(values, 0.0 if name.startswith("success") else math.nan)

    def begin_anew(self, done: Tensor, obs: Tensor) -> None:
        """New episodes have begun in these rows."""
        self._returns[done], self.lengths[done] = 0.0, 0
        self.numbers[done] += self._env.num_rows
        if self._starts and bool(done.any()):
            for name, values in self._described(obs).items():
                self._starts[name][done] = values.cpu()[done]

    def _described(self, obs: Tensor) -> dict[str, Tensor]:
        """How the episodes that have just begun did so: by the environment, else by their first observation."""
        return describe_starts(self._env) or dict(zip(self._columns, obs.flatten(1).T, strict=False))


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


def limit_warnings(config: TrainConfig, env: VecEnv) -> tuple[str, ...]:
    """What to say before training in an environment whose episodes may never end."""
    if not isinstance(config.env, GymConfig) or env.max_steps:
        return ()
    limit = config.eval.max_steps or UNKNOWN_LIMIT
    return (
        f"{env.name} has no time limit: an episode lasts until the task ends it. Evaluations cut one after "
        f"{limit:,} steps (--eval.max-steps) and say how many; --env.max-steps gives training a limit, too.",
    )


def judged_task(config: EnvConfig) -> str:
    """The same for two configurations if evaluations in them can be compared."""
    settings = to_dict(config).items()
    # Empty tables say nothing: runs from before there were any are judged alike.
    said = {k: ONCE_JUDGED.get(k, v) for k, v in settings if k not in NOT_JUDGED and not (k in TABLES and not v)}
    judged = {k: v for k, v in said.items() if k not in SAY_NOTHING or v != SAY_NOTHING[k]}
    return hashlib.sha256(json.dumps(judged, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def _share(episodes: int) -> int:
    """Of so many, what this rank plays."""
    return episodes // ranks.size() + (ranks.rank() < episodes % ranks.size())


def _plays_all(env: VecEnv) -> bool:
    """Whether these are all starts of an evaluation, so that every rank plays the same episodes."""
    return env.fixed_starts is not None and env.own_starts == slice(None)


class PolicyEvaluator:
    """Evaluates a run's policy on its evaluation environments, which are made when they are first needed.

    Ranks share the episodes out among them; each then knows those of all. Fixed starts of an environment that
    cannot be made for some of them alone are played by every rank.
    """

    def __init__(self, config: TrainConfig, policy: Policy) -> None:
        self._config, self._policy = config, policy
        self._env: VecEnv | None = None
        self.newest: Evaluation | None = None  # with the most likely actions
        self.records: list[dict[str, Any]] = []  # of the newest evaluation's episodes, one for each way of acting

    def measure(self, deterministic: bool, interrupted: Callable[[], bool] = lambda: False) -> Evaluation:
        """The episodes of one evaluation, with the most likely actions or sampled ones."""
        return joined(self._measure_parts(deterministic, interrupted))

    def _measure_parts(self, deterministic: bool, interrupted: Callable[[], bool]) -> list[Evaluation]:
        """What each rank measured."""
        config = self._config
        if self._env is None:
            self._env = self._make_env()
        alike, limits = _plays_all(self._env), (config.eval.max_steps, config.cuda_graphs)
        episodes = config.eval.episodes if alike else _share(config.eval.episodes)
        seed = derive_seed(config.seed, *((EVAL_STREAM,) if alike else ranks.own_stream(EVAL_STREAM)))
        own = Evaluation()
        if episodes or self._env.fixed_starts is not None:
            own = evaluate(self._policy, self._env, episodes, seed, deterministic, interrupted, *limits)
        if alike or ranks.size() == 1:
            return [own]
        told = ranks.gather_plain(own.plain())
        return [Evaluation(**{**part, "cut": set(part["cut"])}) for part in told]

    def _make_env(self) -> VecEnv:
        config, device = self._config, self._policy.device
        starts = slice(None) if ranks.size() == 1 else slice(ranks.rank(), None, ranks.size())
        env = make_eval_env(config.env, max(1, _share(config.eval.episodes)), device, starts)
        if ranks.size() == 1 or not _plays_all(env):
            return env
        env.close()
        return make_eval_env(config.env, config.eval.episodes, device)

    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, float]:
        """`eval/…` with the most likely actions and, if wanted, `eval_stochastic/…`; empty when interrupted."""
        metrics: dict[str, float] = {}
        records = []
        for prefix, deterministic in (("eval", True), ("eval_stochastic", False)):
            if deterministic or self._config.eval.stochastic:
                parts = self._measure_parts(deterministic, interrupted)
                if ranks.anyone(interrupted()):
                    return {}
                result = joined(parts)
                if deterministic:
                    self.newest = result
                acting = "deterministic" if deterministic else "sampled"
                for rank, part in enumerate(parts):
                    stream = {"seed": self._config.seed} | ({"rank": rank} if rank else {})
                    records.append({"actions": acting, **stream, **part.record()})
                metrics |= {f"{prefix}/{name}": value for name, value in result.summary().items()}
        self.records = records
        return metrics

    def start_words(self) -> dict[str, list[str]]:
        """See `abilities.DescribesStarts`."""
        return {} if self._env is None else start_words(self._env)

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
