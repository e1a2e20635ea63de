"""The command `ludus`: finds the verb, and makes a sentence of what goes wrong. The verbs live in `commands/`."""

import errno
import os
import sys
import threading
import warnings
from pathlib import Path

# Before torch and MuJoCo load: waiting threads sleep instead of taking a core from the simulation.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from ludus.commands import data, doctor, environments, motions, rewards, runs, training
from ludus.errors import LudusError, did_you_mean, plain_text
from ludus.version import __version__

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
                errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)  # fmt: skip
_python_format = warnings.formatwarning
_TEMPLATE = """usage: ludus COMMAND …

Train policies with one loop, from two CPU cores to a GPU.

  train PRESET|gym:ID|…  train a policy        ludus train kuka-pick-place
  resume RUN             go on with a run      ludus resume runs/kuka-pick-place/…
  eval RUN               measure its policy    ludus eval RUN --episodes 200 --json
  play RUN               watch it in the browser
  report RUN             curves and 3-D replay in one HTML page
  export RUN FILE.onnx   the policy, normaliser inside, for other programs
  data info FILE…        what recorded data holds, and what is suspicious about it
  motions import|check … clips of motion for the humanoid: bring them here, look at them
  record RUN|scripted    demonstrations of the KUKA task, successes and failures
  label FILE --run RUN   a copy of recorded data with a learned reward in it
  list                   presets and algorithms
  check ENV              what is wrong with an environment
  doctor                 what this machine and installation can do

RUN is a run's folder; RUN@100000, RUN@best and RUN@final name one of its checkpoints.
'ludus COMMAND --help' tells more. Version {version}."""

_FAMILIES = (training, runs, data, motions, rewards, environments, doctor)
COMMANDS = {name: verb for family in _FAMILIES for name, verb in family.VERBS.items()}


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2, never a stack trace."""
    threading.excepthook = _report_thread
    warnings.formatwarning = _format_warning
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_TEMPLATE.format(version=__version__))
        sys.exit(0)
    if arguments[0] in ("-V", "--version"):
        print(f"ludus {__version__}")
        sys.exit(0)
    verb, rest = arguments[0], arguments[1:]
    if verb not in COMMANDS:
        _fail(f"There is no command {verb!r}.{did_you_mean(verb, COMMANDS)} 'ludus --help' shows them all.")
    try:
        COMMANDS[verb](rest)
    except LudusError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has gone
        sys.exit(0)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        _fail(f"{error.filename or 'A file'} cannot be used: {error.strerror}.")


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


def _fail(message: str) -> None:
    print(f"ludus: {plain_text(message, keep_lines=True)}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
