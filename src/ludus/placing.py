"""Where the processes of runs are started: on this machine, or by a launcher that puts them elsewhere.

What trains several runs at once asks a `Placer` for processes, and knows nothing of where they are. All that is
known of a run is read in its folder, so every place must see the same folders.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ludus.children import start_command
from ludus.errors import ConfigError
from ludus.ranks import available_cores


class Placed(Protocol):
    """A process, wherever it is; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs. Of one that a signal has ended, minus the signal's number."""

    def send_signal(self, sig: int, /) -> None:
        """SIGTERM: save and stop; SIGKILL: end at once."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; `subprocess.TimeoutExpired` after so many seconds."""


class Placer(Protocol):
    """Starts processes."""

    on_this_machine: bool  # whose memory they share

    def start(self, words: Sequence[object], log: Path) -> Placed:
        """`ludus words…`, which ends with this process; what it prints is appended to the log."""

    def most_at_once(self, procs: int) -> int:
        """How many runs, of so many processes each, fit side by side."""


class Here:
    """On this machine; or where a launcher starts them, `srun -n1 --exclusive`."""

    def __init__(self, launcher: str = "") -> None:
        try:
            self._launcher = shlex.split(launcher)
        except ValueError as error:
            raise ConfigError(f"--launcher {launcher!r} cannot be read: {error}.") from None
        self.on_this_machine = not self._launcher

    def start(self, words: Sequence[object], log: Path) -> Placed:
        try:
            return start_command(words, log, self._launcher)
        except FileNotFoundError as error:
            raise ConfigError(f"--launcher: there is no command {self._launcher[0]!r} here.") from error

    def most_at_once(self, procs: int) -> int:
        """One process a core: it simulates on all of them, but learns and acts on one."""
        return max(1, available_cores() // procs)
