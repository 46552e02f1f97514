"""What is said while bytes come over the network: how far it is, and what deserves a line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


def _log(text: str) -> None:
    logging.getLogger("eigenlens").warning(text)


def _nothing(done: int, total: int, file: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Transfers:
    """Who is told of downloads.

    Parameters
    ----------
    progress
        Called with (bytes done, bytes in all, name of the file) as they come; both numbers are of
        the present request for tensors, not of the whole file, and are equal at its end.
    note
        Called with one inert line when more is fetched than was asked for, and why. By default it
        goes to the log of `eigenlens`.
    """

    progress: Callable[[int, int, str], None] = _nothing
    note: Callable[[str], None] = _log


_CURRENT: ContextVar[Transfers | None] = ContextVar("transfers", default=None)


def current() -> Transfers | None:
    """Who watches, in the present context; a model keeps it from when it was opened."""
    return _CURRENT.get()


@contextmanager
def watching(transfers: Transfers) -> Iterator[None]:
    """Models that are opened inside tell `transfers` of their downloads."""
    token = _CURRENT.set(transfers)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def megabytes(size: int) -> str:
    """A number of bytes for a sentence.

    Examples
    --------
    >>> megabytes(61_234_567)
    '61.2 MB'
    """
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"
