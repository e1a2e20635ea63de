"""MuJoCo Warp behind the simulator's interface, on the CPU: the physics is that of the threads, in float32."""

from collections.abc import Callable
from typing import Any

import mujoco
import pytest
import torch
from torch import Tensor

pytest.importorskip("mujoco_warp", reason="MuJoCo Warp is not installed: pip install 'ludus[gpu]'")

import warp

from ludus.envs import make_vec_env
from ludus.envs.bodies import find_body
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.task import SUBSTEPS, scene_path
from ludus.envs.locomotion.config import LocomotionConfig
from ludus.envs.locomotion.gymnasium_sim import GymnasiumSimulator
from ludus.envs.locomotion.task import TASKS, load_model
from ludus.envs.mujoco.simulator import CpuSimulator, Simulator, lacks_warp, make_simulator, wants_warp
from ludus.envs.mujoco.task import SimTask
from ludus.envs.mujoco.warp import Derived, WarpSimulator
from ludus.envs.mujoco.warp_kernels import compile_kernels
from ludus.envs.vec import env_faults
from ludus.errors import ConfigError

warp.config.optimization_level = 0  # on the CPU, where kernels take longer to compile than to run
SIMS = 3
POSITIONS = ("qpos", "qvel", "xpos", "xquat", "xmat", "geom_xpos")


def load(name: str) -> mujoco.MjModel:
    if name == "humanoid-body":
        return find_body("humanoid").new_model()
    return mujoco.MjModel.from_xml_path(str(scene_path())) if name == "kuka" else load_model(TASKS[name].xml)


def converged(model: mujoco.MjModel) -> mujoco.MjModel:
    """Solvers that stop early stop at different points, and a friction pyramid, as Gymnasium's models have it,
    depends on how the contact's frame lies, which Warp chooses otherwise for upright capsules: a cone and enough
    iterations leave only rounding.
    """
    model.opt.iterations, model.opt.ls_iterations = 16, 50
    model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON  # the humanoid's PGS would take hundreds of iterations
    return model


def controls(model: mujoco.MjModel, sims: int, steps: int) -> list[Tensor]:
    """Within the limits where there are any, else small."""
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor(model.actuator_ctrlrange).T
    limited = torch.tensor(model.actuator_ctrllimited).bool()
    unit = torch.rand((steps, sims, model.nu), generator=generator, dtype=torch.float64)
    return list(torch.where(limited, low + (high - low) * unit, 0.2 * (unit - 0.5)).float().double())


def everywhere(sim: Simulator) -> Tensor:
    return torch.ones(sim.num_sims, dtype=torch.bool)


def advance(sim: Simulator, control: Tensor) -> Tensor | None:
    sim.field("ctrl").copy_(control)
    sim.begin_step()
    return sim.end_step()


@pytest.fixture(scope="module")
def simulator() -> Callable[..., WarpSimulator]:
    """One of each kind for the whole file: to build one loads its kernels."""
    built: dict[tuple[str, str], WarpSimulator] = {}

    def get(name: str, derived: Derived = "positions", substeps: int = 2) -> WarpSimulator:
        if (name, derived) not in built:
            built[name, derived] = WarpSimulator(converged(load(name)), SIMS, substeps, "cpu", derived)
        sim = built[name, derived]
        sim.reset(everywhere(sim))
        sim.forward()
        sim.overflows()
        return sim

    return get


# Kernels ----------------------------------------------------------------------------------------
PENDULUM = """<mujoco><worldbody><body><joint type="hinge" axis="0 1 0"/>
<geom type="capsule" size="0.05" fromto="0 0 0 0 0 -1" contype="0" conaffinity="0"/></body></worldbody></mujoco>"""


def test_the_start_compiles_all_that_steps_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = WarpSimulator(mujoco.MjModel.from_xml_string(PENDULUM), SIMS, 2, "cpu", "positions")
    load, late = warp.Module.load, []

    def watched(module: Any, *given: Any, **named: Any) -> Any:
        known = len(module.execs)
        loaded = load(module, *given, **named)
        late.extend([module.name] * (len(module.execs) - known))
        return loaded

    monkeypatch.setattr(warp.Module, "load", watched)
    sim.begin_step()
    sim.forward()
    assert not late
    assert sim.field("time").unique().tolist() == pytest.approx([2 * sim.model.opt.timestep])  # and they do run


@warp.kernel
def _one_more(numbers: warp.array(dtype=float)) -> None:  # type: ignore[valid-type]
    numbers[warp.tid()] += 1.0


def _as_on_a_gpu(kernel: Any, device: Any = None) -> tuple[int, int]:
    """What `warp.get_suggested_block_size` does there; on a CPU it does not look at the kernel."""
    if kernel.module.load(device or warp.get_device("cpu")) is None:
        raise RuntimeError(f"Failed to load module for kernel '{kernel.key}'")
    return 1, 1


def test_kernels_that_are_asked_for_their_size_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MuJoCo Warp every model that collides asks; while nothing was loaded this ended trainings on a GPU."""
    monkeypatch.setattr(warp, "get_suggested_block_size", _as_on_a_gpu)
    numbers = warp.zeros(3, dtype=float, device="cpu")

    def work() -> None:
        width, _ = warp.get_suggested_block_size(_one_more)
        warp.launch(_one_more, dim=3 * width, inputs=[numbers], device="cpu")

    compile_kernels(work, warp.get_device("cpu"))
    assert _one_more.module.execs
    assert numbers.numpy().tolist() == [0.0, 0.0, 0.0]
    assert warp.get_suggested_block_size is _as_on_a_gpu
    work()
    assert numbers.numpy().tolist() == [1.0, 1.0, 1.0]


def test_what_cannot_be_gone_through_with_nothing_loaded_is_compiled_at_its_launch() -> None:
    def work() -> None:
        raise RuntimeError("not loaded")

    compile_kernels(work, warp.get_device("cpu"))


DELAYED = """<mujoco><worldbody><body><joint name="j"/><geom size=".1"/></body></worldbody><actuator>
<position joint="j" kp="5" delay="0.02" nsample="4"/></actuator></mujoco>"""


def test_what_warp_does_not_simulate_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"no plugins, delays or histories.* Take --env\.simulator threads"):
        WarpSimulator(mujoco.MjModel.from_xml_string(DELAYED), 2, 1, "cpu", "positions")


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


# The same physics -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "derived", "fields", "tolerance"),
    [
        ("hopper", "positions", POSITIONS, 1e-3),
        # Slow, like every model but one: Warp compiles its kernels anew for each.
        slow("humanoid-body", "positions", POSITIONS, 1e-3),
        slow("kuka", "all", (*POSITIONS, "sensordata", "site_xpos"), 1e-3),
        slow("half-cheetah", "as_stepped", ("qpos", "qvel", "xpos", "cinert", "cvel", "cfrc_ext"), 2e-2),
        slow("ant", "as_stepped", ("qpos", "qvel", "xpos", "qfrc_actuator", "cfrc_ext"), 2e-2),
    ],
)
def test_it_simulates_as_the_threads_do(
    simulator: Callable[..., WarpSimulator], name: str, derived: Derived, fields: tuple[str, ...], tolerance: float
) -> None:
    threaded = GymnasiumSimulator if derived == "as_stepped" else CpuSimulator
    substeps = SUBSTEPS if name == "kuka" else 2
    sim = simulator(name, derived, substeps)
    other = threaded(converged(load(name)), SIMS, substeps, threads=1)
    ours, theirs = ([each.field(field) for field in fields] for each in (sim, other))
    assert [field.shape for field in ours] == [field.shape for field in theirs]
    sim.forward()
    for control in controls(sim.model, SIMS, 20):
        diverged, nothing = advance(sim, control), advance(other, control)
        assert diverged is not None
        assert not diverged.any()
        assert nothing is None
        for field, mine, its in zip(fields, ours, theirs, strict=True):
            error = (mine.double() - its).abs().max() / its.abs().max().clamp(min=1.0)
            assert error < tolerance, f"{field}: {error}"
    assert sum(sim.overflows().values()) == 0
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hopper", "walker2d", "humanoid"])
def test_the_other_runners_simulate_as_the_threads_do(name: str) -> None:
    sim = WarpSimulator(converged(load(name)), SIMS, TASKS[name].frame_skip, "cpu", "as_stepped")
    other = GymnasiumSimulator(converged(load(name)), SIMS, TASKS[name].frame_skip, threads=1)
    other.field("qpos")
    for control in controls(sim.model, SIMS, 20):
        advance(sim, control)
        advance(other, control)
    assert torch.allclose(sim.field("qpos").double(), other.field("qpos"), atol=1e-2)
    other.close()


# Restarting, faults, state ----------------------------------------------------------------------
def test_a_reset_leaves_the_others_untouched(simulator: Callable[..., WarpSimulator]) -> None:
    sim = simulator("hopper")
    start = sim.field("qpos")[1].clone()
    for control in controls(sim.model, SIMS, 5):
        advance(sim, control)
    before = sim.state()["rows"]
    sim.reset(torch.tensor([False, True, False]))
    sim.forward()
    assert torch.equal(sim.field("qpos")[1], start)
    assert not sim.field("qvel")[1].any()
    assert torch.equal(sim.state()["rows"][[0, 2]], before[[0, 2]])


def test_a_diverged_simulation_is_named_and_reset_alone(simulator: Callable[..., WarpSimulator]) -> None:
    sim = simulator("hopper")
    steps = controls(sim.model, SIMS, 4)
    sim.field("qvel")[1] = torch.nan
    assert advance(sim, steps[0]).tolist() == [False, True, False]  # type: ignore[union-attr]
    for control in steps[1:]:
        assert not advance(sim, control).any()  # type: ignore[union-attr]
    assert torch.isfinite(sim.field("xpos")).all()


@pytest.mark.parametrize(
    ("room", "flag"),
    [({"contacts": 1, "constraints": 64}, "contact_overflow"), ({"constraints": 8}, "constraint_overflow")],
)
def test_too_little_room_is_counted(room: dict[str, int], flag: str) -> None:
    sim = WarpSimulator(converged(load("hopper")), SIMS, 2, "cpu", "positions", **room)
    sim.field("qpos")[1, 1] -= 0.3  # its foot in the ground
    sim.begin_step()
    sim.end_step()
    found = sim.overflows()
    assert found.pop(flag) > 0
    assert sum(found.values()) == 0
    assert sum(sim.overflows().values()) == 0  # counted anew


def test_a_saved_state_goes_on_exactly_and_fits_the_threads(simulator: Callable[..., WarpSimulator]) -> None:
    sim = simulator("hopper")
    steps = controls(sim.model, SIMS, 8)
    for control in steps[:4]:
        advance(sim, control)
    saved = sim.state()
    for control in steps[4:]:
        advance(sim, control)
    reached = sim.state()["rows"]
    sim.load_state(saved)
    for control in steps[4:]:
        advance(sim, control)
    assert torch.equal(sim.state()["rows"], reached)

    other = CpuSimulator(sim.model, SIMS, sim.substeps, threads=1)
    other.load_state(saved)
    for control in steps[4:]:
        advance(other, control)
    assert torch.allclose(other.field("qpos"), sim.field("qpos").double(), atol=1e-3)
    sim.load_state(other.state())
    assert torch.equal(sim.field("qpos"), other.field("qpos").float())
    other.close()


# Tasks ------------------------------------------------------------------------------------------
def play(env: SimTask, steps: int) -> int:
    """Random actions; how many episodes ended."""
    generator, ended = torch.Generator().manual_seed(1), 0
    for _ in range(steps):
        shape = (env.num_rows, *env.action_space.shape)  # type: ignore[misc]
        step = env.step(2 * torch.rand(shape, generator=generator) - 1)
        for tensor in (step.obs, step.reward, step.final_obs):
            assert tensor.dtype == torch.float32
            assert torch.isfinite(tensor).all()
        going = ~step.done
        assert torch.equal(step.obs[going], step.final_obs[going])
        assert (env.elapsed[step.done] == 0).all()
        ended += int(step.done.sum())
    return ended


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [KukaConfig(max_steps=6, simulator="warp"), LocomotionConfig(task="hopper", max_steps=20, simulator="warp")],
    ids=["kuka", "hopper"],
)
def test_a_task_plays_and_restarts(config: KukaConfig | LocomotionConfig) -> None:
    env = make_vec_env(config, 4)
    assert isinstance(env, SimTask)
    assert env.capturable
    env.reset(3)
    assert play(env, 15 if isinstance(config, KukaConfig) else 45) >= 8
    assert sum(env_faults([env]).values()) == 0

    # The newest starts, on threads: the same first observations.
    rows = env.restart(torch.arange(4))
    threads = make_vec_env(type(config)(**{**vars(config), "simulator": "threads"}), 4)
    assert isinstance(threads, SimTask)
    threads.reset(0)
    threads.load_state(env.state())
    assert torch.allclose(threads.observe(slice(None)), rows, atol=2e-3)
    threads.close()
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("discriminate", ["motion", "error"])
def test_a_diverged_humanoid_shows_a_discriminator_nothing_that_is_not_finite(discriminate: str) -> None:
    config = HumanoidConfig(clips="squat", discriminate=discriminate, simulator="warp")  # type: ignore[arg-type]
    env = make_vec_env(config, SIMS)
    assert isinstance(env, SimTask)
    assert env.motion is not None
    env.reset(0)
    env.step(torch.zeros(SIMS, 28))
    before = env.motion.clone()
    env.sim.field("qvel")[1] = torch.nan
    step = env.step(torch.zeros(SIMS, 28))
    assert step.metrics["diverged"].tolist() == [0, 1, 0]
    assert torch.equal(env.motion[1], before[1])
    env.step(torch.zeros(SIMS, 28))
    assert torch.isfinite(env.motion).all()
    env.close()


@pytest.mark.slow
def test_a_restart_by_mask_is_one_by_rows() -> None:
    """The same starts, written by mask and by rows: the rest of the tasks' state and all observations agree."""
    config = KukaConfig(fixed=True, assist=0.0)
    env = make_vec_env(type(config)(**{**vars(config), "simulator": "warp"}), 4)
    threads = make_vec_env(config, 4)
    assert isinstance(env, SimTask)
    assert isinstance(threads, SimTask)
    for each in (env, threads):
        each.reset(0)
        each.new_episodes = fixed_start(each, each.new_episodes)  # type: ignore[method-assign]
        each.restart(torch.arange(4))
        for _ in range(3):
            each.step(torch.full((4, 4), 0.5))
        each.restart(torch.tensor([1, 3]))
    assert env.elapsed.tolist() == threads.elapsed.tolist() == [3, 0, 3, 0]
    assert torch.allclose(env.observe(slice(None)), threads.observe(slice(None)), atol=2e-3)
    for name, value in env.memory.items():
        assert torch.allclose(value.double(), threads.memory[name], atol=1e-3), name
    threads.close()
    env.close()


def fixed_start(env: SimTask, new_episodes: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
    """All episodes begin as the first of this group would without noise: random streams cannot be compared."""
    start = {name: value[:1] for name, value in new_episodes(slice(None), env.num_rows).items()}
    start["qpos"] = torch.cat([start["ctrl"][:, :7], start["qpos"][:, 7:]], dim=1)
    return lambda rows, n: {name: value.repeat(n, *[1] * (value.dim() - 1)) for name, value in start.items()}


# Choosing ---------------------------------------------------------------------------------------
def test_the_simulator_follows_the_device_and_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_warp("auto", "cuda", 512)
    assert not wants_warp("auto", "cuda", 511)  # too few: threads are faster
    assert not wants_warp("auto", "cpu", 4096)
    assert not wants_warp("threads", "cuda", 4096)
    assert wants_warp("warp", "cpu", 1)
    assert not lacks_warp("auto", "cuda", 4096)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not wants_warp("auto", "cuda", 4096)
    assert lacks_warp("auto", "cuda", 4096)  # which a training tells
    assert not any(lacks_warp(*others) for others in (("auto", "cuda", 511), ("auto", "cpu", 4096)))
    assert not lacks_warp("threads", "cuda", 4096)
    with pytest.raises(ConfigError, match=r"ludus\[gpu\]"):
        make_simulator(load("kuka"), 1, 1, 1, "cuda", "warp")
