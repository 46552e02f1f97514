"""Threads: one of BLAS where more cost more than they give, cores for what BLAS does not share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, TypeVar

SMALL = 640
"""Up to this matrix size one thread is used: starting and syncing threads costs more than work."""


def cores() -> int:
    """Cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


@cache
def _controller(with_scipy: bool) -> Any:
    """The BLAS libraries that are loaded; scipy brings one of its own, found once it is there."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _take_control(with_scipy: bool) -> None:
    """Let this thread set the numbers.

    threadpoolctl 3.8 lets the first thread alone that ever did, and what others ask for
    has no effect; here a lock and a count see to it that threads do not fight over them.
    """
    for library in _controller(with_scipy).lib_controllers:
        let_go = getattr(library, "clear_controlling_thread", None)
        if let_go is not None:
            let_go(force=True)


def _has_scipy() -> bool:
    """Whether scipy's BLAS is loaded; while another thread imports scipy it may not be yet."""
    module = sys.modules.get("scipy.linalg")
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


_lock = Lock()
_inside = 0
_held: dict[bool, Any] = {}


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread inside the block, in every BLAS loaded when it is entered.

    The limit is the process's. Blocks may nest and overlap in several threads: the first one in
    sets it, the last one out takes it back.
    """
    global _inside
    with _lock:
        loaded = _has_scipy()
        if loaded not in _held:
            _take_control(loaded)
            _held[loaded] = _controller(loaded).limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                for loaded in reversed(list(_held)):
                    _take_control(loaded)
                    _held.pop(loaded).restore_original_limits()


def _after_fork() -> None:
    """A child process has none of the threads that hold a limit, and the usual numbers again."""
    global _lock, _inside
    _lock, _inside = Lock(), 0
    for loaded in reversed(list(_held)):
        _take_control(loaded)
        _held.pop(loaded).restore_original_limits()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def in_use() -> bool:
    """Whether cores are given out already: inside `one_thread`."""
    return bool(_inside)


@contextmanager
def threads_for(size: int) -> Iterator[None]:
    """One BLAS thread inside the block if the matrices in it are no larger than `SMALL`."""
    if size > SMALL:
        yield
        return
    with one_thread():
        yield


_PARTS_FROM = 1 << 23  # entries from which starting two threads is worth it
_BLOCK = 1 << 17  # entries looked at a time, within a core's cache

Found = TypeVar("Found")
Other = TypeVar("Other")


def in_parts(work: Callable[[int], None], parts: Sequence[int], entries: int) -> None:
    """``work(part)`` for every part; a large array's parts in two threads, where there are cores.

    Neighbouring parts go to the same thread. For elementwise work, which BLAS threads do nothing
    for; not inside a block that uses the cores already.
    """

    def run(some: Sequence[int]) -> None:
        for part in some:
            work(part)

    if entries < _PARTS_FROM or in_use() or min(cores(), len(parts)) < 2:
        run(parts)
        return
    middle = len(parts) // 2
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, parts[:middle])
        run(parts[middle:])
        first.result()


def of_row_blocks(measure: Callable[[slice], Found], rows: int, columns: int) -> list[Found]:
    """`measure` of each block of rows of a (rows, columns) array, in sequence, as `in_parts` does.

    A block stays in the caches, so that what is measured of it costs one pass over the array.
    """
    step = max(1, _BLOCK // max(1, columns))
    starts = range(0, rows, step)
    found: dict[int, Found] = {}

    def one(start: int) -> None:
        found[start] = measure(slice(start, start + step))

    in_parts(one, starts, rows * columns)
    return [found[start] for start in starts]


def two_at_once(first: Callable[[], Found], second: Callable[[], Other]) -> tuple[Found, Other]:
    """What two works give, each on a core of its own with one BLAS thread.

    One after the other where there is one core, or inside a block that uses the cores already.
    """
    if in_use() or cores() < 2:
        return first(), second()
    with one_thread(), ThreadPoolExecutor(1) as pool:
        task = pool.submit(first)
        other = second()
        return task.result(), other
