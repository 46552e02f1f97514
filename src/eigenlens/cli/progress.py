"""What a long command says where stderr is no terminal: how far it is, a line every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from eigenlens.inert import inert

EVERY = 30.0
"""Seconds from one line to the next; what is done before the first says nothing."""


class Heartbeat:
    """Keeps what was last told of a run, and says it again and again.

    A thread of its own does so: between two steps minutes may pass, in which a log would otherwise
    not tell a run that works from one that hangs.

    Parameters
    ----------
    say
        Takes one line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told = "reading"
        self._begun = time.monotonic()
        self._end = Event()

    def step(self, done: int, total: int, name: str) -> None:
        """Steps of the run, as the bar of a terminal takes them."""
        self._told = f"{inert(name) or 'writing'}: {done} of {total}"

    def moved(self, done: int, total: int, file: str) -> None:
        """Bytes that came over a network; once all are there the run is at its next step."""
        if done < total:
            megabytes = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
            self._told = f"fetching {inert(file)}: {megabytes}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Say a line every `EVERY` seconds until the block ends."""
        thread = Thread(target=self._beat, name="eigenlens-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join(1.0)  # a pipe that nobody reads must not keep a command that is done

    def _beat(self) -> None:
        while not self._end.wait(EVERY):
            with suppress(OSError, ValueError):  # a reader that left is no reason to stop
                self._say(f"{self._told}, {time.monotonic() - self._begun:.0f} s so far")
