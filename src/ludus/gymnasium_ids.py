"""Ludus' environments under names of Gymnasium's. Naming them imports neither Gymnasium nor the environments."""

import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


def register_with_gymnasium() -> None:
    """At once if Gymnasium is imported already, or else as soon as it is."""
    if "gymnasium" in sys.modules:
        register_environments()
    elif not any(isinstance(finder, _AfterGymnasium) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterGymnasium())


def register_environments() -> None:
    """Idempotent: importing Ludus twice, or in a worker, is no error."""
    import gymnasium as gym

    if "ludus/KukaPickPlace-v0" not in gym.registry:
        gym.register(
            "ludus/KukaPickPlace-v0",
            entry_point="ludus.envs.registration:single_kuka",
            vector_entry_point="ludus.envs.registration:batched_kuka",
        )
        gym.register(
            "ludus/CartPoleNoVelocity-v1",
            entry_point="ludus.envs.registration:CartPoleNoVelocity",
            max_episode_steps=500,
            reward_threshold=475.0,
        )


class _AfterGymnasium(MetaPathFinder):
    """Finds Gymnasium as Python does, once, and registers after it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_register(module: ModuleType) -> None:
                execute(module)
                register_environments()

            setattr(spec.loader, "exec_module", then_register)  # noqa: B010 (mypy: a method)
        return spec
