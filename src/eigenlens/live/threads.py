"""Threads for small models: one, where several cost more than they give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eigenlens.blas import threads_for
from eigenlens.live.session import Session


@contextmanager
def one_if(small: bool, session: Session) -> Iterator[None]:
    """One thread, in torch and in numpy, inside the block if the work is `small` and on a CPU.

    Waking others for a product of a millisecond costs more than they give, tenfold on a busy
    machine.
    """
    torch = session.torch
    usual = torch.get_num_threads()
    if session.device.type != "cpu" or not small:
        yield
        return
    torch.set_num_threads(1)
    try:
        with threads_for(session.places[0].plan.geometry.d_model):
            yield
    finally:
        torch.set_num_threads(usual)
