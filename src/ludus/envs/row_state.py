"""A saved state of rows, looked at before it is loaded: whether it is one of these environments at all."""

import torch
from torch import Tensor

from ludus.envs.row_space import RowSpace
from ludus.envs.vec import State, VecEnv
from ludus.errors import CheckpointError


def check_fits(env: VecEnv, state: State) -> None:
    """A state can only go on in as many rows, each with the same observation."""
    if not isinstance(state["obs"], Tensor) or state["obs"].ndim == 0:
        raise CheckpointError(f"The checkpoint does not hold what the environments of {env.name} observed.")
    saved, here = tuple(state["obs"].shape), (env.num_rows, *env.obs_space.shape)
    if saved != here:
        what = "environments" if env.agents_per_env == 1 else "rows"
        raise CheckpointError(
            f"The checkpoint holds {saved[0]} {what} that observe {saved[1:]}, but {env.name} has "
            f"{here[0]} of {here[1:]}. Resume with the configuration it was saved with."
        )
    wrong = _damaged_field(env, state)
    if wrong:
        raise CheckpointError(f"The state of {env.name} in the checkpoint is damaged: {wrong}.")


def _damaged_field(env: VecEnv, state: State) -> str:
    """What no environment could have saved, or nothing."""
    obs, present = state["obs"], state.get("present")
    fits = obs.numpy().dtype == env.obs_space.dtype
    if fits and isinstance(env.obs_space, RowSpace):
        obs = env.obs_space.numbers_of(obs)
    if not fits or not bool(obs.isfinite().all()):
        return "its observations are not finite numbers of the right type"
    flags = isinstance(present, Tensor) and present.dtype == torch.bool and present.shape == (env.num_rows,)
    if present is not None and not flags:
        return "it does not say which agents are present"
    seed, tick, elapsed = state["seed"], state["tick"], state["elapsed"]
    if not all(type(number) is int and 0 <= number < 2**64 for number in (seed, tick, *elapsed)):
        return "its seed or its step numbers are no natural numbers"
    return "an episode began before the first step" if max(elapsed, default=0) > tick else ""
