"""A folder in which anything executed, or written outside of a run, shows."""

import hashlib
import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .children import Ended, Limits, run
from .results import Result

_MARKS = ("executed", "owned")  # what hostile code leaves behind


@dataclass(frozen=True)
class Sandbox:
    """`here` is where the user works, `run` lies in it; `victim` holds what is the user's and nobody else's."""

    root: Path

    @property
    def here(self) -> Path:
        return self.root / "here"

    @property
    def run(self) -> Path:
        return self.here / "run"

    @property
    def victim(self) -> Path:
        return self.root / "victim"

    @property
    def marker(self) -> Path:
        """There once something was executed."""
        return self.victim / "executed"

    @property
    def shell(self) -> str:
        """A command that leaves the mark."""
        return f"touch {shlex.quote(str(self.marker))}"

    @property
    def code(self) -> str:
        """Python that leaves the mark."""
        return f"open({str(self.marker)!r}, 'w').close()\n"

    def make(self) -> None:
        self.here.mkdir(parents=True)
        (self.here / "home").mkdir()
        precious = self.victim / "keep"
        precious.mkdir(parents=True)
        for path in (self.victim / "precious.txt", precious / "thesis.txt", precious / "step_000000001.tmp"):
            path.write_text("years of work\n" * 20)
        (precious / "mine.tmp").mkdir()
        (precious / "mine.tmp" / "notes.txt").write_text("more of it")

    def fingerprint(self) -> dict[str, str]:
        """Of all but the run and the user's own settings."""
        logs = {self.root / "here.stdout", self.root / "here.stderr", self.here / "MUJOCO_LOG.TXT"}
        return dict(sorted(_files(self.root, logs | {self.run, self.here / "home"})))

    def judge(self, result: Result, arguments: list[str], codes: tuple[int, ...] = (0, 2)) -> Ended:
        """Run a command here and note all that it must not do, also to end with another exit code than these."""
        before = self.fingerprint()
        ended = run(arguments, self.here, limits=Limits())
        after = self.fingerprint()
        result.look_at(ended)
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        if any(Path(name).name in _MARKS for name in changed):
            result.executed = True
            result.problems.append(f"EXECUTED: {ended.line}")
        elif changed:
            result.written = True
            result.problems.append(f"WRITTEN OUTSIDE ({', '.join(sorted(changed)[:3])}): {ended.line}")
        if ended.code not in codes and not (ended.hung or ended.over_memory or ended.traced):
            result.problems.append(f"an unexpected end: {ended.line}")
        if ended.code == 2 and "ludus: " not in ended.errors and not ended.traced:
            result.problems.append(f"no sentence: {ended.line}")
        if any(ord(c) < 32 and c not in "\n\t\r" for c in ended.output + ended.errors):
            result.problems.append(f"control characters reach the terminal: {ended.line!r}")
        return ended


def _files(folder: Path, left_out: set[Path]) -> Iterator[tuple[str, str]]:
    for path in folder.iterdir():
        if path in left_out:
            continue
        kind = path.lstat().st_mode
        name = str(path)
        if stat.S_ISLNK(kind):
            yield name, f"→ {os.readlink(path)}"
        elif stat.S_ISDIR(kind):
            yield name, "a folder"
            yield from _files(path, left_out)
        elif stat.S_ISREG(kind):
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            yield name, "something else"
