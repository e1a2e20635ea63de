"""A policy that follows clips, exported: what controllers read, the clip inside, and acting outside Ludus."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="SciPy is not installed")
import ludus
from humanoid_envs import set_pose, set_time
from ludus.commands.runs import _tracker_lines
from ludus.envs.bodies import find_body
from ludus.envs.humanoid.clip import Clip, save_clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.factory import library_of, make_humanoid
from ludus.envs.humanoid.mimic import MimicTask
from ludus.errors import ConfigError
from ludus.export import export_onnx, read_metadata
from ludus.saved_run import run_config
from ludus.show.console import Console

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

EXAMPLE = Path(__file__).parents[1] / "examples" / "track_with_onnx.py"
SMALL: dict[str, Any] = {
    "env.num_envs": 2,
    "env.threads": 1,
    "env.eval_starts": 1,
    "groups": 1,
    "policy.hidden": (16,),
    "ppo.horizon": 8,
    "ppo.minibatches": 2,
    "loop.total_steps": 32,
    "eval.episodes": 1,
    "log.report": False,
    "log.tensorboard": False,
}
MEASURED = {"height": None, "velocity": None, "reference": None, "reference_pose": 1.0}
CONTROLLERS_READ = (
    "run_path", "joint_names", "joint_stiffness", "joint_damping", "default_joint_pos", "command_names",
    "observation_names", "observation_history_lengths", "action_scale", "anchor_body_name", "body_names",
)  # fmt: skip
FRAME = ("joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")
needs_g1 = pytest.mark.skipif(importlib.util.find_spec("mjlab") is None, reason="mjlab is not installed")


def train(folder: Path, **settings: Any) -> Path:
    run = ludus.train("humanoid-mimic", folder, console=Console("quiet"), overrides=SMALL | settings)
    return Path(os.fspath(run))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("tracker") / "run")


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    file = run.parent / "walk.onnx"
    assert export_onnx(run, file) <= 1e-5
    return file


def open_session(file: Path) -> Any:
    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def outputs_of(session: Any, **inputs: Any) -> dict[str, np.ndarray]:
    names = [value.name for value in session.get_outputs()]
    fed = {name: np.asarray(value, np.float32) for name, value in inputs.items()}
    return dict(zip(names, session.run(None, fed), strict=True))


def env_of(run: Path, **changes: Any) -> MimicTask:
    config = run_config(run).env
    assert isinstance(config, HumanoidConfig)
    values = {name: getattr(config, name) for name in ("body", "clips", "observations", "future", "actions")}
    task = make_humanoid(HumanoidConfig(**values | {"termination": 1e6} | changes), 1, 1, False, "cpu")
    assert isinstance(task, MimicTask)
    return task


def follow(file: Path, *flags: str | Path) -> tuple[str, dict[str, np.ndarray]]:
    """What the example prints and records; it must not see Ludus."""
    record = file.with_suffix(".npz")
    arguments = [str(part) for part in (EXAMPLE, file, "--record", record, *flags)]
    code = "import sys, runpy; sys.modules['ludus'] = None; del sys.argv[0]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    line = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(line, cwd=file.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(record) as kept:
        return done.stdout, dict(kept)


# What the file says -------------------------------------------------------------------------------------
def test_the_file_has_the_inputs_outputs_and_texts_that_controllers_read(exported: Path) -> None:
    session, body = open_session(exported), find_body("humanoid")
    sizes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    joints, bodies = len(body.joints), len(body.key)
    assert sizes == {
        "obs": [1, 220], "time_step": [1, 1], "actions": [1, joints], "joint_targets": [1, joints],
        "joint_pos": [1, joints], "joint_vel": [1, joints], "body_pos_w": [1, bodies, 3],
        "body_quat_w": [1, bodies, 4], "body_lin_vel_w": [1, bodies, 3], "body_ang_vel_w": [1, bodies, 3],
    }  # fmt: skip
    texts = session.get_modelmeta().custom_metadata_map
    assert set(CONTROLLERS_READ) <= texts.keys()
    assert texts["joint_names"].split(",") == texts["action_joint_names"].split(",") == list(body.joints)
    assert texts["action_mode"] == "residual"
    assert texts["body_names"].split(",") == list(body.key_names)
    assert (texts["anchor_body_name"], texts["command_names"], texts["run_path"]) == ("torso", "motion", "run")
    assert texts["action_scale"] == ",".join(["0.500"] * joints)
    assert [float(value) for value in texts["joint_stiffness"].split(",")] == body.stiffness.tolist()
    assert [float(value) for value in texts["joint_damping"].split(",")] == body.damping.tolist()
    names = "height,lean,velocity,turning,joints,joint_velocity,bodies,phase,reference"
    assert texts["observation_names"] == names
    assert texts["observation_history_lengths"] == "1,1,1,1,1,1,1,1,1"


def test_what_ludus_needs_besides_is_there_unrounded(exported: Path) -> None:
    about, body = read_metadata(exported)["ludus_tracker"], find_body("humanoid")
    sizes = {term["name"]: term["size"] for term in about["observations"]}
    assert sizes == {
        "height": 1, "lean": 6, "velocity": 3, "turning": 3, "joints": 28, "joint_velocity": 28, "bodies": 42,
        "phase": 2, "reference": 107,
    }  # fmt: skip
    assert {term["factor"] for term in about["observations"]} == {1.0}
    assert (about["control_dt"], about["substeps"], about["future"]) == (body.dt, body.substeps, [1])
    assert about["motor_lag"] == body.lag.tolist()
    assert about["joint_stiffness"] == body.stiffness.tolist()
    assert (about["actions"], about["estimated"]) == ("residual", ["height", "velocity", "reference"])
    assert about["clip"]["name"] == "stroll"
    assert about["clip"]["loop"]
    assert about["model"] == "walk_body.xml"


def test_runtimes_of_years_ago_read_the_file(exported: Path) -> None:
    model = onnx.load(str(exported))
    onnx.checker.check_model(model)
    assert model.ir_version <= 8
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert not any(node.metadata_props for node in model.graph.node)


# What it computes ---------------------------------------------------------------------------------------
def test_the_clip_inside_is_that_of_the_library_at_every_control_step_and_stops_at_its_ends(
    run: Path, exported: Path
) -> None:
    session, env = open_session(exported), env_of(run)
    steps = read_metadata(exported)["ludus_tracker"]["clip"]["steps"]
    assert steps * env.body.dt > float(env.library.durations[0]) + 10
    obs, clip = np.zeros((1, 220)), torch.tensor([0])
    for step in (0, 1, 7, 40, steps - 1):
        found = outputs_of(session, obs=obs, time_step=[[step]])
        want = env.library.at(clip, torch.tensor([step * env.body.dt], dtype=torch.float64))
        np.testing.assert_allclose(found["joint_pos"], want.qpos[:, 7:], atol=1e-6)
        np.testing.assert_allclose(found["joint_vel"], want.qvel[:, 6:], atol=1e-5)
        np.testing.assert_allclose(found["body_pos_w"], want.body_pos, atol=1e-6)
        np.testing.assert_allclose(found["body_quat_w"], want.body_quat, atol=1e-6)
        np.testing.assert_allclose(found["body_lin_vel_w"][:, 0], want.qvel[:, :3], atol=1e-6)
    first, last, before, after = (
        outputs_of(session, obs=obs, time_step=[[step]]) for step in (0, steps - 1, -3, steps + 5)
    )
    for name in FRAME:
        np.testing.assert_array_equal(first[name], before[name])
        np.testing.assert_array_equal(last[name], after[name])
    env.close()


def test_the_bodies_velocities_are_their_places_differences(exported: Path) -> None:
    session, dt = open_session(exported), 1 / 30
    clip = [outputs_of(session, obs=np.zeros((1, 220)), time_step=[[step]]) for step in range(30)]
    places, speeds = (np.concatenate([one[name] for one in clip]) for name in ("body_pos_w", "body_lin_vel_w"))
    differences = (places[2:] - places[:-2]) / (2 * dt)
    assert np.abs(differences - speeds[1:-1]).mean() < 0.05
    assert np.abs(speeds).mean() > 0.3


def test_actions_are_those_of_torch(run: Path, exported: Path) -> None:
    session, policy = open_session(exported), ludus.load(run)
    for row in 2 * np.random.default_rng(0).normal(size=(50, 220)).astype(np.float32):
        found = outputs_of(session, obs=row[None], time_step=[[3]])
        np.testing.assert_allclose(found["actions"][0], policy.act(row), atol=1e-5)


def test_the_clip_may_be_an_input(run: Path, exported: Path, tmp_path: Path) -> None:
    assert export_onnx(run, tmp_path / "live.onnx", clip_as_input=True) <= 1e-5
    live, inside = open_session(tmp_path / "live.onnx"), open_session(exported)
    assert [value.name for value in live.get_inputs()] == ["obs", "joint_pos", "joint_vel"]
    assert [value.name for value in live.get_outputs()] == ["actions", "joint_targets"]
    obs = np.random.default_rng(1).normal(size=(1, 220))
    now, ahead = (outputs_of(inside, obs=obs, time_step=[[step]]) for step in (11, 12))
    found = outputs_of(live, obs=obs, joint_pos=ahead["joint_pos"], joint_vel=ahead["joint_vel"])
    for name in ("actions", "joint_targets"):
        np.testing.assert_allclose(found[name], now[name], atol=1e-6)
    assert read_metadata(tmp_path / "live.onnx")["ludus_tracker"]["clip"] is None


def test_absolute_actions_are_added_to_the_default_pose_as_controllers_do(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{"env.actions": "absolute", "env.action_scale": 0.7, "env.clips": "bow"})
    export_onnx(run, tmp_path / "bow.onnx")
    session = open_session(tmp_path / "bow.onnx")
    texts = session.get_modelmeta().custom_metadata_map
    found = outputs_of(session, obs=np.ones((1, 220)), time_step=[[0]])
    default, scale = ([float(v) for v in texts[name].split(",")] for name in ("default_joint_pos", "action_scale"))
    np.testing.assert_allclose(found["joint_targets"], default + np.array(scale) * found["actions"], atol=1e-3)
    pose = library_of(HumanoidConfig(clips="bow"), "cpu").mean_pose()
    np.testing.assert_allclose(json.loads(texts["ludus_tracker"])["default_joint_pos"], pose, atol=1e-7)


def test_motors_that_are_led_have_their_lead_inside_or_as_an_input(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{"env.actions": "feedforward", "env.clips": "bow"})
    assert export_onnx(run, tmp_path / "bow.onnx") <= 1e-5
    assert export_onnx(run, tmp_path / "live.onnx", clip_as_input=True) <= 1e-5
    mujoco.mj_saveModel(find_body("humanoid").model, str(tmp_path / "bow.mjb"))
    _, kept = follow(tmp_path / "bow.onnx", "--model", tmp_path / "bow.mjb")
    assert assert_alike(run, kept) > 10
    live = open_session(tmp_path / "live.onnx")
    assert [value.name for value in live.get_inputs()] == ["obs", "joint_pos", "motor_lead"]


# Outside Ludus ------------------------------------------------------------------------------------------
def assert_alike(run: Path, kept: dict[str, np.ndarray]) -> int:
    """Ludus' own environment, led through the same steps, shows and does the same; the number of steps."""
    env, policy = env_of(run), ludus.load(run)
    env.reset(0)
    set_time(env, torch.tensor([kept["step"][0] * env.body.dt]))
    set_pose(env, torch.from_numpy(kept["qpos"][:1]), torch.from_numpy(kept["qvel"][:1]))
    obs = env.observe(slice(None))
    ends = np.flatnonzero(np.diff(kept["step"], append=-1) != 1)  # of the first start
    steps = int(ends[0]) + 1
    for step in range(steps):
        np.testing.assert_allclose(kept["obs"][step], obs[0], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(kept["actions"][step], policy.act(obs[0].numpy()), atol=1e-5)
        env.begin_step(torch.from_numpy(kept["actions"][step])[None])
        np.testing.assert_allclose(kept["joint_targets"][step], env.sim.field("ctrl")[0], atol=1e-6)
        assert not bool(env.end_step().truncated.any()) or step == steps - 1
        obs = env.observe(slice(None))
    env.close()
    return steps


def test_the_example_sees_and_acts_as_ludus_does_over_an_episode(run: Path, exported: Path) -> None:
    model = exported.with_suffix(".mjb")  # as it is; XML is rounded
    mujoco.mj_saveModel(find_body("humanoid").model, str(model))
    told, kept = follow(exported, "--model", model, "--starts", "2")
    assert "stroll: " in told
    assert "from step 15: " in told
    assert assert_alike(run, kept) > 20


def test_the_model_beside_the_file_is_the_body_but_for_rounding(run: Path, exported: Path) -> None:
    model, own = (
        mujoco.MjModel.from_xml_path(str(exported.with_name("walk_body.xml"))),
        find_body("humanoid").model,
    )
    for name in ("body_mass", "actuator_gainprm", "actuator_forcerange", "dof_damping", "geom_size", "jnt_range"):
        np.testing.assert_allclose(getattr(model, name), getattr(own, name), rtol=1e-5, atol=1e-7)
    assert model.opt.integrator == own.opt.integrator
    _, kept = follow(exported)
    assert assert_alike(run, {name: values[:5] for name, values in kept.items()}) == 5


def test_a_policy_that_needs_nothing_estimated_sees_no_places_and_runs(tmp_path: Path) -> None:
    seen = MEASURED | {"last_actions": 0.5}
    run = train(tmp_path / "run", **{"env.observations": seen, "env.future": (1, 4), "env.clips": "wave"})
    export_onnx(run, tmp_path / "wave.onnx")
    about = read_metadata(tmp_path / "wave.onnx")["ludus_tracker"]
    assert about["estimated"] == []
    sizes = {term["name"]: term["size"] for term in about["observations"]}
    assert sizes == {
        "lean": 6, "turning": 3, "joints": 28, "joint_velocity": 28, "bodies": 42, "phase": 2,
        "reference_pose": 2 * 62, "last_actions": 56,
    }  # fmt: skip
    mujoco.mj_saveModel(find_body("humanoid").model, str(tmp_path / "wave.mjb"))
    _, kept = follow(tmp_path / "wave.onnx", "--model", tmp_path / "wave.mjb")
    assert assert_alike(run, kept) > 20


def test_what_is_measured_does_not_depend_on_the_place_and_the_heading_of_the_world(run: Path) -> None:
    env = env_of(run, observations=MEASURED)
    env.reset(0)
    set_time(env, torch.tensor([0.5]))
    before = env.observe(slice(None))
    qpos, qvel = env.sim.field("qpos").clone(), env.sim.field("qvel").clone()
    set_pose(env, qpos + torch.tensor([[3.0, -2.0, 0.4, *[0.0] * (qpos.shape[1] - 3)]]), qvel)
    torch.testing.assert_close(env.observe(slice(None)), before, atol=1e-5, rtol=1e-5)
    env.close()


@pytest.mark.slow
def test_a_run_with_mirrored_and_unseen_clips_exports_any_of_them(tmp_path: Path) -> None:
    clips = {"env.clips": "bow,wave", "env.test_clips": "wave", "env.mirror": True}
    run = train(tmp_path / "run", **clips)
    for name in ("bow", "wave", "squat"):  # trained on, kept out, another
        asked = "" if name == "bow" else name  # the only one that it was trained on
        assert export_onnx(run, tmp_path / f"{name}.onnx", clip=asked) <= 1e-5
        assert read_metadata(tmp_path / f"{name}.onnx")["ludus_tracker"]["clip"]["name"] == name


def test_the_order_of_actions_and_what_motors_pull_to_are_told() -> None:
    about: dict[str, Any] = {"clip": None, "estimated": [], "actions": "residual", "model": "robot.xml"}
    names = {"joint_names": ["hip", "knee"], "action_joint_names": ["knee", "hip"]}
    told = "\n".join(_tracker_lines(about | names))
    assert "motors pull to joint_targets" in told
    assert "in the order of action_joint_names" in told
    plain = {"actions": "absolute", "joint_names": ["hip"], "action_joint_names": ["hip"]}
    assert len(_tracker_lines(about | plain)) == 2


@needs_g1
def test_a_g1_exports_its_motors_and_a_model_with_its_meshes(tmp_path: Path) -> None:
    body = find_body("g1")
    still = np.tile(body.default_qpos, (60, 1))
    save_clip(Clip("stand", 30.0, still[:, :3], still[:, 3:7], still[:, 7:], body=body), tmp_path / "stand.npz")
    run = train(tmp_path / "run", **{"env.body": "g1", "env.clips": str(tmp_path / "stand.npz")})
    export_onnx(run, tmp_path / "g1.onnx")
    texts = open_session(tmp_path / "g1.onnx").get_modelmeta().custom_metadata_map
    assert texts["anchor_body_name"] == "torso_link"
    assert texts["body_names"].split(",") == list(body.key_names)
    stiffness, scale = (
        dict(zip(texts["joint_names"].split(","), texts[name].split(","), strict=True))
        for name in ("joint_stiffness", "action_scale")
    )
    assert (stiffness["left_hip_pitch_joint"], scale["left_knee_joint"]) == ("40.179", "0.351")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "g1_body.xml"))
    assert (model.nu, model.nmesh) == (29, body.model.nmesh)
    _, kept = follow(tmp_path / "g1.onnx", "--seconds", "0.2")
    assert assert_alike(run, {name: values[:4] for name, values in kept.items()}) == 4


# Wrong use ----------------------------------------------------------------------------------------------
def test_one_of_several_clips_must_be_chosen_and_another_may_be(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{"env.clips": "bow,wave"})
    with pytest.raises(ConfigError, match=r"follows 2 clips \(bow, wave\), and a file holds one: .*--clip NAME"):
        export_onnx(run, tmp_path / "x.onnx")
    with pytest.raises(ConfigError, match=r"no clip 'wav'.*wave"):
        export_onnx(run, tmp_path / "x.onnx", clip="wav")
    with pytest.raises(ConfigError, match="means 9 clips"):
        export_onnx(run, tmp_path / "x.onnx", clip="all")
    with pytest.raises(ConfigError, match="leave out --clip"):
        export_onnx(run, tmp_path / "x.onnx", clip="bow", clip_as_input=True)
    assert list(tmp_path.iterdir()) == [run]
    for name in ("wave", "stroll"):
        export_onnx(run, tmp_path / "x.onnx", clip=name)
        assert read_metadata(tmp_path / "x.onnx")["ludus_tracker"]["clip"]["name"] == name


def test_a_run_that_follows_no_clip_has_none_to_export(tmp_path: Path) -> None:
    settings = {name: value for name, value in SMALL.items() if name not in ("env.threads", "env.eval_starts")}
    folder = ludus.train("gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), overrides=settings)
    run = Path(os.fspath(folder))
    with pytest.raises(ConfigError, match="--clip is for runs of a body that follows clips"):
        export_onnx(run, tmp_path / "x.onnx", clip="bow")
    with pytest.raises(ConfigError, match="--clip-as-input is for runs of a body that follows clips"):
        export_onnx(run, tmp_path / "x.onnx", clip_as_input=True)
    assert export_onnx(run, tmp_path / "x.onnx") <= 1e-4
    assert onnx.load(str(tmp_path / "x.onnx")).ir_version <= 9
