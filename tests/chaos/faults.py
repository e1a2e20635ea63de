"""What goes wrong inside a process: killed at the n-th call that changes a file, failing and full disks.

Python announces the calls that open, rename, remove and link files (`sys.addaudithook`), so every way of calling
them is seen; syncing and writing, which it does not announce, are wrapped. What Rust writes (safetensors) is seen
as one call; kills within it come from the kernel, by a limit on the size of files.
"""

import builtins
import errno
import io
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALLS = ("open", "rename", "remove", "mkdir", "rmdir", "symlink", "truncate", "fsync", "write")
_AUDITED = {
    "open": "open",
    "os.rename": "rename",
    "os.remove": "remove",
    "os.mkdir": "mkdir",
    "os.rmdir": "rmdir",
    "os.symlink": "symlink",
    "os.truncate": "truncate",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class AtCall:
    """At the `number`-th call of this name: be killed (`error` 0), or fail with an errno, `times` times.

    "saving rename" is a rename of a checkpoint's files or of the metrics, which a training writes as it goes.
    """

    call: str
    number: int
    error: int = 0
    times: int = 1


def count_calls(folder: Path, into: Path) -> Callable[[], None]:
    """Count the calls that change files below `folder`; the result, called at the end, writes them down."""
    counts: Counter[str] = Counter()
    _watch(folder, lambda call, path: counts.update(_names_of(call, path)))
    return lambda: _write_down(into, counts)


def _write_down(into: Path, counts: Counter[str]) -> None:
    found = dict(counts)
    into.write_text(json.dumps(found))


def act_at(fault: AtCall, folder: Path) -> None:
    """Let the fault happen in this process."""
    seen = 0

    def act(call: str, path: str) -> None:
        nonlocal seen
        if fault.call not in _names_of(call, path):
            return
        seen += 1
        if not fault.number <= seen < fault.number + fault.times:
            return
        if not fault.error:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(fault.error, os.strerror(fault.error), path)

    _watch(folder, act)


def fill_disk(fault: AtCall, folder: Path) -> None:
    """From the call on nothing can be written any more: where no real small disk can be made."""
    seen, full = 0, False

    def act(call: str, path: str) -> None:
        nonlocal seen, full
        seen += call == fault.call
        full |= seen >= fault.number
        if full and call in ("write", "mkdir", "symlink", "open"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    _watch(folder, act)


def die_beyond(size: int) -> None:
    """Be killed by the kernel within the write that makes a file larger than this, Rust's writes included."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would be told EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _names_of(call: str, path: str) -> list[str]:
    """ "rename", and "saving rename" where it is one of what a training writes as it goes."""
    saving = "/checkpoints" in path or path.endswith(("metrics.jsonl", "R_loss.f32"))
    return [call, f"saving {call}"] if saving else [call]


# Watching ---------------------------------------------------------------------------------------------
def _watch(folder: Path, act: Callable[[str, str], None]) -> None:
    import sys

    below = os.path.join(os.path.realpath(folder), "")

    def consider(call: str, path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            whole = os.path.abspath(os.fsdecode(path))  # relative to a descriptor or to here, which is `folder`
            if whole.startswith(below) and "__pycache__" not in whole and not whole.endswith((".py", ".pyc")):
                act(call, whole)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        call = _AUDITED.get(event)
        if call is None or (call == "open" and not int(arguments[2] or 0) & _WRITING):
            return
        consider(call, arguments[1] if call == "symlink" else arguments[0])

    _wrap_fsync(consider)
    _wrap_writes(consider)
    sys.addaudithook(hook)


def _path_of(descriptor: Any) -> str:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    return os.readlink(f"/proc/self/fd/{number}")


def _wrap_fsync(consider: Callable[[str, Any], None]) -> None:
    real = os.fsync

    def fsync(descriptor: Any) -> None:
        consider("fsync", _path_of(descriptor))
        real(descriptor)

    os.fsync = fsync  # type: ignore[assignment]


def _wrap_writes(consider: Callable[[str, Any], None]) -> None:
    """Unbuffered files (metrics.jsonl), descriptors, and the files that safetensors writes."""
    import safetensors.torch
    from safetensors import SafetensorError

    real_open, real_write = builtins.open, os.write
    real_serialize: Any = safetensors.torch.serialize_file

    class Watched(io.FileIO):
        def write(self, data: Any, /) -> int:
            consider("write", self.name)
            return super().write(data)

    def open_watched(file: Any, mode: str = "r", buffering: int = -1, *others: Any, **options: Any) -> Any:
        if buffering == 0 and set(mode) & set("wax+"):
            return Watched(file, mode)
        return real_open(file, mode, buffering, *others, **options)

    def write(descriptor: int, data: Any) -> int:
        consider("write", _path_of(descriptor))
        return real_write(descriptor, data)

    def serialize_file(tensors: Any, filename: Any, *others: Any, **options: Any) -> Any:
        try:
            consider("write", filename)
        except OSError as error:  # in the words of safetensors
            raise SafetensorError(
                f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
            ) from None
        return real_serialize(tensors, filename, *others, **options)

    builtins.open, os.write = open_watched, write
    setattr(safetensors.torch, "serialize_file", serialize_file)  # noqa: B010 (its type is another)
