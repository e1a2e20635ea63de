"""Fields of a MuJoCo model that may differ between simulations."""

import mujoco
import torch
from torch import Tensor

from ludus.envs.vec import State
from ludus.errors import CheckpointError

# Model fields from which others are derived: weights of subtrees, inverse weights of bodies and joints, …
CONSTANT_INPUTS = frozenset({"body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_armature"})
# Which randomisations have changed only since some checkpoints were made: all simulations had the model's own.
_ADDED = frozenset({"pair_friction", "jnt_actfrcrange"})


def saved_model(fields: dict[str, Tensor]) -> State:
    """What differs between the models of the simulations, as a part of a simulator's state."""
    return {"model": {name: field.clone() for name, field in fields.items()}} if fields else {}


def load_model_fields(fields: dict[str, Tensor], state: State, model: mujoco.MjModel) -> None:
    saved = state.get("model", {})
    for name, field in fields.items():
        if name in _ADDED and name not in saved:
            field.copy_(torch.as_tensor(getattr(model, name)).view(field.shape[1:]))
            continue
        value = saved.get(name)
        if not isinstance(value, Tensor) or value.shape != field.shape or not bool(value.isfinite().all()):
            raise CheckpointError(
                f"The checkpoint does not hold {name} of {len(field)} simulations: it is damaged, or was saved "
                "without this randomisation."
            )
        field.copy_(value)
