"""Imported by the server alone that worker processes are forked from.

A worker whose trainer is killed while it starts finds nothing to begin with. It should end without a stack trace.
"""

import sys
from types import TracebackType


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if kind is not EOFError:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
