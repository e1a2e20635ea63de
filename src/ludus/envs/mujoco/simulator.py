"""Many MuJoCo simulations of one model, as live tensors.

`Simulator` is the interface a task is written against; it does not say where the simulations run.
`CpuSimulator` steps them on a pool of threads that hold no GIL (`mujoco.batch`), `WarpSimulator` (warp.py)
on a GPU. `make_simulator` chooses.
"""

import importlib.util
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import mujoco
import numpy as np
import psutil
import torch
from mujoco import batch as mujoco_batch
from torch import Tensor

from ludus.envs.mujoco.model_fields import CONSTANT_INPUTS, load_model_fields, saved_model
from ludus.envs.mujoco.settings import SimulatorChoice
from ludus.envs.vec import State
from ludus.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from ludus.envs.mujoco.warp import Derived  # which needs MuJoCo Warp

# "auto": MuJoCo Warp for many simulations where the training is on a GPU and it is installed, else CPU threads.
FEWEST_FOR_WARP = 512  # simulations; fewer do not fill a GPU and run faster on the CPU's threads

# Warnings after which a simulation's state means nothing any more (MuJoCo resets it by itself).
_DIVERGED = [
    int(warning.value)
    for warning in (
        mujoco.mjtWarning.mjWARN_BADQPOS,
        mujoco.mjtWarning.mjWARN_BADQVEL,
        mujoco.mjtWarning.mjWARN_BADQACC,
    )
]


class Simulator(Protocol):
    """Simulations of one model, all with the same number of substeps."""

    model: mujoco.MjModel
    num_sims: int
    substeps: int  # physics steps of one control step
    device: torch.device
    dtype: torch.dtype  # of the fields
    # Nothing it does waits for the device, so that steps can be recorded as a CUDA graph. `rows` of `reset` and
    # `forward` are then a [sims] bool mask; else they are sorted indices.
    capturable: bool

    fault_advice: Mapping[str, str]  # as an environment's

    def field(self, name: str) -> Tensor:
        """A live [sims, ...] tensor over an MjData field.

        State fields (qpos, qvel, ctrl, mocap_pos, …) may be written; call `forward` after writing
        positions or velocities outside a step. Derived fields (xpos, site_xpos, sensordata, …)
        describe the newest state, except forces and touches, which describe the last substep.
        """
        ...

    def model_field(self, name: str) -> Tensor:
        """A live [sims, ...] tensor over an MjModel field, which from now on may differ between simulations.

        Write where an episode begins; after one of `CONSTANT_INPUTS` call `set_constants`.
        """
        ...

    def set_constants(self, rows: Tensor) -> None:
        """Compute anew what MuJoCo derives from `CONSTANT_INPUTS` (mj_setConst); `forward` has to follow."""
        ...

    def begin_step(self) -> None:
        """Start one control step; it may run in the background until `end_step`."""
        ...

    def end_step(self) -> Tensor | None:
        """Wait for the step; [sims] bool, where a simulation diverged and must be reset; None if all are well."""
        ...

    def reset(self, rows: Tensor) -> None:
        """Put the simulations `rows` into the model's default state; write, then `forward`."""
        ...

    def forward(self, rows: Tensor | None = None) -> None:
        """Compute the derived fields of `rows` (all by default) from their state; it may do so for others, too."""
        ...

    def faults(self) -> dict[str, float]:
        """What the simulations could not compute as they should since the last call; may wait for the device."""
        ...

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...

    def close(self) -> None: ...


def _refuse_too_many(model: mujoco.MjModel, num_sims: int) -> None:
    """A sentence before the machine runs out of memory; what contacts need comes on top."""
    needed, free = num_sims * mujoco.MjData(model).nbuffer, psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"{num_sims:,} simulations need {needed / 1e9:.1f} GB of memory and more, but {free / 1e9:.1f} GB are "
            "free. Make --env.num-envs smaller."
        )


class CpuSimulator:
    """`mujoco.batch` on `threads` threads; results do not depend on their number."""

    dtype = torch.float64
    capturable = False
    fault_advice: Mapping[str, str] = MappingProxyType({})

    def __init__(self, model: mujoco.MjModel, num_sims: int, substeps: int, threads: int) -> None:
        _refuse_too_many(model, num_sims)
        self.model = model
        self.num_sims = num_sims
        self.device = torch.device("cpu")
        # MuJoCo would print every divergence and write MUJOCO_LOG.TXT into the working folder; `end_step`
        # reports it instead.
        mujoco.set_mju_user_warning(lambda text: None)
        self.substeps = substeps
        # Persistent: the velocity stage computed after a step is where the next step starts, so that
        # having every derived field current costs nothing.
        self._batch = mujoco_batch.Batch(model, nsim=num_sims, nthread=min(threads, num_sims), persistent=True)
        self._stage = int(mujoco.mjtStage.mjSTAGE_VEL.value)
        self._warnings_seen = self._warnings()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="ludus-sim")
        self._pending: Future[None] | None = None
        self._fields: dict[str, Tensor] = {}
        self._model_fields: dict[str, Tensor] = {}

    def field(self, name: str) -> Tensor:
        if name not in self._fields:
            self._fields[name] = _live_tensor(self._batch.bind(name))
            self.forward()  # a derived field bound just now would be zero until the next call
        return self._fields[name]

    def model_field(self, name: str) -> Tensor:
        if name not in self._model_fields:
            self._model_fields[name] = torch.from_numpy(self._batch.expand(name))
        return self._model_fields[name]

    def set_constants(self, rows: Tensor) -> None:
        self._batch.set_const(rows.numpy())

    def begin_step(self) -> None:
        self._pending = self._background.submit(self._simulate)

    def _simulate(self) -> None:
        self._batch.step(None, self.substeps, self._stage)

    def end_step(self) -> Tensor | None:
        assert self._pending is not None, "end_step without begin_step"
        raised: np.ndarray | None = None
        try:
            self._pending.result()
        except mujoco_batch.SimulationError as error:  # those simulations kept their old state
            raised = error.ids
        self._pending = None
        warnings = self._warnings()
        if raised is None and np.array_equal(warnings, self._warnings_seen):
            return None
        diverged = (warnings != self._warnings_seen).any(axis=1)
        if raised is not None:
            diverged[raised] = True
        self._warnings_seen = warnings
        return torch.from_numpy(diverged)

    def _warnings(self) -> np.ndarray:
        return self._batch.warning[:, _DIVERGED, 1].copy()

    def reset(self, rows: Tensor) -> None:
        self._batch.reset(rows.numpy(), stage=int(mujoco.mjtStage.mjSTAGE_NONE.value))
        self._warnings_seen[rows.numpy()] = 0  # MuJoCo's reset starts its count anew

    def forward(self, rows: Tensor | None = None) -> None:
        # All stages: contact sensors, which belong to the last, must not remember an earlier episode.
        self._batch.forward(None if rows is None else rows.numpy())

    def faults(self) -> dict[str, float]:
        return {}

    def state(self) -> State:
        return {"rows": torch.from_numpy(self._batch.state.copy())} | saved_model(self._model_fields)

    def load_state(self, state: State) -> None:
        self._batch.state[:] = sane_rows(state["rows"], self._batch.state.shape).numpy()
        load_model_fields(self._model_fields, state, self.model)
        if not CONSTANT_INPUTS.isdisjoint(self._model_fields):
            self._batch.set_const()
        self.forward()
        self._warnings_seen = self._warnings()

    def close(self) -> None:
        self._background.shutdown(wait=True)


def sane_rows(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Saved states of all simulations. MuJoCo does not look at what it is given before it computes with it."""
    if tuple(rows.shape) != tuple(shape) or not rows.is_floating_point() or not bool(rows.isfinite().all()):
        raise CheckpointError(
            f"The checkpoint does not hold the states of {shape[0]} simulations, {shape[1]} finite numbers each: "
            "it is damaged, or was saved with another model or another number of environments."
        )
    return rows


def make_simulator(
    model: mujoco.MjModel,
    num_sims: int,
    substeps: int,
    threads: int,
    device: torch.device | str = "cpu",
    simulator: SimulatorChoice = "auto",
    derived: "Derived" = "all",
    threaded: type[CpuSimulator] = CpuSimulator,
) -> Simulator:
    """The simulator that `simulator` means for a training on `device`; `threaded` is the one on CPU threads.

    The one on threads brings all derived fields up to date, whatever `derived` says.
    """
    if not wants_warp(simulator, device, num_sims):
        return threaded(model, num_sims, substeps, threads)
    from ludus.envs.mujoco.warp import WarpSimulator

    return WarpSimulator(model, num_sims, substeps, device, derived)


def wants_warp(simulator: SimulatorChoice, device: torch.device | str, num_sims: int) -> bool:
    """Whether the simulations run in MuJoCo Warp; an error where that is asked for and cannot be."""
    if simulator == "warp" and not _warp_installed():
        raise ConfigError("--env.simulator warp needs MuJoCo Warp: pip install 'ludus[gpu]'")
    return simulator == "warp" or (simulator == "auto" and _warp_pays(device, num_sims) and _warp_installed())


def lacks_warp(simulator: SimulatorChoice, device: torch.device | str, num_sims: int) -> bool:
    """Whether the simulations run on CPU threads only because MuJoCo Warp is not installed."""
    return simulator == "auto" and _warp_pays(device, num_sims) and not _warp_installed()


def _warp_pays(device: torch.device | str, num_sims: int) -> bool:
    return torch.device(device).type == "cuda" and num_sims >= FEWEST_FOR_WARP


def _warp_installed() -> bool:
    return all(importlib.util.find_spec(module) is not None for module in ("mujoco_warp", "warp"))


def _live_tensor(array: np.ndarray) -> Tensor:
    """A tensor over the array's own memory. Torch wants it writable; derived fields are read by convention."""
    if not array.flags.writeable:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        holder = type("_Memory", (), {"__array_interface__": interface, "owner": array})()
        array = np.asarray(holder)
    return torch.from_numpy(array)
