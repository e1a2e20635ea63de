"""Pygame's small values as plain numbers: rectangles and vectors are state, though pictures are not."""

import sys
from typing import Any

_VALUES = {
    ("pygame.rect", "Rect"),
    ("pygame.rect", "FRect"),
    ("pygame.math", "Vector2"),
    ("pygame.math", "Vector3"),
}
_NAMES = {name for _, name in _VALUES}


def is_pygame_value(kind: type) -> bool:
    return (module_of(kind), kind.__name__) in _VALUES


def module_of(kind: type) -> str:
    """Where a class is from. Those that SWIG makes (Box2D's) do not say; the name that Python shows does."""
    named = getattr(kind, "__module__", None)
    return named if isinstance(named, str) else repr(kind).split("'")[1].rpartition(".")[0]


def make_pygame_value(name: str, numbers: list[float]) -> Any:
    """A new rectangle or vector; any other name is refused."""
    if name not in _NAMES:
        raise ValueError(f"{name!r} is not a value of pygame")
    return getattr(sys.modules["pygame"], name)(numbers)
