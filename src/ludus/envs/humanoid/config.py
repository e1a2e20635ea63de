"""Settings of the humanoid's tasks."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TrackingReward:
    """What following the reference is worth: a sum of weight · exp(−sharpness · squared error), at most 1."""

    position: float = 0.5
    """Weight of the bodies' places."""
    position_sharpness: float = 100.0
    """Per square metre, of the mean over bodies."""
    pose: float = 0.25
    """Weight of the joints' angles and the root's rotation."""
    pose_sharpness: float = 5.0
    """Per square radian, of the mean over joints."""
    root_sharpness: float = 2.0
    """Per square radian, of the root's rotation; in the same exponent."""
    velocity: float = 0.1
    """Weight of the joints' velocities."""
    velocity_sharpness: float = 0.1
    """Per (rad/s)², of the mean over joints."""
    root_velocity: float = 0.15
    """Weight of the root's velocity."""
    root_velocity_sharpness: float = 2.0
    """Per (m/s)²."""
    power: float = 0.0
    """Cost of the motors' mechanical power, per kilowatt."""


@dataclass(frozen=True)
class HumanoidConfig:
    """A humanoid that imitates clips of motion."""

    num_envs: int = 64
    """Simulations trained on at once."""
    threads: int = 0
    """Simulation threads of each group; 0 uses every core."""
    simulator: Literal["auto", "threads", "warp"] = "auto"
    """auto: MuJoCo Warp for groups of 512 or more on a GPU, where it is installed, else CPU threads."""
    clips: str = "all"
    """What to imitate: names, files or folders, with commas between; all: the clips that ship with Ludus."""
    goal: Literal["track", "speed"] = "track"
    """track: follow a clip pose by pose. speed: move forward at a speed that is asked for, in any way."""
    speed: tuple[float, ...] = (0.8, 1.6)
    """m/s, the slowest and the fastest that is asked for; of goal speed."""
    actions: Literal["residual", "absolute"] = "residual"
    """What actions are added to: the reference's pose one step ahead, or always the mean pose of the clips."""
    action_scale: float = 0.5
    """rad that an action of 1 adds."""
    future: tuple[int, ...] = (1,)
    """Which of the coming frames of the reference are seen, in control steps ahead."""
    max_steps: int = 300
    """Time limit of an episode, in control steps of 1/30 s."""
    termination: float = 0.5
    """m; an episode of training ends when any body is farther from its reference."""
    reward: TrackingReward = field(default_factory=TrackingReward)
    """Of goal track."""
    discriminate: Literal["nothing", "motion", "error"] = "nothing"
    """What a discriminator sees: nothing; windows of motion (AMP); the error of tracking (ADD)."""
    window: int = 10
    """Frames of a window of motion."""
    resample: bool = True
    """After every evaluation, let episodes start more often where it failed; off: all clips alike for ever."""
    resample_floor: float = 0.1
    """Share of the starts that stays spread evenly over the clips, whatever fails."""
    resample_smoothing: float = 0.5
    """Weight of the newest evaluation's failures against those before."""
    eval_starts: int = 8
    """Starts of every looping clip in an evaluation, spread over its cycle; others start at their beginning."""
