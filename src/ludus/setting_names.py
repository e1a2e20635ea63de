"""What a setting may be called: by its full name, without its section, or as other libraries call it.

The names of Stable-Baselines3, its zoo, CleanRL and Metta are understood where they mean the same. Where they do
not, a sentence says what to give instead. Command line and Python share this table.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ludus.algorithms.registry import built_in
from ludus.config import LoopConfig, TrainConfig
from ludus.errors import ConfigError, did_you_mean


class Changed(NamedTuple):
    """The same setting of ours, in other numbers."""

    name: str
    change: Callable[[Any], Any]


class Both(NamedTuple):
    """Two settings of ours that are one elsewhere: ours move from the first to the second during a training."""

    name: str
    final: str


class Told(NamedTuple):
    """No setting of ours is the same: what to give instead."""

    sentence: str
    section: str = ""  # of the algorithms that it is about; of all, if empty


_HORIZON, _PASSES = ("ppo.horizon", "distill.horizon"), ("ppo.update_epochs", "distill.update_epochs")
_RATE = ("ppo.learning_rate", "distill.learning_rate", "replay.learning_rate")
_MINIBATCH, _MINIBATCHES = ("ppo.batch_size", "distill.batch_size"), ("ppo.minibatches", "distill.minibatches")
_STEPS = (
    Told("take --replay.steps: environment steps an iteration, over all environments.", "replay"),
    "replay.steps",
)
_TARGET = (Told("take --replay.train-target, in gradient steps.", "replay"), "replay.train_target")
_ALPHA = Told("take --sac.alpha VALUE, and --sac.no-learn-alpha to keep it.", "sac")
_WANDB = Told("take --log.wandb PROJECT.")
_RUN_DIR = Told("take --run-dir FOLDER, where the run goes.")
_VALUE_CLIP = (
    Told("take --ppo.value-clip, in units of the normalised return; 0 does not limit it.", "ppo"),
    "ppo.value_clip",
)
_CALLBACKS = Told("callbacks are objects, given in Python: ludus.train(…, callbacks=[MyCallback()]).")
_ENV = Told("name the environment first: ludus train gym:CartPole-v1.")
_ONE_RATE = (Told("take --replay.learning-rate, which all networks share.", "replay"), "replay.learning_rate")

# Name elsewhere → what it is here: the first setting that the algorithm has, or what to say.
OTHERS: dict[str, tuple[str | Changed | Both | Told, ...]] = {
    # how long, and how many at once
    "total_timesteps": ("loop.total_steps",),
    "n_timesteps": ("loop.total_steps",),
    "timesteps": ("loop.total_steps",),
    "max_steps_total": ("loop.total_steps",),
    "steps": (
        Told("take --total-steps for how long to train, --replay.steps for the steps of an iteration.", "replay"),
        Told("take --total-steps."),
    ),
    "n_envs": ("env.num_envs",),
    "n_eval_envs": (Told("an evaluation plays in as many environments as it has episodes: --eval.episodes."),),
    "num_workers": ("env.workers", "env.threads"),
    # rollouts
    "n_steps": (*_HORIZON, "replay.n_step"),
    "num_steps": _HORIZON,
    "bptt_horizon": _HORIZON,
    "n_epochs": _PASSES,
    "num_epochs": _PASSES,
    "num_minibatches": _MINIBATCHES,
    "n_minibatches": _MINIBATCHES,
    "nminibatches": _MINIBATCHES,
    "minibatch_size": (*_MINIBATCH, "replay.batch_size"),
    # losses
    "lr": _RATE,
    "ent_coef": (Both("ppo.entropy_coef", "ppo.entropy_coef_final"), _ALPHA),
    "vf_coef": ("ppo.value_coef",),
    "clip_range": ("ppo.clip",),
    "clip_coef": ("ppo.clip",),
    "clip_range_vf": _VALUE_CLIP,
    "clip_vloss": _VALUE_CLIP,
    "norm_adv": ("ppo.normalize_advantage",),
    "anneal_lr": (
        Told(
            "the learning rate falls linearly to --ppo.learning-rate-final: 0 anneals it, the same value as "
            "--ppo.learning-rate keeps it.",
            "ppo",
        ),
        Told("the learning rate stays as it is with this algorithm."),
    ),
    # replay
    "buffer_size": ("replay.capacity",),
    "learning_starts": ("replay.warmup",),
    "tau": (Changed("replay.polyak", lambda tau: 1 - _number(tau)),),
    "gradient_steps": ("replay.train_batches",),
    "train_freq": _STEPS,
    "train_frequency": _STEPS,
    "target_update_interval": _TARGET,
    "target_network_frequency": _TARGET,
    "n_sampled_goal": (Changed("replay.her", lambda goals: 1 - 1 / (_number(goals) + 1)),),
    "goal_selection_strategy": (
        Told("goals are drawn from the later steps of an episode (future); --replay.her says how many.", "replay"),
    ),
    "replay_buffer_class": (
        Told("HER is on wherever the environment has goals; --replay.her says for how many.", "replay"),
    ),
    "policy_lr": _ONE_RATE,
    "q_lr": _ONE_RATE,
    "autotune": ("sac.learn_alpha",),
    "policy_frequency": ("td3.policy_delay", "flash.policy_delay"),
    "target_policy_noise": ("td3.target_noise",),
    "policy_noise": ("td3.target_noise",),
    "noise_clip": ("td3.target_noise_clip",),
    "exploration_noise": ("td3.exploration",),
    "exploration_fraction": ("dqn.epsilon_until",),
    "exploration_initial_eps": ("dqn.epsilon",),
    "exploration_final_eps": ("dqn.epsilon_final",),
    "start_e": ("dqn.epsilon",),
    "end_e": ("dqn.epsilon_final",),
    # networks
    "net_arch": ("policy.hidden",),
    "hidden_sizes": ("policy.hidden",),
    "activation_fn": (Changed("policy.activation", lambda name: str(name).rpartition(".")[2].lower()),),
    "log_std_init": (Changed("policy.initial_std", lambda log: math.exp(_number(log))),),
    "policy_kwargs": (
        Told("take --policy.hidden 64 64, --policy.activation tanh, or a network of your own (--policy.network)."),
    ),
    "policy": (Told("the network follows the observations; --policy.hidden and --policy.memory change it."),),
    "normalize": (
        Told("take --policy.normalize-obs and --ppo.normalize-returns, which are on by default.", "ppo"),
        Told("take --policy.normalize-obs."),
    ),
    "use_sde": (Told("there is no state-dependent exploration; --policy.initial-std sets the spread."),),
    # measuring, keeping, showing
    "eval_freq": ("eval.every",),
    "n_eval_episodes": ("eval.episodes",),
    "eval_episodes": ("eval.episodes",),
    "save_freq": ("checkpoint.every",),
    "save_frequency": ("checkpoint.every",),
    "checkpoint_interval": (Told("take --checkpoint.every, in environment steps."),),
    "track": (_WANDB,),
    "wandb_project_name": ("log.wandb",),
    "wandb_project": ("log.wandb",),
    "tensorboard_log": (Told("TensorBoard files are in the run's folder; --log.no-tensorboard leaves them out."),),
    "log_interval": (Told("--loop.iterations says how many iterations make one row of metrics."),),
    "exp_name": (_RUN_DIR,),
    "run_name": (_RUN_DIR,),
    "log_folder": (_RUN_DIR,),
    "logdir": (_RUN_DIR,),
    "verbose": (Told("--quiet (in Python quiet=True) prints no progress."),),
    "callback": (_CALLBACKS,),
    "callbacks": (_CALLBACKS,),
    "cuda": (Told("take --device cuda or --device cpu."),),
    "env": (_ENV,),
    "env_id": (_ENV,),
    "env_kwargs": (Told("take --env.kwargs NAME VALUE … for a Gymnasium environment."),),
}

# Sections whose settings give way to others of the same name, and need their section where two have it.
_WITH_SECTION = ("eval", "checkpoint", "reward", "data", "adversary")


def full_name(name: str, config: TrainConfig) -> str:
    """`ppo.horizon` for `horizon` and `n_steps`; a name that nothing knows is given back."""
    return next(iter(translate(name, None, config)))


def translate(name: str, value: Any, config: TrainConfig) -> dict[str, Any]:
    """A setting under our full name (or names), in our numbers; a sentence where we have none like it."""
    if has_setting(config, name):
        return {name: value}
    short = () if name in OTHERS else _short(name, config)
    ours = next((full for full in short if has_setting(config, full)), None)
    if ours is not None or name in _fields(config):  # a whole section
        return {ours or name: value}
    for meaning in OTHERS.get(name, ()):
        if isinstance(meaning, Told) and (not meaning.section or meaning.section in _fields(config)):
            raise ConfigError(f"{flag_of(name)}: {meaning.sentence}")
        if not isinstance(meaning, Told) and has_setting(config, _our_name(meaning)):
            return _in_our_numbers(meaning, value)
    return {_elsewhere(name): value}


def _our_name(meaning: str | Changed | Both) -> str:
    return meaning if isinstance(meaning, str) else meaning.name


def _in_our_numbers(meaning: str | Changed | Both, value: Any) -> dict[str, Any]:
    if isinstance(meaning, Both):
        return {meaning.name: value, meaning.final: value}
    if isinstance(meaning, Changed) and value is not None:
        value = meaning.change(value)
    return {_our_name(meaning): value}


def has_setting(config: Any, name: str) -> bool:
    """Whether a configuration has this full name, and it is no section."""
    first, _, rest = name.partition(".")
    if first not in _fields(config):
        return False
    part = getattr(config, first)
    return has_setting(part, rest) if dataclasses.is_dataclass(part) and rest else not rest and not _fields(part)


def settings_of(config: Any, path: str = "") -> Iterator[str]:
    """The full names of all settings."""
    for name in _fields(config):
        part = getattr(config, name)
        yield from settings_of(part, f"{path}{name}.") if _fields(part) else (f"{path}{name}",)


def unknown_setting(name: str, config: TrainConfig, written: Callable[[str], str]) -> ConfigError:
    """With the names that come nearest, whoever uses them, `written` as flags or as Python has them."""
    for meaning in OTHERS.get(name, ()):
        if isinstance(meaning, Told):  # of a name that is a section of ours
            return ConfigError(f"{written(name)}: {meaning.sentence}")
    names = list(settings_of(config))
    if having := [full for full in names if full.rpartition(".")[2] == name]:
        sections, told = (" and ".join(map(_section_of, having)), " or ".join(map(written, having)))
        return ConfigError(f"{written(name)} is a setting of {sections}: say which, {told}.")
    short = [last for full in names if full in _short(last := full.rpartition(".")[2], config)]
    near = did_you_mean(written(name).strip("'"), (written(k).strip("'") for k in (*names, *short, *OTHERS)))
    return ConfigError(f"unknown setting {written(name)}.{near} 'ludus train PRESET --help-all' shows all.")


def _section_of(full: str) -> str:
    return full.rpartition(".")[0]


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _short(name: str, config: TrainConfig) -> Iterator[str]:
    """The full names that a name without its section may stand for, the likeliest first."""
    if "." in name:
        return
    yield from filter(None, (_given_short(config).get(name),))
    own = [section for section in _fields(config) if section not in _fields(TrainConfig)]
    for section in (*own, "policy", "env", "log"):
        if section not in _WITH_SECTION:
            yield f"{section}.{name}"
    having = [section for section in _WITH_SECTION if has_setting(config, f"{section}.{name}")]
    yield from (f"{section}.{name}" for section in having if len(having) == 1)


def _given_short(config: TrainConfig) -> dict[str, str]:
    lengths = {name: f"loop.{name}" for name in _fields(LoopConfig)}
    return lengths | {"clip": "env.clips", "from": "start_from"} | dict(config.short_names)


def _elsewhere(name: str) -> str:
    """The full name that a setting has with other algorithms; the name itself if none of them knows it."""
    if "." in name:
        return name
    others = [algorithm.config() for algorithm in built_in().values()]
    for meaning in OTHERS.get(name, ()):
        if not isinstance(meaning, Told):
            return _our_name(meaning)
    found = (full for other in others for full in _short(name, other) if has_setting(other, full))
    return next((full for full in found if not full.startswith(("env.", "policy."))), name)


def _fields(part: Any) -> list[str]:
    """Of a configuration or a section of one; a value has none."""
    return [field.name for field in dataclasses.fields(part)] if dataclasses.is_dataclass(part) else []


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{value!r} is not a number.") from None


def names_of(names: Iterable[str], config: TrainConfig) -> dict[str, str]:
    """The full name of each, with what was given."""
    return {full_name(name, config): name for name in names}
