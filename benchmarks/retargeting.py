"""How true are human motions on another body? Directions of limbs, feet that slide, joints at their limits.

    python benchmarks/retargeting.py stroll jog mocap/ --body g1

Files, folders or names of clips. The bar: 'ludus motions check' finds no error in any of them.
"""

import sys
import time
from dataclasses import dataclass
from typing import Annotated

import mujoco
import numpy as np
import torch
import tyro

from ludus.envs.bodies import find_body
from ludus.envs.humanoid.catalogue import find_clips
from ludus.envs.humanoid.checks import check_motion, sliding
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.retargeting import retarget
from ludus.envs.humanoid.retargeting.figure import figure_of

DEEP = 0.01  # m: parts that are farther in each other are seen to be


@dataclass
class Arguments:
    clips: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names of clips, files or folders."""
    body: str = "g1"


def directions(clip: Clip) -> dict[tuple[str, str], np.ndarray]:
    """[frames, 3] where each bone points, by the human parts at its ends."""
    figure, places = figure_of(clip.body), clip.bodies()[0]
    bones = {bone: places[:, figure.parts[bone[1]]] - places[:, figure.parts[bone[0]]] for bone in figure.lengths}
    return {bone: torch.nn.functional.normalize(way, dim=-1).numpy() for bone, way in bones.items()}


def mean_angle(before: Clip, after: Clip, ends: tuple[str, ...]) -> float:
    """Degrees between the bones of both that end in one of these parts."""
    old, new = directions(before), directions(after)
    angles = [np.degrees(np.arccos(np.clip((old[bone] * new[bone]).sum(-1), -1, 1))).mean()
              for bone in new if bone in old and bone[1].endswith(ends)]  # fmt: skip
    return float(np.mean(angles)) if angles else 0.0


def usual_sliding(clip: Clip) -> float:
    """m/s, the median over the frames in which a foot is on the floor."""
    places, turns = clip.bodies()
    speeds = np.concatenate([sliding(clip, places, turns, foot) for foot in clip.body.feet])
    return float(np.median(speeds)) if len(speeds) else 0.0


def share_in_itself(clip: Clip) -> float:
    """Of the frames: those in which parts of the body are in each other."""
    model, data, deep = clip.body.model, mujoco.MjData(clip.body.model), 0
    for qpos in clip.qpos:
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        own = (model.geom_bodyid[data.contact.geom] >= clip.body.root).all(axis=1)
        deep += bool((data.contact.dist[own] < -DEEP).any())
    return deep / clip.frames


def main(arguments: Arguments) -> None:
    torch.set_num_threads(1)
    body, failed = find_body(arguments.body), 0
    low, high = body.limits
    print(f"{'clip':22} legs, arms    sliding          at limits  in itself  CPU s  errors")
    for clip in find_clips(",".join(arguments.clips)):
        began = time.process_time()
        found = retarget(clip, body)
        seconds = time.process_time() - began
        at = ((found.joint_pos <= low + 1e-6) | (found.joint_pos >= high - 1e-6)).any(axis=1).mean()
        legs, arms = (mean_angle(clip, found, ends) for ends in (("knee", "foot"), ("elbow", "hand")))
        errors = [finding.what for finding in check_motion(found) if finding.level == "error"]
        failed += bool(errors)
        slid = f"{usual_sliding(clip):.2f} → {usual_sliding(found):.2f} m/s"
        print(
            f"{clip.name:22} {legs:4.1f}°, {arms:4.1f}°  {slid}  "
            f"{at:9.0%}  {share_in_itself(found):9.0%}  {seconds:5.1f}  {'; '.join(errors) or '–'}",
            flush=True,
        )
    print("ok" if not failed else f"MISSED: {failed} clips have errors")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
