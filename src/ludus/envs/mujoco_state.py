"""A MuJoCo simulation and its model as plain arrays, for a continuation that is exact to the last bit."""

from typing import Any

import mujoco
import numpy as np

_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION
# Scratch of one mj_step, whose sizes change with the contacts.
_DATA_SCRATCH = ("efc_", "iefc_", "efm_", "island_", "iM_", "iLD", "iacc", "ifrc", "map_")
# Parts of a model for pictures and the compiler. What tasks randomise (masses, friction, terrain) is kept.
_MODEL_ASSETS = ("tex_", "mesh_", "skin_", "bvh_", "oct_", "key_")


def _arrays(owner: Any, skip: tuple[str, ...], kinds: str) -> dict[str, np.ndarray]:
    values = {name: getattr(owner, name) for name in dir(owner) if not name.startswith(("_", *skip))}
    return {n: v for n, v in values.items() if isinstance(v, np.ndarray) and v.dtype.kind in kinds and v.size}


def read_data(data: mujoco.MjData) -> dict[str, np.ndarray]:
    """The state that physics integrates, and all that is derived from it."""
    physics = np.empty(mujoco.mj_stateSize(data.model, _PHYSICS))
    mujoco.mj_getState(data.model, data, physics, _PHYSICS)
    # After mj_step the derived fields belong to the state before it, and environments read them as they are.
    return {"physics": physics, **_arrays(data, _DATA_SCRATCH, "f")}


def write_data(data: mujoco.MjData, arrays: dict[str, np.ndarray]) -> None:
    physics = arrays.pop("physics")
    if len(physics) != mujoco.mj_stateSize(data.model, _PHYSICS):
        raise ValueError("its MuJoCo model has changed")
    mujoco.mj_setState(data.model, data, physics, _PHYSICS)
    mujoco.mj_forward(data.model, data)  # contacts and the like
    _write_fields(data, arrays)
    mujoco.mj_setState(data.model, data, physics, _PHYSICS)  # forward has touched the warm start


def read_model(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """What a task may have randomised: masses, friction, gains, terrain, options."""
    options = {name: getattr(model.opt, name) for name in dir(model.opt) if not name.startswith("_")}
    numbers = {f"opt.{n}": np.asarray(v) for n, v in options.items() if isinstance(v, (int, float, np.ndarray))}
    return {**numbers, **_arrays(model, _MODEL_ASSETS, "fiub")}


def write_model(model: mujoco.MjModel, arrays: dict[str, np.ndarray]) -> None:
    options = {name: value for name, value in arrays.items() if name.startswith("opt.")}
    for name, value in options.items():
        setattr(model.opt, name.removeprefix("opt."), value if value.shape else value.item())
    _write_fields(model, {name: value for name, value in arrays.items() if name not in options})


def _write_fields(owner: Any, arrays: dict[str, np.ndarray]) -> None:
    for name, value in arrays.items():
        field = getattr(owner, name, None)
        if not isinstance(field, np.ndarray) or field.shape != value.shape:
            raise ValueError(f"its MuJoCo field {name} has changed shape")
        field[...] = value
