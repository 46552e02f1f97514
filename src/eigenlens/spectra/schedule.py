"""Layers one after the other, or one a core where memory and the number of cores allow it.

A layer that is read and solved whole by one worker, with one BLAS thread, leaves no core waiting
for what BLAS does not share. Where a layer is too large for that, or there are more cores than
workers (four at most), it has all cores, and only the next layer is read ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from eigenlens.blas import SMALL, cores, in_use, one_thread
from eigenlens.spectra.estimate import LayerCost

SMALL_BYTES = 48_000_000
"""Layers that take no more working memory than this are solved beside others whatever comes."""
ROOM_BYTES = 220_000_000
"""What layers that are solved at once may take beyond 1.5 times the largest one's float32 weights,
where some leading pairs of each are asked for."""
DENSE_BYTES = 2_000_000_000
"""What layers may take together that are solved at once for all their eigenvalues, which takes one
core each and long."""

THREADS = "eigenlens-layer"
"""What the threads that read and solve are called."""

Read = TypeVar("Read")
Found = TypeVar("Found")


def workers_for(costs: Sequence[LayerCost]) -> int:
    """How many layers to solve at once; 1 where there is no room for one a core."""
    workers = min(cores(), len(costs), 4)
    if workers < 2 or in_use():
        return 1
    if all(c.solved <= SMALL and c.memory_bytes <= SMALL_BYTES for c in costs):
        return workers
    if workers < cores():  # BLAS would leave the other cores without work
        return 1
    together = workers * max(c.memory_bytes for c in costs)
    room = ROOM_BYTES + 1.5 * max(c.weights for c in costs) * 4
    if all(c.solver == "dense" for c in costs):
        room = max(room, DENSE_BYTES)
    return workers if together <= room else 1


def in_sequence(
    count: int, read: Callable[[int], Read], solve: Callable[[Read], Found], workers: int
) -> Generator[Found, None, None]:
    """``solve(read(i))`` for i in 0 .. count - 1, in that sequence.

    With several workers both steps of a layer run in one of them, and no more layers are begun
    than there are workers. With one, a layer is solved while the next is read. Both happen in
    threads of their own, so that the calling one hears an interrupt at once, not when LAPACK is
    done. An error surfaces at its own layer; nothing is begun after it.

    Parameters
    ----------
    count
        Number of layers.
    read, solve
        The two steps; `read` of different layers must not disturb each other.
    workers
        How many layers may be in memory as a whole; see `workers_for`.
    """
    pool, wait = ThreadPoolExecutor(max(workers, 2), thread_name_prefix=THREADS), True
    try:
        if workers > 1:
            # Held over all layers: to change the number while another worker computes costs far
            # more than it gives.
            with one_thread():
                yield from _solved_ahead(pool, count, lambda i: solve(read(i)), workers)
        else:
            yield from _read_ahead(pool, count, read, solve)
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)


def _begin(pool: ThreadPoolExecutor, work: Callable[..., Found], *given: Any) -> Future[Found]:
    """``work(*given)`` in a thread of the pool; here where the interpreter begins none any more.

    It does not once the main thread is done, for those that outlive it.
    """
    try:
        return pool.submit(work, *given)
    except RuntimeError:
        done: Future[Found] = Future()
        try:
            done.set_result(work(*given))
        except Exception as error:
            done.set_exception(error)
        return done


def _solved_ahead(
    pool: ThreadPoolExecutor, count: int, whole: Callable[[int], Found], workers: int
) -> Iterator[Found]:
    waiting: deque[Future[Found]] = deque()
    for i in range(count):
        waiting.append(_begin(pool, whole, i))
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
    coming = _begin(pool, read, 0) if count else None
    for i in range(count):
        present = coming.result()  # type: ignore[union-attr]
        coming = _begin(pool, read, i + 1) if i + 1 < count else None
        solved = _begin(pool, solve, present)
        del present  # the next layer is in memory already
        yield solved.result()
