"""`ludus check` of MuJoCo tasks: each fault of a model, of its starts and of its terms is found and told."""

import re
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.envs.check import check_env
from ludus.envs.findings import Finding
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.mujoco.check import check_physics
from ludus.envs.mujoco.settings import TermSettings
from ludus.envs.mujoco.simulator import CpuSimulator
from ludus.envs.mujoco.task import Rows, SimTask
from ludus.envs.mujoco.terms import Table, Term

SOUND = """
<mujoco>
  <compiler angle="radian"/><option timestep="0.005"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="arm" pos="0 0 1">
      <joint name="elbow" axis="0 1 0" range="-1.5 1.5" limited="true" damping="0.5"/>
      <geom name="rod" type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor name="motor" joint="elbow" gear="10" ctrlrange="-1 1" ctrllimited="true"/></actuator>
</mujoco>
"""
REWARDS: Table = {"angle": Term(lambda task: task.qpos[:, 0].abs(), -1.0)}


class Arm(SimTask):
    """An arm of one joint that starts `at` an angle."""

    def __init__(
        self, num_envs: int, xml: str = SOUND, at: float = 0.1, substeps: int = 5, rewards: Table = REWARDS
    ) -> None:
        sim = CpuSimulator(mujoco.MjModel.from_xml_string(xml), num_envs, substeps, threads=1)
        super().__init__("arm", sim, 20, 2, gym.spaces.Box(-1.0, 1.0, (1,), np.float32))
        self.qpos, self.qvel, self.ctrl = (sim.field(name) for name in ("qpos", "qvel", "ctrl"))
        self.at = at
        seen: Table = {"state": Term(lambda task, rows: torch.cat([task.qpos[rows], task.qvel[rows]], dim=1))}
        self.use_terms(TermSettings(), rewards, {}, seen)

    def new_episodes(self, rows: Rows, n: int) -> dict[str, Tensor]:
        return {"qpos": self.at + self.uniform(-0.01, 0.01, n, 1)}

    def control(self, action: Tensor) -> None:
        self.ctrl.copy_(action)

    def measure(self) -> dict[str, Tensor]:
        return {"success": (self.qpos[:, 0] > 1.4).float()}


def physics_of(env: SimTask) -> list[Finding]:
    try:
        return list(check_physics(env, seed=0))
    finally:
        env.close()


def test_a_sound_model_has_nothing_wrong() -> None:
    (finding,) = physics_of(Arm(2))
    assert finding.level == "ok"
    assert "16 starts" in finding.what


@pytest.mark.parametrize(
    ("old", "new", "options", "what", "fix"),
    [
        ("", "", {"at": 2.0}, "'elbow' begins outside the range in 16 of 16 starts: .* at (2|1.9|2.0)", "clamp"),
        ('range="-1.5 1.5"', 'range="-90 90"', {}, "from -90 to 90 rad: are these degrees", 'angle="degree"'),
        ('angle="radian"', 'angle="degree"', {"at": 0.0}, "from -1.5 to 1.5 degrees only", 'angle="radian"'),
        ('mass="1"', 'mass="2000"', {}, "'arm' weighs 2,000 kg", "kg/m³"),
        ('mass="1"', 'mass="1e-9"', {}, "'arm' moves and weighs 1e-09 kg", "a mass or a density"),
        ('0 0 -.3" size=".03"', '0 0 -.3" size="80"', {}, "'rod' has a radius of 80 m", "Lengths are metres"),
        ('timestep="0.005"', 'timestep="0.005" gravity="0 0 0"', {}, "Gravity is off", "9.81"),
        ('timestep="0.005"', 'timestep="0.005" gravity="0 0 -981"', {}, "Gravity is 981", "m/s²"),
        ('timestep="0.005"', 'timestep="0.05"', {"substeps": 1}, "timestep of the physics is 50 ms", "1 to 10 ms"),
        ("", "", {"substeps": 200}, "An action lasts 1 s", "fewer substeps"),
        ('timestep="0.005"', 'timestep="0.001"', {"substeps": 1}, "An action lasts 1 ms", "more substeps"),
        ('pos="0 0 1"', 'pos="0 0 .25"', {}, "'floor' and 'rod' overlap by up to [78]. mm", "exclude"),
        ('ctrlrange="-1 1" ctrllimited="true"', "", {}, "'motor' has neither ctrlrange nor", "ctrlrange"),
        ('gear="10"', 'gear="0"', {}, "can exert no force", "gear"),
        ('damping="0.5"', 'frictionloss="20"', {}, "at most 10 N m; the joint's frictionloss is 20", "stronger"),
        ('gear="10"', 'gear="0.1"', {"at": 1.4}, "gives at most 0.1 N m; to hold a start takes 1.", "stronger"),
    ],
)  # fmt: skip
def test_each_fault_of_a_model_is_found_and_comes_with_a_remedy(
    old: str, new: str, options: dict[str, Any], what: str, fix: str
) -> None:
    assert old in SOUND
    findings = physics_of(Arm(2, SOUND.replace(old, new) if old else SOUND, **options))
    found = [finding for finding in findings if re.search(what, finding.what)]
    assert [finding.level for finding in found] == ["warning"], findings
    assert fix in found[0].fix


def test_a_gymnasium_model_is_looked_at_too() -> None:
    """The ankles of Ant-v5 do begin outside their ranges."""
    env = make_gym(GymConfig("Ant-v5"), 2)
    (finding,) = check_physics(env, seed=0)
    env.close()
    assert "'ankle_1', 'ankle_2', 'ankle_3', 'ankle_4' begin outside the range in 16 of 16 starts" in finding.what


def text_of(rewards: Table) -> str:
    return "\n".join(f"{f.level} {f.what}" for f in check_env(lambda n: Arm(n, rewards=rewards), steps=40))


def test_rewards_that_teach_nothing_are_told() -> None:
    constant = text_of({"alive": Term(lambda task: torch.ones(task.num_rows, dtype=task.dtype))})
    assert "warning The reward is 1 in every step, and no episode is terminated." in constant
    silent = text_of({**REWARDS, "high": Term(lambda task: (task.qpos[:, 0] > 9).double())})
    assert "ok Random actions were never paid for 'high'" in silent
    assert "0 of 8 episodes of random play succeeded" in silent


def test_a_reward_that_is_no_number_is_told_by_its_terms_name() -> None:
    text = text_of({**REWARDS, "ratio": Term(lambda task: (task.qpos[:, 0] - 9).sqrt())})
    assert "error The reward term 'ratio' of arm is not a finite number" in text
