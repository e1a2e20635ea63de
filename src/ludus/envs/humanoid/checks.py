"""What is suspicious about a clip of motion, and what to do about it; `clip.check_clip` tells what must not be."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import conjugate, multiply, rotate, rotation_vector
from ludus.envs.findings import Finding, Level
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.importing.motion import HELD_SHARE
from ludus.envs.humanoid.motor_bandwidth import follow
from ludus.envs.humanoid.seam import seam_jumps, seam_turns
from ludus.envs.humanoid.support import GRAVITY, weight_beside_support
from ludus.envs.humanoid.tracking import farthest_followed

LIMIT_SLACK = 0.02  # rad beyond a joint's limit that nobody notices
DEGREES_SHARE = 0.2  # of the joints, that turn more than once beyond their limits where angles are degrees
LIMIT_FAR = 1.0  # rad beyond a limit where the body cannot follow at all
UNDER_FLOOR, FAR_UNDER_FLOOR = 0.01, 0.05  # m
ABOVE_FLOOR = 0.05  # m: higher, nothing touches the floor
SHORT_HANG = 0.1  # s above the floor that need no flight
FREE_FALL = 0.4  # times gravity, by which a flight falls, unlike what hangs in the air
FAST_FALL = 2.25  # times gravity: what falls so is played 1.5 times too fast
LEANING_M, LEANING_SECONDS = 0.1, 1.0  # of the weight beside what bears it: no swing does that for so long
MUCH_HEIGHT_FIX = 0.08  # m
NEAR_GIMBAL = np.radians(80.0)  # of a joint's middle hinge; at 90° the other two cannot be told apart
FAST_JOINT, FAST_ROOT, FAST_TURN = 40.0, 12.0, 25.0  # rad/s, m/s, rad/s
IMPOSSIBLE = 3.0  # times as fast: no motion, a wrong unit
ANGLE_JUMP = 2.0  # rad between two frames: no motion, a wrong solution
# A jump: within one pose of a usual source the body comes to lie beside where the poses around lead it, both by
# so much and so many times farther than is usual around then. A knee that bends fast is at 8 times, and no jump.
JUMP_SECONDS, AROUND_SECONDS = 1 / 30, 0.15
_MOST_AROUND, _AT_ONCE = 61, 2_000  # frames whose median is taken; for which it is taken together
JUMP_M, JUMP_RAD = 0.05, 0.2
JUMP_BODY_TIMES, JUMP_JOINT_TIMES = 10.0, 20.0
SEAM_RAD, SEAM_M = 0.1, 0.02  # between a loop's end and its beginning
SEAM_FAR = 0.5  # rad
CONTACT = 0.015  # m
SLIDING = 0.3  # m/s, the median over the frames in which a foot is on the floor
LOW_FPS, HIGH_FPS = 20.0, 240.0
SHORT = 0.5  # s


def check_motion(clip: Clip) -> list[Finding]:
    positions, rotations = clip.bodies()
    lowest = clip.body.kinematics.lowest_points(positions, rotations).amin(dim=-1).numpy()
    centre = _centre_of_mass(clip.body, positions, rotations)
    findings = [
        *_check_time(clip),
        *_check_held(clip),
        *_check_limits(clip),
        *_check_gimbal(clip),
        *_check_speed(clip),
        *_check_jumps(clip, positions.numpy()),
        *_check_motors(clip),
        *_check_floor(clip, lowest, centre),
        *_check_support(clip, weight_beside_support(clip, positions, rotations, centre)),
        *_check_sliding(clip, positions, rotations),
    ]
    return [*findings, *_check_seam(clip)] if clip.loop else findings


def gross_errors(clip: Clip) -> list[str]:
    """What nobody should train on, as far as it is found at once: angles in degrees, jumps, a wrong unit."""
    found = (*_check_limits(clip), *_check_speed(clip))
    return [f"{clip.name}: {finding.what} {finding.fix}" for finding in found if finding.level == "error"]


def lacks_support(clip: Clip) -> bool:
    """Whether it needs what is not there: it hangs higher than a policy may be off, or sits or leans on air."""
    positions, rotations = clip.bodies()
    lowest = clip.body.kinematics.lowest_points(positions, rotations).amin(dim=-1).numpy()
    centre = _centre_of_mass(clip.body, positions, rotations)
    highest, _ = farthest_followed(clip.body)
    if any(flight.fall < FREE_FALL and flight.height > highest for flight in _flights(clip, lowest, centre)):
        return True
    return bool(_leaning(clip, weight_beside_support(clip, positions, rotations, centre)))


def _check_time(clip: Clip) -> Iterator[Finding]:
    if not LOW_FPS <= clip.fps <= HIGH_FPS:
        fix = "Import it anew with the source's true rate: --fps."
        yield Finding("warning", f"{clip.fps:g} frames a second are unusual for motion.", fix)
    if clip.duration < SHORT:
        fix = "Is the rate right (--fps)? Else join it with what comes before or after."
        yield Finding("warning", f"It lasts {clip.duration:.2f} s only.", fix)


def _check_held(clip: Clip) -> Iterator[Finding]:
    poses = clip.qpos
    held = float((np.abs(np.diff(poses, axis=0)).max(axis=1) < 1e-5).mean())
    if HELD_SHARE <= held < 1:
        what = f"{held:.0%} of the poses equal the one before: the motion goes by jerks, or stands still."
        yield Finding("warning", what, "If it should move, import it anew from its source, with the true --fps.")


def _check_limits(clip: Clip) -> Iterator[Finding]:
    low, high = clip.body.limits
    beyond = np.maximum(low - clip.joint_pos, 0) + np.maximum(clip.joint_pos - high, 0)  # [frames, joints]
    if (beyond.max(axis=0) > 2 * np.pi).mean() > DEGREES_SHARE:
        what = f"Joints go up to {float(beyond.max()):.0f} rad beyond their limits: the angles look like degrees."
        yield Finding("error", what, "Multiply them by π / 180 in the source.")
        return
    bad = [i for i in np.argsort(-beyond.max(axis=0)) if beyond[:, i].max() > LIMIT_SLACK]
    for i in bad:
        most, share = float(beyond[:, i].max()), float((beyond[:, i] > LIMIT_SLACK).mean())
        what = (
            f"{clip.body.joints[i]} goes {np.degrees(most):.0f}° beyond its limit, in {share:.0%} of the frames."
        )
        fix = "The body stops at the limit: it will follow a little less closely there."
        if most > LIMIT_FAR:
            fix = "The body cannot follow; cut this part, or leave the clip out."
        yield Finding("error" if most > LIMIT_FAR else "warning", what, fix)
    if not bad:
        yield Finding("ok", "All joints stay within their limits.")


def _check_gimbal(clip: Clip) -> Iterator[Finding]:
    most = {clip.body.joints[i]: float(np.abs(clip.joint_pos[:, i]).max()) for i in _middle_hinges(clip.body)}
    near = {name: angle for name, angle in most.items() if angle > NEAR_GIMBAL}
    for name, angle in near.items():
        what = f"{name} reaches {np.degrees(angle):.0f}°: near 90° the joint's other hinges turn fast for little."
        yield Finding(
            "warning", what, "Look at it ('ludus motions view'); velocities there are not to be trusted."
        )
    if not near:
        yield Finding("ok", "No joint comes near gimbal lock.")


def _middle_hinges(body: Body) -> Iterator[int]:
    """Joints that are the second of three hinges between two bodies."""
    model = body.model
    for first, count in zip(model.body_jntadr[body.root + 1 :], model.body_jntnum[body.root + 1 :], strict=True):
        if count == 3:
            yield int(first)  # the root's joint, which is before, is not counted


def _check_speed(clip: Clip) -> Iterator[Finding]:
    steps = np.abs(np.diff(clip.joint_pos, axis=0))
    frame, joint = np.unravel_index(steps.argmax(), steps.shape)
    most, speed = float(steps.max()), float(steps.max() * clip.fps)
    where = f"{clip.body.joints[joint]} at {frame / clip.fps:.2f} s"
    if most > ANGLE_JUMP:
        fix = "Import it anew; if it stays, cut the clip there."
        yield Finding("error", f"{where} jumps by {np.degrees(most):.0f}° between two frames.", fix)
    elif speed > FAST_JOINT:
        fix = "Is the rate right (--fps)? Else smooth the source there."
        yield Finding("warning", f"{where} turns with {speed:.0f} rad/s.", fix)
    else:
        yield Finding("ok", f"Joints turn with at most {speed:.0f} rad/s.")
    root = float(np.linalg.norm(np.diff(clip.root_pos, axis=0), axis=1).max() * clip.fps)
    quats = torch.as_tensor(clip.root_quat)
    turn = rotation_vector(multiply(conjugate(quats[:-1]), quats[1:]))
    turning = float(torch.linalg.vector_norm(turn, dim=1).max() * clip.fps)
    for value, most, told in ((root, FAST_ROOT, f"{root:.1f} m/s"), (turning, FAST_TURN, f"{turning:.0f} rad/s")):
        if value > most:
            fix = "Are the unit (metres) and the rate (--fps) of the source right?"
            level: Level = "error" if value > IMPOSSIBLE * most else "warning"
            yield Finding(level, f"The root moves with up to {told}.", fix)


def _check_jumps(clip: Clip, positions: np.ndarray) -> Iterator[Finding]:
    """Those too slow to be told by their speed: they stick out from what comes before and after."""
    apart = _frames_apart(clip.fps)
    if clip.frames <= 3 * apart:
        return
    bodies, joints = _besides(positions, clip.fps), _besides(clip.joint_pos[:, :, None], clip.fps)
    body, joint = (
        np.where((beside > least) & (beside > times * _usual_around(beside, clip.fps)), beside, 0.0)
        for beside, least, times in ((bodies, JUMP_M, JUMP_BODY_TIMES), (joints, JUMP_RAD, JUMP_JOINT_TIMES))
    )
    if not (body.any() or joint.any()):
        yield Finding("ok", "No pose jumps out of those around it.")
        return
    frame = int((body.max(axis=1) if body.any() else joint.max(axis=1)).argmax())
    name, hinge = _words(clip.body.bodies[body[frame].argmax()]), clip.body.joints[joints[frame].argmax()]
    told = [f"the {name} by {body[frame].max() * 100:.0f} cm"] * bool(body.any())
    told += [f"{hinge} by {np.degrees(joints[frame].max()):.0f}°"] * bool(joints[frame].max() > JUMP_RAD)
    where = f"At {(frame + apart) / clip.fps:.2f} s"
    what = f"{where} the pose jumps beside where those around it lead: {', '.join(told)}."
    yield Finding("warning", what, "No body can follow that exactly; smooth the source there, or cut it.")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _frames_apart(fps: float) -> int:
    return max(1, round(JUMP_SECONDS * fps))


def _besides(values: np.ndarray, fps: float) -> np.ndarray:
    """[frames, n] how far each step of JUMP_SECONDS is from the mean of the one before and the one after.

    Frame 0 is the first that has a step before.
    """
    apart = _frames_apart(fps)
    steps = values[apart:] - values[:-apart]
    return np.linalg.norm(steps[apart:-apart] - (steps[: -2 * apart] + steps[2 * apart :]) / 2, axis=-1)


def _usual_around(values: np.ndarray, fps: float) -> np.ndarray:
    """[frames, n] medians over the time around each frame; of many frames a second some stand for all."""
    reach = max(2, round(AROUND_SECONDS * fps))
    around = np.unique(np.linspace(-reach, reach, min(2 * reach + 1, _MOST_AROUND)).round().astype(int))
    padded = np.pad(values, ((reach, reach), (0, 0)), constant_values=np.nan)
    medians = [
        np.nanmedian(padded[frames[:, None] + reach + around], axis=1)
        for frames in np.split(np.arange(len(values)), range(_AT_ONCE, len(values), _AT_ONCE))
    ]
    return np.concatenate(medians)


def _check_motors(clip: Clip) -> Iterator[Finding]:
    times, distances = follow(clip)
    if not len(times):
        return
    sample, body = divmod(int(distances.argmax()), len(clip.body.key))
    most, time = float(distances[sample, body]), float(times[sample])
    when = f"{time % clip.duration if clip.loop else time:.2f} s"
    fix = "Is the rate right (--fps)? Else slow the source down, or smooth it there."
    if not np.isfinite(most):
        yield Finding("error", f"The motors cannot follow: at {when} the simulation breaks down.", fix)
        return
    name, told = _words(clip.body.key_names[body]), f"{most * 100:.0f} cm"
    most_allowed = farthest_followed(clip.body)[1]
    if most > most_allowed:  # an evaluation by the strict rule would fail there
        seconds = float((distances[:, body] > most_allowed).double().mean()) * clip.duration
        what = f"at {when} the {name} is {told} off, and for {seconds:.2f} s more than {most_allowed * 100:.0f} cm"
        told = f"The motors cannot follow, led by residual actions: {what}."
        yield Finding("warning", told, f"Most policies will lag there; with --env.actions feedforward less. {fix}")
    else:
        yield Finding("ok", f"The motors can follow: at most {told} off (the {name} at {when}).")


def _check_floor(clip: Clip, lowest: np.ndarray, centre: np.ndarray) -> Iterator[Finding]:
    deepest = float(-lowest.min())
    if deepest > UNDER_FLOOR:
        share = float((lowest < -UNDER_FLOOR).mean())
        what = f"The body is up to {deepest * 100:.1f} cm under the floor, in {share:.0%} of the frames."
        yield Finding(
            "error" if deepest > FAR_UNDER_FLOOR else "warning", what, "Import it anew: 'ludus motions import'."
        )
    flights = list(_flights(clip, lowest, centre))
    hanging = [flight for flight in flights if flight.fall < FREE_FALL]
    if lowest.min() > ABOVE_FLOOR:
        what = f"It never touches the floor: the lowest point of all is {lowest.min() * 100:.1f} cm above it."
        yield Finding("error", what, "Import it anew: 'ludus motions import'.")
    elif hanging:
        seconds, height = sum(flight.seconds for flight in hanging), max(flight.height for flight in hanging)
        what = f"It hangs above the floor for {seconds:.2f} s without falling, by up to {height * 100:.0f} cm."
        fix = (
            "Is the floor at 0 in the source, and level? A little of it comes with lifting feet out of the floor."
        )
        yield Finding("warning", what, fix)
    elif deepest <= UNDER_FLOOR:
        yield Finding("ok", "It stands on the floor, and is above it in flight alone.")
    yield from _check_fall([flight.fall for flight in flights])
    if abs(clip.height_fix) > MUCH_HEIGHT_FIX:
        what = f"Importing has moved it by up to {clip.height_fix * 100:+.1f} cm to put it on the floor."
        yield Finding(
            "warning", what, "Look at it ('ludus motions view'): feet were under the floor, or above it."
        )


def _check_fall(falls: list[float]) -> Iterator[Finding]:
    usual = float(np.median(falls)) if falls else 0.0
    if usual > FAST_FALL:
        what = f"It falls with {usual:.1f} g in the air: it is played {usual**0.5:.1f} times too fast."
        yield Finding("warning", what, "Import it anew with the source's true rate: --fps.")


class _Flight(NamedTuple):
    seconds: float
    height: float  # m, of the lowest point
    fall: float  # times gravity, of the centre of mass


def _flights(clip: Clip, lowest: np.ndarray, centre: np.ndarray) -> Iterator[_Flight]:
    """Every stretch without contact."""
    for start, end in _stretches(lowest > ABOVE_FLOOR):
        seconds = (end - start) / clip.fps
        if seconds <= SHORT_HANG or end - start < 4:
            continue
        bow = np.polyfit(np.arange(end - start) / clip.fps, centre[start:end, 2], 2)[0]
        yield _Flight(seconds, float(lowest[start:end].max()), -2 * bow / GRAVITY)


def _stretches(where: np.ndarray) -> Iterator[tuple[int, int]]:
    """First frame, and that after the last, of all that follow one another."""
    edges = np.flatnonzero(np.diff(where, prepend=False, append=False))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _check_support(clip: Clip, beside: np.ndarray) -> Iterator[Finding]:
    """`beside`: [frames] m of the weight from what bears it."""
    if stretches := _leaning(clip, beside):
        seconds = sum(end - start for start, end in stretches) / clip.fps
        most = max(beside[start:end].max() for start, end in stretches)
        what = (
            f"For {seconds:.1f} s it sits or leans on what is not there: its weight is up to {most * 100:.0f} cm "
            "beside what touches the floor."
        )
        yield Finding("warning", what, "Hardly any policy follows that: cut it, or leave the clip out.")
    else:
        yield Finding("ok", "Its weight is above what touches the floor.")


def _leaning(clip: Clip, beside: np.ndarray) -> list[tuple[int, int]]:
    """Stretches in which no swing explains where the weight is."""
    found = _stretches(beside > LEANING_M)
    return [(start, end) for start, end in found if (end - start) / clip.fps >= LEANING_SECONDS]


def _centre_of_mass(body: Body, positions: Tensor, rotations: Tensor) -> np.ndarray:
    """[frames, 3]"""
    own = slice(body.root, body.root + len(body.bodies))
    inside = torch.as_tensor(body.model.body_ipos[own].copy())
    mass = torch.as_tensor(body.model.body_mass[own].copy())
    return ((positions + rotate(rotations, inside)) * mass[:, None]).sum(dim=1).div(mass.sum()).numpy()


def _check_sliding(clip: Clip, positions: Tensor, rotations: Tensor) -> Iterator[Finding]:
    worst = ("", 0.0)
    for foot in clip.body.feet:
        speeds = sliding(clip, positions, rotations, foot)
        usual = float(np.median(speeds)) if len(speeds) else 0.0
        worst = max(worst, (clip.body.bodies[foot], usual), key=lambda pair: pair[1])
    if not clip.body.feet:
        return
    if worst[1] > SLIDING:
        what = f"The {_words(worst[0])} slides over the floor with {worst[1]:.2f} m/s, typically."
        yield Finding(
            "warning", what, "Some is usual; if it is much, the scale or the rate of the source is wrong."
        )
    else:
        yield Finding("ok", f"Feet on the floor slide little: {worst[1]:.2f} m/s is usual.")


def sliding(clip: Clip, positions: Tensor, rotations: Tensor, foot: int) -> np.ndarray:
    """[contacts] m/s along the floor of a point of the foot, where it is the lowest and on the floor."""
    corners, radii = clip.body.kinematics.surface_of(foot)
    if not len(corners):
        return np.zeros(0)
    points = (positions[:, foot, None] + rotate(rotations[:, foot, None], corners)).numpy()  # [frames, n, 3]
    points[:, :, 2] -= radii.numpy()
    lowest = points[:, :, 2].argmin(axis=1)[:-1]
    rows = np.arange(len(lowest))
    here, then = points[rows, lowest], points[rows + 1, lowest]
    on_floor = np.maximum(here[:, 2], then[:, 2]) < CONTACT
    return np.linalg.norm((then - here)[on_floor, :2], axis=1) * clip.fps


def _check_seam(clip: Clip) -> Iterator[Finding]:
    joints, tilt, height = seam_jumps(clip)
    worst = int(np.abs(joints).argmax())
    jump = max(float(np.abs(joints).max()), float(np.linalg.norm(tilt)))
    turns = [clip.body.joints[i] for i in np.flatnonzero(seam_turns(clip))]
    if turns:
        what = f"In every cycle {', '.join(turns)} gains a whole turn, so the pose jumps where it starts anew."
        yield Finding("error", what, "Import it with --no-loop.")
    if jump > SEAM_RAD or abs(height) > SEAM_M:
        what = (
            f"At the seam of the loop the pose jumps: {clip.body.joints[worst]} by "
            f"{np.degrees(abs(joints[worst])):.0f}°, "
            f"the root by {np.degrees(np.linalg.norm(tilt)):.0f}° and {abs(height) * 100:.1f} cm."
        )
        fix = "Import it with --no-loop, or cut the source where the pose recurs."
        yield Finding("error" if jump > SEAM_FAR else "warning", what, fix)
    elif not turns:
        yield Finding(
            "ok", f"The loop closes: {np.degrees(jump):.1f}° and {abs(height) * 100:.1f} cm at its seam."
        )
