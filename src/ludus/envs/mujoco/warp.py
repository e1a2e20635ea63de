"""The simulator on a GPU: MuJoCo Warp, the same physics in float32 with one world a simulation.

All work goes to torch's current CUDA stream and nothing waits for it, so a step can be recorded as part of a
CUDA graph of torch's (graphs.py). Two things about MuJoCo Warp would forbid that, and are avoided:

- It takes memory for intermediate results in every step. Here torch's allocator gives it, which knows how to
  do so while a graph is recorded, and which uses the same memory again.
- Its solver asks after every iteration whether all worlds are done, by waiting for the device or, in a graph of
  Warp's own, with a conditional node, which a graph of torch's with several streams cannot hold. Here it makes a
  fixed number of iterations; a world that is done does nothing in the rest of them.

On the CPU it is there to be tested: it agrees with `CpuSimulator`, but is far slower.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from torch import Tensor

from ludus.envs.mujoco.model_fields import CONSTANT_INPUTS, load_model_fields, saved_model
from ludus.envs.mujoco.warp_kernels import compile_kernels
from ludus.envs.vec import State
from ludus.errors import ConfigError

# What a simulator brings up to date after a step. "positions": where bodies, geoms and sites are, the least work.
# "all": positions, velocities and sensors. "as_stepped": nothing, as `mj_step` leaves it.
Derived = Literal["positions", "all", "as_stepped"]

_MOST_ITERATIONS = (
    16  # of the solver: in 8,000 substeps of the KUKA with the cube in its hand none needed more than 14
)
_POINTS = {  # contact points of a geom of this type with what it stands on or leans against
    mujoco.mjtGeom.mjGEOM_SPHERE: 1,
    mujoco.mjtGeom.mjGEOM_ELLIPSOID: 1,
    mujoco.mjtGeom.mjGEOM_CAPSULE: 2,
}
_POINTS_OF_OTHERS = 4
_SPARE_POINTS = 8  # for contacts between moving geoms
_CONTACT_OVERFLOW = mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE | mjw.OverflowType.CCD
_CONSTRAINT_OVERFLOW = mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ

# Faults that nothing else would show, and what simulations then lack room for.
_LACKING = {"contact_overflow": "contacts", "constraint_overflow": "constraints"}
_ADVICE = (
    "simulations had no room for all their {what}, so things sink into each other. Take --env.simulator threads, "
    "or give WarpSimulator more {what}: docs/gpu.md."
)

# What depends on `CONSTANT_INPUTS`.
_DERIVED_CONSTANTS = (
    "body_subtreemass",
    "body_invweight0",
    "dof_invweight0",
    "tendon_invweight0",
    "actuator_acc0",
)

# What an exact continuation needs, in the order of mjSTATE_INTEGRATION: a state that was saved by one simulator
# can be loaded by the other.
_ON_THREADS = "Take --env.simulator threads."
_STATE_FIELDS = {
    "time": mujoco.mjtState.mjSTATE_TIME,
    "qpos": mujoco.mjtState.mjSTATE_QPOS,
    "qvel": mujoco.mjtState.mjSTATE_QVEL,
    "act": mujoco.mjtState.mjSTATE_ACT,
    "qacc_warmstart": mujoco.mjtState.mjSTATE_WARMSTART,
    "ctrl": mujoco.mjtState.mjSTATE_CTRL,
    "qfrc_applied": mujoco.mjtState.mjSTATE_QFRC_APPLIED,
    "xfrc_applied": mujoco.mjtState.mjSTATE_XFRC_APPLIED,
    "eq_active": mujoco.mjtState.mjSTATE_EQ_ACTIVE,
    "mocap_pos": mujoco.mjtState.mjSTATE_MOCAP_POS,
    "mocap_quat": mujoco.mjtState.mjSTATE_MOCAP_QUAT,
    "userdata": mujoco.mjtState.mjSTATE_USERDATA,
}


class WarpSimulator:
    """MuJoCo Warp on `device`. Rows of `reset` and `forward` are masks.

    `contacts` is how many contacts a simulation has room for on average (all share one memory, which also holds
    the pairs of geoms that are near enough to be looked at), `constraints` how many rows of the constraint solver
    each has room for; what does not fit is dropped and shows in `faults`. By default every geom that moves may
    touch something with all its points (a sphere 1, a capsule 2, others 4), with 8 to spare, and the rows suffice
    for these contacts, all joint limits, all equalities and all friction losses at once.
    """

    dtype = torch.float32
    capturable = True
    fault_advice: Mapping[str, str] = MappingProxyType(
        {name: _ADVICE.format(what=what) for name, what in _LACKING.items()}
    )

    def __init__(
        self,
        model: mujoco.MjModel,
        num_sims: int,
        substeps: int,
        device: torch.device | str,
        derived: Derived = "all",
        contacts: int | None = None,
        constraints: int | None = None,
    ) -> None:
        self.model, self.num_sims, self.substeps = model, num_sims, substeps
        self.device = torch.empty(0, device=device).device  # with its number: "cuda" alone means the current one
        self.contacts = contacts or likely_contacts(model)
        self.constraints = constraints or likely_constraints(model, self.contacts)
        self._derived = derived
        wp.config.log_level = wp.LOG_WARNING  # it would print a banner, and a line for every module it loads
        wp.init()
        self._wp_device = wp.device_from_torch(self.device)
        self._streams: dict[int, Any] = {}
        with self.here():
            host = _for_warp(model)
            self.warp_model = _put_model(host)
            self.warp_data = mjw.make_data(host, nworld=num_sims, nconmax=self.contacts, njmax=self.constraints)
        self._overflow = wp.to_torch(self.warp_data.overflow)  # [sims] bits
        self._fields: dict[str, Tensor] = {}
        self._model_fields: dict[str, Tensor] = {}
        self._kept: list[Tensor] = []
        self._forces_wanted = False
        self._state_fields = [name for name, size in self._state_sizes() if size]
        self._defaults = {name: self.field(name)[:1].clone() for name in self._state_fields}
        self._defaults["qpos"].copy_(torch.as_tensor(model.qpos0)[None])
        self._compile()
        self.reset(torch.ones(num_sims, dtype=torch.bool, device=self.device))
        self.forward()

    def _compile(self) -> None:
        options = self.warp_model.opt
        asks, options.graph_conditional = options.graph_conditional, False  # who is done: without results never
        compile_kernels(self._all_stages, self._wp_device)
        options.graph_conditional = asks

    def _all_stages(self) -> None:
        self.begin_step()
        self.forward()

    # Fields -------------------------------------------------------------------------------------
    def field(self, name: str) -> Tensor:
        if name not in self._fields:
            array = getattr(self.warp_data, name)
            tensor = wp.to_torch(array)
            if len(getattr(array.dtype, "_shape_", ())) == 2:  # MuJoCo's matrices are rows of 9
                tensor = tensor.flatten(-2)
            self._fields[name] = tensor[:, None] if tensor.dim() == 1 else tensor
            self._forces_wanted |= name == "cfrc_ext"
        return self._fields[name]

    def model_field(self, name: str) -> Tensor:
        if name not in self._model_fields:
            if name in CONSTANT_INPUTS and CONSTANT_INPUTS.isdisjoint(self._model_fields):
                for derived in _DERIVED_CONSTANTS:
                    self._expand(derived)
            self._model_fields[name] = self._expand(name)
        return self._model_fields[name]

    def _expand(self, name: str) -> Tensor:
        """One value a world. MuJoCo Warp reads what it has of a model field in turn: one for all, or one each."""
        shared = getattr(self.warp_model, name)
        values = wp.to_torch(shared)
        each = values[:1].repeat(self.num_sims, *[1] * (values.dim() - 1)).contiguous()
        self._kept.append(each)  # Warp only borrows torch's memory
        setattr(self.warp_model, name, wp.from_torch(each, dtype=shared.dtype))
        return each

    def set_constants(self, rows: Tensor) -> None:
        """For all simulations, as `forward`."""
        with self.here():
            mjw.set_const(self.warp_model, self.warp_data, restore=False)

    # A step -------------------------------------------------------------------------------------
    def begin_step(self) -> None:
        with self.here():
            for _ in range(self.substeps):
                mjw.step(self.warp_model, self.warp_data)
            self._bring_up_to_date()

    def _bring_up_to_date(self) -> None:
        model, data = self.warp_model, self.warp_data
        if self._derived == "positions":
            mjw.kinematics(model, data)
        elif self._derived == "all":
            # Without the acceleration stage: forces and touches are those of the last substep.
            mjw.fwd_position(model, data, factorize=False)
            mjw.sensor_pos(model, data)
            mjw.fwd_velocity(model, data)
            mjw.sensor_vel(model, data)
        if self._forces_wanted:
            mjw.rne_postconstraint(model, data)

    def end_step(self) -> Tensor:
        """[sims] bool, where numbers are not finite or have exploded, as MuJoCo would find; those are reset."""
        well = torch.ones(self.num_sims, dtype=torch.bool, device=self.device)
        for name in ("qpos", "qvel", "qacc"):
            well &= (self.field(name).abs() < mujoco.mjMAXVAL).all(dim=1)  # no NaN is
        diverged = ~well
        self.reset(diverged)
        return diverged

    # Starting anew ------------------------------------------------------------------------------
    def reset(self, rows: Tensor) -> None:
        # Not `mjw.reset_data`: it compiles its kernels anew in every call, and with the first world it drops the
        # contacts of all.
        for name, default in self._defaults.items():
            live = self.field(name)
            live.copy_(torch.where(rows.view(-1, *[1] * (live.dim() - 1)), default, live))
        if self._forces_wanted:
            self.field("cfrc_ext").masked_fill_(rows[:, None, None], 0.0)

    def forward(self, rows: Tensor | None = None) -> None:
        """For all simulations, whatever `rows` says: to leave one out would save nothing."""
        with self.here():
            if self._derived == "positions":
                mjw.kinematics(self.warp_model, self.warp_data)
            else:  # all stages: contact sensors, which belong to the last, must not remember an earlier episode
                mjw.forward(self.warp_model, self.warp_data)

    # Trouble ------------------------------------------------------------------------------------
    def overflows(self) -> dict[str, int]:
        """How many simulations lacked room for contacts or for constraints since the last call; waits."""
        kinds = {"contact_overflow": _CONTACT_OVERFLOW, "constraint_overflow": _CONSTRAINT_OVERFLOW}
        counts = torch.stack([(self._overflow & int(bits) != 0).sum() for bits in kinds.values()])
        self._overflow.zero_()
        return dict(zip(kinds, counts.tolist(), strict=True))

    def faults(self) -> dict[str, float]:
        return {name: float(count) for name, count in self.overflows().items()}

    # State --------------------------------------------------------------------------------------
    def _state_sizes(self) -> list[tuple[str, int]]:
        sizes = [(name, mujoco.mj_stateSize(self.model, bit.value)) for name, bit in _STATE_FIELDS.items()]
        whole = mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_INTEGRATION.value)
        if sum(size for _, size in sizes) != whole:
            raise ConfigError(f"MuJoCo Warp has no plugins, delays or histories, as this model has. {_ON_THREADS}")
        return sizes

    def state(self) -> State:
        parts = [self.field(name).flatten(1).double() for name in self._state_fields]
        return {"rows": torch.cat(parts, dim=1)} | saved_model(self._model_fields)

    def load_state(self, state: State) -> None:
        fields = [self.field(name) for name in self._state_fields]
        parts = state["rows"].split([field[0].numel() for field in fields], dim=1)
        for field, part in zip(fields, parts, strict=True):
            field.copy_(part.reshape(field.shape))
        load_model_fields(self._model_fields, state, self.model)
        if not CONSTANT_INPUTS.isdisjoint(self._model_fields):
            self.set_constants(torch.ones(self.num_sims, dtype=torch.bool, device=self.device))
        self.forward()

    def close(self) -> None:
        pass

    # Where the work goes ------------------------------------------------------------------------
    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Warp works on this device, on a GPU on torch's current stream and with torch's memory."""
        if self.device.type == "cpu":
            with wp.ScopedDevice(self._wp_device):
                yield
            return
        stream = torch.cuda.current_stream(self.device)
        if stream.cuda_stream not in self._streams:
            self._streams[stream.cuda_stream] = wp.stream_from_torch(stream)
        # Without `sync_enter` no event ties the stream to Warp's own, which a recording would refuse.
        with (
            wp.ScopedStream(self._streams[stream.cuda_stream], sync_enter=False),
            wp.ScopedAllocator(self._wp_device, _TorchMemory(self.device)),
        ):
            yield


class _TorchMemory:
    """Torch's allocator for Warp. Memory goes back at once and is used again by later work on the same stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, size_in_bytes: int) -> int:
        return torch.cuda.caching_allocator_alloc(size_in_bytes, self._device)

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        torch.cuda.caching_allocator_delete(ptr)


def _for_warp(model: mujoco.MjModel) -> mujoco.MjModel:
    """The same with options that Warp has, and that suit it."""
    host = copy.copy(model)
    if host.opt.solver == mujoco.mjtSolver.mjSOL_PGS:  # Warp has no PGS; both solve the same problem
        host.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    host.opt.iterations = min(host.opt.iterations, _MOST_ITERATIONS)
    host.opt.jacobian = mujoco.mjtJacobian.mjJAC_AUTO  # what is faster on a CPU says nothing of a GPU
    return host


def _put_model(model: mujoco.MjModel) -> Any:
    """The model on Warp's current device."""
    try:
        warp_model = mjw.put_model(model)
    except NotImplementedError as error:
        raise ConfigError(f"MuJoCo Warp cannot simulate this model: {error}. {_ON_THREADS}") from error
    warp_model.opt.graph_conditional = wp.get_device().is_cpu  # there it costs nothing to ask who is done
    warp_model.opt.warn_overflow = 0  # counted, not printed by every world
    return warp_model


def _moving_geoms(model: mujoco.MjModel) -> list[int]:
    """Those that move and can touch something."""
    touches = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    moves = model.body_weldid[model.geom_bodyid] != 0
    return [int(geom) for geom in (touches & moves).nonzero()[0]]


def likely_contacts(model: mujoco.MjModel) -> int:
    """Room for the contacts of one simulation."""
    types = [mujoco.mjtGeom(model.geom_type[geom]) for geom in _moving_geoms(model)]
    return sum(_POINTS.get(kind, _POINTS_OF_OTHERS) for kind in types) + _SPARE_POINTS


def likely_constraints(model: mujoco.MjModel, contacts: int) -> int:
    """Room for the solver's rows of one simulation with so many contacts, a multiple of 8."""
    touches = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    dims = max([*model.geom_condim[touches].tolist(), *model.pair_dim.tolist()], default=1)  # of two the larger
    pyramidal = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    rows_of_contact = 2 * (dims - 1) if pyramidal and dims > 1 else dims
    limits = int(model.jnt_limited.sum()) + int(model.tendon_limited.sum())
    friction = int((model.dof_frictionloss > 0).sum()) + int((model.tendon_frictionloss > 0).sum())
    rows = contacts * rows_of_contact + limits + friction + 6 * model.neq
    return -(-rows // 8) * 8
