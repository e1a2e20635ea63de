"""The clips that come with Ludus: gaits by equations, gestures by keyframes.

    python tools/clips/authoring.py    writes them again, into the package

Feet are placed first, and stay where they stand. The wished point of pressure wanders with them, from foot to foot
and from heel to toe; the pelvis is then moved (`balance.balanced`) until the floor has to push just there. What
comes out can be done by a body without strings, which a motion drawn by eye seldom can.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from balance import GRAVITY, balanced
from ludus.envs.humanoid.catalogue import shipped_folder
from ludus.envs.humanoid.clip import Clip, save_clip
from posing import ANKLE_HEIGHT, HEEL, TOE, Angles, Foot, Poses, arm, qpos_of

FPS = 60
SOURCE = "authored by gait equations / keyframes, Ludus"
LICENCE = "MIT"
_MIDDLE = (TOE - HEEL) / 2  # m, of the sole before the ankle
_STANDING = 0.872  # m, the pelvis's height with knees hardly bent

Keys = Iterable[tuple[float, float]]  # (time, value)


def author_clips() -> list[Clip]:
    makers = (_stroll, _jog, _march, _turn, _side_step, _squat, _wave, _punch_combo, _bow)
    return [make() for make in makers]


def main() -> None:
    for clip in author_clips():
        save_clip(clip, shipped_folder() / f"{clip.name}.npz")
        print(f"{clip.name}: {clip.frames} frames, {clip.duration:.2f} s")


# --- Curves ------------------------------------------------------------------------------------------------------


def _ease(share: np.ndarray) -> np.ndarray:
    """From 0 to 1 with the least jerk: at rest at both ends."""
    s = np.clip(share, 0.0, 1.0)
    return s**3 * (10 - 15 * s + 6 * s**2)


def _bump(share: np.ndarray) -> np.ndarray:
    """From 0 over 1 to 0, smooth at both ends."""
    s = np.clip(share, 0.0, 1.0)
    return 64 * s**3 * (1 - s) ** 3


def _along(t: np.ndarray, keys: Keys) -> np.ndarray:
    """Through keyframes, resting shortly at each."""
    times, values = zip(*keys, strict=True)
    result = np.full_like(t, values[0])
    for i in range(len(times) - 1):
        result += (values[i + 1] - values[i]) * _ease((t - times[i]) / (times[i + 1] - times[i]))
    return result


def _hermite(share: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The curve of fifth order between two states (value, velocity, acceleration), over a time of 1."""
    (p0, v0, a0), (p1, v1, a1) = start, end
    rest = np.array([p1 - p0 - v0 - a0 / 2, v1 - v0 - a0, a1 - a0])
    c3, c4, c5 = np.linalg.solve(np.array([[1.0, 1.0, 1.0], [3.0, 4.0, 5.0], [6.0, 12.0, 20.0]]), rest)
    s = share
    return p0 + v0 * s + a0 / 2 * s**2 + c3 * s**3 + c4 * s**4 + c5 * s**5


def _times(seconds: float) -> np.ndarray:
    return np.arange(round(seconds * FPS) + 1) / FPS


# --- Walking and running: feet that roll from heel to toe --------------------------------------------------------


@dataclass(frozen=True)
class _Gait:
    """One cycle: the right foot strikes at 0, the left half a cycle later. Shares are of the cycle."""

    seconds: float
    stride: float  # m
    stance: float  # share in which a foot is on the floor
    roll: Keys  # (share, pitch of the foot) from flat to flat: over the toes, and toes up as it strikes
    pressure: Keys  # (share, m before the ankle) where the standing foot presses
    lift: float  # m, of the swinging ankle, besides what the curve does by itself
    brake: float  # m per swing², how hard the swinging foot is braked at its end: late, as legs are not endless
    clear: float  # m per swing², how briskly it leaves the floor and comes down to it: no toe scrapes
    half_width: float  # m, from the middle to a foot
    toe_out: float = 0.0

    def pitch(self, share: np.ndarray) -> np.ndarray:
        keys = list(self.roll)
        late = np.where(share < keys[0][0], share + 1, share)
        return _along(late, keys)

    def foot(self, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x, z) of the ankle against the place it stands at; `share` counts on after 1."""
        cycle, at = np.divmod(share, 1.0)
        swing = np.clip((at - self.stance) / (1 - self.stance), 0.0, 1.0)
        standing = self._standing(np.minimum(at, self.stance))
        start, end = self._state(self.stance), self._state(1.0)
        end[0] += np.array([self.stride, 0.0, -self.brake])
        start[1, 2] += self.clear
        end[1, 2] += self.clear
        flying = [_hermite(swing, start[i], end[i]) for i in range(2)]
        flying[1] += self.lift * _bump(swing)
        x, z = (np.where(at < self.stance, standing[i], flying[i]) for i in range(2))
        return x + cycle * self.stride, z

    def _standing(self, share: np.ndarray) -> np.ndarray:
        """[2, ...] the ankle of a foot that rolls over its heel or its toes' edge."""
        pitch = self.pitch(np.mod(share, 1.0))
        edge = np.where(pitch > 0, TOE, -HEEL)
        x = edge - edge * np.cos(pitch) + ANKLE_HEIGHT * np.sin(pitch)
        return np.stack([x, edge * np.sin(pitch) + ANKLE_HEIGHT * np.cos(pitch)])

    def _state(self, share: float) -> np.ndarray:
        """[2, 3] value, velocity and acceleration of x and z as the swing begins or ends, in times of a swing."""
        step, swing = 1e-3, 1 - self.stance
        before, here, after = (self._standing(np.array(share + i * step)) for i in (-1, 0, 1))
        velocity = (after - before) / (2 * step) * swing
        return np.stack([here, velocity, (after - 2 * here + before) / step**2 * swing**2], axis=1)

    def pressed(self, share: np.ndarray) -> np.ndarray:
        keys = list(self.pressure)
        return np.interp(np.mod(share, 1.0), [k for k, _ in keys], [v for _, v in keys])


def _walked(name: str, gait: _Gait, turn: np.ndarray, upper: Angles, height: float, rise: np.ndarray) -> Clip:
    """`height` is the pelvis's on average, `rise` how the centre of mass goes up and down."""
    t = _times(gait.seconds)
    share = t / gait.seconds
    feet, places = {}, {}
    for side, ahead, y in (("right", 0.0, -gait.half_width), ("left", 0.5, gait.half_width)):
        own = share + ahead
        x, z = gait.foot(own)
        x0 = -gait.stride * ahead
        none = np.zeros_like(t)
        yaw = none + gait.toe_out * np.sign(y)
        ankle = np.stack([x + x0, none + y, z], axis=1)
        feet[side] = Foot(ankle, np.stack([yaw, gait.pitch(np.mod(own, 1.0)), none], axis=1))
        at = x0 + gait.stride * np.floor(own) + gait.pressed(own)
        places[side] = np.stack([at, none + y], axis=1)
    weight = _weight_of_right(gait, share)[:, None]
    pressed = weight * places["right"] + (1 - weight) * places["left"]
    pelvis = np.stack([gait.stride * share, np.zeros_like(t), np.full_like(t, height)], axis=1)
    poses = balanced(Poses(pelvis, turn, feet, upper), pressed, FPS, rise)
    return _clip(name, poses, loop=True)


def _weight_of_right(gait: _Gait, share: np.ndarray) -> np.ndarray:
    """How much of the weight the right foot bears, from 0 to 1."""
    both = gait.stance - 0.5  # the share in which both feet stand; negative where none does
    if both <= 0:
        return (np.mod(share - both / 2, 1.0) < 0.5).astype(float)
    at, moving = np.mod(share, 1.0), 0.8 * both
    return _ease(at / moving) - _ease((at - 0.5) / moving)


def _stroll() -> Clip:
    gait = _Gait(
        seconds=1.0,
        stride=1.2,
        stance=0.61,
        roll=((0.09, 0.0), (0.44, 0.0), (0.67, 0.95), (0.98, -0.28), (1.09, 0.0)),
        pressure=((0.0, -0.03), (0.1, 0.02), (0.3, 0.09), (0.45, 0.129), (0.61, 0.133), (0.8, 0.0), (1.0, -0.03)),
        lift=0.0,
        brake=8.0,
        clear=2.0,
        half_width=0.07,
        toe_out=0.06,
    )
    share = _times(gait.seconds) / gait.seconds
    turn, upper = _swinging(share, yaw=0.09, list_=0.045, lean=0.02, arms=0.36, elbow=0.32)
    rise = -0.014 * np.cos(4 * np.pi * (share - 0.03))  # highest over the standing foot
    return _walked("stroll", gait, turn, upper, 0.846, rise)


def _jog() -> Clip:
    gait = _Gait(
        seconds=2 / 3,
        stride=1.36,
        stance=0.42,
        roll=((0.06, 0.0), (0.24, 0.0), (0.62, 1.25), (0.94, -0.08), (1.06, 0.0)),
        pressure=((0.0, 0.0), (0.2, 0.085), (0.28, 0.131), (0.42, 0.1335), (0.8, 0.0), (1.0, 0.0)),
        lift=0.0,
        brake=11.0,
        clear=3.0,
        half_width=0.05,
        toe_out=0.03,
    )
    share = _times(gait.seconds) / gait.seconds
    turn, upper = _swinging(share, yaw=0.12, list_=0.04, lean=0.1, arms=0.5, elbow=1.45)
    return _walked("jog", gait, turn, upper, 0.8, _bouncing(gait, share))


def _bouncing(gait: _Gait, share: np.ndarray) -> np.ndarray:
    """The rise and fall of a runner: falling free while no foot stands, pushed up by each that does."""
    at = np.mod(share, 0.5)
    push = np.where(at < gait.stance, np.sin(np.pi * np.clip(at / gait.stance, 0, 1)) ** 1.5, 0.0)[:-1]
    acceleration = GRAVITY * (push / push.mean() - 1)
    count = len(acceleration)
    frequency = 2 * np.pi * np.fft.rfftfreq(count, gait.seconds / count)
    spectrum = np.fft.rfft(acceleration)
    spectrum[0] = 0.0
    spectrum[1:] /= -(frequency[1:] ** 2)
    height = np.fft.irfft(spectrum, count)
    return np.append(height, height[0])


def _swinging(
    share: np.ndarray, yaw: float, list_: float, lean: float, arms: float, elbow: float
) -> tuple[np.ndarray, Angles]:
    """The pelvis's turning and the upper body's answer: shoulders and arms go against the legs."""
    wave, late = np.cos(2 * np.pi * share), np.sin(2 * np.pi * share)
    none = np.zeros_like(share)
    turn = np.stack([yaw * wave, none + lean, -list_ * late], axis=1)
    upper = {
        "abdomen_y": none + lean / 2,
        "abdomen_x": 1.2 * list_ * late,
        "abdomen_z": -1.9 * yaw * wave,
        "neck_y": none - 1.2 * lean,
        "neck_x": -0.2 * list_ * late,
        "neck_z": 0.8 * yaw * wave,
    }
    for side, sign in (("right", -1.0), ("left", 1.0)):
        swing = sign * np.cos(2 * np.pi * (share - 0.03))
        bend = elbow + 0.22 * np.cos(2 * np.pi * (share - 0.06)) * sign
        upper |= arm(side, none + 0.13, 0.02 + arms * swing, none - 0.1, bend)
    return turn, upper


# --- Stepping on the spot and aside: flat feet, one after the other ----------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A foot lifted at one time and set down at another, at another place."""

    side: str
    up: float  # s
    down: float
    to: tuple[float, float, float]  # m, m, rad: x, y, yaw
    lift: float = 0.06  # m
    forward: float = 0.0  # m by which the lifted foot swings out
    toes_down: float = 0.25  # rad, halfway


@dataclass
class _Stepping:
    """Where the feet of a list of steps are over time, and where the weight lies."""

    t: np.ndarray
    start: dict[str, tuple[float, float, float]]
    steps: list[_Step]
    feet: dict[str, Foot] = field(init=False)
    pressed: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.feet = {side: self._foot(side) for side in self.start}
        middles = {side: _sole_middle(foot) for side, foot in self.feet.items()}
        weight = self._weight_of_right()[:, None]
        self.pressed = weight * middles["right"] + (1 - weight) * middles["left"]

    def _foot(self, side: str) -> Foot:
        place = np.tile(np.array(self.start[side], dtype=float), (len(self.t), 1))
        height, pitch, at = np.full_like(self.t, ANKLE_HEIGHT), np.zeros_like(self.t), np.array(self.start[side])
        for step in (step for step in self.steps if step.side == side):
            share = (self.t - step.up) / (step.down - step.up)
            # Up before along, and along before down: a foot does not scrape over the floor.
            place += (np.array(step.to) - at) * _ease((share - 0.12) / 0.76)[:, None]
            heading = place[:, 2:]
            place[:, :2] += step.forward * _bump(share)[:, None] * np.hstack([np.cos(heading), np.sin(heading)])
            height += step.lift * _bump(share)
            pitch += step.toes_down * _bump(share)
            at = np.array(step.to)
        none = np.zeros_like(self.t)
        return Foot(np.column_stack([place[:, :2], height]), np.stack([place[:, 2], pitch, none], axis=1))

    def _weight_of_right(self) -> np.ndarray:
        """All on the foot that stands while the other is in the air; it moves over while both stand."""
        period, keys = self.t[-1], []
        for step in self.steps:
            bears = 1.0 if step.side == "left" else 0.0
            keys += [(step.up, bears), (step.down, bears)]
        around = [(time - period, value) for time, value in keys[-2:]] + keys
        return _along(self.t, around + [(time + period, value) for time, value in keys[:2]])


def _sole_middle(foot: Foot) -> np.ndarray:
    yaw = foot.turn[:, :1]
    return foot.ankle[:, :2] + _MIDDLE * np.hstack([np.cos(yaw), np.sin(yaw)])


def _march() -> Clip:
    """On the spot, knees high, arms swung."""
    t, width = _times(1.2), 0.075
    right, left = (0.0, -width, -0.05), (0.0, width, 0.05)
    high = {"lift": 0.3, "forward": 0.14, "toes_down": 0.35}
    steps = [_Step("left", 0.07, 0.53, left, **high), _Step("right", 0.67, 1.13, right, **high)]
    stepping = _Stepping(t, {"right": right, "left": left}, steps)
    wave = np.sin(2 * np.pi * t / 1.2)  # + while the left knee is up
    none = np.zeros_like(t)
    turn = np.stack([-0.05 * wave, none - 0.02, -0.01 * wave], axis=1)
    upper = {"abdomen_z": 0.1 * wave, "abdomen_x": 0.03 * wave, "neck_z": -0.05 * wave}
    for side, sign in (("right", 1.0), ("left", -1.0)):
        upper |= arm(side, none + 0.15, 0.1 + 0.6 * sign * wave, none, 0.85 + 0.35 * sign * wave)
    return _stepped("march", stepping, turn, upper, _STANDING - 0.008)


def _turn() -> Clip:
    """A quarter to the left in four steps on the spot. Four rounds are made, which end where they began."""
    quarter, width = 2.4, 0.085
    t = _times(4 * quarter)
    place = lambda side, yaw: _beside(side, yaw, width)  # noqa: E731
    steps = []
    for i in range(8):
        yaw, start = (i + 1) * np.pi / 4, i * quarter / 2
        steps += [
            _Step("left", start + 0.14, start + 0.54, place("left", yaw)),
            _Step("right", start + 0.74, start + 1.14, place("right", yaw)),
        ]
    stepping = _Stepping(t, {"right": place("right", 0.0), "left": place("left", 0.0)}, steps)
    phase = 2 * np.pi * t / (quarter / 2)
    yaw = (stepping.feet["right"].turn[:, 0] + stepping.feet["left"].turn[:, 0]) / 2
    wave, none = np.sin(phase), np.zeros_like(t)
    turn = np.stack([yaw, none + 0.03, 0.015 * wave], axis=1)
    upper = {"abdomen_z": 0.05 + 0.03 * wave, "neck_z": 0.16 + 0.06 * wave, "abdomen_x": 0.01 * wave}
    for side, sign in (("right", 1.0), ("left", -1.0)):
        upper |= arm(side, 0.2 + 0.04 * wave, 0.1 + 0.12 * sign * wave, none, 0.4 + 0.08 * sign * wave)
    return _stepped("turn", stepping, turn, upper, _STANDING - 0.012, round(quarter * FPS))


def _beside(side: str, yaw: float, width: float) -> tuple[float, float, float]:
    """The place of a foot's ankle beside the origin, of a body turned by `yaw` about the middle of its soles."""
    sign = -1.0 if side == "right" else 1.0
    x, y = -_MIDDLE, sign * width
    return (x * np.cos(yaw) - y * np.sin(yaw), x * np.sin(yaw) + y * np.cos(yaw), yaw + 0.08 * sign)


def _side_step() -> Clip:
    """Two steps to the left and two back."""
    width, far, seconds = 0.085, 0.24, 4.0
    t = _times(seconds)
    order = [("left", far), ("right", far), ("left", 2 * far), ("right", 2 * far)]
    order += [("right", far), ("left", far), ("right", 0.0), ("left", 0.0)]
    steps = []
    for i, (side, y) in enumerate(order):
        sign = -1.0 if side == "right" else 1.0
        steps.append(_Step(side, 0.5 * i + 0.07, 0.5 * i + 0.43, (0.0, y + sign * width, 0.06 * sign)))
    stepping = _Stepping(t, {"right": (0.0, -width, -0.06), "left": (0.0, width, 0.06)}, steps)
    wave, none = np.cos(2 * np.pi * t / 1.0), np.zeros_like(t)
    turn = np.stack([none, none + 0.05, none], axis=1)
    gaze = _along(t, [(0.0, 0.0), (0.4, 0.3), (1.6, 0.3), (2.4, -0.3), (3.6, -0.3), (4.0, 0.0)])
    upper = {"abdomen_y": none + 0.04, "neck_y": none - 0.06, "neck_z": gaze}
    for side in ("right", "left"):
        upper |= arm(side, 0.42 - 0.12 * wave, none + 0.2, none, 0.75 - 0.1 * wave)
    return _stepped("side_step", stepping, turn, upper, _STANDING - 0.035)


def _stepped(
    name: str, stepping: _Stepping, turn: np.ndarray, upper: Angles, height: float, frames: int | None = None
) -> Clip:
    pelvis = np.column_stack([stepping.pressed, np.full_like(stepping.t, height)])
    poses = balanced(Poses(pelvis, turn, stepping.feet, upper), stepping.pressed, FPS)
    return _clip(name, poses, loop=True, frames=frames)


# --- Gestures: feet that stay where they are ---------------------------------------------------------------------


def _squat() -> Clip:
    t = _times(3.0)
    down = _along(t, [(0.0, 0.0), (0.15, 0.0), (1.35, 1.0), (1.6, 1.0), (2.75, 0.0), (3.0, 0.0)])
    none = np.zeros_like(t)
    turn = np.stack([none, 0.05 + 0.45 * down, none], axis=1)
    upper = {"abdomen_y": 0.02 + 0.2 * down, "neck_y": -0.35 * down}
    for side in ("right", "left"):
        upper |= arm(side, 0.16 - 0.08 * down, 0.08 + 1.3 * down, none, 0.3 - 0.1 * down)
    feet = {"right": (0.0, -0.13, -0.3), "left": (0.0, 0.13, 0.3)}
    return _planted("squat", t, feet, turn, upper, 0.855 - 0.33 * down, loop=True)


def _wave() -> Clip:
    """Right hand up, four waves, and down again; the weight rests a little more on the left leg."""
    t = _times(4.0)
    up = _along(t, [(0.0, 0.0), (0.2, 0.0), (1.0, 1.0), (3.05, 1.0), (3.85, 0.0), (4.0, 0.0)])
    waving = _ease((t - 0.75) / 0.5) * _ease((3.25 - t) / 0.5) * np.sin(2 * np.pi * 1.9 * (t - 0.8))
    breath, none = np.sin(2 * np.pi * t / 4.0), np.zeros_like(t)
    turn = np.stack([0.03 * up, none + 0.01, -0.03 * up], axis=1)
    upper = {"abdomen_x": 0.05 * up, "abdomen_y": 0.01 * breath, "abdomen_z": 0.05 * up, "neck_x": 0.08 * up}
    upper |= {"neck_z": -0.1 * up, "neck_y": 0.01 * breath}
    upper |= arm("left", 0.14 + 0.01 * breath, 0.03 + 0.05 * up, none, 0.25 + 0.03 * up)
    upper |= arm(
        "right", 0.14 + 1.45 * up + 0.08 * waving, 0.03 + 0.25 * up, -1.3 * up, 0.25 + 1.15 * up + 0.42 * waving
    )
    feet = {"right": (0.0, -0.1, -0.12), "left": (0.0, 0.1, 0.12)}
    return _planted("wave", t, feet, turn, upper, none + _STANDING, loop=True, aside=0.02 * up)


def _punch_combo() -> Clip:
    """From guard: left jab, jab, right cross, and back to guard. The left foot is in front."""
    t = _times(2.6)
    none = np.zeros_like(t)
    jab = _strike(t, 0.3, 0.95) + _strike(t, 0.9, 0.95)
    cross = _strike(t, 1.5, 1.0)
    turn = np.stack([-0.42 - 0.12 * jab + 0.45 * cross, 0.06 + 0.04 * cross, none], axis=1)
    upper = {"abdomen_z": -0.12 - 0.14 * jab + 0.5 * cross, "abdomen_y": 0.12 + 0.05 * (jab + cross)}
    upper |= {"neck_z": 0.5 + 0.22 * jab - 0.85 * cross, "neck_y": none - 0.05}
    upper |= arm("left", 0.2 - 0.05 * jab, 0.55 + 0.95 * jab, 0.45 - 0.45 * jab, 2.15 - 1.95 * jab)
    upper |= arm("right", 0.22 - 0.12 * cross, 0.45 + 1.05 * cross, 0.5 - 0.5 * cross, 2.25 - 2.05 * cross)
    feet = {"right": (-0.17, -0.12, -0.75), "left": (0.15, 0.1, -0.2)}
    height = 0.835 - 0.012 * (jab + cross)
    return _planted("punch_combo", t, feet, turn, upper, height, loop=False, ahead=0.03 * jab + 0.045 * cross)


def _strike(t: np.ndarray, start: float, depth: float) -> np.ndarray:
    """Quickly out, hardly a stop, and back."""
    return depth * (_ease((t - start) / 0.28) - _ease((t - start - 0.31) / 0.34))


def _bow() -> Clip:
    t = _times(3.0)
    bent = _along(t, [(0.0, 0.0), (0.2, 0.0), (1.2, 1.0), (1.75, 1.0), (2.75, 0.0), (3.0, 0.0)])
    none = np.zeros_like(t)
    turn = np.stack([none, 0.01 + 0.5 * bent, none], axis=1)
    upper = {"abdomen_y": 0.35 * bent, "neck_y": 0.2 * bent}
    for side in ("right", "left"):
        upper |= arm(side, 0.12 - 0.02 * bent, 0.04 + 0.35 * bent, none, 0.2 - 0.05 * bent)
    feet = {"right": (0.0, -0.085, -0.08), "left": (0.0, 0.085, 0.08)}
    return _planted("bow", t, feet, turn, upper, _STANDING - 0.012 * bent, loop=False)


def _planted(
    name: str,
    t: np.ndarray,
    feet: dict[str, tuple[float, float, float]],
    turn: np.ndarray,
    upper: Angles,
    height: np.ndarray,
    loop: bool,
    ahead: np.ndarray | float = 0.0,
    aside: np.ndarray | float = 0.0,
) -> Clip:
    """`ahead` and `aside` move the weight from the middle of the soles."""
    standing = _Stepping(t, feet, [_Step("right", 0, 1, feet["right"], lift=0, toes_down=0)]).feet
    middle = (_sole_middle(standing["right"]) + _sole_middle(standing["left"])) / 2
    none = np.zeros_like(t)
    pressed = middle + np.stack([none + ahead, none + aside], axis=1)
    poses = balanced(Poses(np.column_stack([middle, height]), turn, standing, upper), pressed, FPS)
    return _clip(name, poses, loop)


def _clip(name: str, poses: Poses, loop: bool, frames: int | None = None) -> Clip:
    """The clip, or its first `frames` steps of time, begun at the origin."""
    qpos = qpos_of(poses)[: None if frames is None else frames + 1]
    qpos[:, :2] -= qpos[0, :2]
    return Clip(name, FPS, qpos[:, :3], qpos[:, 3:7], qpos[:, 7:], loop, 0.0, SOURCE, LICENCE)


if __name__ == "__main__":
    main()
