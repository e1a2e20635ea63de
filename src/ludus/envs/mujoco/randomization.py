"""What differs between the simulations of a task: masses, friction, motors, latency, noise, pushes.

    randomization:
      cube_mass: {kind: body_mass, bodies: [cube], scale: [0.5, 3]}
      latency: {kind: latency, steps: [0, 2]}

Every kind is a class whose fields are its parameters; one of your own is named as "my_module:MyKind". All random
numbers come from the task's own stream, and none are drawn where nothing is randomised. What an episode drew lies
in the task's `memory` or in model fields of the simulator. Both are saved: a resumed run goes on exactly.
Evaluations are randomised, too.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import mujoco
import torch
from torch import Tensor

from ludus.envs.importing import find_callable
from ludus.envs.mujoco.robot import is_servo, joint_of
from ludus.errors import ConfigError, EnvError, LudusError, did_you_mean, tell_exception
from ludus.ranges import Range, check_fields

if TYPE_CHECKING:
    from ludus.envs.mujoco.task import Rows, SimTask

_MOST_NAMES = 1_000
_LONGEST_DELAY = 1_000  # control steps, of all latencies together: every row keeps so many actions
_FREE_DOFS = 3  # of a free joint's six, those that move it


class Randomization:
    """Something that differs between simulations. A subclass is a dataclass of its parameters.

    It does something in one or more of these ways; what it does not define costs nothing. On a GPU no method may
    ask the device for a value, and tensors in `task.memory` are written in place.
    """

    name: str  # in the settings; also of its entries in `task.memory`

    def check_values(self, path: str) -> None:
        """A sentence for parameters that do not go together."""

    def prepare(self, task: "SimTask") -> None:
        """Before the first episode: find names in the model, put tensors into `task.memory`."""

    def begin(self, task: "SimTask", n: int, values: dict[str, Tensor]) -> None:
        """`n` episodes begin: add to `values` what they hold, [n, ...] by the name of memory or a model field."""

    def act(self, task: "SimTask", action: Tensor) -> Tensor:
        """[rows, size] the action that is carried out in place of `action`."""
        return action

    def disturb(self, task: "SimTask") -> None:
        """Before every step: write into state fields of the simulator."""

    def see(self, task: "SimTask", obs: Tensor, rows: "Rows") -> Tensor:
        """[n, size] what is observed in place of `obs`."""
        return obs

    def loaded(self, task: "SimTask") -> None:
        """The task's memory was read from a file: hold it to what it may be."""


def overrides(term: Randomization, method: str) -> bool:
    return getattr(type(term), method) is not getattr(Randomization, method)


# Of the model ---------------------------------------------------------------------------------------
@dataclass
class _Scaled(Randomization):
    """Model fields, times a factor that every episode draws anew."""

    scale: Annotated[tuple[float, ...], Range(above=0, most=1_000, longest=2)] = (0.8, 1.25)
    """The least and the largest factor."""
    independent: bool = False
    """One factor for each of the named things, instead of one for all of them."""

    fields: ClassVar[tuple[str, ...]] = ()

    def check_values(self, path: str) -> None:
        _refuse_no_interval(self.scale, f"{path}scale", "factors")

    def prepare(self, task: "SimTask") -> None:
        chosen = self.chosen(task.mj_model)
        whole = list(enumerate(chosen))
        self._count, self._parts = len(chosen), []
        for name, pairs in (dict.fromkeys(self.fields, whole) | self.elsewhere(task.mj_model, chosen)).items():
            which, ids = torch.tensor(pairs, dtype=torch.int64, device=task.device).view(-1, 2).unbind(1)
            self._parts.append((name, task.randomized_field(name)[:1].clone(), which, ids))

    def chosen(self, model: mujoco.MjModel) -> list[int]:
        """Numbers of the things that are scaled."""
        raise NotImplementedError

    def elsewhere(self, model: mujoco.MjModel, chosen: list[int]) -> dict[str, list[tuple[int, int]]]:
        """Other fields that say the same: [(place in `chosen`, number there)], none of them empty."""
        return {}

    def begin(self, task: "SimTask", n: int, values: dict[str, Tensor]) -> None:
        low, high = self.scale
        factor = task.uniform(low, high, n, self._count if self.independent else 1)
        for name, nominal, which, ids in self._parts:
            value = values.setdefault(name, nominal.repeat(n, *[1] * (nominal.dim() - 1)))
            own = factor[:, which] if self.independent else factor
            value[:, ids] *= own.view(n, -1, *[1] * (nominal.dim() - 2))


@dataclass
class BodyMass(_Scaled):
    """Masses, and with them the inertias, of bodies."""

    bodies: tuple[str, ...] = ()
    """By name; none: all of them."""

    fields: ClassVar = ("body_mass", "body_inertia")

    def chosen(self, model: mujoco.MjModel) -> list[int]:
        everything = [i for i in range(1, model.nbody) if model.body_mass[i] > 0]
        chosen = _ids(model, mujoco.mjtObj.mjOBJ_BODY, "body", self.bodies) or everything
        if light := [model.body(i).name for i in chosen if i not in everything]:
            raise ConfigError(f"The kind body_mass scales bodies that have a mass; {', '.join(light)} has none.")
        return chosen


@dataclass
class CentreOfMass(Randomization):
    """Where the mass of bodies lies, shifted by what every episode draws anew for each of them."""

    shift: Annotated[tuple[float, ...], Range(0, 10, longest=3)] = (0.025, 0.025, 0.025)
    """m, the largest shift along x, y and z of the body's own frame."""
    bodies: tuple[str, ...] = ()
    """By name; none: all that have a mass, but those that MuJoCo takes for simple."""

    def check_values(self, path: str) -> None:
        if len(self.shift) != 3:
            raise ConfigError(f"--{path}shift is {list(self.shift)}; it must be three numbers, along x, y and z.")

    def prepare(self, task: "SimTask") -> None:
        self._ids = torch.tensor(self._chosen(task.mj_model), dtype=torch.int64, device=task.device)
        self._nominal = task.randomized_field("body_ipos")[:1].clone()
        self._most = self._nominal.new_tensor(self.shift)

    def _chosen(self, model: mujoco.MjModel) -> list[int]:
        """Bodies that the compiler took for simple would have to stay so: their mass lies where they turn."""
        chosen = BodyMass(bodies=self.bodies).chosen(model)
        fixed = [model.body(i).name for i in chosen if model.body_simple[i]]
        if fixed and self.bodies:
            raise ConfigError(
                f"The mass of {', '.join(fixed)} cannot be shifted in this model: write simple='false' there."
            )
        return [i for i in chosen if not model.body_simple[i]]

    def begin(self, task: "SimTask", n: int, values: dict[str, Tensor]) -> None:
        place = values.setdefault("body_ipos", self._nominal.repeat(n, 1, 1))
        place[:, self._ids] += self._most * task.uniform(-1, 1, n, len(self._ids), 3)


@dataclass
class Friction(_Scaled):
    """Sliding, torsional and rolling friction of geoms.

    Of two geoms that touch, MuJoCo takes the larger friction, or that of the geom of higher priority.
    """

    geoms: tuple[str, ...] = ()
    """By name; none: all of them."""

    fields: ClassVar = ("geom_friction",)

    def chosen(self, model: mujoco.MjModel) -> list[int]:
        return _ids(model, mujoco.mjtObj.mjOBJ_GEOM, "geom", self.geoms) or list(range(model.ngeom))

    def elsewhere(self, model: mujoco.MjModel, chosen: list[int]) -> dict[str, list[tuple[int, int]]]:
        """Pairs that the model names have a friction of their own."""
        pairs = [(pair, (int(model.pair_geom1[pair]), int(model.pair_geom2[pair]))) for pair in range(model.npair)]
        found = [
            (chosen.index(next(geom for geom in geoms if geom in chosen)), pair)
            for pair, geoms in pairs
            if not set(geoms).isdisjoint(chosen)
        ]
        return {"pair_friction": found} if found else {}


@dataclass
class MotorStrength(_Scaled):
    """The force of actuators at the same control: gain and bias, and what limits it."""

    actuators: tuple[str, ...] = ()
    """By name; none: all of them."""

    fields: ClassVar = ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange")

    def chosen(self, model: mujoco.MjModel) -> list[int]:
        ids = _ids(model, mujoco.mjtObj.mjOBJ_ACTUATOR, "actuator", self.actuators) or list(range(model.nu))
        plain = (int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE))
        muscles = [model.actuator(i).name or str(i) for i in ids if model.actuator_gaintype[i] not in plain]
        if muscles:
            raise ConfigError(
                f"The kind motor_strength scales motors and servos; {', '.join(muscles)} is neither."
            )
        return ids

    def elsewhere(self, model: mujoco.MjModel, chosen: list[int]) -> dict[str, list[tuple[int, int]]]:
        """A joint may have a limit for its motors, too."""
        joints = [(place, joint_of(model, actuator)) for place, actuator in enumerate(chosen)]
        found = [(place, joint) for place, joint in joints if joint is not None and model.jnt_actfrclimited[joint]]
        return {"jnt_actfrcrange": found} if found else {}


@dataclass
class JointOffset(Randomization):
    """Joints whose angles are measured wrongly, by what every episode draws anew for each of them.

    A servo that pulls its joint to an angle pulls it beside by so much, and what is observed is off likewise.
    """

    most: Annotated[float, Range(0, 10)] = 0.01
    """rad, the largest error."""
    actuators: tuple[str, ...] = ()
    """Servos by name; none: all of them."""
    terms: tuple[str, ...] = ("joints",)
    """Observation terms that show measured angles, whose columns are named as the joints; none: nothing is.
    What shows differences to these angles (a tracker's reference) is off likewise."""

    def prepare(self, task: "SimTask") -> None:
        model = task.mj_model
        chosen = _ids(model, mujoco.mjtObj.mjOBJ_ACTUATOR, "actuator", self.actuators) or list(range(model.nu))
        driven = [(i, joint) for i in chosen if is_servo(model, i) and (joint := joint_of(model, i)) is not None]
        if not driven:
            raise ConfigError(
                "The kind joint_offset is for servos, which pull a joint to an angle; there are none."
            )
        self._ids = torch.tensor([i for i, _ in driven], device=task.device)
        self._columns, self._of, self._factors = self._seen(task, [model.joint(joint).name for _, joint in driven])
        self._nominal = task.randomized_field("actuator_biasprm")[:1].clone()
        self._gears = torch.as_tensor(model.actuator_gear[[i for i, _ in driven], 0], device=task.device)
        task.memory[f"{self.name}/offset"] = torch.zeros((task.num_rows, len(driven)), device=task.device)

    def _seen(self, task: "SimTask", joints: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        """([n] columns of the observation, [n] the driven joint that each shows, [n] by what factor)."""
        columns, found = task.observation_columns(), []
        is_own = {name: term.own for name, term in task.observations.terms.items()}  # nobody knows what it shows
        for term in self.terms:
            if term not in columns or term not in task.column_names or is_own[term]:
                hint = did_you_mean(term, [name for name in task.column_names if name in columns])
                raise ConfigError(
                    f"There is no observation term {term!r} of joints' angles.{hint} Or say terms: []."
                )
        shown = {term: list(enumerate(task.column_names[term])) for term in self.terms}
        signs = dict.fromkeys(shown, 1.0)
        if self.terms:
            known = task.angle_differences().items()
            differences = {name: each for name, each in known if not is_own.get(name, True)}
            shown, signs = shown | differences, signs | dict.fromkeys(differences, -1.0)
        for term, places in shown.items():
            factor = signs[term] * task.observations.terms[term].weight
            first = columns[term].start
            found += [(first + place, joints.index(name), factor) for place, name in places if name in joints]
        numbers = torch.tensor(found, dtype=torch.float64, device=task.device).view(-1, 3)
        return numbers[:, 0].long(), numbers[:, 1].long(), numbers[:, 2].float()

    def begin(self, task: "SimTask", n: int, values: dict[str, Tensor]) -> None:
        offset = task.uniform(-self.most, self.most, n, len(self._ids))
        bias = values.setdefault("actuator_biasprm", self._nominal.repeat(n, 1, 1))
        # The force is gain · control + bias₀ + bias₁ · gear · angle + …; the angle reads more by the offset.
        bias[:, self._ids, 0] += bias[:, self._ids, 1] * (self._gears * offset).to(bias.dtype)
        values[f"{self.name}/offset"] = offset.float()

    def see(self, task: "SimTask", obs: Tensor, rows: "Rows") -> Tensor:
        offset = task.memory[f"{self.name}/offset"][rows]
        return obs.index_add_(1, self._columns, offset[:, self._of] * self._factors)


# Between policy and simulation -----------------------------------------------------------------------
@dataclass
class Latency(Randomization):
    """An action is carried out some control steps later; until the first one arrives, zeros are."""

    steps: Annotated[tuple[int, ...], Range(0, 1_000, longest=2)] = (0, 2)
    """The shortest and the longest delay, in control steps; every episode draws its own."""

    def check_values(self, path: str) -> None:
        _refuse_no_interval(self.steps, f"{path}steps", "whole numbers of steps")

    def prepare(self, task: "SimTask") -> None:
        size, longest = task.action_space.shape, self.steps[1]
        assert size is not None
        task.memory[f"{self.name}/steps"] = torch.zeros(task.num_rows, dtype=torch.int64, device=task.device)
        task.memory[f"{self.name}/actions"] = torch.zeros((task.num_rows, longest, *size), device=task.device)

    def begin(self, task: "SimTask", n: int, values: dict[str, Tensor]) -> None:
        values[f"{self.name}/steps"] = task.integers(self.steps, n)
        past = task.memory[f"{self.name}/actions"]
        values[f"{self.name}/actions"] = past.new_zeros((n, *past.shape[1:]))

    def act(self, task: "SimTask", action: Tensor) -> Tensor:
        past = task.memory[f"{self.name}/actions"]  # [rows, longest, size], the newest first
        recent = torch.cat([action[:, None], past], dim=1)
        late = task.memory[f"{self.name}/steps"].view(-1, 1, 1).expand(-1, 1, action.shape[1])
        past.copy_(recent[:, :-1])
        return recent.gather(1, late).squeeze(1)

    def loaded(self, task: "SimTask") -> None:
        task.memory[f"{self.name}/steps"].clamp_(0, self.steps[1])


@dataclass
class ObservationNoise(Randomization):
    """Normal noise on what is observed, drawn anew in every step."""

    std: Annotated[float, Range(0, 1e6)] = 0.01
    """Its standard deviation, in the units of the observation."""
    terms: tuple[str, ...] = ()
    """Observation terms that it is on; none: all of them."""

    def prepare(self, task: "SimTask") -> None:
        columns = task.observation_columns()
        for name in self.terms:
            if name not in columns:
                raise ConfigError(f"There is no observation term {name!r}.{did_you_mean(name, columns)}")
        size = max(place.stop for place in columns.values())
        self._std = torch.full((size,), 0.0 if self.terms else self.std, device=task.device)
        for name in self.terms:
            self._std[columns[name]] = self.std

    def see(self, task: "SimTask", obs: Tensor, rows: "Rows") -> Tensor:
        normal = torch.randn(obs.shape, generator=task.generator, dtype=obs.dtype, device=obs.device)
        return obs.addcmul_(normal, self._std)


@dataclass
class Push(Randomization):
    """Now and then joints gain a random velocity."""

    joints: tuple[str, ...] = ()
    """By name; none: the free joint of the model, which moves a robot's root, if it has just one."""
    speed: Annotated[float, Range(0, 1_000)] = 0.5
    """The largest velocity that is added to each direction, in m/s (rad/s of a hinge)."""
    turning: Annotated[float, Range(0, 1_000)] = 0.0
    """rad/s, the largest that is added about each axis of free joints."""
    every: Annotated[tuple[int, ...], Range(1, 10**6, longest=2)] = (50, 150)
    """The fewest and the most control steps from one push to the next."""

    def check_values(self, path: str) -> None:
        _refuse_no_interval(self.every, f"{path}every", "whole numbers of steps")

    def prepare(self, task: "SimTask") -> None:
        model = task.mj_model
        most: dict[int, float] = {}  # by velocity's number
        for joint in _ids(model, mujoco.mjtObj.mjOBJ_JOINT, "joint", self.joints) or [_only_free_joint(model)]:
            kind, first = mujoco.mjtJoint(model.jnt_type[joint]), int(model.jnt_dofadr[joint])
            free = kind == mujoco.mjtJoint.mjJNT_FREE
            many = free or kind == mujoco.mjtJoint.mjJNT_BALL
            most |= dict.fromkeys(range(first, first + (_FREE_DOFS if many else 1)), self.speed)
            if free and self.turning:
                most |= dict.fromkeys(range(first + _FREE_DOFS, first + 2 * _FREE_DOFS), self.turning)
        self._dofs = torch.tensor(list(most), device=task.device)
        self._most = torch.tensor(list(most.values()), dtype=task.dtype, device=task.device)
        self._qvel = task.sim.field("qvel")
        task.memory[f"{self.name}/wait"] = torch.ones(task.num_rows, dtype=torch.int64, device=task.device)

    def begin(self, task: "SimTask", n: int, values: dict[str, Tensor]) -> None:
        values[f"{self.name}/wait"] = task.integers(self.every, n)

    def disturb(self, task: "SimTask") -> None:
        wait = task.memory[f"{self.name}/wait"]
        wait -= 1
        due = wait <= 0
        push = 2 * self._most * task.uniform(0, 1, task.num_rows, len(self._dofs)) - self._most
        self._qvel.index_add_(1, self._dofs, push * due[:, None])
        wait.copy_(torch.where(due, task.integers(self.every, task.num_rows), wait))


_CHANGES = ("act", "see")  # methods that return what they were given, changed
_WAYS = ("prepare", "begin", "act", "disturb", "see", "loaded")

KINDS: dict[str, type[Randomization]] = {
    "body_mass": BodyMass,
    "centre_of_mass": CentreOfMass,
    "friction": Friction,
    "motor_strength": MotorStrength,
    "joint_offset": JointOffset,
    "latency": Latency,
    "observation_noise": ObservationNoise,
    "push": Push,
}


# Settings -----------------------------------------------------------------------------------------
def check_randomization(settings: Mapping[str, Any], path: str) -> None:
    """A sentence for what is wrong with the settings; classes of the user's are looked at when they are made."""
    made: list[Randomization] = []
    for name, value in settings.items():
        if value is None:
            continue
        flag = f"{path}randomization"
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            raise ConfigError(f'--{flag} needs {{"kind": …}} for {name!r}, one of {", ".join(KINDS)}.')
        if not all(isinstance(key, str) and key.isidentifier() for key in value):
            raise ConfigError(f"--{flag} gives {name!r} parameters that are not names and values.")
        if ":" not in value["kind"]:
            made.append(_build(KINDS.get(value["kind"]), name, value, path))
    delay = sum(term.steps[1] for term in made if isinstance(term, Latency))
    if delay > _LONGEST_DELAY:
        raise ConfigError(
            f"--{path}randomization delays by {delay:,} steps; at most {_LONGEST_DELAY:,} can be kept."
        )


def make_randomization(settings: Mapping[str, Any], path: str = "env.") -> list[Randomization]:
    """The terms that the settings name, in their order."""
    made = []
    for name, value in settings.items():
        if value is None:
            continue
        kind = value["kind"]
        own = ":" in kind
        found: Any = find_callable(kind, "", "randomization", ("Randomization",)) if own else KINDS.get(kind)
        term = _build(found, name, value, path)
        made.append(_guarded(term, kind) if own else term)
    return made


def _guarded(term: Randomization, kind: str) -> Randomization:
    """A user's own: what goes wrong in it is told in a sentence, also what it returns in another shape."""
    for way in _WAYS:
        if overrides(term, way):
            object.__setattr__(term, way, _told_in_a_sentence(getattr(term, way), way, kind))
    return term


def _told_in_a_sentence(method: Callable[..., Any], way: str, kind: str) -> Callable[..., Any]:
    def guarded(task: "SimTask", *arguments: Any) -> Any:
        try:
            result = method(task, *arguments)
        except LudusError:
            raise
        except Exception as error:  # whatever a user's code raises
            problem = tell_exception(error)
            raise EnvError(f"The randomisation {kind} failed in its method {way}: {problem}") from error
        if way in _CHANGES and getattr(result, "shape", None) != arguments[0].shape:
            wanted, got = list(arguments[0].shape), getattr(result, "shape", type(result).__name__)
            raise EnvError(
                f"The randomisation {kind} must return {wanted} numbers from its method {way}, not {got}."
            )
        return result

    return guarded


def _build(cls: type[Randomization] | None, name: str, settings: Mapping[str, Any], path: str) -> Randomization:
    flag = f"{path}randomization.{name}"
    if cls is None:
        kind = settings["kind"]
        hint = did_you_mean(kind, KINDS)
        raise ConfigError(f"--{flag} is of an unknown kind {kind!r}.{hint} There are {', '.join(KINDS)}.")
    if not (isinstance(cls, type) and issubclass(cls, Randomization) and dataclasses.is_dataclass(cls)):
        raise ConfigError(f"--{flag}: {settings['kind']} must be a dataclass derived from Randomization.")
    params = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items() if key != "kind"}
    known = [f.name for f in dataclasses.fields(cls)]
    for key in params:
        if key not in known:
            raise ConfigError(
                f"--{flag} has no parameter {key!r}.{did_you_mean(key, known)} It has {', '.join(known)}."
            )
    if any(isinstance(v, tuple) and len(v) > _MOST_NAMES for v in params.values()):
        raise ConfigError(f"--{flag} has a list of more than {_MOST_NAMES} parts.")
    try:
        term = cls(**params)
        term.name = name
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"--{flag}: {settings['kind']} cannot be made: {error}.") from error
    check_fields(term, f"{flag}.")
    return term


def _refuse_no_interval(pair: tuple[float, ...], flag: str, what: str) -> None:
    if len(pair) != 2 or pair[0] > pair[1]:
        raise ConfigError(f"--{flag} is {list(pair)}; it must be two {what}, the smaller first.")


def _only_free_joint(model: mujoco.MjModel) -> int:
    """Which may have no name."""
    free = [i for i in range(model.njnt) if mujoco.mjtJoint(model.jnt_type[i]) == mujoco.mjtJoint.mjJNT_FREE]
    if len(free) != 1:
        raise ConfigError(f"The model has {len(free)} free joints: name the joints that are pushed (joints).")
    return free[0]


def _ids(model: mujoco.MjModel, kind: mujoco.mjtObj, what: str, names: tuple[str, ...]) -> list[int]:
    """Numbers of named things of a model."""
    count = {"body": model.nbody, "geom": model.ngeom, "actuator": model.nu, "joint": model.njnt}[what]
    known = [found for i in range(count) if (found := mujoco.mj_id2name(model, kind, i))]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"The model has no {what} {name!r}.{hint} There are {', '.join(known) or 'no names'}."
            )
    return [mujoco.mj_name2id(model, kind, name) for name in names]
