"""Measure a batch while the model runs the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from eigenlens.blas import cores

Work = Callable[[], None]


@contextmanager
def behind(apart: bool) -> Iterator[Callable[[Iterable[Work]], None]]:
    """A function that has work done: at once, or by one thread, one call behind the caller.

    Each call waits for the work of the one before it, and so does the end of the block, so that no
    more than two batches are held; an error in the work is raised there.

    Parameters
    ----------
    apart
        Whether to use the thread, if there is a core for it: the work must not touch the model.
    """
    if not apart or cores() < 2:
        yield _do
        return
    waiting: list[Future[None]] = []
    with ThreadPoolExecutor(1, "eigenlens-trace") as pool:

        def later(works: Iterable[Work]) -> None:
            ready = list(works)
            if waiting:
                waiting.pop().result()
            waiting.append(pool.submit(_do, ready))

        yield later
        if waiting:
            waiting.pop().result()


def _do(works: Iterable[Work]) -> None:
    for work in works:
        work()
