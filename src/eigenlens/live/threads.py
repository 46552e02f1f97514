"""Threads for small models: one, where several cost more than they give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from eigenlens.blas import threads_for
from eigenlens.live.session import Session

_lock = Lock()
_inside = 0
_usual = 1


@contextmanager
def one_if(small: bool, session: Session) -> Iterator[None]:
    """One thread, in torch and in numpy, inside the block if the work is `small` and on a CPU.

    Waking others for a product of a millisecond costs more than they give, tenfold on a busy
    machine. The number is the process's: where blocks nest or overlap in several threads, the first
    one in sets it, the last one out takes it back.
    """
    global _inside, _usual
    torch = session.torch
    if session.device.type != "cpu" or not small:
        yield
        return
    with _lock:
        if not _inside:
            _usual = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(1)  # of this thread too, where the runtime counts them one by one
    try:
        with threads_for(session.places[0].plan.geometry.d_model):
            yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                torch.set_num_threads(_usual)
