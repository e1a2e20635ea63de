"""States of random generators from a file, looked at before they are used.

Generators in C trust their state: a place beyond the buffer reads foreign memory, and a state of zeros gives zeros
for ever, on which a draw that rejects some numbers never ends.
"""

from typing import Any

import numpy as np
from torch import Tensor

_MT_SIZE = 624  # words of a Mersenne Twister
_PHILOX_BUFFER = 4


def refuse_wild_generator(name: str, state: Any) -> None:
    """`name`: numpy, numpy_legacy, python or torch, and the state as its `restore` would be given it."""
    if name == "torch":
        refuse_wild_torch(np.asarray(state))
    elif name == "python":
        _, words, gauss = state
        _refuse_if(gauss is not None and type(gauss) is not float)
        _refuse_zeros(np.array(words[:-1], np.uint32))
    else:
        _refuse_wild_numpy(state)


def refuse_wild_torch(state: np.ndarray | Tensor) -> None:
    """Torch's generator of the CPU, a Mersenne Twister; those of a GPU only count."""
    raw = np.asarray(state)
    _refuse_if(raw.dtype != np.uint8 or raw.ndim != 1)
    if raw.size < 24 + 8 * _MT_SIZE:
        return
    left, next_word = int(raw[8:12].copy().view(np.int32)[0]), int(raw[16:24].copy().view(np.uint64)[0])
    _refuse_if(left < 1 or next_word + left - 1 > _MT_SIZE)


def _refuse_wild_numpy(state: dict[str, Any]) -> None:
    kind, inner = state["bit_generator"], state["state"]
    if kind == "MT19937":
        _refuse_if(not 0 <= int(inner["pos"]) <= _MT_SIZE)
        _refuse_zeros(np.asarray(inner["key"], np.uint32))
    elif kind == "Philox":
        _refuse_if(not 0 <= int(state["buffer_pos"]) <= _PHILOX_BUFFER)
    elif kind in ("PCG64", "PCG64DXSM"):
        _refuse_if(int(inner["inc"]) % 2 == 0)


def _refuse_zeros(words: np.ndarray) -> None:
    """Only the highest bit of the first word counts."""
    _refuse_if(words.shape != (_MT_SIZE,) or not (words[0] >> 31 or words[1:].any()))


def _refuse_if(wrong: bool) -> None:
    if wrong:
        raise ValueError("the saved state of a random generator is damaged")
