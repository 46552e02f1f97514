"""What a local worker process does when it starts (a preload of dask)."""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that started the survey.

    That one stops its workers in order; each would print a traceback of its own besides.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
