"""A MuJoCo simulation and its model as plain arrays, for a continuation that is exact to the last bit.

MuJoCo trusts the numbers of a model: an index that points outside an array ends the process. So only what is
measured (masses, friction, gains, terrain) is ever written from a saved state. All that counts or points to
something must be what the environment's own model has.
"""

from typing import Any

import mujoco
import numpy as np

_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION
# Scratch of one mj_step, whose sizes change with the contacts.
_DATA_SCRATCH = ("efc_", "iefc_", "efm_", "island_", "iM_", "iLD", "iacc", "ifrc", "map_")
# Parts of a model for pictures and the compiler. What tasks randomise (masses, friction, terrain) is kept.
_MODEL_ASSETS = ("tex_", "mesh_", "skin_", "bvh_", "oct_", "key_")
_FLOAT_INDICES = {"wrap_prm"}  # of a floating-point type, but some of them are numbers of sites


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
    own = read_data(data)
    for name, value in arrays.items():
        _refuse_other_form(name, own.get(name), value)
    physics = arrays["physics"]
    if not np.isfinite(physics).all():
        raise ValueError("its MuJoCo state is not made of finite numbers")
    mujoco.mj_setState(data.model, data, physics, _PHYSICS)
    try:
        _refuse_wild_cursors(data.model, data.history)
        _refuse_wild_cursors(data.model, arrays.get("history", data.history))
    except ValueError:
        mujoco.mj_resetData(data.model, data)
        raise
    mujoco.mj_forward(data.model, data)  # contacts and the like
    for name, value in arrays.items():
        if name != "physics":
            getattr(data, name)[...] = value
    mujoco.mj_setState(data.model, data, physics, _PHYSICS)  # forward has touched the warm start


def read_model(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """What a task may have randomised: masses, friction, gains, terrain, options."""
    options = {name: getattr(model.opt, name) for name in dir(model.opt) if not name.startswith("_")}
    numbers = {f"opt.{n}": np.asarray(v) for n, v in options.items() if isinstance(v, (int, float, np.ndarray))}
    return {**numbers, **_arrays(model, _MODEL_ASSETS, "fiub")}


def write_model(model: mujoco.MjModel, arrays: dict[str, np.ndarray]) -> None:
    """All of it, or nothing where one field does not fit."""
    own = read_model(model)
    for name, value in arrays.items():
        _refuse_other_form(name, own.get(name), value)
        refuse_unsafe(f"MuJoCo model's {name}", own[name], value, name in _FLOAT_INDICES)
    for name, value in arrays.items():
        if value.dtype.kind != "f":
            continue
        if not name.startswith("opt."):
            getattr(model, name)[...] = value
        else:
            setattr(model.opt, name.removeprefix("opt."), value if value.shape else value.item())


def refuse_unsafe(what: str, own: np.ndarray, value: np.ndarray, fixed: bool = False) -> None:
    """Into memory that C code trusts go finite floating-point numbers; all others must be there already."""
    if fixed or value.dtype.kind != "f":
        if not np.array_equal(value, own):
            raise ValueError(f"its {what} is another than the environment's own, and is not restored")
    elif not (np.isfinite(value) | (value == own)).all():
        raise ValueError(f"its {what} is not made of finite numbers")


def _refuse_other_form(name: str, own: np.ndarray | None, value: np.ndarray) -> None:
    if own is None or own.shape != value.shape or own.dtype != value.dtype:
        raise ValueError(f"its MuJoCo field {name} has changed shape")


def _refuse_wild_cursors(model: mujoco.MjModel, history: np.ndarray) -> None:
    """Delayed actuators and sensors keep samples in rings, [user, cursor, times, values]; cursors are indices."""
    for kind in ("actuator", "sensor"):
        sizes, starts = getattr(model, f"{kind}_history")[:, 0], getattr(model, f"{kind}_historyadr")
        for samples, start in zip(sizes.tolist(), starts.tolist(), strict=True):
            cursor = history[start + 1] if start >= 0 else 0.0
            if start >= 0 and not (cursor == int(cursor) and 0 <= cursor < samples):
                raise ValueError("its MuJoCo history of samples is damaged")
