"""Domain randomisation: what it does to the physics, and that a run goes on exactly with all of it."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

import ludus
from ludus.envs import make_vec_env
from ludus.envs.bodies import find_body
from ludus.envs.check import check_env
from ludus.envs.config import EnvConfig
from ludus.envs.humanoid.clip import Clip, save_clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.task import SUBSTEPS, scene_path
from ludus.envs.locomotion.config import LocomotionConfig
from ludus.envs.locomotion.gymnasium_sim import GymnasiumSimulator
from ludus.envs.locomotion.task import TASKS, load_model
from ludus.envs.mujoco.randomization import Randomization
from ludus.envs.mujoco.simulator import CpuSimulator
from ludus.envs.mujoco.task import SimTask
from ludus.errors import CheckpointError, ConfigError, LudusError
from ludus.ranges import check_fields
from ludus.runs import evaluate_run
from ludus.show.console import Console
from stopped_runs import StopAfter, assert_same_run

ALL: dict[str, Any] = {
    "mass": {"kind": "body_mass", "scale": [0.5, 2.0], "independent": True},
    "friction": {"kind": "friction", "scale": [0.5, 1.5]},
    "motors": {"kind": "motor_strength", "scale": [0.7, 1.3]},
    "latency": {"kind": "latency", "steps": [0, 2]},
    "noise": {"kind": "observation_noise", "std": 0.01},
    "centre": {"kind": "centre_of_mass", "shift": [0.02, 0.02, 0.02]},
}
KUKA_ALL = ALL | {"push": {"kind": "push", "joints": ["cube"], "speed": 0.3, "every": [3, 9]}}
HOPPER_ALL = ALL | {"push": {"kind": "push", "joints": ["rootx", "rootz"], "speed": 0.3, "every": [3, 9]}}
ANT_ALL = ALL | {"push": {"kind": "push", "joints": ["root"], "speed": 0.3, "every": [3, 9]}}
BODY_ALL = ALL | {
    "push": {"kind": "push", "speed": 0.3, "turning": 0.4, "every": [3, 9]},
    "zero": {"kind": "joint_offset", "most": 0.02},
}


def make(config: EnvConfig, rows: int = 8, evaluation: bool = False) -> SimTask:
    env = make_vec_env(config, rows, evaluation)
    assert isinstance(env, SimTask)
    return env


def actions(env: SimTask, steps: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (env.num_rows, *env.action_space.shape)  # type: ignore[misc]
    return [2 * torch.rand(shape, generator=generator) - 1 for _ in range(steps)]


# The model of each simulation -------------------------------------------------------------------------
def simulator(sims: int) -> CpuSimulator:
    return CpuSimulator(mujoco.MjModel.from_xml_path(str(scene_path())), sims, SUBSTEPS, 2)


def advance(sim: Any, steps: int) -> None:
    for _ in range(steps):
        sim.begin_step()
        sim.end_step()


def test_every_simulation_runs_as_a_model_of_its_own_would() -> None:
    """Masses, friction and motors of three simulations against three models of MuJoCo's, constants set anew."""
    sim, factors = simulator(3), (0.5, 1.0, 3.0)
    cube = sim.model.body("cube").id
    scaled = {
        "body_mass": cube,
        "body_inertia": cube,
        "geom_friction": slice(None),
        "actuator_gainprm": slice(None),
    }
    for name, place in scaled.items():
        field = sim.model_field(name)
        for row, factor in enumerate(factors):
            field[row, place] *= factor
    rows = torch.arange(3)
    sim.reset(rows)
    sim.field("qpos")[:, 9:12] = torch.tensor([0.55, 0.1, 0.24], dtype=torch.float64)
    sim.field("qpos")[:, 12] = 1.0
    sim.field("qvel")[:, 9] = 0.8
    sim.field("ctrl")[:, 0] = 0.3
    sim.set_constants(rows)
    sim.forward(rows)
    start = sim.state()["rows"].numpy()
    advance(sim, 4)
    for row, factor in enumerate(factors):
        model = mujoco.MjModel.from_xml_path(str(scene_path()))
        for name, place in scaled.items():
            getattr(model, name)[place] *= factor
        data = mujoco.MjData(model)
        mujoco.mj_setConst(model, data)
        mujoco.mj_setState(model, data, start[row], mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_step(model, data, 4 * SUBSTEPS)
        assert sim.field("qpos")[row].tolist() == data.qpos.tolist()
    sim.close()


def slid(**scales: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """([rows] m that a cube slides which starts at 1 m/s, [rows] m/s at which it goes on after 50 ms)."""
    kinds: dict[str, dict[str, Any]] = {
        "mass": {"kind": "body_mass", "bodies": ["cube"]},
        "friction": {"kind": "friction"},
    }
    settings = {name: kinds[name] | {"scale": list(scale)} for name, scale in scales.items()}
    env = make(KukaConfig(fixed=True, assist=0.0, randomization=settings), 2)
    env.reset(0)
    env.sim.field("qvel")[:, 10] = -1.0
    before = env.sim.field("qpos")[:, 10].clone()
    env.step(torch.zeros(2, 4))
    speed = env.sim.field("qvel")[:, 10].clone()
    for _ in range(10):
        env.step(torch.zeros(2, 4))
    way = (env.sim.field("qpos")[:, 10] - before).abs()
    env.close()
    return way, speed


def test_friction_changes_how_far_a_cube_slides_and_mass_does_not() -> None:
    usual, less, little = (slid(friction=(f, f))[0].mean() for f in (1.0, 0.75, 0.5))
    # v² / (2 μ g) with μ = 0.8. With more than μ = 1 the cube would not slide but fall over.
    for way, factor in ((usual, 1.0), (less, 0.75), (little, 0.5)):
        assert float(way) == pytest.approx(1 / (2 * 0.8 * factor * 9.81), rel=0.15)
    assert float(slid(mass=(3.0, 3.0))[0].mean()) == pytest.approx(float(usual), rel=0.05)


def test_a_heavier_cube_gains_less_speed_from_the_same_force() -> None:
    env = make(
        KukaConfig(
            fixed=True,
            assist=0.0,
            randomization={"m": {"kind": "body_mass", "bodies": ["cube"], "scale": [0.5, 3.0]}},
        )
    )
    env.reset(0)
    mass = env.sim.model_field("body_mass")[:, env.mj_model.body("cube").id].clone()
    assert len(mass.unique()) == 8
    assert ((mass >= 0.05) & (mass <= 0.3)).all()
    env.sim.field("xfrc_applied")[:, env.mj_model.body("cube").id, 2] = 5.0  # N upwards: more than its weight
    env.step(torch.zeros(8, 4))
    expected = (5.0 / mass - 9.81) * 0.05
    assert torch.allclose(env.sim.field("qvel")[:, 11], expected, rtol=1e-6)
    env.close()


def test_motors_of_double_strength_give_double_force() -> None:
    forces = []
    for factor in (1.0, 2.0):
        env = make(
            KukaConfig(
                fixed=True, assist=0.0, randomization={"m": {"kind": "motor_strength", "scale": [factor] * 2}}
            ),
            1,
        )
        env.reset(0)
        env.sim.field("qpos")[:, :7] = env.sim.field("ctrl")[:, :7] + 0.01
        env.sim.field("qvel").zero_()
        env.sim.forward(torch.arange(1))
        forces.append(env.sim.field("actuator_force").clone())
        env.close()
    assert torch.allclose(2 * forces[0], forces[1])


LIMITED = """<mujoco><compiler autolimits="true"/><worldbody><geom name="ground" type="plane" size="5 5 1"/>
  <body name="trunk" pos="0 0 0.09"><freejoint/><geom name="trunk" size="0.1" mass="1"/>
  <body><joint name="arm" axis="0 1 0" actuatorfrcrange="-2 2"/><geom size="0.02" pos="0 0 0.3" mass="0.1"/></body>
  </body></worldbody><contact><pair geom1="ground" geom2="trunk" friction="0.6 0.6 0.1 0.1 0.1"/></contact>
  <actuator><position joint="arm" kp="500"/></actuator></mujoco>"""


@pytest.mark.parametrize("independent", [False, True])
def test_limits_of_joints_and_pairs_are_scaled_with_motors_and_geoms(tmp_path: Path, independent: bool) -> None:
    """Where many published models keep them."""
    (tmp_path / "robot.xml").write_text(LIMITED)
    body = find_body(str(tmp_path / "robot.xml"))
    pose = np.tile(body.default_qpos, (30, 1))
    save_clip(Clip("still", 30.0, pose[:, :3], pose[:, 3:7], pose[:, 7:], body=body), tmp_path / "still.npz")
    scale = {"scale": [0.5, 2.0], "independent": independent}
    rough = {"m": {"kind": "motor_strength"} | scale, "f": {"kind": "friction"} | scale}
    config = HumanoidConfig(
        body=str(tmp_path / "robot.xml"), clips=str(tmp_path / "still.npz"), randomization=rough
    )
    env = make(config, 5)
    env.reset(0)
    motor, limit, ground, pair = (
        env.sim.model_field(name).float()
        for name in ("actuator_gainprm", "jnt_actfrcrange", "geom_friction", "pair_friction")
    )
    assert len(motor[:, 0, 0].unique()) == len(ground[:, 0, 0].unique()) == 5
    torch.testing.assert_close(limit[:, 1] / torch.tensor([-2.0, 2.0]), (motor[:, 0, :1] / 500).expand(5, 2))
    torch.testing.assert_close(pair[:, 0, 0] / 0.6, ground[:, 0, 0])
    older = env.state()
    for name in ("jnt_actfrcrange", "pair_friction"):
        del older["sim"]["model"][name]  # all simulations had the model's own
    env.load_state(older)
    assert (env.sim.model_field("pair_friction")[:, 0, 0] == 0.6).all()
    assert (env.sim.model_field("jnt_actfrcrange")[:, 1] == torch.tensor([-2.0, 2.0])).all()
    env.close()


def test_a_factor_of_one_is_no_randomisation() -> None:
    ones = {name: value | {"scale": [1.0, 1.0]} for name, value in ALL.items() if "scale" in value}
    plain, other = make(KukaConfig(max_steps=200)), make(KukaConfig(max_steps=200, randomization=ones))
    for env in (plain, other):
        env.reset(0)
    other.load_state(plain.state() | {"sim": plain.sim.state() | {"model": other.sim.state()["model"]}})
    for action in actions(plain, 30):
        one, two = plain.step(action), other.step(action)
        assert torch.equal(one.obs[~one.done], two.obs[~one.done])
        if one.done.any():
            break
    plain.close()
    other.close()


def test_every_episode_draws_anew_and_only_its_own_rows_change() -> None:
    env = make(KukaConfig(randomization=KUKA_ALL))
    env.reset(0)
    before = env.sim.model_field("body_mass").clone()
    env.restart(torch.tensor([2, 5]))
    changed = (env.sim.model_field("body_mass") != before).any(1)
    assert changed.nonzero().flatten().tolist() == [2, 5]
    nominal, cube = torch.tensor(env.mj_model.body_mass), env.mj_model.body("cube").id
    for _ in range(20):
        env.restart(torch.arange(8))
        factor = env.sim.model_field("body_mass") / nominal
        assert ((factor[:, nominal > 0] > 0.4999) & (factor[:, nominal > 0] < 2.0001)).all()  # do not pile up
        inertia = env.sim.model_field("body_inertia")[:, cube] / torch.tensor(env.mj_model.body_inertia[cube])
        assert torch.allclose(inertia, factor[:, cube, None])
    env.close()


def test_contact_forces_are_those_of_the_randomised_model() -> None:
    """Gymnasium's contact forces come from a model; heavier ants press harder."""
    model, pressed = load_model(TASKS["ant"].xml), []
    for factor in (1.0, 2.0):
        sim = GymnasiumSimulator(model, 1, 5, 1)
        sim.field("cfrc_ext")
        for name in ("body_mass", "body_inertia"):
            sim.model_field(name).mul_(factor)
        rows = torch.arange(1)
        sim.reset(rows)
        sim.set_constants(rows)
        sim.forward(rows)
        advance(sim, 100)
        pressed.append(float(sim.field("cfrc_ext")[0, :, 5].abs().sum()))
        sim.close()
    assert pressed[0] > 0
    assert pressed[1] == pytest.approx(2 * pressed[0], rel=0.2)


# Actions, observations, pushes ------------------------------------------------------------------------
@pytest.mark.parametrize("late", [0, 1, 3])
def test_the_control_of_a_step_is_the_action_of_so_many_steps_before(late: int) -> None:
    env = make(
        LocomotionConfig("half-cheetah", randomization={"late": {"kind": "latency", "steps": [late, late]}}), 2
    )
    env.reset(0)
    given = [torch.zeros(2, 6)] * late + actions(env, 10)
    for number, action in enumerate(given[late:]):
        env.step(action)
        assert torch.equal(env.sim.field("ctrl"), given[number].double())
    env.restart(torch.tensor([1]))
    env.step(torch.full((2, 6), 0.5))
    ctrl = env.sim.field("ctrl")[1]
    assert torch.equal(ctrl, torch.full((6,), 0.0 if late else 0.5, dtype=torch.float64))  # nothing of before
    env.close()


def test_every_episode_has_one_latency_and_all_of_them_come() -> None:
    env = make(LocomotionConfig("half-cheetah", randomization={"late": {"kind": "latency", "steps": [1, 3]}}), 64)
    env.reset(0)
    first = env.memory["late/steps"].clone()
    assert sorted(first.unique().tolist()) == [1, 2, 3]
    for action in actions(env, 5):
        env.step(action)
    assert torch.equal(env.memory["late/steps"], first)
    env.close()


def test_noise_is_on_the_terms_that_are_named_and_as_large_as_said() -> None:
    noise = {"noise": {"kind": "observation_noise", "std": 0.05, "terms": ["cube", "lag"]}}
    plain, noisy = (make(KukaConfig(assist=0.0, randomization=r), 256) for r in ({}, noise))
    clean, seen = plain.reset(0), noisy.reset(0)
    columns = noisy.observation_columns()
    touched = torch.zeros(34, dtype=torch.bool)
    for name in ("cube", "lag"):
        touched[columns[name]] = True
    assert torch.equal(clean[:, ~touched], seen[:, ~touched])
    error = (seen - clean)[:, touched]
    assert float(error.std()) == pytest.approx(0.05, rel=0.1)
    assert abs(float(error.mean())) < 0.005
    step = noisy.step(torch.zeros(256, 4))
    assert torch.equal(step.obs[~step.done], step.final_obs[~step.done])  # what is learned from is what is seen
    plain.close()
    noisy.close()


def test_a_push_comes_as_often_and_as_hard_as_said() -> None:
    push = {"push": {"kind": "push", "joints": ["rootx"], "speed": 1.0, "every": [4, 6]}}
    one = make(LocomotionConfig("half-cheetah", randomization=push), 64)
    one.reset(0)
    gaps: list[list[int]] = [[0] for _ in range(64)]
    for number in range(40):
        before = one.sim.field("qvel").clone()
        for term in one.randomization:
            term.disturb(one)
        change = one.sim.field("qvel") - before
        assert (change[:, 1:] == 0).all()
        assert (change.abs() <= 1.0).all()
        for row in change[:, 0].nonzero().flatten().tolist():
            gaps[row].append(number + 1)
    differences = {b - a for row in gaps for a, b in itertools.pairwise(row)}
    assert differences == {4, 5, 6}
    one.close()


def test_a_push_is_felt_by_the_simulation() -> None:
    """The state is written between steps of a batch that keeps its data: the next step must start from it."""
    push = {"push": {"kind": "push", "joints": ["cube"], "speed": 2.0, "every": [1, 1]}}
    env = make(KukaConfig(fixed=True, assist=0.0, randomization=push), 4)
    env.reset(0)
    sim = simulator(4)
    sim.load_state(env.sim.state())
    generator = torch.Generator()
    generator.set_state(env.generator.get_state())
    env.begin_step(torch.zeros(4, 4))
    velocity = 4.0 * torch.rand((4, 3), generator=generator, dtype=torch.float64) - 2.0
    env.end_step()
    sim.field("qvel")[:, 9:12] += velocity
    sim.field("ctrl").copy_(env.sim.field("ctrl"))
    sim.forward()
    advance(sim, 1)
    assert torch.equal(sim.field("qpos"), env.sim.field("qpos"))
    env.close()
    sim.close()


def test_a_kind_of_ones_own() -> None:
    config = KukaConfig(assist=0.0, randomization={"tilt": {"kind": "term_modules:Tilted", "most": 3.0}})
    assert config.imports == ("term_modules",)
    env = make(config)
    env.reset(0)
    gravity = env.sim.model_field("opt.gravity")[:, 0]
    assert len(gravity.unique()) == 8
    env.sim.field("qpos")[:, 11] += 0.1  # falls freely
    env.sim.forward(torch.arange(8))
    env.step(torch.zeros(8, 4))
    assert torch.allclose(env.sim.field("qvel")[:, 9], gravity * 0.05, rtol=1e-3)
    env.close()


# Exact state ------------------------------------------------------------------------------------------
CASES: dict[str, EnvConfig] = {
    "kuka": KukaConfig(max_steps=12, randomization=KUKA_ALL),
    "hopper": LocomotionConfig("hopper", max_steps=12, randomization=HOPPER_ALL),
    "ant": LocomotionConfig("ant", max_steps=12, randomization=ANT_ALL),
    "runner": LocomotionConfig("humanoid", max_steps=12, randomization=ANT_ALL),
    "mimic": HumanoidConfig(clips="squat", max_steps=12, randomization=BODY_ALL),
}


@pytest.mark.parametrize("name", CASES)
def test_a_saved_state_goes_on_exactly_in_new_environments(name: str) -> None:
    env, other = make(CASES[name]), make(CASES[name])
    env.reset(0)
    for action in actions(env, 17):
        env.step(action)
    other.load_state(env.state())
    for action in actions(env, 30, seed=1):
        one, two = env.step(action), other.step(action)
        assert all(torch.equal(a, b) for a, b in zip(one[:5], two[:5], strict=True))
    env.close()
    other.close()


def test_it_keeps_the_contract() -> None:
    findings = check_env(lambda n: make_vec_env(KukaConfig(max_steps=12, randomization=KUKA_ALL), n), steps=40)
    assert [finding for finding in findings if finding.level == "error"] == []


def test_a_state_without_the_models_is_refused() -> None:
    env = make(KukaConfig(randomization=KUKA_ALL))
    env.reset(0)
    for damage in ({}, {"body_mass": torch.full((8, 17), torch.nan)}):
        state = env.state()
        state["sim"]["model"] = damage
        with pytest.raises(CheckpointError, match="does not hold body_mass"):
            env.load_state(state)
    state = env.state()
    state["memory"]["latency/steps"][:] = 10**9
    env.load_state(state)
    env.step(torch.zeros(8, 4))
    env.close()


def trained(folder: Path, *callbacks: ludus.Callback, groups: int = 2, **env: Any) -> Path:
    settings: dict[str, Any] = {
        "env": {"num_envs": 4, "max_steps": 12, "randomization": KUKA_ALL, **env},
        "groups": groups,
        "ppo": {"horizon": 8, "minibatches": 2, "update_epochs": 1},
        "loop": {"total_steps": 6 * 32},
        "eval": {"every": 64, "episodes": 2},
        "log": {"report": False},
    }
    return ludus.train("kuka-pick-place", folder, callbacks, Console("quiet"), **settings)


@pytest.mark.parametrize("after", [2, 3])
def test_a_run_that_was_stopped_equals_one_that_was_not(after: int, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    stopped = trained(tmp_path / "stopped", StopAfter(after))
    ludus.resume(stopped, console=Console("quiet"))
    assert_same_run(stopped, whole)


# Evaluation -------------------------------------------------------------------------------------------
def test_an_evaluation_is_randomised_as_the_task_or_as_is_said(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")

    def returns(randomization: Any = None) -> list[float]:
        return evaluate_run(run, 4, True, randomization=randomization).returns

    assert returns() == returns(KUKA_ALL)  # its own, and the same again
    assert returns("off") == returns({}) != returns()
    assert returns("kuka-randomized") not in (returns(), returns("off"))
    with pytest.raises(ConfigError, match="randomises nothing"):
        returns("kuka-pick-place")


# What is refused --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"m": {"kind": "body_mas"}}, "Did you mean 'body_mass'"),
        ({"m": {"kind": "body_mass", "scal": [1, 2]}}, "Did you mean 'scale'"),
        ({"m": {"kind": "body_mass", "scale": [2, 1]}}, "the smaller first"),
        ({"m": {"kind": "body_mass", "scale": [1]}}, "must be two factors"),
        ({"m": {"kind": "body_mass", "scale": 3}}, "each part of it must be a number"),
        ({"m": {"kind": "body_mass", "scale": [0, 1]}}, "more than 0"),
        ({"m": {"kind": "body_mass", "scale": [float("nan"), 1]}}, "a finite number"),
        ({"m": {"kind": "body_mass", "bodies": ["cub"]}}, "Did you mean 'cube'"),
        ({"m": {"kind": "body_mass", "bodies": "cube"}}, "each part of it must be text"),
        ({"m": {"kind": "friction", "geoms": ["tip"]}}, "has no geom 'tip'"),
        ({"m": {"kind": "latency", "steps": [0, 10**6]}}, "at most 1000"),
        ({"m": {"kind": "latency", "steps": [0.5, 1]}}, "must be a whole number"),
        ({"m": {"kind": "observation_noise", "terms": ["cub"]}}, "Did you mean 'cube'"),
        ({"m": {"kind": "push", "turning": -1}}, "at least 0"),
        ({"m": {"kind": "push", "joints": ["cub"]}}, "Did you mean 'cube'"),
        ({"m": {"kind": "centre_of_mass", "shift": [0.1]}}, "must be three numbers"),
        ({"m": {"kind": "joint_offset", "terms": ["joint"]}}, "no observation term 'joint' of joints"),
        ({"m": {"kind": "joint_offset", "actuators": ["nobody"]}}, "has no actuator 'nobody'"),
        ({"m": {}}, "needs"),
        ({"m": 3}, "needs"),
        ({"m": {"kind": "term_modules:NoDataclass"}}, "must be a dataclass"),
        ({"m": {"kind": "term_modules:high"}}, "must be a dataclass"),
    ],
    ids=range(22),
)
def test_what_makes_no_sense_is_a_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(KukaConfig(randomization=settings), 1)


# MuJoCo Warp ------------------------------------------------------------------------------------------
def on_warp(config: Any) -> Any:
    return type(config)(**{**vars(config), "simulator": "warp"})


@pytest.fixture
def wp() -> Any:
    module = pytest.importorskip("warp", reason="MuJoCo Warp is not installed: pip install 'ludus[gpu]'")
    pytest.importorskip("mujoco_warp")
    module.config.optimization_level = 0  # on the CPU, where kernels take longer to compile than to run
    return module


@pytest.mark.slow
def test_both_simulators_agree_on_the_same_randomised_models(wp: Any) -> None:
    """States move between them, the models with them: the same masses, friction and motors, the same motion."""
    fields = {name: KUKA_ALL[name] for name in ("mass", "friction", "motors")}
    config = KukaConfig(fixed=True, assist=0.0, randomization=fields)
    threads, env = make(config, 4), make(on_warp(config), 4)
    threads.reset(0)
    env.reset(0)
    threads.sim.field("qvel")[:, 10] = -0.8  # the cube slides
    env.load_state(threads.state())
    for name in ("body_subtreemass", "dof_invweight0"):
        constants = wp.to_torch(getattr(env.sim.warp_model, name)).double()  # type: ignore[attr-defined]
        models = [threads.sim._batch.get_model(row) for row in range(4)]  # type: ignore[attr-defined]
        expected = torch.stack([torch.tensor(getattr(model, name)) for model in models])
        assert torch.allclose(constants, expected, rtol=1e-3, atol=1e-4), name
    # The fingers begin pressed against their stop, whose softness differs a little, randomised or not.
    compared = [column for column in range(34) if column != threads.observation_columns()["opening"].start]
    for action in actions(env, 6):
        one, two = threads.step(action), env.step(action)
        assert torch.allclose(one.obs[:, compared], two.obs[:, compared], atol=5e-3)
    cube = one.obs[:, threads.observation_columns()["cube"]]
    assert float(cube[:, 1].max() - cube[:, 1].min()) > 0.02  # each slid its own way
    threads.close()
    env.close()


@pytest.mark.slow
def test_on_warp_episodes_draw_anew_where_they_end(wp: Any) -> None:
    env = make(on_warp(KukaConfig(max_steps=50, randomization=KUKA_ALL)), 4)
    env.reset(0)
    before = {
        name: env.sim.model_field(name).clone() for name in ("body_mass", "geom_friction", "actuator_gainprm")
    }
    env.restart(torch.tensor([1, 3]))
    for name, field in before.items():
        changed = (env.sim.model_field(name) != field).flatten(1).any(1)
        assert changed.tolist() == [False, True, False, True]
    state = env.state()
    first = [env.step(action) for action in actions(env, 6)]
    other = make(on_warp(KukaConfig(max_steps=50, randomization=KUKA_ALL)), 4)
    other.load_state(state)
    for one, action in zip(first, actions(env, 6), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:5], other.step(action)[:5], strict=True))
    env.close()
    other.close()


@pytest.mark.slow
def test_on_warp_a_run_that_was_stopped_equals_one_that_was_not(wp: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"simulator": "warp", "max_steps": 6}
    whole = trained(tmp_path / "whole", groups=1, **settings)
    stopped = trained(tmp_path / "stopped", StopAfter(3), groups=1, **settings)
    ludus.resume(stopped, console=Console("quiet"))
    assert_same_run(stopped, whole)


# A user's own kinds -----------------------------------------------------------------------------------
@dataclass
class Raises(Randomization):
    def begin(self, task: SimTask, n: int, values: dict[str, Tensor]) -> None:
        raise ValueError("no idea")


@dataclass
class WrongShape(Randomization):
    def act(self, task: SimTask, action: Tensor) -> Tensor:
        return action[:, :1]


@dataclass
class Demanding(Randomization):
    wanted: float


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Raises", r"The randomisation test_randomization:Raises failed in its method begin: ValueError: no idea"),
        ("WrongShape", r"must return \[2, 4\] numbers from its method act, not"),
        ("Demanding", r"test_randomization:Demanding cannot be made: .*wanted"),
    ],
)
def test_what_fails_in_a_users_kind_is_a_sentence(kind: str, message: str) -> None:
    def play() -> None:
        env = make(KukaConfig(randomization={"mine": {"kind": f"test_randomization:{kind}"}}), 2)
        env.reset(0)
        env.step(torch.zeros(2, 4))

    with pytest.raises(LudusError, match=message):
        play()


def test_delays_that_would_fill_the_memory_are_refused() -> None:
    many = {f"late{i}": {"kind": "latency", "steps": [0, 1000]} for i in range(2)}
    with pytest.raises(ConfigError, match="delays by 2,000 steps; at most 1,000 can be kept"):
        check_fields(KukaConfig(randomization=many), "env.")
