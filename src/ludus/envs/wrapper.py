"""A wrapped environment: whatever a wrapper does not change is passed on."""

import inspect
from typing import Any

from torch import Tensor

from ludus.envs.vec import State, Step, VecEnv


class WrappedEnv(VecEnv):
    """Another environment, which does all that a subclass does not do itself.

    Attributes of the contract are looked up in the environment each time, because some change while it steps
    (`present`); one that a wrapper sets itself counts instead.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = env

    def reset(self, seed: int) -> Tensor:
        return self.env.reset(seed)

    def begin_step(self, action: Tensor) -> None:
        self.env.begin_step(action)

    def end_step(self) -> Step:
        return self.env.end_step()

    def state(self) -> State:
        return {"env": self.env.state()}

    def load_state(self, state: State) -> None:
        self.env.load_state(state["env"])


class _PassedOn:
    """An attribute or a method of the wrapped environment. Without a `__set__`, so a wrapper may have its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: WrappedEnv | None, owner: type) -> Any:
        return self if wrapper is None else getattr(wrapper.env, self._name)


def _optional_names() -> set[str]:
    """Of the contract, all that an environment may leave as it is, also what the contract gains later."""
    methods = {n for n, what in vars(VecEnv).items() if inspect.isfunction(what) and not n.startswith("_")}
    # A step is made of its two halves, which a wrapper may change.
    return VecEnv.__annotations__.keys() | methods - VecEnv.__abstractmethods__ - {"step"}


for _name in _optional_names():
    setattr(WrappedEnv, _name, _PassedOn(_name))
