"""Layers one after the other: reading overlaps with computing, small layers share the cores.

Memory decides. A layer that is small is read and solved whole by one of as many workers as there
are cores, each with one BLAS thread: one layer a worker. Of a large one only the next layer's
weights are read ahead, as stored, while BLAS has all cores for the present one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from eigenlens.blas import SMALL, cores, one_thread
from eigenlens.spectra.estimate import LayerCost

SMALL_BYTES = 48_000_000
"""A layer whose solution takes more working memory than this is never solved beside another."""

Read = TypeVar("Read")
Found = TypeVar("Found")


def workers_for(costs: Sequence[LayerCost]) -> int:
    """How many layers to solve at once: 1 where the largest one is not small."""
    if len(costs) < 2:
        return 1
    small = all(c.solved <= SMALL and c.memory_bytes <= SMALL_BYTES for c in costs)
    return min(cores(), len(costs), 4) if small else 1


def in_sequence(
    count: int, read: Callable[[int], Read], solve: Callable[[Read], Found], workers: int
) -> Generator[Found, None, None]:
    """``solve(read(i))`` for i in 0 .. count - 1, in that sequence.

    With several workers both steps of a layer run in one of them, and no more layers are begun
    than there are workers. With one, `solve` runs in the calling thread while the next layer is
    read in another. An error surfaces at its own layer; nothing is begun after it.

    Parameters
    ----------
    count
        Number of layers.
    read, solve
        The two steps; `read` of different layers must not disturb each other.
    workers
        How many layers may be in memory as a whole.
    """
    if count < 2:
        for i in range(count):
            yield solve(read(i))
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="eigenlens") as pool:
        try:
            if workers > 1:
                # Held over all layers: to change the number while another worker computes costs
                # far more than it gives.
                with one_thread():
                    yield from _solved_ahead(pool, count, lambda i: solve(read(i)), workers)
            else:
                yield from _read_ahead(pool, count, read, solve)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _solved_ahead(
    pool: ThreadPoolExecutor, count: int, whole: Callable[[int], Found], workers: int
) -> Iterator[Found]:
    waiting: deque[Future[Found]] = deque()
    for i in range(count):
        waiting.append(pool.submit(whole, i))
        if len(waiting) > workers:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _read_ahead(
    pool: ThreadPoolExecutor,
    count: int,
    read: Callable[[int], Read],
    solve: Callable[[Read], Found],
) -> Iterator[Found]:
    coming = pool.submit(read, 0)
    for i in range(count):
        present = coming.result()
        if i + 1 < count:
            coming = pool.submit(read, i + 1)
        found = solve(present)
        del present  # the next layer is in memory already
        yield found
