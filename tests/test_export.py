"""What an exported policy says of itself: names, bounds, units, time, memory, mask."""

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import PendulumEnv

import ludus
from ludus.envs.abilities import interface_of
from ludus.envs.interface import Interface, column_names, interface_from
from ludus.envs.mujoco.robot import control_units
from ludus.errors import LudusError
from ludus.export import METADATA, export_onnx, metadata_of, read_metadata
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import policy_from
from ludus.scaffold.writing import write_task
from ludus.show.console import Console

onnxruntime = pytest.importorskip("onnxruntime")
SMALL: dict[str, Any] = {
    "env.num_envs": 2,
    "ppo.horizon": 8,
    "ppo.minibatches": 2,
    "loop.total_steps": 32,
    "eval.episodes": 1,
    "log.report": False,
    "log.tensorboard": False,
}


def train(name: str, folder: Path, **settings: Any) -> Path:
    return Path(os.fspath(ludus.train(name, folder, console=Console("quiet"), overrides=SMALL | settings)))


def test_a_task_of_ludus_new_exports_names_bounds_units_and_time_and_the_robots_loop_acts_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"arm_{os.urandom(3).hex()}"
    write_task(name)
    monkeypatch.syspath_prepend(str(tmp_path / name))
    env_name = f"vec:{name}:Arm{name.removeprefix('arm_').capitalize()}"
    run = train(env_name, tmp_path / "run")
    assert export_onnx(run, "policy.onnx") <= 1e-4
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    stored = session.get_modelmeta().custom_metadata_map
    assert stored.keys() <= METADATA.keys()
    said = {key: json.loads(value) for key, value in stored.items()}
    assert said == read_metadata("policy.onnx")
    assert said["ludus_version"] == ludus.__version__
    assert (said["run"], said["preset"], said["normalizer"]) == ("run", env_name, "inside")
    assert said["control_dt"] == pytest.approx(0.04)
    (seen,) = said["observations"]
    assert (seen["input"], seen["shape"], seen["type"]) == ("obs", [15], "float32")
    joints, xyz = ("turn", "lift", "bend"), "xyz"
    terms = {"joints": joints, "velocities": joints, "controls": joints, "site": xyz, "to_mark": xyz}
    assert seen["names"] == [f"{term}.{column}" for term, columns in terms.items() for column in columns]
    first = {"name": "turn", "unit": "rad a step", "low": -0.25, "high": 0.25}
    assert said["actions"][0] == first
    assert [action["name"] for action in said["actions"]] == list(joints)

    env = ludus.make_env(env_name, num_envs=1, evaluation=True)
    obs, policy = env.reset(0), ludus.load(run)
    for _ in range(5):
        (action,) = session.run(["action"], {"obs": obs.numpy()})
        np.testing.assert_allclose(action, policy.act(obs.numpy()), atol=1e-5)
        obs = env.step(torch.from_numpy(action)).obs
    env.close()


def test_a_gymnasium_robot_with_a_memory_exports_its_fields_and_its_state(tmp_path: Path) -> None:
    memory = {"policy.memory": "gru", "policy.memory_size": 4}
    run = train("gym:HalfCheetah-v5", tmp_path / "run", **memory)
    said = metadata_of(ludus.load(run), run, ["obs", "state"])
    assert said["observations"][0]["names"][0] == "qpos[0]"
    assert said["observations"][0]["names"][-1] == "qvel[8]"
    assert said["actions"][1] == {"name": "bshin", "unit": "× 90 N m", "low": -1.0, "high": 1.0}
    assert said["control_dt"] == pytest.approx(0.05)
    assert said["state"] == {"input": "state", "output": "new_state", "size": 4, "begins_with": 0.0}


class Strong(PendulumEnv):
    """Its motor takes thousands: float32 differs in the fourth decimal."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(-5000.0, 5000.0, (1,), np.float32)

    def step(self, u: Any) -> Any:
        return super().step(u / 2500)


def test_actions_in_thousands_are_exported(tmp_path: Path) -> None:
    small = {name: value for name, value in SMALL.items() if not name.startswith("ppo")}
    small |= {"replay.warmup": 32, "replay.train_batches": 1, "policy.hidden": (16,), "loop.total_steps": 64}
    run = ludus.train(Strong, tmp_path / "run", console=Console("quiet"), algo="sac", overrides=small)
    assert export_onnx(run, tmp_path / "strong.onnx") <= 1e-4


@pytest.mark.parametrize("name", ["kuka-pick-place", "half-cheetah", "humanoid-mimic"])
def test_our_own_tasks_name_all_their_numbers(name: str) -> None:
    env = ludus.make_env(name, num_envs=1)
    interface = interface_of(env)
    env.close()
    assert len(set(interface.observations["obs"])) == env.obs_space.shape[0]
    assert env.action_space.shape == (len(set(interface.actions)),) == (len(interface.units),)
    assert 0.03 < interface.control_dt <= 0.05


def test_choices_are_exported_with_their_number(tmp_path: Path) -> None:
    run = train("gym:CartPole-v1", tmp_path / "run")
    said = metadata_of(ludus.load(run), run, ["obs"])
    assert said["actions"] == [{"name": "action", "choices": 2, "low": 0, "high": 1}]
    assert said["observations"][0]["names"] == column_names("obs", 4)
    assert "control_dt" not in said
    assert "state" not in said


@pytest.mark.parametrize(
    ("actuator", "unit"),
    [
        ('<position joint="hinge" kp="5"/>', "rad"),
        ('<position joint="slide" kp="5"/>', "m"),
        ('<velocity joint="hinge" kv="5"/>', "rad/s"),
        ('<motor joint="slide"/>', "N"),
        ('<motor joint="hinge" gear="20"/>', "× 20 N m"),
        ('<general joint="hinge" biastype="affine" biasprm="1 0 0"/>', ""),
    ],
)
def test_units_of_controls(actuator: str, unit: str) -> None:
    body = '<body><joint name="hinge"/><joint name="slide" type="slide"/><geom size=".1"/></body>'
    xml = f"<mujoco><worldbody>{body}</worldbody><actuator>{actuator}</actuator></mujoco>"
    assert control_units(mujoco.MjModel.from_xml_string(xml)) == [unit]


def test_an_interface_survives_its_description_and_a_strangers_is_looked_at() -> None:
    interface = Interface({"obs": ("a", "b")}, ("push",), ("N",), 0.02)
    assert interface_from(json.loads(json.dumps(interface.description()))) == interface
    sane = interface.description()
    for wrong in ({"control_dt": float("nan")}, {"actions": "push"}, {"units": ["N"] * 100_000}, {"robot": "x"}):
        with pytest.raises(LudusError):
            interface_from(sane | wrong)
    assert interface_from(sane | {"actions": ["\x1b[31mred"]}).actions == ("�[31mred",)


def test_a_policy_from_before_has_no_names() -> None:
    space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    description = ActorCritic(space, space, PolicyConfig()).description()
    del description["interface"]
    assert policy_from(description).interface == Interface()
