"""Gymnasium environments in worker processes: the same rows as in-process, bit for bit, on more cores.

Actions and results live in shared memory without a name, so that nothing is left behind however a
run ends. A pipe per worker says "step" and "done"; whoever waits, sleeps. A worker that dies, raises
or hangs is replaced: its episodes end as truncated at the last observation they gave.
"""

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from multiprocessing import connection, reduction, util
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.envs.gym import check_fits, step_of
from ludus.envs.gym_block import EnvBlock, EnvRaisedError, Recipe, Rows, make_envs, warn_inexact
from ludus.envs.gym_spaces import Spaces, adapt_spaces
from ludus.envs.vec import State, Step, VecEnv
from ludus.errors import ConfigError, EnvError

TIMEOUT_S = 60.0  # a worker that has not answered for so long hangs
START_TIMEOUT_S = 120.0  # more, for one that has to import and make its environments first
MAX_FAILURES = 5  # in a row, without one good step in between
_BACK_OFF_S = 0.1  # before the first restart; doubles
_CLOSE_PATIENCE_S = 2.0
_UNKNOWN = 255  # multiprocessing's exit code where the fork server died and cannot tell
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

# Messages: "step" alone is sent often and says nothing else. Answers begin with one of the three letters.
_STEP = b"step"
_DONE, _RAISED, _BROKEN = b"d", b"r", b"b"


class _Job(NamedTuple):
    """What a worker is told when it starts."""

    recipe: Recipe
    memory: Any  # shared
    num_envs: int  # in all workers
    first_row: int
    stop_row: int


class _WorkerFailure(Exception):  # noqa: N818 (it is no error of the program: it is handled)
    """Why a worker must be replaced."""


class GymWorkersVecEnv(VecEnv):
    """Environments in `num_workers` processes, each with a contiguous block of rows."""

    def __init__(self, recipe: Recipe, num_envs: int, num_workers: int, timeout_s: float = TIMEOUT_S) -> None:
        self.name = recipe.name
        self.num_rows = num_envs
        self.device = torch.device("cpu")
        of = _probe(recipe)
        self.obs_space, self.action_space = of.obs, of.action
        context = _context()
        memory = context.RawArray("b", Rows.num_bytes(num_envs, of))
        self._rows = Rows.over(memory, num_envs, of)
        self._last_obs = self._rows.obs.copy()  # a worker that dies may leave a half-written one
        self._seed = self._tick = self._restarts = 0
        self._success_seen = False
        bounds = np.linspace(0, num_envs, num_workers + 1).astype(int).tolist()
        self._workers = [
            _Worker(context, _Job(recipe, memory, num_envs, first, stop), timeout_s)
            for first, stop in itertools.pairwise(bounds)
        ]
        self._stop = util.Finalize(self, _stop_workers, (self._workers,), exitpriority=10)
        for worker in self._workers:
            worker.start()

    def reset(self, seed: int) -> Tensor:
        self._seed, self._tick = seed, 0
        self._ask_all(_pack({"do": "reset", "seed": seed}))
        self._last_obs = self._rows.obs.copy()
        return torch.from_numpy(self._rows.obs.copy())

    def begin_step(self, action: Tensor) -> None:
        self._rows.action[...] = action.numpy(force=True)
        for worker in self._workers:
            worker.send(_STEP)

    def end_step(self) -> Step:
        for worker in self._workers:
            self._success_seen |= self._answer(worker, _STEP) == b"1"
            worker.failures = 0
        self._tick += 1
        self._last_obs = self._rows.obs.copy()
        restarts = torch.full((self.num_rows,), float(self._restarts))
        return step_of(self._rows, self._success_seen, worker_restarts=restarts)

    def state(self) -> State:
        parts = [_unpack(answer) for answer in self._ask_all(_pack({"do": "state"}))]
        warn_inexact(self.name, [env["why"] for part in parts for env in part["envs"] if not env["exact"]])
        return {
            "seed": self._seed,
            "tick": self._tick,
            "obs": torch.from_numpy(self._last_obs.copy()),
            "elapsed": [elapsed for part in parts for elapsed in part["elapsed"]],
            "success_seen": self._success_seen,
            "envs": [env for part in parts for env in part["envs"]],
        }

    def load_state(self, state: State) -> None:
        check_fits(self, state)
        self._seed, self._tick, self._success_seen = state["seed"], state["tick"], state["success_seen"]
        self._last_obs = state["obs"].numpy().copy()
        self._rows.obs[:] = self._last_obs
        for worker in self._workers:
            worker.send(self._load_request(worker, state))
        reasons = [_unpack(self._answer(w, self._load_request(w, state)))["reasons"] for w in self._workers]
        warn_inexact(self.name, [reason for part in reasons for reason in part])

    def close(self) -> None:
        self._stop()

    def _load_request(self, worker: "_Worker", state: State) -> bytes:
        part = {key: state[key][worker.first_row : worker.stop_row] for key in ("elapsed", "envs")}
        kept = {key: state[key] for key in ("seed", "tick", "success_seen")}
        return _pack({"do": "load", **kept, **part})

    def _ask_all(self, request: bytes) -> list[bytes]:
        for worker in self._workers:
            worker.send(request)
        return [self._answer(worker, request) for worker in self._workers]

    def _answer(self, worker: "_Worker", request: bytes) -> bytes:
        """The answer to a request already sent; from a new worker, where this one fails."""
        while True:
            try:
                return worker.receive()
            except _WorkerFailure as failure:
                self._replace(worker, str(failure))
                worker.send(request)

    def _replace(self, worker: "_Worker", why: str) -> None:
        rows = f"rows {worker.first_row} to {worker.stop_row - 1}"
        worker.failures += 1
        if worker.failures >= MAX_FAILURES:
            times = f"{worker.failures} times in a row"
            raise EnvError(f"{self.name}: the worker of {rows} failed {times}. The last time {why}")
        warnings.warn(
            f"{self.name}: the worker of {rows} is restarted and its episodes are truncated, because {why}",
            RuntimeWarning,
            stacklevel=4,
        )
        self._restarts += 1
        time.sleep(_BACK_OFF_S * 2 ** (worker.failures - 1))
        worker.stop(patience_s=0.0)
        lost = slice(worker.first_row, worker.stop_row)
        self._rows.obs[lost] = self._last_obs[lost]
        worker.start()
        worker.send(_pack({"do": "lose", "seed": self._seed, "tick": self._tick, "attempt": self._restarts}))


class _Worker:
    """This side's handle on a worker process."""

    def __init__(self, context: Any, job: "_Job", timeout_s: float) -> None:
        self.first_row, self.stop_row = job.first_row, job.stop_row
        self.failures = 0  # in a row
        self._context, self._job, self._timeout_s = context, job, timeout_s
        self._process: Any = None

    def start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._job), name="ludus-gym-worker")
        self._starting, self._failed = True, ""
        with _start_conditions(self._job.recipe):
            process.start()
        self._process = process
        theirs.close()  # or its death would not be seen as the end of the pipe

    def send(self, request: bytes) -> None:
        """Never fails: a worker that cannot be reached is one that does not answer."""
        try:
            if self._starting:
                self._receive(START_TIMEOUT_S)
                self._starting = False
            self._pipe.send_bytes(request)
        except _WorkerFailure as failure:
            self._failed = str(failure)
        except OSError:
            pass

    def receive(self) -> bytes:
        if self._failed:
            raise _WorkerFailure(self._failed)
        return self._receive(self._timeout_s)

    def _receive(self, timeout_s: float) -> bytes:
        try:
            if not self._pipe.poll(timeout_s):
                raise _WorkerFailure(f"it did not answer for {timeout_s:g} s.")
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise _WorkerFailure(self._cause_of_death()) from None
        kind, content = answer[:1], answer[1:]
        if kind == _RAISED:
            raise _WorkerFailure(f"it raised:\n{content.decode()}")
        if kind == _BROKEN:
            raise EnvError(content.decode())
        return content

    def _cause_of_death(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"it ended by itself (exit code {code})."
        name = signal.Signals(-code).name
        return f"it was killed ({name})" + (", perhaps for want of memory." if name == "SIGKILL" else ".")

    def ask_to_close(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # already gone, or never started
            self._pipe.send_bytes(_pack({"do": "close"}))

    def stop(self, patience_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.join(patience_s)
        if process.exitcode is None:
            process.kill()
            process.join(5.0)
        elif process.exitcode == _UNKNOWN:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        self._pipe.close()
        with contextlib.suppress(ValueError):  # not even SIGKILL: stuck in the kernel
            process.close()


def _stop_workers(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.ask_to_close()
    until = time.monotonic() + _CLOSE_PATIENCE_S
    for worker in workers:
        worker.stop(max(0.0, until - time.monotonic()))


# Starting processes ---------------------------------------------------------------------------------
def _context() -> Any:
    """Processes forked from a clean server that has imported all they need, where there is such a thing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextlib.contextmanager
def _start_conditions(recipe: Recipe) -> Iterator[None]:
    """What a new process should find: one thread for numerical libraries, and no need of the user's script.

    multiprocessing runs the main script again in every process, which scripts without
    `if __name__ == "__main__"` do not survive. Only an environment defined there needs it.
    """
    main, variables = sys.modules["__main__"], dict(os.environ)
    os.environ.update(_ONE_THREAD)
    if b"__main__" not in bytes(reduction.ForkingPickler.dumps(recipe)):
        sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name in _ONE_THREAD:
            os.environ.pop(name) if name not in variables else os.environ.update({name: variables[name]})


def _probe(recipe: Recipe) -> Spaces:
    """The spaces, from an environment made here and thrown away; most mistakes show up at this point."""
    envs, _ = make_envs(recipe, 1)
    of = adapt_spaces(envs[0], recipe.name)
    envs[0].close()
    try:
        reduction.ForkingPickler.dumps(recipe)
    except Exception as error:
        raise ConfigError(
            f"{recipe.name} cannot be sent to worker processes ({error}). Register it with a class or "
            "function of a module, or use workers=0."
        ) from error
    return of


# In the worker --------------------------------------------------------------------------------------
def _serve(pipe: connection.Connection, job: "_Job") -> None:
    # The trainer decides what a signal to all its processes means: it may want the states for a checkpoint.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".* MuJoCo says:")  # the trainer's process has said it
    try:
        _answer_requests(pipe, job)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the trainer is gone
        pass
    except EnvError as error:
        raised = isinstance(error, EnvRaisedError)
        pipe.send_bytes(_RAISED + traceback.format_exc().encode() if raised else _BROKEN + str(error).encode())
    except Exception:  # noqa: BLE001 (whatever it is, the trainer shows it)
        pipe.send_bytes(_RAISED + traceback.format_exc().encode())


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer_requests(pipe: connection.Connection, job: "_Job") -> None:
    if job.recipe.module:
        importlib.import_module(job.recipe.module)
    envs, limit = make_envs(job.recipe, job.stop_row - job.first_row)
    of = adapt_spaces(envs[0], job.recipe.name)
    rows = Rows.over(job.memory, job.num_envs, of).part(job.first_row, job.stop_row)
    block = EnvBlock(job.recipe.name, envs, limit, of, rows, job.first_row)
    pipe.send_bytes(_DONE)
    while True:
        request = pipe.recv_bytes()
        if request == _STEP:
            block.step(of.to_env(rows.action))
            pipe.send_bytes(_DONE + (b"1" if block.success_seen else b"0"))
            continue
        message = _unpack(request)
        if message["do"] == "close":
            return block.close()
        answer = _obey(block, message)
        if answer is not None:
            pipe.send_bytes(_DONE + _pack(answer))


def _obey(block: EnvBlock, message: State) -> State | None:
    match message.pop("do"):
        case "reset":
            block.reset(message["seed"])
            return {}
        case "lose":
            block.lose_episodes(message["seed"], message["tick"], message["attempt"])
            return None  # no answer: the request that the lost worker left open follows
        case "state":
            return block.state()
        case "load":
            return {"reasons": block.load_state(message["seed"], message["tick"], message)}
    raise ValueError(message)


# Messages: JSON, then the bytes of the snapshots ------------------------------------------------------
def _pack(message: State) -> bytes:
    envs = message.get("envs", [])
    text = json.dumps({**message, "envs": [{**env, "data": len(env["data"])} for env in envs]}).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(env["data"].numpy().tobytes() for env in envs)])


def _unpack(packed: bytes) -> State:
    at = 8 + int.from_bytes(packed[:8], "little")
    message: State = json.loads(packed[8:at])
    for env in message["envs"]:
        size, env["data"] = env["data"], torch.empty(env["data"], dtype=torch.uint8)
        env["data"].numpy()[:] = np.frombuffer(packed, np.uint8, size, at)
        at += size
    return message
