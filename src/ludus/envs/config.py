"""Settings of every kind of environment, and the name of each kind in a configuration file.

An environment of a folder has its settings there, one of a single file has them here. Help shows settings, so
nothing slow is imported for them: torch and MuJoCo take seconds.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ludus.envs.gym.config import GymConfig, PettingZooConfig
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.importing import is_given
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.locomotion.config import LocomotionConfig
from ludus.ranges import MOST_ENVS, Range


@dataclass(frozen=True)
class ForageConfig:
    """Gather berries of the colour that pays. It is shown only at first: remember it."""

    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 128
    """Maps trained on at once; each has `agents` rows."""
    agents: Annotated[int, Range(1, 4_096)] = 4
    """Agents that share a map."""
    width: Annotated[int, Range(3, 1_024)] = 9
    """Cells from west to east, with the border wall."""
    height: Annotated[int, Range(3, 1_024)] = 9
    """Cells from north to south, with the border wall."""
    window: Annotated[int, Range(1, 255)] = 5
    """Side of the square an agent sees, itself in the middle; odd."""
    berries: Annotated[int, Range(1, MOST_ENVS)] = 8
    """Berries of each colour on a map."""
    episode_length: Annotated[int, Range(1, 1_000_000)] = 32
    """Steps of an episode."""
    cue_length: Annotated[int, Range(0, 1_000_000)] = 6
    """Steps at the start of an episode during which the paying colour is shown."""
    map: Literal["open", "pillars", "rooms"] = "open"
    """Walls inside the border: none, single pillars, or four rooms with doors."""
    swap: bool = False
    """Harder: the paying colour changes in mid-episode; agents feel whether the last step was paid or punished."""
    relay: bool = False
    """Harder: only the first agent of each map is shown the paying colour."""


@dataclass(frozen=True)
class MettagridConfig:
    """A grid world of the mettagrid package."""

    task: str = "navigation"
    """navigation, assembly or arena."""
    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 16
    """Worlds that step together. Each has several agents, and each agent is a row."""
    agents: Annotated[int, Range(0, 4_096)] = 0
    """Agents in each world; 0: the task's own number."""
    max_steps: Annotated[int, Range(0, 10**9)] = 0
    """Steps of an episode; 0: the task's own number."""
    observation: Literal["planes", "tokens"] = "planes"
    """Maps of what is around the agent, or the engine's own list of tokens."""


@dataclass(frozen=True)
class VecConfig:
    """A batched environment of your own: a VecEnv, or a VectorEnv of Gymnasium."""

    factory: str = ""
    """The module and the callable there that makes it: "my_module:make_env"."""
    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 64
    """Environments that step together."""
    kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Passed to the callable. A configuration file or a program may give any values."""

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that this configuration names."""
        return () if is_given(self.factory) else (self.factory.partition(":")[0],)


EnvConfig = (
    KukaConfig
    | HumanoidConfig
    | LocomotionConfig
    | ForageConfig
    | GymConfig
    | PettingZooConfig
    | MettagridConfig
    | VecConfig
)

# The name of each kind of environment in a configuration file.
ENV_KINDS: dict[str, type[EnvConfig]] = {
    "kuka": KukaConfig,
    "humanoid": HumanoidConfig,
    "locomotion": LocomotionConfig,
    "forage": ForageConfig,
    "gym": GymConfig,
    "pettingzoo": PettingZooConfig,
    "mettagrid": MettagridConfig,
    "vec": VecConfig,
}

# Settings of an environment that change how it is trained in or simulated, not what an evaluation measures.
NOT_JUDGED = ("num_envs", "threads", "workers", "simulator", "assist", "assist_final", "resample",
              "resample_every", "resample_floor", "resample_smoothing", "resample_spread", "mirror", "playback",
              "start_noise")  # fmt: skip
# What earlier runs were judged by, though it changes training alone: as if it were as most had it.
ONCE_JUDGED = {"strict_termination": 0.0}
# Settings that came later, at values that change nothing: runs from before are judged alike.
SAY_NOTHING = {"body": "humanoid", "test_clips": "", "eval_randomized": True}


def why_useless(config: EnvConfig, setting: str) -> str:
    """A sentence where one of its settings would do nothing; else empty."""
    return config.why_useless(setting) if isinstance(config, HumanoidConfig) else ""


def name_in(config: EnvConfig) -> str:
    """ "gym:CartPole-v1", "vec:my_module:make_env": the environment that the settings name, with its kind."""
    kind = next(name for name, settings in ENV_KINDS.items() if type(config) is settings)
    named = (str(getattr(config, field, "")) for field in ("id", "factory", "task"))
    return f"{kind}:{next(filter(None, named), '')}"
