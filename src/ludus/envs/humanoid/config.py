"""Settings of the humanoid's tasks."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from ludus.envs.mujoco.settings import TermSettings
from ludus.ranges import MOST_ENVS, MOST_STEPS, MOST_THREADS, SHARE, Range

# Settings of following clips.
_OF_TRACKING = frozenset(
    ("termination", "strict_termination", "future", "eval_starts", "playback", "reward", "resample",
     "resample_every", "resample_floor", "resample_spread", "resample_smoothing")
)  # fmt: skip


@dataclass(frozen=True)
class TrackingReward:
    """What following the reference is worth: a sum of weight · exp(−sharpness · squared error), at most 1."""

    position: Annotated[float, Range(0)] = 0.5
    """Weight of the bodies' places."""
    position_sharpness: Annotated[float, Range(0)] = 100.0
    """Per square metre, of the mean over bodies."""
    pose: Annotated[float, Range(0)] = 0.25
    """Weight of the joints' angles and the root's rotation."""
    pose_sharpness: Annotated[float, Range(0)] = 5.0
    """Per square radian, of the mean over joints."""
    root_sharpness: Annotated[float, Range(0)] = 2.0
    """Per square radian, of the root's rotation; in the same exponent."""
    velocity: Annotated[float, Range(0)] = 0.1
    """Weight of the joints' velocities."""
    velocity_sharpness: Annotated[float, Range(0)] = 0.1
    """Per (rad/s)², of the mean over joints."""
    root_velocity: Annotated[float, Range(0)] = 0.15
    """Weight of the root's velocity."""
    root_velocity_sharpness: Annotated[float, Range(0)] = 2.0
    """Per (m/s)²."""
    power: Annotated[float, Range(0)] = 0.0
    """Cost of the motors' mechanical power, per kilowatt."""


@dataclass(frozen=True)
class HumanoidConfig(TermSettings):
    """A body that imitates clips of motion."""

    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 64
    """Simulations trained on at once."""
    threads: Annotated[int, Range(0, MOST_THREADS)] = 0
    """Simulation threads of each group; 0 uses every core."""
    simulator: Literal["auto", "threads", "warp"] = "auto"
    """auto: MuJoCo Warp for groups of 512 or more on a GPU, where it is installed, else CPU threads."""
    body: str = "humanoid"
    """What imitates: humanoid, g1, or a file of yours (robot.toml, robot.xml); 'ludus body check' looks at one."""
    clips: str = "all"
    """What to imitate: names, files or folders, with commas between; all: the clips that ship with Ludus."""
    test_clips: str = ""
    """Clips that are kept out of the training: patterns of their names with * and ?, with commas between ("*7_*").
    Evaluations play them beside the others and tell of them apart: test_success_rate, test_completion, …"""
    mirror: bool = False
    """Train on every clip mirrored, too (left and right exchanged); evaluations play the originals alone."""
    playback: Annotated[tuple[float, ...], Range(above=0, most=10, longest=2)] = (1.0, 1.0)
    """The slowest and the fastest rate at which a clip is played; an episode of training draws one (0.8 1.25)."""
    start_noise: Annotated[float, Range(0, 10)] = 0.0
    """Start beside the reference in training; 1: root ±5 cm, ±0.1 rad (yaw ±0.2) and ±0.5 m/s, joints ±0.1 rad."""
    goal: Literal["track", "speed"] = "track"
    """track: follow a clip pose by pose. speed: move forward at a speed that is asked for, in any way."""
    speed: Annotated[tuple[float, ...], Range(0, 100, longest=2)] = (0.8, 1.6)
    """m/s, the slowest and the fastest commanded speed; of goal speed."""
    actions: Literal["residual", "feedforward", "absolute"] = "residual"
    """What actions are added to. residual: the reference's pose one step ahead, and the lag of the motors.
    feedforward: that pose, and what the motors need to bear weight and inertia there; for soft robots.
    absolute: always the mean pose of the clips."""
    action_scale: Annotated[float, Range(0, 100)] = 0.0
    """rad that an action of 1 adds; 0: as the body's own file says (0.5 for the humanoid)."""
    future: Annotated[tuple[int, ...], Range(1, 10_000, longest=256)] = (1,)
    """Which of the coming frames of the reference are seen, in control steps ahead."""
    max_steps: Annotated[int, Range(1, 100_000)] = 300
    """Time limit of an episode, in control steps (of the humanoid 30 a second)."""
    termination: Annotated[float, Range(above=0, most=1_000_000)] = 0.5
    """m; an episode of training ends when any body is farther from its reference."""
    strict_termination: Annotated[float, Range(0, 1_000_000)] = 0.0
    """m; a closer limit for episodes that begin in a second of a clip from which the newest evaluation followed:
    as far as it was off, at least this, at most `termination`. Seconds in which none began take the farthest of
    their clip. Starts are then drawn to what fails strictly, too. 0: `termination` everywhere."""
    reward: TrackingReward = field(default_factory=TrackingReward)
    """Of goal track: the usual weights of its reward terms, and how sharply they fall."""
    discriminate: Literal["nothing", "motion", "error"] = "nothing"
    """What a discriminator sees: nothing; windows of motion (AMP); the error of tracking (ADD)."""
    window: Annotated[int, Range(1, 1_000)] = 10
    """Frames of a window of motion."""
    resample: bool = True
    """Let episodes start more often where evaluations fail; off: always evenly over the clips."""
    resample_every: Annotated[int, Range(0, MOST_STEPS)] = 0
    """Environment steps between such changes, each after an evaluation of its own; 0: after every evaluation."""
    resample_floor: Annotated[float, SHARE] = 0.1
    """Share of the starts that stays spread evenly over the clips, whatever fails. Once evaluations tell how long
    loops are followed, these get fewer: no loop is practised for longer than clips that end are on average."""
    resample_spread: Annotated[float, SHARE] = 0.0
    """Share of the clips that must fail before failures draw all starts that the floor leaves; 0: one is enough.
    With 1,000 clips take 0.05: a few that nobody can follow do not take the others' starts."""
    resample_smoothing: Annotated[float, SHARE] = 0.5
    """Weight of the newest evaluation's failures against those before."""
    eval_starts: Annotated[int, Range(1, 10_000)] = 8
    """Starts of every looping clip in an evaluation, spread over its cycle; others start at their beginning."""

    def why_useless(self, setting: str) -> str:
        """A sentence where a setting would do nothing; else empty."""
        if self.goal == "speed" and setting.partition(".")[0] in _OF_TRACKING:
            return "with --env.goal speed no clip is followed; leave it out."
        if self.goal == "track" and setting == "speed":
            return "it is of --env.goal speed; leave it out."
        if not self.resample and setting.startswith("resample_"):
            return "with --env.no-resample starts stay as they are; leave it out."
        if self.discriminate != "motion" and setting == "window":
            return "it is of --env.discriminate motion; leave it out."
        return ""

    def with_whole_paths(self) -> Self:
        """The same, with a body and clips that are found again from any folder."""
        from ludus.envs.bodies.body import whole_name  # which loads MuJoCo
        from ludus.envs.humanoid.catalogue import whole_names  # which reads many formats

        return dataclasses.replace(self, body=whole_name(self.body), clips=whole_names(self.clips))
