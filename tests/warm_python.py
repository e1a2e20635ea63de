"""Python programs in processes of their own, without the seconds that every import of Ludus takes.

One process imports Ludus once; `Program` asks it to fork. What is forked has its own exit code, signals, streams,
folder and environment: it is as real as a process that was started from nothing.
"""

import atexit
import contextlib
import functools
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


class Completed(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Program:
    """Like `subprocess.Popen`, of `python -m ludus.cli arguments…` or `python -c program arguments…`."""

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        errors_apart: bool = False,
        session: bool = False,
    ) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(2 if errors_apart else 1)]  # noqa: SIM115
        request = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ),
            "session": session,
        }
        descriptors = [file.fileno() for file in self._files]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(_server())
        content = json.dumps(request).encode()
        socket.send_fds(self._socket, [len(content).to_bytes(4, "big")], [descriptors[0], descriptors[-1]])
        self._socket.sendall(content)
        self._answers = self._socket.makefile("r")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._socket], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = int(self._answers.readline())
            self._socket.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def output(self) -> str:
        """What it has written so far to stdout; with `errors_apart` not what it wrote to stderr."""
        return self._text(0)

    def errors(self) -> str:
        return self._text(-1)

    def _text(self, which: int) -> str:
        file = self._files[which]
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


def run(arguments: Sequence[object], cwd: Path | None = None) -> Completed:
    """Like `subprocess.run` with what it wrote captured."""
    program = Program(arguments, cwd=cwd, errors_apart=True)
    return Completed(program.wait(), program.output(), program.errors())


def ludus_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ludus.cli", *map(str, arguments)]


def python_command(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", program, *map(str, arguments)]


# The server ---------------------------------------------------------------------------------------------
@functools.cache
def _server() -> str:
    """Where the process listens that is forked; started once."""
    folder = tempfile.mkdtemp(prefix="ludus-warm-")
    address = f"{folder}/socket"
    ready, told = os.pipe()
    server = subprocess.Popen(
        [sys.executable, __file__, address, str(told)], pass_fds=[told], stdin=subprocess.DEVNULL
    )
    os.close(told)
    assert os.read(ready, 1) == b"1", "the process to fork from did not start"
    os.close(ready)
    atexit.register(_stop, server, folder)
    return address


def _stop(server: "subprocess.Popen[bytes]", folder: str) -> None:
    server.kill()
    server.wait()
    with contextlib.suppress(OSError):
        os.unlink(f"{folder}/socket")
        os.rmdir(folder)


def _serve(address: str, told: int) -> dict[str, Any] | None:
    """Forks for every request; returns in what was forked to become the program, with what is asked of it."""
    import tensorboard.backend.event_processing.event_accumulator  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401

    import ludus.cli
    import ludus.commands.training
    import ludus.runs  # noqa: F401 (what the command imports when it trains)

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(told, b"1")
    os.close(told)
    while True:
        asked, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            return _answer(asked)
        asked.close()


def _answer(asked: socket.socket) -> dict[str, Any] | None:
    """Forks the program, and tells its number and its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, descriptors, _, _ = socket.recv_fds(asked, 4, 2)
    request: dict[str, Any] = json.loads(asked.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL))
    child = os.fork()
    if child == 0:
        asked.close()
        for number, descriptor in enumerate(descriptors, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return request
    for descriptor in descriptors:
        os.close(descriptor)
    asked.sendall(f"{child}\n".encode())
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(OSError):  # nobody waits any more
        asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any]) -> None:
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _, kind, what, *arguments = request["arguments"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[0] = os.getcwd()
    if (kind, what) == ("-m", "ludus.cli"):
        from ludus.cli import main as command

        sys.argv = ["ludus", *arguments]
        command()
    else:
        assert kind == "-c"
        sys.argv = ["-c", *arguments]
        exec(compile(what, "<string>", "exec"), vars(main))


def _end(code: object) -> NoReturn:
    """As an interpreter ends, but without taking all modules apart, which takes as long as the imports did."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) if code is None or isinstance(code, int) else 1)


def _run(request: dict[str, Any]) -> NoReturn:
    try:
        _become(request)
    except SystemExit as end:
        _end(end.code)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 (as an interpreter does)
        traceback.print_exc()
        _end(1)
    _end(0)


if __name__ == "__main__":
    wanted = _serve(sys.argv[1], int(sys.argv[2]))
    if wanted is not None:
        _run(wanted)
