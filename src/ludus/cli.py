"""The command `ludus`: finds the verb, and makes a sentence of what goes wrong. The verbs live in `commands/`.

A verb's file is imported when the verb is used: torch alone takes seconds, and help needs none of it.
"""

import contextlib
import errno
import importlib
import io
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

# Before torch and MuJoCo load: waiting threads sleep instead of taking a core from the simulation.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from ludus.children import end_with_parent
from ludus.commands import COMMANDS
from ludus.errors import DEBUG, LudusError, did_you_mean, plain_text, tell_exception, users_line
from ludus.version import __version__

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
                errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)  # fmt: skip
_python_format = warnings.formatwarning
_FLAGS = {
    "--quiet": "print nothing but errors and the last line",
    "--debug": "show the stack trace of an error as well; also LUDUS_DEBUG=1",
}
_SHOWN_WHOLE = {"-h", "--help", "--help-all", "--json"}  # what these print is not cut by --quiet


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2, never a stack trace."""
    end_with_parent()
    threading.excepthook = _report_thread
    warnings.formatwarning = _format_warning
    try:
        _answer()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has gone: what Python still holds for it goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _answer() -> None:
    """What the command line asks for."""
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--quiet", "--debug")]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return
    if arguments[0] in ("-V", "--version"):
        print(f"ludus {__version__}")
        return
    if arguments[0] not in COMMANDS:
        _fail(f"There is no command {arguments[0]!r}.{_meant(arguments[0])} "
              "'ludus --help' shows them all.")  # fmt: skip
    quiet = "--quiet" in sys.argv and not _SHOWN_WHOLE & set(arguments)
    with _debugging("--debug" in sys.argv), _last_line_alone() if quiet else contextlib.nullcontext():
        _run(*arguments)


def _meant(word: str) -> str:
    """A verb of a similar name; or the training of what is named without one."""
    from ludus.commands.training import is_preset

    return f" Did you mean 'ludus train {word}'?" if is_preset(word) else did_you_mean(word, COMMANDS)


def run_verb(verb: str, arguments: list[str]) -> None:
    """What `ludus VERB arguments…` does; it raises what goes wrong."""
    importlib.import_module(f"ludus.commands.{COMMANDS[verb].family}").VERBS[verb](arguments)


def _run(verb: str, *arguments: str) -> None:
    """The verb, with a sentence for what goes wrong."""
    try:
        run_verb(verb, list(arguments))
    except LudusError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            _fail(f"{error.filename or 'A file'} cannot be used: {error.strerror}.")
        if not users_line(error):  # a fault of Ludus' own: its stack trace is what a report of it needs
            raise
        _fail(f"Your code raised {tell_exception(error)}. --debug shows the whole stack trace.")


def _help() -> str:
    names = {name: f"{name} {command.takes}".rstrip() for name, command in COMMANDS.items()}
    lines = []
    for name, command in COMMANDS.items():
        what = f"{command.what:20}{command.example}" if command.example else command.what
        lines.append(f"  {names[name]:{max(map(len, names.values()))}}  {what}")
    flags = "\n".join(f"  {flag:9}  {what}" for flag, what in _FLAGS.items())
    return (
        "usage: ludus COMMAND …\n\nTrain policies with one loop, from two CPU cores to a GPU.\n\n"
        + "\n".join(lines)
        + "\n\nRUN is a run's folder; RUN@best, RUN@final and RUN@100000 are its checkpoints."
        + f"\n\nWith every command:\n{flags}\n\n'ludus COMMAND --help' tells more. This is version {__version__}."
    )


@contextlib.contextmanager
def _debugging(asked: bool) -> Iterator[None]:
    """In the environment, so that worker processes know it too."""
    before = os.environ.get(DEBUG)
    if asked:
        os.environ[DEBUG] = "1"
    try:
        yield
    finally:
        if asked and before is None:
            del os.environ[DEBUG]


@contextlib.contextmanager
def _last_line_alone() -> Iterator[None]:
    """Of all that is printed; nothing but the error where there is one."""
    screen, kept = sys.stdout, _LastLine()
    sys.stdout = kept
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SystemExit as end:
        if end.code != 2:
            print(kept.line.strip(), file=screen)
        raise
    else:
        print(kept.line.strip(), file=screen)
    finally:
        sys.stdout = screen


class _LastLine(io.TextIOBase):
    """A screen that remembers its last line that is not empty."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.line, self._begun = "", ""

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        self.line = next((line for line in reversed((*whole, self._begun)) if line.strip()), self.line)
        return len(text)


def _report_thread(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's writer hands its failure over at the next write, which reports it: no stack trace besides."""
    if type(failure.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failure)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A sentence alone, where it is one of Ludus': its place in the code is nothing to a user."""
    if Path(filename).is_relative_to(Path(__file__).parent):
        return f"WARNING: {plain_text(str(message), keep_lines=True)}\n"
    return _python_format(message, category, filename, lineno, line)


def _fail(message: str, code: int = 2) -> None:
    if os.environ.get(DEBUG):
        traceback.print_exc()
    print(f"ludus: {plain_text(message, keep_lines=True)}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
