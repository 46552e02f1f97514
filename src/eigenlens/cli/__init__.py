"""The command line: one file a command, one error boundary."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Entry point of the ``eigenlens`` command; an interrupt exits with 130 from the start."""
    try:
        from eigenlens.cli.app import main as run

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:  # print would take stdout instead
            print("eigenlens: interrupted", file=sys.stderr)
        _leave()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _leave()
        raise


def _leave() -> NoReturn:
    """End at once, also where LAPACK still works on a layer in a thread: minutes, for a large one.

    Nothing that it could leave half done is on disk: what is written is renamed into place whole.
    """
    if any(thread.name.startswith("eigenlens-layer") for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(_INTERRUPTED)
    sys.exit(_INTERRUPTED)
