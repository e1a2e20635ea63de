"""What a learned reward is worth: measured on episodes it was not trained on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ludus.policies.reward import RewardModel

_NEARLY_EQUAL = 1e-3  # a spread that is a smaller part of the returns' size tells episodes apart no longer
Floats = np.ndarray[Any, np.dtype[np.float64]]


def _floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64).ravel()


def r_squared(predicted: Any, returns: Any) -> float:
    """Part of the returns' variance that the prediction explains; NaN where they have none."""
    p, r = _floats(predicted), _floats(returns)
    total = float(np.square(r - r.mean()).sum()) if len(r) else 0.0
    return 1 - float(np.square(r - p).sum()) / total if total > 0 else math.nan


def auc(scores: Any, success: Any) -> float:
    """How often a success scores higher than a failure, ties counted half; NaN unless there are both.

    Exact, from the ranks (Mann & Whitney 1947). Episodes whose success is unknown (NaN) are left out.
    """
    s, label = _floats(scores), _floats(success)
    known = ~np.isnan(label)
    won = label[known] > 0.5
    good, bad = int(won.sum()), int((~won).sum())
    if not (good and bad):
        return math.nan
    return float((_ranks(s[known])[won].sum() - good * (good + 1) / 2) / (good * bad))


def _ranks(values: Floats) -> Floats:
    """1 … n in order; equal values share the mean of their ranks."""
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[which]


def correlation(a: Any, b: Any) -> float:
    """Pearson's; NaN where one of them is constant."""
    x, y = _floats(a), _floats(b)
    if len(x) < 2:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    # What rounding leaves of a constant is not a signal.
    small = 1e-12 * len(x) * max(float(np.abs(_floats(a)).max() * np.abs(_floats(b)).max()), 1e-300)
    return float(x @ y) / size if size > small else math.nan


def rank_correlation(a: Any, b: Any) -> float:
    """Spearman's; NaN where one of them is constant."""
    return correlation(_ranks(_floats(a)), _ranks(_floats(b)))


class HeldOut(Protocol):
    """An episode of T steps that training does not see."""

    @property
    def obs(self) -> Mapping[str, Any]: ...  # [T + 1, ...] each, arrays or tensors
    @property
    def action(self) -> Any: ...  # [T, ...]
    @property
    def episode_return(self) -> float: ...
    @property
    def success(self) -> float | None: ...  # 1, 0; NaN or None: unknown
    @property
    def true_reward(self) -> Any: ...  # [T] what each step was really worth, or None: unknown


@dataclass(frozen=True)
class EpisodeRecord:
    """The plainest `HeldOut`."""

    obs: Mapping[str, Any]
    action: Any
    episode_return: float
    success: float | None = None
    true_reward: Any = None


@dataclass(frozen=True)
class _Scored:
    reward: Floats  # [T] r̂ in real units
    heads: dict[str, Floats]  # [T] probabilities
    episode: HeldOut


class RewardReport:
    """The metrics of a model over held-out episodes.

    An episode's score for the AUC is its mean r̂ per step, not the sum: episodes differ in length, and a sum
    would tell long ones from short ones, which is mostly what failures and successes differ in, without having
    learned anything. Where nothing is known of success or of the true reward, that metric is NaN.
    """

    def __init__(self, episodes: Sequence[HeldOut]) -> None:
        self.episodes = episodes

    def __call__(self, model: RewardModel) -> dict[str, float]:
        scored = [_score(model, episode) for episode in self.episodes]
        success = [_known(episode.success) for episode in self.episodes]
        returns = [float(episode.episode_return) for episode in self.episodes]
        sums, means = [s.reward.sum() for s in scored], [s.reward.mean() for s in scored]
        metrics = {
            "R2": r_squared(sums, returns),
            "AUC": auc(means, success),
            **_correlations(scored),
        }
        if "success" in model.names:
            metrics["AUC_success"] = auc([s.heads["success"].mean() for s in scored], success)
        if "progress" in model.names:
            metrics["AUC_progress"] = auc([s.heads["progress"][-1] for s in scored], success)
            metrics["progress_error"] = _progress_error(scored)
        return metrics


def _score(model: RewardModel, episode: HeldOut) -> _Scored:
    obs = {name: torch.as_tensor(value) for name, value in episode.obs.items()}
    heads = model.episode_heads(obs, torch.as_tensor(episode.action))
    reward = model.to_units(heads[:, 0].double()).cpu().numpy()
    logits = {name: heads[:, i].double().sigmoid().cpu().numpy() for i, name in enumerate(model.names) if i}
    return _Scored(reward, logits, episode)


def _known(success: float | None) -> float:
    return math.nan if success is None else float(success)


def _correlations(scored: list[_Scored]) -> dict[str, float]:
    """r̂ against the true reward: inside successes (all, where none is known), pooled and episode by episode."""
    known = [s for s in scored if s.episode.true_reward is not None]
    inside = [s for s in known if _known(s.episode.success) > 0.5] or known
    each = [correlation(s.reward, s.episode.true_reward) for s in inside]
    finite = [c for c in each if not math.isnan(c)]
    return {
        "correlation": _pooled(inside, correlation),
        "correlation_within": float(np.mean(finite)) if finite else math.nan,
        "correlation_all": _pooled(known, correlation),
        "rank_correlation": _pooled(inside, rank_correlation),
    }


def _pooled(scored: list[_Scored], measure: Any) -> float:
    if not scored:
        return math.nan
    truth = [_floats(s.episode.true_reward) for s in scored]
    return float(measure(np.concatenate([s.reward for s in scored]), np.concatenate(truth)))


def _progress_error(scored: list[_Scored]) -> float:
    """Mean distance of the progress head from (t + 1) / T, inside successes."""
    inside = [s.heads["progress"] for s in scored if _known(s.episode.success) > 0.5]
    errors = [np.abs(p - np.arange(1, len(p) + 1) / len(p)) for p in inside]
    return float(np.concatenate(errors).mean()) if errors else math.nan


def equal_returns_warning(returns: Any) -> str | None:
    """The sentence to say loudly when all returns are (nearly) equal: there is nothing to decompose."""
    r = _floats(returns)
    if len(r) and float(r.std()) > _NEARLY_EQUAL * float(np.abs(r).max()):
        return None
    what = f"All {len(r)} episodes have nearly the same return ({r.mean():g})" if len(r) else "There is no episode"
    return (
        f"{what}: nothing tells a good step from a bad one. The network would learn the same reward for every "
        "step, and may score failures higher than successes. Give failures as a second source, record some with "
        "'ludus record', or learn how far an episode has come instead with --reward.progress 1."
    )
