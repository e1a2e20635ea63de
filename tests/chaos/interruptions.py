"""Trainings are interrupted in every way, resumed until they are final, and compared with one left alone."""

import contextlib
import ctypes
import errno
import inspect
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from .children import Child, run
from .comparing import differences, is_final, newest
from .faults import AtCall, act_at, die_beyond, fill_disk
from .jobs import JOBS, LIAR, Reference, arguments_of
from .results import Result, Trial

_MOST_RESUMES = 6
_KILLING_CALLS = ("open", "rename", "remove", "mkdir", "symlink", "fsync", "write")
_FAILING_CALLS = ("open", "rename", "mkdir", "fsync", "write")
_WORKERS = "cartpole with workers"
_WITHOUT_WORKERS = tuple(job for job in JOBS if job != _WORKERS)
_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000
_MS_REMOUNT, _MS_PRIVATE, _MS_REC = 32, 1 << 18, 1 << 14
_ROOM = 256 << 20

Inside = Callable[[], Callable[[], None] | None]


def nothing_inside() -> None:
    """Nothing goes wrong in the process."""


# Going on ---------------------------------------------------------------------------------------------
def go_on(result: Result, folder: Path, arguments: Sequence[str], insides: Sequence[Inside] = ()) -> None:
    """Resume until the run is final. Where nothing has begun yet, train; `insides` go wrong first."""
    left = list(insides)
    for _ in range(_MOST_RESUMES):
        if is_final(folder / "run"):
            result.survived = True
            return
        begun = (folder / "run" / "config.yaml").exists()
        inside = left.pop(0) if left else None
        ended = run(["resume", "run"] if begun else arguments, folder, inside or nothing_inside)
        result.look_at(ended)
        if "emergency checkpoint" in ended.output + ended.errors:
            result.apart = "emergency"
        if ended.code != 0 and inside is None:
            result.problems.append(f"it does not go on: {ended.line}")
            return
    result.survived = is_final(folder / "run")
    if not result.survived:
        result.problems.append(f"it is not final after {_MOST_RESUMES} times of going on")


def compare(result: Result, folder: Path, reference: Reference) -> None:
    """Only survivors can be compared; those that went through an emergency are counted apart."""
    if not result.survived:
        return
    found = differences(folder / "run", reference.run)
    result.equal = not found
    if result.equal:
        result.apart = ""
    elif not result.apart:
        result.problems.append(f"not bit-equal ({len(found)} differences): {'; '.join(found[:3])}")


def begin(trial: Trial) -> tuple[Random, Reference, Result]:
    """The job whose turn it is, so that all have theirs."""
    job = KINDS[trial.kind].job_of(trial.number)
    reference = Reference.load(trial.shared / "reference" / job)
    return trial.random, reference, Result(trial.kind, trial.number, trial.command, job)


# Signals ----------------------------------------------------------------------------------------------
def killed_at_a_moment(trial: Trial) -> Result:
    random, reference, result = begin(trial)
    moments = [random.uniform(0.02, 1.0) for _ in range(random.choice([1, 1, 2, 3]))]
    result.what += f", SIGKILL after {', '.join(f'{moment:.0%}' for moment in moments)}"
    arguments: Sequence[str] = reference.arguments
    for moment in moments:
        child = Child(arguments, trial.folder)
        child.signal_at(moment * reference.cpu_s, signal.SIGKILL)
        result.look_at(child.wait())
        if is_final(trial.folder / "run"):
            break
        if (trial.folder / "run" / "config.yaml").exists():
            arguments = ["resume", "run"]
    go_on(result, trial.folder, reference.arguments)
    compare(result, trial.folder, reference)
    return result


def _stopped(trial: Trial, number: signal.Signals, twice: bool) -> Result:
    random, reference, result = begin(trial)
    moment, later = random.uniform(0.1, 1.0), random.choice([0.0, random.uniform(0.0, 0.1)])
    result.what += f", {number.name} after {moment:.0%}" + f" and again {later:.2f} s later" * twice
    child = Child(reference.arguments, trial.folder)
    whole_group = number == signal.SIGINT  # a terminal sends Ctrl-C to workers, too
    child.signal_at(moment * reference.cpu_s, number, whole_group)
    if twice:
        child.signal_at(moment * reference.cpu_s + later, number, whole_group)
    ended = child.wait()
    result.look_at(ended)
    if ended.code not in (0, 75, 130, -number):
        result.problems.append(f"an unexpected end: {ended.line}")
    if ended.code == 75 and not twice and newest(trial.folder / "run") is None:
        result.problems.append(f"said to be saved, and is not: {ended.line}")
    if ended.code == 0 and not is_final(trial.folder / "run"):
        result.problems.append(f"said to be done, and is not final: {ended.line}")
    go_on(result, trial.folder, reference.arguments)
    compare(result, trial.folder, reference)
    return result


def sigterm(trial: Trial) -> Result:
    return _stopped(trial, signal.SIGTERM, twice=False)


def ctrl_c(trial: Trial) -> Result:
    return _stopped(trial, signal.SIGINT, twice=False)


def stopped_twice(trial: Trial) -> Result:
    return _stopped(trial, trial.random.choice([signal.SIGTERM, signal.SIGINT]), twice=True)


# System calls -----------------------------------------------------------------------------------------
def _number(random: Random, count: int) -> int:
    """Of a call, the first and the last more often: before anything is saved, and after everything is."""
    return random.choice([1, count, random.randint(1, count), random.randint(1, count)])


def killed_at_a_call(trial: Trial) -> Result:
    random, reference, result = begin(trial)
    faults = []
    for _ in range(random.choice([1, 1, 2])):
        call = random.choice([call for call in _KILLING_CALLS if reference.calls.get(call)])
        faults.append(AtCall(call, _number(random, reference.calls[call])))
    result.what += f", SIGKILL at {' and '.join(f'{f.call} {f.number}' for f in faults)}"
    insides = [lambda fault=fault: act_at(fault, trial.folder) for fault in faults]
    go_on(result, trial.folder, reference.arguments, insides)
    compare(result, trial.folder, reference)
    return result


def killed_before_final(trial: Trial) -> Result:
    """After the last checkpoint, before the mark that it was the last."""
    _, reference, result = begin(trial)
    fault = AtCall("symlink", reference.calls["symlink"])
    result.what += f", SIGKILL at symlink {fault.number}"
    go_on(result, trial.folder, reference.arguments, [lambda: act_at(fault, trial.folder)])
    compare(result, trial.folder, reference)
    return result


def killed_before_a_checkpoint(trial: Trial) -> Result:
    """The configuration is written, and nothing else is."""
    _, reference, result = begin(trial)
    child = Child(reference.arguments, trial.folder)
    until = time.monotonic() + 120
    while not (trial.folder / "run" / "config.yaml").exists() and time.monotonic() < until:
        time.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    result.look_at(child.wait())
    result.what += ", SIGKILL as soon as there is a config.yaml"
    go_on(result, trial.folder, reference.arguments)
    compare(result, trial.folder, reference)
    return result


def killed_within_a_write(trial: Trial) -> Result:
    random, reference, result = begin(trial)
    size = random.randint(500, reference.largest - 1)
    result.what += f", killed by the kernel where a file grows beyond {size:,} bytes"
    go_on(result, trial.folder, reference.arguments, [lambda: die_beyond(size)])
    compare(result, trial.folder, reference)
    return result


def transient_error(trial: Trial) -> Result:
    random, reference, result = begin(trial)
    call = random.choice([f"saving {call}" for call in _FAILING_CALLS if reference.calls.get(f"saving {call}")])
    number = _number(random, reference.calls[call])
    fault = AtCall(call, number, random.choice([errno.EIO, errno.ESTALE]))
    result.what += f", {errno.errorcode[fault.error]} at {call} {number}"
    ended = run(reference.arguments, trial.folder, lambda: act_at(fault, trial.folder))
    result.look_at(ended)
    if ended.code != 0:
        result.problems.append(f"ended by one error: {ended.line}")
    go_on(result, trial.folder, reference.arguments)
    compare(result, trial.folder, reference)
    return result


def without_links(trial: Trial) -> Result:
    _, reference, result = begin(trial)
    result.what += ", on a file system without symbolic links"
    fault = AtCall("symlink", 1, errno.EPERM, times=1 << 30)
    ended = run(reference.arguments, trial.folder, lambda: act_at(fault, trial.folder))
    result.look_at(ended)
    if ended.code != 0:
        result.problems.append(f"ended for want of links: {ended.line}")
    result.survived = is_final(trial.folder / "run")
    compare(result, trial.folder, reference)
    return result


# Disks ------------------------------------------------------------------------------------------------
def full_disk(trial: Trial) -> Result:
    random, reference, result = begin(trial)
    disk = trial.folder / "disk"
    disk.mkdir()
    size = round(reference.bytes * random.uniform(0.1, 1.0))
    real = _mount_disk(disk, size)
    inside: Inside = nothing_inside
    result.what += f", {'a disk of' if real else 'ENOSPC, as on a disk of'} {size:,} bytes"
    if not real:
        fault = AtCall("write", random.randint(1, reference.calls["write"]))
        inside = lambda: fill_disk(fault, disk)  # noqa: E731 (one line, used once)
    ended = run(reference.arguments, disk, inside)
    result.look_at(ended)
    if ended.code not in (0, 2):
        result.problems.append(f"a full disk is no sentence: {ended.line}")
    if real:
        _mount_disk(disk, _ROOM, again=True)
    go_on(result, disk, reference.arguments)
    compare(result, disk, reference)
    return result


def _mount_disk(place: Path, size: int, again: bool = False) -> bool:
    """A disk of so many bytes that only this process and its children see. False where that is not allowed."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    options = f"size={max(size, 4096)}".encode()
    if again:
        return libc.mount(b"chaos", os.fsencode(place), b"tmpfs", _MS_REMOUNT, options) == 0
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_NAMESPACE | (_NEW_USER if user else 0)):
        return False
    with contextlib.suppress(OSError):
        if user:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if libc.mount(b"none", b"/", None, _MS_PRIVATE | _MS_REC, None):
        return False
    return libc.mount(b"chaos", os.fsencode(place), b"tmpfs", 0, options) == 0


def folder_deleted(trial: Trial) -> Result:
    """The run's folder goes during the training: a sentence, or a run that is all there in the end."""
    random, reference, result = begin(trial)
    moment = random.uniform(0.3, 0.9)
    result.what += f", its folder deleted after {moment:.0%}"
    child = Child(reference.arguments, trial.folder)
    if child.signal_at(moment * reference.cpu_s, signal.SIGSTOP):
        shutil.rmtree(trial.folder / "run", ignore_errors=True)
        os.kill(child.pid, signal.SIGCONT)
    ended = child.wait()
    result.look_at(ended)
    result.apart = "folder deleted"
    if ended.code == 2:
        result.survived = "ludus:" in ended.errors
    elif ended.code == 0:
        there = all((trial.folder / "run" / name).exists() for name in ("config.yaml", "metrics.jsonl", "final"))
        used = run(["report", "run"], trial.folder) if there else None
        result.survived = used is not None and used.code == 0
    if not result.survived:
        result.problems.append(f"trained into nothing: {ended.line}")
    return result


# Workers ----------------------------------------------------------------------------------------------
def _workers_of(child: Child) -> list[Any]:
    """Processes that a server of the child's has forked."""
    found = []
    for process in child.descendants():
        with contextlib.suppress(Exception):  # it may just have ended
            if process.ppid() != child.pid:
                found.append(process)
    return found


def _worker_trouble(trial: Trial, number: signal.Signals, what: str) -> Result:
    random, reference, result = begin(trial)
    moment = random.uniform(0.3, 0.9)
    result.what += f", a worker {what} after {moment:.0%}"
    child = Child(reference.arguments, trial.folder, _be_impatient)
    child.signal_at(moment * reference.cpu_s, signal.SIGCONT)  # which does nothing
    workers = _workers_of(child)
    if workers:
        with contextlib.suppress(Exception):
            random.choice(sorted(workers, key=lambda process: process.pid)).send_signal(number)
    ended = child.wait()
    result.look_at(ended)
    if ended.code != 0:
        result.problems.append(f"a worker that is {what} ends the training: {ended.line}")
    result.survived = is_final(trial.folder / "run")
    result.apart = "episodes lost"
    compare(result, trial.folder, reference)
    return result


def worker_killed(trial: Trial) -> Result:
    return _worker_trouble(trial, signal.SIGKILL, "killed")


def worker_hangs(trial: Trial) -> Result:
    return _worker_trouble(trial, signal.SIGSTOP, "stopped")


def _be_impatient() -> None:
    """A worker hangs after a second or two, and not after a minute."""
    from ludus.envs.gym.workers import GymWorkersVecEnv

    make: Any = GymWorkersVecEnv.__init__
    given = [p for p in inspect.signature(make).parameters.values() if p.default is not p.empty]
    make.__defaults__ = tuple(2.0 if p.name == "timeout_s" else p.default for p in given)


# Environments -----------------------------------------------------------------------------------------
# (what the environment does, in how many workers, whether it does it again and again)
_LIES = [
    ("text", 0, False), ("leaves", 0, False), ("nan", 0, False), ("raises", 0, False), ("shape", 0, False),
    ("nothing", 0, False), ("text", 1, False), ("raises", 1, False), ("leaves", 1, False), ("hangs", 1, False),
    ("text", 1, True), ("hangs", 1, True), ("raises", 1, True), ("leaves", 1, True),
]  # fmt: skip


def lying_environment(trial: Trial) -> Result:
    """A sentence, and the run goes on where the environment has come to its senses."""
    lie, workers, always = _LIES[trial.number % len(_LIES)]
    at = trial.random.randint(3, 90)
    where = f"in {workers} worker" if workers else "in process"
    result = Result(trial.kind, trial.number, trial.command, f"an environment that {lie} {where}, at step {at}")
    result.what += ", again and again" * always
    result.apart = "episodes lost"
    arguments = arguments_of("gym:chaos.liars:chaos/Liar-v0", LIAR | {"env.workers": workers})
    arguments += ["--env.kwargs", "lie", lie, "at", str(at)]
    arguments += [] if always else ["once", str(trial.folder / "told")]
    ended = run(arguments, trial.folder, _be_impatient)
    result.look_at(ended)
    if ended.code not in (0, 2) or (ended.code == 2 and "ludus:" not in ended.errors):
        result.problems.append(f"no sentence: {ended.line}")
    if ended.code == 0 and not is_final(trial.folder / "run"):
        result.problems.append(f"said to be done, and is not final: {ended.line}")
    if always:
        result.survived = ended.code in (0, 2) and not result.problems
    else:
        go_on(result, trial.folder, arguments)
    return result


@dataclass(frozen=True)
class Kind:
    """A kind of interruption."""

    interrupt: Callable[[Trial], Result]
    trials: int
    """Of the long form."""
    sample: tuple[int, ...]
    """The numbers of those in the short form."""
    jobs: Sequence[str] = _WITHOUT_WORKERS
    """In turn."""

    def job_of(self, number: int) -> str:
        """None for an environment of its own."""
        return self.jobs[number % len(self.jobs)] if self.jobs else ""


KINDS = {
    "killed at a moment": Kind(killed_at_a_moment, 55, (0,), tuple(JOBS)),
    "killed at a call": Kind(killed_at_a_call, 55, (7,), tuple(JOBS)),
    "killed before a checkpoint": Kind(killed_before_a_checkpoint, 11, (7,), tuple(JOBS)),
    "killed before final": Kind(killed_before_final, 10, (0,)),
    "killed within a write": Kind(killed_within_a_write, 10, (0,)),
    "SIGTERM": Kind(sigterm, 11, (0,), tuple(JOBS)),
    "Ctrl-C": Kind(ctrl_c, 11, (0,), tuple(JOBS)),
    "stopped twice": Kind(stopped_twice, 11, (), tuple(JOBS)),
    "transient error": Kind(transient_error, 20, (6,)),
    "full disk": Kind(full_disk, 12, (6,)),
    "without links": Kind(without_links, 10, (6,)),
    "folder deleted": Kind(folder_deleted, 6, (0,)),
    "worker killed": Kind(worker_killed, 4, (), (_WORKERS,)),
    "worker hangs": Kind(worker_hangs, 2, (), (_WORKERS,)),
    "lying environment": Kind(lying_environment, 14, (0, 1), ()),
}
