"""Settings of Gymnasium's and PettingZoo's environments."""

from dataclasses import dataclass, field
from typing import Annotated

from ludus.envs.importing import is_given
from ludus.ranges import MOST_ENVS, MOST_THREADS, Range


@dataclass(frozen=True)
class GymConfig:
    """A Gymnasium environment."""

    id: str = "CartPole-v1"
    """Its registered id. "my_package:MyEnv-v0" imports my_package first; "my_module:MyEnv" is a class or function
    there that makes it, registered or not."""
    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 8
    """Environments that step together."""
    workers: Annotated[int, Range(0, MOST_THREADS)] = 0
    """Processes that step them; 0: this one. Worth it from about 100 µs a step."""
    max_steps: Annotated[int, Range(0, 10**9)] = 0
    """Steps after which an episode is truncated; 0: the environment's own limit."""
    action_masks: bool = True
    """Choose among the valid actions only, where the environment says which they are (docs/actions.md)."""
    kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Its arguments: NAME VALUE …. A configuration file or a program may give any values."""

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that this configuration names."""
        module = self.id.rpartition(":")[0]
        return (module,) if module else ()


@dataclass(frozen=True)
class PettingZooConfig:
    """A PettingZoo parallel environment: several agents that act at the same time."""

    id: str = ""
    """Its module and the callable there that makes it, "my_module:make" (if none is named, parallel_env); or the
    registered name, "butterfly/pistonball-v6"."""
    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 8
    """Environments that step together. Each has a row for every agent."""
    workers: Annotated[int, Range(0, MOST_THREADS)] = 0
    """Processes that step them; 0: this one. Worth it from about 100 µs a step."""
    max_steps: Annotated[int, Range(0, 10**9)] = 0
    """Steps after which all agents are truncated; 0: the environment's own limit."""
    action_masks: bool = True
    """Choose among the valid actions only, where the environment says which they are (docs/actions.md)."""
    kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Passed to the callable. A configuration file or a program may give any values."""

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that this configuration names, less those of PettingZoo's own environments."""
        module, _, name = self.id.rpartition(":")
        if is_given(self.id):
            return ()
        if "/" in name:  # a registered name
            return (module,) if module else ()
        if not module and name.startswith("pettingzoo."):  # its `parallel_env`
            return ()
        return ((module or name).partition(":")[0],)
