"""Settings of the KUKA's task."""

from dataclasses import dataclass
from typing import Annotated

from ludus.envs.mujoco.settings import SimulatorChoice, TermSettings
from ludus.ranges import MOST_ENVS, MOST_THREADS, SHARE, Range


@dataclass(frozen=True)
class KukaConfig(TermSettings):
    """The KUKA pick-and-place task."""

    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 128
    """Simulations trained on at once."""
    threads: Annotated[int, Range(0, MOST_THREADS)] = 0
    """Simulation threads of each group; 0 uses every core."""
    simulator: SimulatorChoice = "auto"
    """auto: MuJoCo Warp for groups of 512 or more on a GPU, where it is installed, else CPU threads."""
    fixed: bool = False
    """Always start the cube and the pad at the same places instead of anywhere on the table."""
    assist: Annotated[float, SHARE] = 0.5
    """Share of training episodes that start at the cube, just after it was lost, or with it in the hand."""
    assist_final: Annotated[float, SHARE] = 0.25
    """That share in the last fifth of the training."""
    goals: bool = False
    """Every step costs 1 until the cube lies on the pad, and the goal is a part of its own: to learn with HER."""
    image_size: Annotated[int, Range(0, 512)] = 0
    """Pixels of each side of the images of two cameras, which are observed besides; 0: no images."""
    max_steps: Annotated[int, Range(1, 10**9)] = 100
    """Time limit of an episode, in control steps of 50 ms."""
