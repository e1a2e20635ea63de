"""Environments in worker processes: the same rows as in-process, bit for bit, on more cores.

Actions and results live in shared memory without a name, so that nothing is left behind however a
run ends. A pipe per worker says "step" and "done"; whoever waits, sleeps. A worker that dies, raises
or hangs is replaced: its episodes end as truncated at the last observation they gave. One that fails again and
again is given up.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from multiprocessing import connection, reduction, util
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.envs.goals import Goals, goal_parts
from ludus.envs.gym.block import EnvBlock, EnvRaisedError, GrowthGuard, Recipe, warn_inexact
from ludus.envs.gym.goals import goals_of_env
from ludus.envs.gym.infos import MOST_NAMES
from ludus.envs.gym.rows import Rows, info_metrics, step_of
from ludus.envs.processes import process_context, start_conditions
from ludus.envs.row_state import check_fits
from ludus.envs.vec import State, Step, VecEnv
from ludus.errors import DEBUG, ConfigError, EnvError, tell_exception

TIMEOUT_S = 60.0  # a worker that has not answered for so long hangs
START_TIMEOUT_S = 120.0  # more, for one that has to import and make its environments first
MAX_FAILURES = 5  # in a row, without one good step in between
# What a worker may fail within so many steps of its own, good ones in between. A hang costs its whole time limit.
WINDOW = 1_000  # steps
MAX_RESTARTS = 10
MAX_HANGS = 3
_BACK_OFF_S = 0.1  # before the first restart; doubles
_CLOSE_PATIENCE_S = 2.0
_UNKNOWN = 255  # multiprocessing's exit code where the fork server died and cannot tell

# Messages: "step" alone is sent often and says nothing else. Answers begin with one of the three letters.
_STEP = b"step"
_DONE, _RAISED, _BROKEN = b"d", b"r", b"b"


class _Job(NamedTuple):
    """What a worker is told when it starts."""

    recipe: Recipe
    memory: Any  # shared
    num_rows: int  # in all workers
    agents_per_env: int
    first_env: int
    stop_env: int

    @property
    def rows(self) -> slice:
        return slice(self.first_env * self.agents_per_env, self.stop_env * self.agents_per_env)


class _WorkerFailure(Exception):  # noqa: N818 (it is no error of the program: it is handled)
    """Why a worker must be replaced."""

    def __init__(self, why: str, hung: bool = False) -> None:
        super().__init__(why)
        self.hung = hung


class GymWorkersVecEnv(VecEnv):
    """Environments in `num_workers` processes, each with a contiguous block of them."""

    def __init__(self, recipe: Recipe, num_envs: int, num_workers: int, timeout_s: float = TIMEOUT_S) -> None:
        self.name, self._recipe = recipe.name, recipe
        self.device = torch.device("cpu")
        self._judging: EnvBlock | None = None  # see `goals`
        probe = _probe(recipe)
        self.agents_per_env, self._agents_come_and_go = probe.agents_per_env, probe.agents_come_and_go
        self.num_rows = num_rows = num_envs * probe.agents_per_env
        self.obs_space, self.action_space = probe.of.obs, probe.of.action
        self.stacked_frames = probe.of.stacked_frames
        self.max_steps = probe.limit
        context = process_context(preload=__name__)
        memory = context.RawArray("b", Rows.num_bytes(num_rows, probe.of))
        self._rows = Rows.over(memory, num_rows, probe.of)
        self._note_last()
        self._seed = self._tick = self._restarts = 0
        self._success_seen = False
        self._info_names: list[str] = []
        self._growth = GrowthGuard()
        bounds = np.linspace(0, num_envs, num_workers + 1).astype(int).tolist()
        self._workers = [
            _Worker(context, _Job(recipe, memory, num_rows, probe.agents_per_env, first, stop), timeout_s)
            for first, stop in itertools.pairwise(bounds)
        ]
        self._stop = util.Finalize(self, _stop_workers, (self._workers,), exitpriority=10)
        for worker in self._workers:
            worker.start()

    @property
    def worker_pids(self) -> list[int]:
        """The processes, of the first rows first."""
        return [worker.pid for worker in self._workers]

    def goals(self) -> Goals | None:
        """Judged by an environment of this process: the workers are busy with theirs."""
        if goal_parts(self.obs_space) is None:
            return None
        self._judging = self._judging or self._recipe.make_block(1)
        return goals_of_env(self.name, self._judging.envs[0], self.obs_space)

    def reset(self, seed: int) -> Tensor:
        self._seed, self._tick = seed, 0
        self._ask_all(_pack({"do": "reset", "seed": seed}))
        self._note_last()
        return torch.from_numpy(self._rows.obs.copy())

    def begin_step(self, action: Tensor) -> None:
        self._rows.action[...] = action.numpy(force=True)
        for worker in self._workers:
            worker.send(_STEP)

    def end_step(self) -> Step:
        for worker in self._workers:
            answer = self._answer(worker, _STEP)
            self._success_seen |= answer[:1] == b"1"
            if len(answer) > 1:
                self._note_names(worker, json.loads(answer[1:]))
            worker.note_step()
        self._tick += 1
        self._note_last()
        metrics = {"worker_restarts": torch.full((self.num_rows,), float(self._restarts))}
        return step_of(self._rows, self._success_seen, metrics | self._info_metrics())

    def _note_names(self, worker: "_Worker", names: list[str]) -> None:
        """What the infos of a worker's environments tell, in the order of its columns."""
        worker.info_names = names
        self._info_names += [n for n in names if n not in self._info_names][: MOST_NAMES - len(self._info_names)]

    def _info_metrics(self) -> dict[str, Tensor]:
        """Of all workers, each of which may have seen the names in an order of its own."""
        if not self._info_names:
            return {}
        told = np.full((self.num_rows, len(self._info_names)), np.nan, np.float32)
        for worker in self._workers:
            rows = worker.job.rows
            for column, name in enumerate(worker.info_names):
                if name in self._info_names:
                    told[rows, self._info_names.index(name)] = self._rows.info[rows, column]
        return info_metrics(told, self._info_names)

    def state(self) -> State:
        parts = [_unpack(answer) for answer in self._ask_all(_pack({"do": "state"}))]
        envs = [env for part in parts for env in part["envs"]]
        warn_inexact(self.name, [env["why"] for env in envs if not env["exact"]])
        self._growth.look_at(self.name, envs)
        return {
            "seed": self._seed,
            "tick": self._tick,
            "obs": torch.from_numpy(self._last_obs.copy()),
            **({} if self.present is None else {"present": self.present.clone()}),
            "elapsed": [elapsed for part in parts for elapsed in part["elapsed"]],
            "success_seen": self._success_seen,
            **self._info_state(parts),
            "envs": envs,
        }

    def _info_state(self, parts: list[State]) -> State:
        """What their infos have told, row by row; a worker that has seen no number yet tells nothing."""
        if not self._info_names:
            return {}
        workers = zip(self._workers, parts, strict=True)
        running = [
            part.get("infos", [{} for _ in range(w.job.rows.start, w.job.rows.stop)]) for w, part in workers
        ]
        return {"info_names": list(self._info_names), "infos": [row for part in running for row in part]}

    def load_state(self, state: State) -> None:
        check_fits(self, state)
        self._seed, self._tick, self._success_seen = state["seed"], state["tick"], state["success_seen"]
        self._rows.obs[:] = state["obs"].numpy()
        if "present" in state:
            self._rows.present[:] = state["present"].numpy()
        self._note_last()
        self._info_names = [str(name) for name in state.get("info_names", [])][:MOST_NAMES]
        for worker in self._workers:
            worker.send(self._load_request(worker, state))
        reasons = [_unpack(self._answer(w, self._load_request(w, state)))["reasons"] for w in self._workers]
        warn_inexact(self.name, [reason for part in reasons for reason in part])

    def close(self) -> None:
        self._stop()
        if self._judging is not None:
            self._judging.close()
            self._judging = None

    def _note_last(self) -> None:
        """Keep what was observed: a worker that dies may leave it half overwritten."""
        self._last_obs = self._rows.obs.copy()
        self._last_present = self._rows.present.copy()
        if self._agents_come_and_go:
            self.present = torch.from_numpy(self._last_present.copy())

    def _load_request(self, worker: "_Worker", state: State) -> bytes:
        job = worker.job
        part = {key: state[key][job.first_env : job.stop_env] for key in ("elapsed", "envs")}
        kept = {key: state[key] for key in ("seed", "tick", "success_seen")}
        told = {"info_names": self._info_names, "infos": state.get("infos", [])[job.rows]}
        return _pack({"do": "load", **kept, **told, **part})

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
                self._replace(worker, failure)
                worker.send(request)

    def _replace(self, worker: "_Worker", failure: _WorkerFailure) -> None:
        lost, why = worker.job.rows, str(failure)
        rows = f"rows {lost.start} to {lost.stop - 1}"
        too_often = worker.note_failure(failure.hung)
        if too_often:
            raise EnvError(f"{self.name}: the worker of {rows} {too_often}. The last time {why}")
        warnings.warn(
            f"{self.name}: the worker of {rows} is restarted and its episodes are truncated, because {why}",
            RuntimeWarning,
            stacklevel=4,
        )
        self._restarts += 1
        time.sleep(_BACK_OFF_S * 2 ** (worker.failures - 1))
        worker.stop(patience_s=0.0)
        worker.info_names = []
        self._rows.obs[lost] = self._last_obs[lost]
        self._rows.present[lost] = self._last_present[lost]
        worker.start()
        worker.send(_pack({"do": "lose", "seed": self._seed, "tick": self._tick, "attempt": self._restarts}))


class _Worker:
    """This side's handle on a worker process."""

    def __init__(self, context: Any, job: "_Job", timeout_s: float) -> None:
        self.job = job
        self.failures = 0  # in a row
        self.info_names: list[str] = []  # of its columns of `Rows.info`
        self._steps = 0  # that it has made
        self._failed_at: deque[tuple[int, bool]] = deque()  # within the window: after which step; whether it hung
        self._context, self._timeout_s = context, timeout_s
        self._process: Any = None
        self._failed: _WorkerFailure | None = None

    def note_step(self) -> None:
        self._steps += 1
        self.failures = 0

    def note_failure(self, hung: bool) -> str:
        """In words, if it has failed too often to be started again. Steps are counted, not time."""
        self.failures += 1
        self._failed_at.append((self._steps, hung))
        while self._failed_at[0][0] <= self._steps - WINDOW:
            self._failed_at.popleft()
        if self.failures >= MAX_FAILURES:
            return f"failed {self.failures} times in a row"
        hangs = sum(hung for _, hung in self._failed_at)
        if hangs >= MAX_HANGS:
            return f"hung {hangs} times within {WINDOW:,} steps"
        failed = len(self._failed_at)
        return f"failed {failed} times within {WINDOW:,} steps" if failed > MAX_RESTARTS else ""

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self.job), name="ludus-env-worker")
        self._starting, self._failed = True, None
        with start_conditions(self.job.recipe):
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
            self._failed = failure
        except OSError:
            pass

    def receive(self) -> bytes:
        if self._failed is not None:
            raise self._failed
        return self._receive(self._timeout_s)

    def _receive(self, timeout_s: float) -> bytes:
        try:
            if not self._pipe.poll(timeout_s):
                raise _WorkerFailure(f"it did not answer for {timeout_s:g} s.", hung=True)
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise _WorkerFailure(self._cause_of_death()) from None
        kind, content = answer[:1], answer[1:]
        if kind == _RAISED:
            raise _WorkerFailure(content.decode())
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


# Before the workers -----------------------------------------------------------------------------
def _probe(recipe: Recipe) -> EnvBlock:
    """What the workers will have, made here once and closed; most mistakes show up at this point."""
    block = recipe.make_block(1)
    block.close()
    try:
        reduction.ForkingPickler.dumps(recipe)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{recipe.name} cannot be sent to worker processes ({tell_exception(error)}). Register it with a "
            "class or function of a module, or use workers=0."
        ) from error
    return block


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
        pipe.send_bytes((_RAISED + _with_trace(f"{error}.")) if raised else (_BROKEN + _with_trace(str(error))))
    except BaseException as error:  # noqa: BLE001 (whatever it is, the trainer shows it)
        pipe.send_bytes(_RAISED + _with_trace(f"{tell_exception(error)}."))


def _with_trace(sentence: str) -> bytes:
    """With the stack trace of this process, where it is asked for: the trainer's own ends at the pipe."""
    trace = f"\n{traceback.format_exc()}" if os.environ.get(DEBUG) else ""
    return f"{sentence}{trace}".encode(errors="replace")


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer_requests(pipe: connection.Connection, job: "_Job") -> None:
    block = job.recipe.make_block(job.stop_env - job.first_env, job.first_env)
    block.use(Rows.over(job.memory, job.num_rows, block.of).part(job.rows))
    pipe.send_bytes(_DONE)
    known_names: list[str] = []  # to the trainer, of the numbers in infos
    while True:
        request = pipe.recv_bytes()
        if request == _STEP:
            block.step(block.of.to_env(block.rows.action))
            pipe.send_bytes(_DONE + (b"1" if block.success_seen else b"0") + _news(block, known_names))
            continue
        message = _unpack(request)
        if message["do"] == "close":
            return block.close()
        answer = _obey(block, message)
        if answer is not None:
            pipe.send_bytes(_DONE + _pack(answer))


def _news(block: EnvBlock, known_names: list[str]) -> bytes:
    """The names of the numbers in infos, where they are not those that the trainer knows."""
    if block.infos.names == known_names:
        return b""
    known_names[:] = block.infos.names
    return json.dumps(known_names).encode()


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
