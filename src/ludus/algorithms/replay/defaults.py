"""Any job with SAC, TD3 or DQN instead of PPO: defaults that work on most, and better ones for a few."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from ludus.algorithms.replay.config import (
    DQNTrainConfig,
    ReplayConfig,
    ReplayTrainConfig,
    SACTrainConfig,
    TD3TrainConfig,
)
from ludus.config import EvalConfig, LoopConfig, TrainConfig, convert
from ludus.policies.config import PolicyConfig

_NETWORKS = PolicyConfig(hidden=(256, 256), activation="relu", normalize_obs=False)
C = TypeVar("C", bound=ReplayTrainConfig)
_MOST_ENVS = 10  # which share an iteration's 100 steps; PPO's presets have many more
_MOST_ON_A_GPU = 1_024


def adapted(config: TrainConfig, kind: type[C]) -> C:
    """The preset's environment, and the defaults of `kind`'s algorithm for the rest."""
    if isinstance(config, ReplayTrainConfig):  # it has the settings of a replay already
        own = _replay(kind)
        replay = dataclasses.replace(config.replay, train_target=own.train_target, polyak=own.polyak)
        return convert(config, kind, replay=replay)
    many = has_many(config)
    most = 1 if _is_slow_to_collect(config) else _MOST_ON_A_GPU if many else _MOST_ENVS
    few: dict[str, Any] = {"num_envs": min(config.env.num_envs, most)}
    evaluation = EvalConfig(every=10_000, episodes=10, stochastic=False)
    changed = convert(
        config,
        kind,
        groups=1,
        env=dataclasses.replace(config.env, **few),
        policy=_networks(config.policy, kind),
        replay=_replay_of_many(kind, config.loop.total_steps) if many else _replay(kind),
        loop=dataclasses.replace(config.loop, iterations=10),
        eval=dataclasses.replace(config.eval, stochastic=False) if many else evaluation,
    )
    env_id = getattr(config.env, "id", "")
    tune = next((tune for begin, tune in _TUNED.items() if env_id.startswith(begin)), None)
    return changed if tune is None else dataclasses.replace(changed, **tune(changed))


def _networks(of_job: PolicyConfig, kind: type[ReplayTrainConfig]) -> PolicyConfig:
    """The usual layers; but what the job lets actor and critic see stays, and how they see it."""
    return dataclasses.replace(
        _NETWORKS,
        cnn=of_job.cnn,
        image_features=of_job.image_features,
        actor_parts=of_job.actor_parts,
        critic_parts=() if issubclass(kind, DQNTrainConfig) else of_job.critic_parts,  # DQN has no critic
    )


def has_many(config: TrainConfig) -> bool:
    """Whether a job is made for thousands of environments on a GPU."""
    return config.device == "cuda" and not _is_slow_to_collect(config)


def _is_slow_to_collect(config: TrainConfig) -> bool:
    """Gymnasium's environments step one after the other: more of them are only older experience."""
    return hasattr(config.env, "id")


def _replay(kind: type[ReplayTrainConfig]) -> ReplayConfig:
    if issubclass(kind, DQNTrainConfig):  # the target is copied, not blended
        return ReplayConfig(warmup=1_000, steps=64, train_batches=16, batch_size=128, train_target=500, polyak=0.0)
    return ReplayConfig(train_target=2 if issubclass(kind, TD3TrainConfig) else 1)


def _replay_of_many(kind: type[ReplayTrainConfig], total_steps: int) -> ReplayConfig:
    """As FlashSAC was published for them, with four large batches for every 1,024 steps, not two.

    Its authors' four learned no worse. Eight steps of each environment come at a time: whatever an iteration costs
    besides is then next to nothing.
    """
    pace: dict[str, Any] = {"steps": 8 * _MOST_ON_A_GPU, "train_batches": 32, "batch_size": 2_048}
    room = {"capacity": min(total_steps, 10_000_000), "warmup": min(total_steps // 10, 100_000)}
    return dataclasses.replace(_replay(kind), **pace, **room)


def _pendulum(config: ReplayTrainConfig) -> dict[str, Any]:
    return {
        "policy": dataclasses.replace(_NETWORKS, hidden=(64, 64)),
        "replay": dataclasses.replace(
            config.replay, warmup=1_000, steps=50, train_batches=50, learning_rate=1e-3, capacity=100_000
        ),
        "loop": LoopConfig(total_steps=20_000, iterations=20),
        "eval": EvalConfig(every=5_000, episodes=20, stochastic=False),
    }


def _cart_pole(config: ReplayTrainConfig) -> dict[str, Any]:
    """rl-zoo3's settings: long bursts of small batches, the target copied after each."""
    burst: dict[str, Any] = {"steps": 256, "train_batches": 128, "batch_size": 64, "learning_rate": 2.3e-3}
    replay = dataclasses.replace(config.replay, capacity=100_000, train_target=128, **burst)
    tuned: dict[str, Any] = {"replay": replay, "loop": LoopConfig(total_steps=50_000, iterations=4)}
    if isinstance(config, DQNTrainConfig):
        tuned["dqn"] = dataclasses.replace(config.dqn, epsilon_until=0.16, epsilon_final=0.04)
    return tuned


def _fetch(config: ReplayTrainConfig) -> dict[str, Any]:
    """rl-zoo3's settings of pushing, sliding and picking up, which are meant for a GPU."""
    return {
        **_goal_settings(config, hidden=(512, 512, 512), batch_size=2_048),
        "loop": LoopConfig(total_steps=500_000, iterations=50),
        "eval": EvalConfig(every=25_000, episodes=50, stochastic=False, final_episodes=200),
    }


def _fetch_reach(config: ReplayTrainConfig) -> dict[str, Any]:
    return {
        **_goal_settings(config, hidden=_NETWORKS.hidden, capacity=100_000),
        "loop": LoopConfig(total_steps=10_000, iterations=10),
        "eval": EvalConfig(every=2_000, episodes=20, stochastic=False, final_episodes=200),
    }


def _goal_settings(config: ReplayTrainConfig, hidden: tuple[int, ...], **replay: int) -> dict[str, Any]:
    """Of goals that take some tens of steps and differ by centimetres, where a step costs at most 1."""
    settled = dataclasses.replace(config.replay, warmup=1_000, gamma=0.95, **replay)
    if not isinstance(config, SACTrainConfig | TD3TrainConfig):  # of another kind, with networks of its own
        return {"replay": settled}
    settings: dict[str, Any] = {
        "policy": dataclasses.replace(_NETWORKS, hidden=hidden, normalize_obs=True),
        "replay": dataclasses.replace(settled, learning_rate=1e-3, polyak=0.95),
    }
    if isinstance(config, SACTrainConfig):  # or for thousands of updates entropy would be worth more than the goal
        settings["sac"] = dataclasses.replace(config.sac, alpha=0.1)
    return settings


# By the beginning of the environment's id.
_TUNED: dict[str, Callable[[ReplayTrainConfig], dict[str, Any]]] = {
    "FetchReach-": _fetch_reach,
    "FetchPickAndPlace-": _fetch,
    "FetchPush-": _fetch,
    "FetchSlide-": _fetch,
    "Pendulum-v1": _pendulum,
    "CartPole-v1": _cart_pole,
}
