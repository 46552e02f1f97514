"""How many threads torch uses: one where several cost more than they give, shares, and back again.

torch keeps a number for every thread, and gives a thread at its first product the number that was
set last anywhere. So a thread looks before it sets its own, and takes back at the end what was
found before anyone set anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, local
from typing import Any

from eigenlens.blas import threads_for
from eigenlens.live.session import Session

_lock = Lock()
_inside = 0
_usual = 1
_here = local()


@contextmanager
def usual_threads(torch: Any) -> Iterator[int]:
    """The usual number; inside the block it may be changed, behind it this thread has it again.

    Blocks may nest, overlap in several threads, and end in any order, as generators do.
    """
    global _inside, _usual
    # of the thread that enters: a generator may be closed in another
    depth: list[int] = _here.__dict__.setdefault("depth", [0])
    with _lock:
        if not _inside:
            _usual = torch.get_num_threads()
        _inside += 1
        depth[0] += 1
    try:
        yield _usual
    finally:
        with _lock:
            _inside -= 1
            depth[0] -= 1
            if not depth[0]:
                torch.set_num_threads(_usual)


def set_own_threads(torch: Any, number: int) -> None:
    """Set the number for the work of this thread."""
    torch.get_num_threads()
    torch.set_num_threads(number)


@contextmanager
def one_if(small: bool, session: Session) -> Iterator[None]:
    """One thread, in torch and in numpy, inside the block if the work is `small` and on a CPU.

    Waking others for a product of a millisecond costs more than they give, tenfold on a busy
    machine.
    """
    if session.device.type != "cpu" or not small:
        yield
        return
    with usual_threads(session.torch), threads_for(session.places[0].plan.geometry.d_model):
        set_own_threads(session.torch, 1)
        yield
