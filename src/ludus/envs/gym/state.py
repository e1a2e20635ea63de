"""An exact snapshot of any Gymnasium or PettingZoo environment, without pickle.

`snapshot` walks the environment's attributes, wrappers included, and writes plain values as JSON and
arrays as bytes. `restore` writes them into an environment of the same class that was just reset:
objects are changed in place and never made from the data, and no method or function is ever replaced, so nothing
in a snapshot can run. A snapshot that does not fit, whatever is in it, changes nothing and is a sentence.

What lives outside Python (a Box2D world, an emulator) cannot be read this way: such a snapshot says
`"exact": False` and why, and the episode starts anew. An environment can do better by defining
`ludus_state()`, which returns any tree of plain values and arrays, and `load_ludus_state(state)`.
"""

import enum
import functools
import inspect
import itertools
import math
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from ludus.envs.gym.mujoco_state import read_data, read_model, refuse_unsafe, write_data, write_model
from ludus.envs.gym.pygame_state import is_pygame_value, make_pygame_value, module_of
from ludus.envs.random_state import refuse_wild_generator
from ludus.envs.vec import State

_JSON_INT = 2**53  # larger integers (states of random generators) are written as text
_MISSING: Any = object()

# Attributes that describe an environment and do not change while it runs.
_CONSTANT_NAMES = {"spec", "_cached_spec", "metadata", "_metadata", "render_mode", "_saved_kwargs"}
_CONSTANT_NAMES |= {"_ezpickle_args", "_ezpickle_kwargs", "frame_skip"}
# Values that have no part in what happens next: code, spaces, pictures. The first two are never replaced.
_CODE: tuple[type, ...] = (type, types.ModuleType, types.MethodType, types.FunctionType)
_CODE += (types.BuiltinFunctionType, functools.partial, np.ufunc)
_HARMLESS_TYPES: tuple[type, ...] = (gym.Space, *_CODE)
_HARMLESS_MODULES: tuple[str, ...] = (
    "gymnasium.envs.registration.",
    "gymnasium.envs.mujoco.mujoco_rendering.",
)
_HARMLESS_MODULES += ("mujoco.", "pygame.", "pyglet.", "glfw.", "OpenGL.", "matplotlib.", "PIL.", "logging.")
_HARMFUL_MODULES = ("pygame.sprite.",)  # of a harmless one, but groups of sprites are lists of things that move

_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_ARRAY_KINDS = "biufcSUmM"  # of plain values
_NODE_BYTES = 40  # about what a plain value takes in training.json
_DICTS: dict[str, type[dict]] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict)}
_SEQUENCES: dict[str, type] = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
# Random generators: their type, how to read their state as plain values, and how to write it back.
_RANDOM: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "numpy": (
        np.random.Generator,
        lambda rng: rng.bit_generator.state,
        lambda rng, state: setattr(rng.bit_generator, "state", state),
    ),
    "numpy_legacy": (
        np.random.RandomState,
        lambda rng: rng.get_state(legacy=False),
        lambda rng, state: rng.set_state(state),
    ),
    "python": (random.Random, lambda rng: rng.getstate(), lambda rng, state: rng.setstate(state)),
    "torch": (
        torch.Generator,
        lambda rng: rng.get_state().numpy(),
        lambda rng, state: rng.set_state(torch.from_numpy(state)),
    ),
}


class _NotCapturedError(Exception):
    """A part that cannot be written, or a snapshot that does not fit this environment."""


def snapshot(env: Any) -> State:
    """{"exact", "why", "tree" (JSON), "data" (uint8 [bytes]), "size" (about, in a checkpoint, bytes)}."""
    writer = _Writer()
    try:
        tree = writer.value(env, "")
        writer.refuse_overlaps()
    except (_NotCapturedError, RecursionError) as error:
        return lost_state(str(error))
    data = np.frombuffer(b"".join(writer.chunks), np.uint8).copy()
    size = writer.values * _NODE_BYTES + len(data)
    return {"exact": True, "why": "", "tree": tree, "data": torch.from_numpy(data), "size": size}


def lost_state(why: str) -> State:
    """The snapshot of an episode that cannot be continued."""
    return {"exact": False, "why": why, "tree": None, "data": torch.zeros(0, dtype=torch.uint8), "size": 0}


def restore(env: Any, state: State) -> str:
    """Continue from `state`: the empty text, or why that was not possible. `env` has just been reset."""
    if not isinstance(state, dict) or not {"exact", "why", "tree", "data"} <= state.keys():
        return "its state was not saved"
    if state["exact"] is not True:
        return _printable(state["why"]) or "its state was not saved"
    try:
        reader = _Reader(state["data"].numpy())
    except (AttributeError, TypeError, RuntimeError) as error:
        return f"the saved state does not fit it: {_printable(error)}"
    try:
        reader.value(state["tree"], env)
        reader.finish()
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever is in a stranger's file, and own code that reads it)
        reader.undo()
        return f"the saved state does not fit it: {_printable(error) or type(error).__name__}"
    return ""


def _printable(text: Any) -> str:
    """One short line, whatever the file says: it is shown in a terminal."""
    line = " ".join(str(text)[:1000].split())
    return "".join(c for c in line if c.isprintable())[:200]


def largest_part(state: State) -> tuple[str, int]:
    """The path of the attribute that takes most of a snapshot, and its size in bytes."""
    path, node = "", state["tree"]
    while True:
        size, parts = _node_size(node), _node_parts(node)
        name, part = max(parts.items(), key=lambda item: _node_size(item[1]), default=("", None))
        if not name or (path and _node_size(part) < 0.5 * size):
            return path.lstrip("."), size
        path, node = path + name, part


def _node_parts(node: Any) -> dict[str, Any]:
    """Attributes of an object and entries of a dict, which have names."""
    if not isinstance(node, dict):
        return {}
    if isinstance(node.get("object"), dict):
        return {f".{name}": part for name, part in node["object"].items()}
    if isinstance(node.get("dict"), list):
        return {f"[{key!r}]": part for key, part in node["dict"] if isinstance(key, (str, int))}
    return {}


def _node_size(node: Any) -> int:
    if isinstance(node, dict):
        own = 0
        if isinstance(node.get("dtype"), str):
            own = math.prod(node["shape"]) * np.dtype(node["dtype"]).itemsize
        return _NODE_BYTES + own + sum(_node_size(part) for part in node.values())
    return _NODE_BYTES + (sum(map(_node_size, node)) if isinstance(node, list) else 0)


class _Writer:
    """Values to JSON nodes `{kind: content}`; the bytes of arrays go to `chunks`.

    A value with an identity of its own is numbered when first met and a reference afterwards, so
    that what was one array or one object in two places is one again after `restore`.
    """

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.values = 0  # how many were written
        self._size = 0
        self._numbers: dict[int, int] = {}  # id → number
        self._alive: list[Any] = []  # ids are unique among the living only
        self._bounds: list[tuple[int, int]] = []  # memory of arrays, [first, past the last) byte

    def value(self, value: Any, path: str) -> Any:
        kind = type(value)
        self.values += 1
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if abs(value) < _JSON_INT else {"int": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, enum.Enum):
            return {"enum": value.name, "class": kind.__qualname__}
        if isinstance(value, np.generic):
            return {"scalar": self._bytes_of(np.asarray(value), path)}
        if id(value) in self._numbers:
            return {"same": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._alive)
        self._alive.append(value)
        return self._numbered(value, kind, path)

    def _numbered(self, value: Any, kind: type, path: str) -> dict[str, Any]:
        if _SEQUENCES.get(kind.__name__) is kind:
            return {kind.__name__: self._items(value, path)}
        if kind is bytes or kind is bytearray:
            return {kind.__name__: self._bytes_of(np.frombuffer(value, np.uint8), path)}
        if kind is deque:
            return {"deque": self._items(value, path), "maxlen": value.maxlen}
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return {"namedtuple": self._items(value, path), "class": kind.__qualname__}
        if _DICTS.get(kind.__name__) is kind:
            pairs = [[self.value(k, path), self.value(v, f"{path}[{k!r}]")] for k, v in value.items()]
            return {"dict": pairs, "class": kind.__name__}
        if kind is np.ndarray:
            return self._array(value, path)
        if kind is torch.Tensor:
            return {"tensor": self._bytes_of(value.detach().cpu().numpy(), path)}
        for name, (rng_type, read_state, _) in _RANDOM.items():
            if kind is rng_type:
                return {"random": name, "state": self.value(read_state(value), path)}
        if kind is mujoco.MjData or kind is mujoco.MjModel:
            arrays = read_data(value) if kind is mujoco.MjData else read_model(value)
            return {kind.__name__: {name: self._bytes_of(array, name) for name, array in arrays.items()}}
        if is_pygame_value(kind):
            return {"pygame": kind.__name__, "numbers": [self.value(number, path) for number in value]}
        if _saves_itself(value):
            return {"own": self.value(_own_state(value), f"{path}.ludus_state()")}
        if any(module_of(base).startswith("Box2D") for base in kind.__mro__):
            # Impulses that the next step begins with, and the order of contacts, are hidden in its solver.
            raise _NotCapturedError(f"its {path.lstrip('.')} is a part of Box2D, which cannot be read exactly")
        if _is_harmless(value):
            return {"keep": kind.__name__}
        if _is_plain_object(value):
            attributes = {n: v for n, v in value.__dict__.items() if n not in _CONSTANT_NAMES}
            return {
                "object": {n: self.value(v, f"{path}.{n}") for n, v in attributes.items()},
                "class": kind.__qualname__,
            }
        name = f"{module_of(kind)}.{kind.__qualname__}".lstrip(".")
        raise _NotCapturedError(f"its {path.lstrip('.')} is a {name}")

    def refuse_overlaps(self) -> None:
        """Arrays that are views of each other would come back as separate copies."""
        ordered = sorted(self._bounds)
        if any(low < high for (_, high), (low, _) in itertools.pairwise(ordered)):
            raise _NotCapturedError("two of its arrays share memory")

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.value(item, f"{path}[{i}]") for i, item in enumerate(values)]

    def _array(self, array: np.ndarray, path: str) -> dict[str, Any]:
        foreign = _is_foreign(array)
        if array.size and not foreign:
            self._bounds.append(byte_bounds(array))
        return {"array": self._bytes_of(array, path), "foreign": foreign}

    def _bytes_of(self, array: np.ndarray, path: str) -> dict[str, Any]:
        if array.dtype.hasobject or array.dtype.names:
            raise _NotCapturedError(f"its {path.lstrip('.')} is an array of {array.dtype}")
        # The order in memory decides the order of sums, hence the last bit.
        by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
        chunk = array.tobytes("F" if by_columns else "C")
        node = {"dtype": array.dtype.str, "shape": list(array.shape), "columns": by_columns, "at": self._size}
        self.chunks.append(chunk)
        self._size += len(chunk)
        return node


class _Reader:
    """Nodes back to values. `current` is what is now in that place: changed in place, or a pattern."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._left = data.nbytes  # bytes not read yet: each belongs to one value
        self._met: list[Any] = []  # by number
        self._taken: set[int] = set()  # ids of objects that were changed in place
        self._before: list[tuple[Any, dict[str, Any]]] = []  # objects and the attributes they had
        # What is written into memory of others, once all has been read: views of it, then models, then physics.
        self._later: tuple[list[Callable[[], None]], ...] = ([], [], [])

    def finish(self) -> None:
        for write in itertools.chain(*self._later):
            write()

    def undo(self) -> None:
        """Give every object the attributes it had: it must be able to begin a new episode."""
        for target, attributes in reversed(self._before):
            target.__dict__.clear()
            target.__dict__.update(attributes)

    def value(self, node: Any, current: Any) -> Any:
        if not isinstance(node, dict):
            if isinstance(node, list):
                raise _NotCapturedError("a value of no known kind was saved")
            return node
        first: tuple[str, Any] = next(iter(node.items()), ("nothing", None))
        kind, content = first
        if kind == "int":
            return int(content)
        if kind == "float":
            return float(content)
        if kind == "enum":
            return _like(current, node["class"], enum.Enum)[content]
        if kind == "scalar":
            return self._array(content)[()]
        if kind == "same":
            return self._met[_natural(content)]
        number = len(self._met)
        self._met.append(current)
        self._met[number] = value = self._numbered(kind, content, node, current, number)
        return value

    def _numbered(self, kind: str, content: Any, node: dict[str, Any], current: Any, number: int) -> Any:
        if kind == "list":
            self._met[number] = items = []  # known before its items, which may contain it
            items.extend(self._items(content, current))
            return items
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](self._items(content, current))
        if kind == "bytes" or kind == "bytearray":
            content = self._array(content).tobytes()
            return content if kind == "bytes" else bytearray(content)
        if kind == "deque":
            return deque(self._items(content, current), node["maxlen"])
        if kind == "namedtuple":
            return _like(current, node["class"], tuple)._make(self._items(content, current))
        if kind == "dict":
            return self._dict(content, node["class"], current, number)
        if kind == "array":
            return self._array_in_place(content, current) if node["foreign"] else self._array(content)
        if kind == "tensor":
            return torch.from_numpy(self._array(content))
        if kind == "random":
            return self._random(content, self.value(node["state"], _MISSING), current)
        if kind == "pygame":
            return make_pygame_value(content, [self.value(number, _MISSING) for number in node["numbers"]])
        if kind == "own":
            if not _saves_itself(current):
                raise _NotCapturedError("a part that saves itself is not there")
            current.load_ludus_state(self.value(content, _MISSING))
            return current
        if kind == "keep":
            if current is _MISSING:
                raise _NotCapturedError(f"it holds a {content}, which is made in the course of an episode")
            return current
        if kind == "object":
            return self._object(content, node["class"], current, number)
        if kind == "MjModel" or kind == "MjData":
            return self._mujoco(kind, content, current)
        raise _NotCapturedError(f"a value of the unknown kind {kind!r} was saved")

    def _items(self, nodes: list[Any], current: Any) -> list[Any]:
        if not isinstance(nodes, list):
            raise _NotCapturedError("a list without items was saved")
        patterns = list(current) if isinstance(current, (list, tuple, deque)) else []
        patterns += [_MISSING] * (len(nodes) - len(patterns))
        return [self.value(node, pattern) for node, pattern in zip(nodes, patterns, strict=False)]

    def _dict(self, pairs: list[Any], name: str, current: Any, number: int) -> Any:
        if name == "defaultdict":
            new: dict[Any, Any] = defaultdict(_like(current, name, defaultdict) and current.default_factory)
        else:
            new = _DICTS[name]()
        self._met[number] = new
        patterns = current if isinstance(current, dict) else {}
        # A key that is an object (a sprite of a group) is the one in the same place.
        for (key_node, node), old_key in zip(pairs, [*patterns, *[_MISSING] * len(pairs)], strict=False):
            key = self.value(key_node, old_key)
            new[key] = self.value(node, patterns.get(key, _MISSING))
        return new

    def _object(self, attributes: dict[str, Any], name: str, current: Any, number: int) -> Any:
        kind = _like(current, name, object)
        if not _is_plain_object(current):
            raise _NotCapturedError(f"{name} is not a plain object")
        target = current
        frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
        if frozen or id(current) in self._taken:
            # Others share an immutable object (a constant of the module), and two places that were one at the
            # episode's start may have parted since: leave theirs alone.
            self._met[number] = target = object.__new__(kind)
            target.__dict__.update(current.__dict__)
        else:
            self._before.append((target, dict(target.__dict__)))
        self._taken.add(id(target))
        own = dict(current.__dict__)
        for attribute, node in attributes.items():
            if attribute not in _CONSTANT_NAMES:
                value = self.value(node, own.get(attribute, _MISSING))
                _refuse_code(kind, attribute, own.get(attribute, _MISSING), value)
                target.__dict__[attribute] = value
        return target

    def _random(self, name: str, state: Any, current: Any) -> Any:
        rng_type, _, write_state = _RANDOM[name]
        current = _MISSING if id(current) in self._taken else current
        refuse_wild_generator(name, state)
        if name == "numpy" and not _same_bit_generator(current, state):
            if state["bit_generator"] not in _BIT_GENERATORS:
                raise _NotCapturedError(f"unknown random generator {state['bit_generator']!r}")
            current = np.random.Generator(getattr(np.random, state["bit_generator"])())
        elif type(current) is not rng_type:
            current = rng_type()
        self._taken.add(id(current))
        write_state(current, state)
        return current

    def _array(self, node: dict[str, Any]) -> np.ndarray:
        dtype, shape = np.dtype(node["dtype"]), tuple(_natural(size) for size in node["shape"])
        if dtype.kind not in _ARRAY_KINDS:
            raise _NotCapturedError(f"an array of {dtype} was saved")
        count = math.prod(shape)
        self._left -= count * dtype.itemsize
        if self._left < 0:
            raise _NotCapturedError("it has more arrays than data")
        flat = np.frombuffer(self._data.data, dtype, count, _natural(node["at"])) if count else np.empty(0, dtype)
        return flat.reshape(shape, order="F" if node["columns"] else "C").copy("K")

    def _array_in_place(self, node: dict[str, Any], current: Any) -> np.ndarray:
        array = self._array(node)
        fits = isinstance(current, np.ndarray) and (current.shape, current.dtype) == (array.shape, array.dtype)
        if not fits or not current.flags.writeable:
            raise _NotCapturedError("a view of another library's memory has changed")
        if type(_owner(current)).__name__ == "PyCapsule":  # MuJoCo's, which trusts its numbers
            refuse_unsafe("view of another library's memory", current, array)
        self._later[0].append(lambda: np.copyto(current, array))
        return current

    def _mujoco(self, kind: str, fields: dict[str, Any], current: Any) -> Any:
        _like(current, kind, mujoco.MjModel if kind == "MjModel" else mujoco.MjData)
        arrays = {name: self._array(node) for name, node in fields.items()}
        if kind == "MjModel":
            self._later[1].append(lambda: write_model(current, arrays))
        else:
            self._later[2].append(lambda: write_data(current, arrays))
        return current


class _Plain:
    """What an instance of a Python class weighs when no part of it hides in C."""


def _is_plain_object(value: Any) -> bool:
    return hasattr(value, "__dict__") and type(value).__basicsize__ == _Plain.__basicsize__


def _is_harmless(value: Any) -> bool:
    module = module_of(type(value)) + "."
    harmless = module.startswith(_HARMLESS_MODULES) and not module.startswith(_HARMFUL_MODULES)
    return harmless or isinstance(value, _HARMLESS_TYPES)


def _saves_itself(value: Any) -> bool:
    """By a method of its own class: a wrapper that passes on what it is asked for has a state besides."""
    return callable(getattr(type(value), "ludus_state", None))


def _own_state(value: Any) -> Any:
    try:
        return value.ludus_state()
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {_printable(error)}"
        raise _NotCapturedError(f"its own ludus_state() raised {problem}") from error


def _is_foreign(array: np.ndarray) -> bool:
    """Whether the array looks into memory that another library owns, such as an MjData field."""
    owner = _owner(array)
    return owner is not None and not isinstance(owner, (bytes, memoryview))


def _owner(array: np.ndarray) -> Any:
    """What the memory belongs to; None: to the array, or to one that it is a view of."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base


def _refuse_code(kind: type, attribute: str, current: Any, value: Any) -> None:
    """Methods and functions stay what they are: an attribute must not take the place of one."""
    static = inspect.getattr_static(kind, attribute, None) if current is _MISSING else current
    is_code = isinstance(value, _CODE) or isinstance(
        static, (*_HARMLESS_TYPES, classmethod, staticmethod, property)
    )
    if (is_code and value is not current) or attribute.startswith("__"):
        raise _NotCapturedError(f"{attribute[:50]!r} of {kind.__qualname__} is code, which is not restored")


def _natural(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise _NotCapturedError("a size or a place that is no natural number was saved")
    return number


def _like(current: Any, class_name: str, base: type) -> Any:
    """The class of `current`, which must have this name: classes never come from the data."""
    if current is _MISSING:
        raise _NotCapturedError(f"it holds a {class_name}, which is made in the course of an episode")
    if type(current).__qualname__ != class_name or not isinstance(current, base):
        raise _NotCapturedError(f"it holds a {type(current).__qualname__} where a {class_name} was saved")
    return type(current)


def _same_bit_generator(current: Any, state: dict[str, Any]) -> bool:
    return (
        isinstance(current, np.random.Generator)
        and current.bit_generator.state["bit_generator"] == state["bit_generator"]
    )
