"""Settings of the running tasks."""

from dataclasses import dataclass
from typing import Annotated

from ludus.envs.mujoco.settings import SimulatorChoice, TermSettings
from ludus.ranges import MOST_ENVS, MOST_THREADS, Range


@dataclass(frozen=True)
class LocomotionConfig(TermSettings):
    """A Gymnasium running task on the batched simulator."""

    task: str = "half-cheetah"
    """Which one: half-cheetah, hopper, walker2d, ant or humanoid."""
    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 64
    """Environments that step together."""
    threads: Annotated[int, Range(0, MOST_THREADS)] = 0
    """Simulation threads of each group; 0 uses every core."""
    simulator: SimulatorChoice = "auto"
    """auto: MuJoCo Warp for groups of 512 or more on a GPU, where it is installed, else CPU threads."""
    max_steps: Annotated[int, Range(1, 10**9)] = 1000
    """Steps after which an episode is truncated."""
