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
    return (kind.__module__, kind.__name__) in _VALUES


def make_pygame_value(name: str, numbers: list[float]) -> Any:
    """A new rectangle or vector; any other name is refused."""
    if name not in _NAMES:
        raise ValueError(f"{name!r} is not a value of pygame")
    return getattr(sys.modules["pygame"], name)(numbers)
