"""Are the humanoid's motors quick enough for its clips, and what does a policy make of their strength?

    python benchmarks/motors.py RUN
    python benchmarks/motors.py RUN --clip FOLDER

Of each clip: how far the worst body is off where the root is led along it (as in `ludus motions check`), with the
published limits of torque as the motors' own and with ours, which leave those at 20 rad/s; then how often the best
policy of the run, on the starts of an evaluation, pulls harder than published, and how hard at most.
"""

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import mujoco
import torch
import tyro
from torch import Tensor

from ludus.envs import make_eval_env
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.importing.skeleton import JOINTS
from ludus.envs.humanoid.motor_bandwidth import follow
from ludus.envs.humanoid.other_clips import act_as_trained, on_clips
from ludus.envs.humanoid.task import HumanoidTask
from ludus.errors import LudusError
from ludus.policies.fit import refuse_misfit
from ludus.policies.policy import Policy
from ludus.saved_run import load, run_config, run_folder

SPEED = 20.0  # rad/s, at which a motor of ours has the published torque left


@dataclass
class Arguments:
    run: Annotated[Path, tyro.conf.Positional]
    clip: str = ""
    """Names of clips, files or folders; by default the run's own."""


def main(arguments: Arguments) -> None:
    trained = run_config(run_folder(arguments.run)).env
    config = on_clips(trained, arguments.clip or getattr(trained, "clips", ""))
    assert isinstance(trained, HumanoidConfig)  # others were refused
    env, policy = make_eval_env(config, 1), load(arguments.run)
    assert isinstance(env, HumanoidTask)
    published = published_limits(env.sim.model)
    weak = env.body.new_model()
    weak.actuator_forcerange[:] = torch.stack([-published, published], 1).numpy()
    with closing(env):
        refuse_misfit(policy, env)
        act_as_trained(env, trained)
        torques = torques_by_clip(env, policy)
    print(f"{'clip':24} off by, published → ours   harder than published   at most")
    for clip in env.library.clips:
        before, now = (100 * float(follow(clip, body).distances.max()) for body in (weak, None))
        off = f"{before:.0f} → {now:.0f} cm"
        print(f"{clip.name:24} {off:>24} {use_of_strength(torques[clip.name].abs(), published)}")


def use_of_strength(torques: Tensor, published: Tensor) -> str:
    """Of torques [n, 28], without their signs."""
    if not len(torques):
        return f"{'no samples':>23}"
    over = torques / published
    joint = int(over.amax(0).argmax())
    most = f"{float(torques[:, joint].max()):.0f} instead of {float(published[joint]):.0f} N m"
    return f"{100 * float((over > 1).double().mean()):21.2f} %   {most} ({JOINTS[joint]})"


def published_limits(model: mujoco.MjModel) -> Tensor:
    """[28] N m"""
    own, damping = model.actuator_forcerange[:, 1], model.dof_damping[6:]
    return torch.from_numpy(own - SPEED * damping)


@torch.no_grad()
def torques_by_clip(env: HumanoidTask, policy: Policy) -> dict[str, Tensor]:
    """[n, 28] N m by clip, of motors less damping, at the ends of all control steps but an episode's last."""
    force, qvel = env.sim.field("actuator_force"), env.sim.field("qvel")
    damping = torch.from_numpy(env.sim.model.dof_damping[6:])
    obs, actor = env.reset(0), policy.actor()
    clip_of, running = env.memory["clip"].clone(), torch.ones(env.num_rows, dtype=torch.bool)
    taken = []
    while running.any():
        step = env.step(actor.act(obs))
        obs, running = step.obs, running & ~step.done
        taken.append((clip_of[running], (force - damping * qvel[:, 6:])[running]))
    clips, torques = (torch.cat(part) for part in zip(*taken, strict=True))
    return {name: torques[clips == number] for number, name in enumerate(env.library.names)}


if __name__ == "__main__":
    try:
        main(tyro.cli(Arguments, description=__doc__))
    except LudusError as error:
        sys.exit(f"motors: {error}")
