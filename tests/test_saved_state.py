"""Snapshots of environments from a stranger: none crashes or hangs the process, or replaces code."""

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch

from ludus.envs.gym import block as gym_block
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import GymVecEnv, make_gym
from ludus.envs.gym.mujoco_state import read_data, read_model, write_data, write_model
from ludus.envs.gym.state import restore, snapshot
from ludus.envs.mujoco.simulator import CpuSimulator
from ludus.envs.random_state import refuse_wild_generator
from ludus.envs.vec import State, restore_generator
from ludus.errors import CheckpointError

Spoil = Callable[[dict[str, Any]], Any]


def hopper() -> Any:
    env = gym.make("Hopper-v5").unwrapped
    env.reset(seed=0)
    for _ in range(3):
        env.step(np.zeros(3, np.float32))
    return env


def fresh_hopper() -> Any:
    env = gym.make("Hopper-v5").unwrapped
    env.reset(seed=1)
    return env


def array_of(state: State, node: dict[str, Any]) -> np.ndarray:
    """The saved array itself, to be written."""
    count, dtype = int(np.prod(node["shape"])), np.dtype(node["dtype"])
    data: np.ndarray = state["data"].numpy()
    return data[node["at"] : node["at"] + count * dtype.itemsize].view(dtype)


# MuJoCo -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("field", ["jnt_qposadr", "dof_bodyid", "body_parentid", "geom_type", "actuator_trnid"])
def test_trust_05_integer_arrays_of_a_saved_model_must_equal_the_models_own(field: str) -> None:
    state = snapshot(hopper())
    array_of(state, state["tree"]["object"]["model"]["MjModel"][field])[:] = 1_000_000
    env = fresh_hopper()
    before = read_model(env.model)[field].copy()
    assert f"MuJoCo model's {field} is another than the environment's own" in restore(env, state)
    assert np.array_equal(read_model(env.model)[field], before)
    env.reset(seed=2)
    env.step(np.zeros(3, np.float32))


@pytest.mark.parametrize("option", ["iterations", "ls_iterations", "solver", "integrator", "enableflags"])
def test_trust_05_options_that_count_or_choose_are_not_restored(option: str) -> None:
    state = snapshot(hopper())
    array_of(state, state["tree"]["object"]["model"]["MjModel"][f"opt.{option}"])[:] = 2**30
    assert f"opt.{option}" in restore(fresh_hopper(), state)


@pytest.mark.parametrize(
    ("part", "field"), [("model", "body_mass"), ("model", "opt.timestep"), ("data", "physics")]
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_trust_05_numbers_that_are_not_finite_do_not_reach_mujoco(part: str, field: str, value: float) -> None:
    state = snapshot(hopper())
    kind = {"model": "MjModel", "data": "MjData"}[part]
    array_of(state, state["tree"]["object"][part][kind][field])[:] = value
    assert "finite" in restore(fresh_hopper(), state)


def test_trust_05_a_refused_model_is_left_as_it_was() -> None:
    env = fresh_hopper()
    arrays = {name: value.copy() for name, value in read_model(env.model).items()}
    arrays["body_mass"] *= 2.0
    arrays["jnt_qposadr"] += 1
    mass = env.model.body_mass.copy()
    with pytest.raises(ValueError, match="jnt_qposadr"):
        write_model(env.model, arrays)
    assert np.array_equal(env.model.body_mass, mass)


@pytest.mark.parametrize("unknown", ["nq", "opt", "__class__", "opt.__class__", "names"])
def test_trust_05_fields_that_no_snapshot_has_are_refused(unknown: str) -> None:
    env = fresh_hopper()
    with pytest.raises(ValueError, match="changed shape"):
        write_model(env.model, {unknown: np.zeros(3)})
    with pytest.raises(ValueError, match="changed shape"):
        write_data(env.data, read_data(env.data) | {unknown: np.zeros(3)})


TENDON = """<mujoco><worldbody><geom name="wrap" type="sphere" size=".1"/><site name="side" pos=".2 0 0"/>
<site name="a" pos="0 0 1"/><body><joint type="slide"/><geom size=".1"/><site name="b" pos="0 0 -1"/></body>
</worldbody>
<tendon><spatial><site site="a"/><geom geom="wrap" sidesite="side"/><site site="b"/></spatial></tendon></mujoco>"""


def test_trust_05_floating_point_numbers_that_are_indices_must_equal_the_models_own() -> None:
    model = mujoco.MjModel.from_xml_string(TENDON)
    arrays = {name: value.copy() for name, value in read_model(model).items()}
    arrays["wrap_prm"][:] = 1e6
    with pytest.raises(ValueError, match="wrap_prm"):
        write_model(model, arrays)


DELAYED = """<mujoco><worldbody><body><joint name="j" type="slide"/><geom size=".1" mass="1"/></body></worldbody>
<actuator><motor joint="j" delay="0.01" nsample="5"/></actuator>
<sensor><jointpos joint="j" delay="0.006" nsample="4"/></sensor></mujoco>"""


@pytest.mark.parametrize("cursor", [-1.0, 1e9, 2.5])
def test_trust_05_a_cursor_into_delayed_samples_stays_inside(cursor: float) -> None:
    model = mujoco.MjModel.from_xml_string(DELAYED)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 3)
    good = {name: value.copy() for name, value in read_data(data).items()}
    write_data(data, {name: value.copy() for name, value in good.items()})  # what was saved can be loaded
    bad = {name: value.copy() for name, value in good.items()}
    data.history[1] = cursor
    physics = read_data(data)["physics"]
    other = mujoco.MjData(model)
    with pytest.raises(ValueError, match="history of samples"):
        write_data(other, bad | {"physics": physics.copy()})
    bad["history"][13] = cursor
    with pytest.raises(ValueError, match="history of samples"):
        write_data(other, bad)
    mujoco.mj_step(model, other)


class _Views(gym.Env):
    """Holds views of MuJoCo's memory in attributes."""

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(DELAYED)
        self.data = mujoco.MjData(self.model)
        self.addresses, self.qpos = self.model.jnt_qposadr, self.data.qpos


def test_trust_05_views_of_mujocos_memory_take_floats_only() -> None:
    state = snapshot(_Views())
    assert state["exact"]
    array_of(state, state["tree"]["object"]["addresses"]["array"])[:] = 1_000_000
    env = _Views()
    assert "view of another library's memory" in restore(env, state)
    assert env.model.jnt_qposadr.tolist() == [0]


def test_trust_05_the_number_of_substeps_is_not_restored() -> None:
    state = snapshot(hopper())
    state["tree"]["object"]["frame_skip"] = 10**9
    env = fresh_hopper()
    assert restore(env, state) == ""
    assert env.frame_skip == 4


def test_trust_05_a_simulators_rows_must_be_finite_and_as_many_as_there_are() -> None:
    sim = CpuSimulator(mujoco.MjModel.from_xml_string(DELAYED), 2, 1, 1)
    try:
        rows = sim.state()["rows"]
        for wrong in (rows[:1], rows * torch.nan, rows.int()):
            with pytest.raises(CheckpointError, match="simulations"):
                sim.load_state({"rows": wrong})
        sim.load_state({"rows": rows})
    finally:
        sim.close()


# Random generators ------------------------------------------------------------------------------------
def mt(pos: int, words: Any = None) -> dict[str, Any]:
    state = np.random.RandomState(0).get_state(legacy=False)
    assert isinstance(state, dict)
    key = state["state"]["key"] if words is None else np.full(624, words, np.uint32)
    return state | {"state": {"key": key, "pos": pos}}


def numpy_state(kind: str, **changes: Any) -> dict[str, Any]:
    state: dict[str, Any] = copy.deepcopy(getattr(np.random, kind)(0).state)
    for name, value in changes.items():
        (state["state"] if name in state["state"] else state)[name] = value
    return state


def torch_state(left: int, next_word: int) -> np.ndarray:
    raw = torch.Generator().manual_seed(0).get_state().numpy().copy()
    raw[8:12].view(np.int32)[0], raw[16:24].view(np.uint64)[0] = left, next_word
    return raw


WILD_GENERATORS = [
    ("numpy_legacy", mt(pos=10_000_000)),
    ("numpy_legacy", mt(pos=-5)),
    ("numpy_legacy", mt(pos=3, words=0)),
    ("numpy", numpy_state("MT19937", pos=10**6)),
    ("numpy", numpy_state("Philox", buffer_pos=-(10**6))),
    ("numpy", numpy_state("PCG64", state=0, inc=0)),
    ("numpy", numpy_state("PCG64DXSM", state=0, inc=0)),
    ("python", (3, (0,) * 624 + (1,), None)),
    ("python", (3, random.Random(0).getstate()[1], "text")),
    ("torch", torch_state(624, 624)),
    ("torch", torch_state(2, 2**40)),
    ("torch", np.zeros(5056, np.uint8)),
]


@pytest.mark.parametrize(
    ("name", "state"), WILD_GENERATORS, ids=[f"{n}{i}" for i, (n, _) in enumerate(WILD_GENERATORS)]
)
def test_a_random_generator_never_gets_a_state_that_reads_elsewhere_or_never_ends(name: str, state: Any) -> None:
    with pytest.raises(ValueError, match="random generator is damaged"):
        refuse_wild_generator(name, state)


def test_states_of_generators_in_use_are_accepted() -> None:
    for kind in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
        bits = getattr(np.random, kind)(1)
        for _ in range(700):
            refuse_wild_generator("numpy", bits.state)
            np.random.Generator(bits).integers(10)
    legacy, python, generator = np.random.RandomState(0), random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(700):
        refuse_wild_generator("numpy_legacy", legacy.get_state(legacy=False))
        refuse_wild_generator("python", python.getstate())
        refuse_wild_generator("torch", generator.get_state().numpy())
        legacy.normal(), python.gauss(0, 1), torch.rand(1, generator=generator)


def test_the_streams_of_a_run_are_looked_at_as_well() -> None:
    with pytest.raises(ValueError, match="damaged"):
        restore_generator(torch.Generator(), torch.from_numpy(torch_state(624, 624)))


# Trees ------------------------------------------------------------------------------------------------
def attributes() -> Any:
    import gym_test_envs

    env = gym_test_envs.Attributes()
    env.reset(seed=0)
    return env


def deep(depth: int) -> Any:
    node: Any = 0
    for _ in range(depth):
        node = {"list": [node]}
    return node


ARRAY = {"dtype": "<f8", "shape": [3, 4], "columns": False, "at": 0}
HOSTILE: dict[str, Any] = {
    "empty": {},
    "unknown kind": {"system": "id"},
    "bare list": [1, 2],
    "same out of range": {"same": 10**9},
    "same negative": {"same": -1},
    "same text": {"same": "x"},
    "huge int": {"int": "9" * 5000},
    "no int": {"int": [1]},
    "deep": deep(5000),
    "unhashable key": {"dict": [[{"list": []}, 1]], "class": "dict"},
    "unhashable set": {"set": [{"list": []}]},
    "unknown dict": {"dict": [], "class": "ChainMap"},
    "maxlen negative": {"deque": [1], "maxlen": -1},
    "maxlen absurd": {"deque": [1], "maxlen": 2**80},
    "items are text": {"list": "abc"},
    "array beyond the data": {"array": ARRAY | {"at": 10**12}, "foreign": False},
    "array before the data": {"array": ARRAY | {"at": -8}, "foreign": False},
    "array of nothing, gigantic": {"array": ARRAY | {"shape": [0, 2**62, 2**62]}, "foreign": False},
    "array gigantic": {"array": ARRAY | {"shape": [2**40]}, "foreign": False},
    "array negative": {"array": ARRAY | {"shape": [-1]}, "foreign": False},
    "array of objects": {"array": ARRAY | {"dtype": "|O", "shape": [1]}, "foreign": False},
    "array of void": {"array": ARRAY | {"dtype": "|V8", "shape": [1]}, "foreign": False},
    "array of no type": {"array": ARRAY | {"dtype": "os.system"}, "foreign": False},
    "the same bytes again and again": {"list": [{"array": ARRAY, "foreign": False}] * 1000},
    "foreign but not there": {"array": ARRAY, "foreign": True},
    "tensor of text": {"tensor": {"dtype": "<U2", "shape": [1], "columns": False, "at": 0}},
    "random unknown": {"random": "os", "state": None},
    "random without state": {"random": "numpy", "state": None},
    "random of another kind": {
        "random": "numpy",
        "state": {"dict": [["bit_generator", "os"], ["state", 0]], "class": "dict"},
    },
    "pygame unknown": {"pygame": "quit", "numbers": []},
    "own of none": {"own": 1},
    "keep of none": {"keep": "function"},
    "model of none": {"MjModel": {}},
    "enum of none": {"enum": "LEFT", "class": "Direction"},
    "namedtuple of none": {"namedtuple": [], "class": "Pose"},
    "object of none": {"object": {}, "class": "Body"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_snapshot_crashes_or_hangs_whatever_is_in_it(name: str) -> None:
    state, env = snapshot(attributes()), attributes()
    state["tree"]["object"]["extra"] = HOSTILE[name]
    before = set(env.__dict__)
    reason = restore(env, state)
    assert reason.startswith("the saved state does not fit it: ")
    assert len(reason) < 300
    assert set(env.__dict__) == before  # nothing is left half done
    env.reset(seed=3)
    env.step(1)


@pytest.mark.parametrize("place", ["direction", "pose", "grid", "nested", "twister", "body"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_value_in_the_place_of_a_good_one_is_a_sentence_or_a_value(name: str, place: str) -> None:
    state, env = snapshot(attributes()), attributes()
    state["tree"]["object"][place] = HOSTILE[name]
    restore(env, state)


@pytest.mark.parametrize(
    "missing", [{}, {"exact": True}, {"exact": True, "why": "", "tree": None, "data": None}, None, [1]]
)
def test_a_snapshot_without_its_parts_is_a_sentence(missing: Any) -> None:
    assert restore(attributes(), missing)


def test_a_reason_from_a_file_is_one_printable_line() -> None:
    state = {"exact": False, "why": "a\x1b[31mb\nc" + "x" * 5000, "tree": None, "data": torch.zeros(0)}
    reason = restore(attributes(), state)
    assert reason.startswith("a[31mb c")
    assert len(reason) <= 200


# Code -------------------------------------------------------------------------------------------------
CODE: dict[str, Spoil] = {
    "a method by a number": lambda tree: tree.update(step=5),
    "a method by a list": lambda tree: tree.update(reset={"list": []}),
    "a method by another function": lambda tree: tree.update(step={"same": same_as(tree, "callback")}),
    "a method of gymnasium": lambda tree: tree.update(close=None),
    "a property": lambda tree: tree.update(np_random=None),
    "a function in an attribute": lambda tree: tree.update(callback=7),
    "the class": lambda tree: tree.update(__class__="os.system"),
    "the dictionary": lambda tree: tree.update(__dict__={"dict": [], "class": "dict"}),
    "a method of a part": lambda tree: tree["body"]["object"].update(__init__=1),
    "a space": lambda tree: tree.update(action_space=3),
}


def same_as(tree: dict[str, Any], attribute: str) -> int:
    """The number that an attribute's value has in the snapshot: the environment is 0, its parts follow."""
    return 1 + list(tree).index(attribute) + 1  # body and its attributes come before callback


@pytest.mark.parametrize("what", CODE)
def test_a_snapshot_never_replaces_code(what: str) -> None:
    state, env = snapshot(attributes()), attributes()
    CODE[what](state["tree"]["object"])
    reason = restore(env, state)
    assert "does not fit" in reason, reason
    assert "step" not in env.__dict__
    assert "reset" not in env.__dict__
    assert callable(env.callback)
    env.reset(seed=0)
    env.step(0)


def test_what_an_episode_adds_to_itself_is_restored() -> None:
    env = attributes()
    env.found, env.body.bruises = {"key": [1, 2]}, 3
    other = attributes()
    assert restore(other, snapshot(env)) == ""
    assert (other.found, other.body.bruises) == ({"key": [1, 2]}, 3)


# Groups -----------------------------------------------------------------------------------------------
FIELDS: dict[str, Spoil] = {
    "elapsed negative": lambda state: state["elapsed"].__setitem__(0, -10),
    "elapsed absurd": lambda state: state["elapsed"].__setitem__(0, 10**30),
    "elapsed text": lambda state: state["elapsed"].__setitem__(0, "1"),
    "elapsed too few": lambda state: state["elapsed"].pop(),
    "tick negative": lambda state: state.update(tick=-1),
    "tick a float": lambda state: state.update(tick=1e300),
    "seed negative": lambda state: state.update(seed=-1),
    "seed of 5,000 digits": lambda state: state.update(seed=10**5000),
    "observations not finite": lambda state: state.update(obs=state["obs"] * torch.nan),
    "observations of another type": lambda state: state.update(obs=state["obs"].double()),
    "observations no tensor": lambda state: state.update(obs=[1.0]),
    "observations of no rows": lambda state: state.update(obs=torch.zeros(())),
    "too few environments": lambda state: state["envs"].pop(),
    "presence of none": lambda state: state.update(present=torch.ones(7)),
}


@pytest.mark.parametrize("what", FIELDS)
def test_a_damaged_state_of_a_group_is_a_sentence(what: str) -> None:
    env = make_gym(GymConfig("CartPole-v1"), 2)
    assert isinstance(env, GymVecEnv)
    env.reset(0)
    env.step(torch.zeros(2, dtype=torch.int64))
    state = env.state()
    FIELDS[what](state)
    with pytest.raises((CheckpointError, TypeError, ValueError)):  # the trainer makes a sentence of the last two
        env.load_state(state)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_group_goes_on_after_a_hostile_snapshot_with_a_new_episode(workers: int) -> None:
    gym_block._told.clear()
    env = make_gym(GymConfig("Hopper-v5", workers=workers), 2)
    try:
        env.reset(0)
        action = torch.zeros(2, 3)
        env.step(action)
        state = env.state()
        model = state["envs"][1]["tree"]["object"]
        while "model" not in model:
            model = model["env"]["object"]
        array_of(state["envs"][1], model["model"]["MjModel"]["jnt_qposadr"])[:] = 1_000_000
        with pytest.warns(RuntimeWarning, match="jnt_qposadr is another than the environment's own"):
            env.load_state(state)
        assert env.step(action).truncated.tolist() == [False, True]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(20):
                env.step(action)
    finally:
        env.close()


class _Raises(gym.Env):
    """Cannot save itself, or cannot load what it saved."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, where: str) -> None:
        self.where = where

    def ludus_state(self) -> dict[str, int]:
        if self.where == "save":
            raise SystemExit(1)
        return {"a": 1}

    def load_ludus_state(self, state: dict[str, int]) -> None:
        raise RuntimeError("no room")


def test_an_environment_that_fails_to_save_or_load_itself_is_a_reason() -> None:
    state = snapshot(_Raises("save"))
    assert not state["exact"]
    assert "ludus_state() raised SystemExit" in state["why"]
    assert "no room" in restore(_Raises("load"), snapshot(_Raises("load")))
