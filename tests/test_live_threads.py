"""Blocks of one thread that overlap leave as many threads as there were."""

from __future__ import annotations

from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eigenlens.live.threads import one_if


class Torch:
    """The number of threads, of the process."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, n: int) -> None:
        self.threads = n


def session_of(torch: Torch, device: str = "cpu") -> Any:
    geometry = SimpleNamespace(d_model=8)
    place = SimpleNamespace(plan=SimpleNamespace(geometry=geometry))
    return cast(
        Any, SimpleNamespace(torch=torch, device=SimpleNamespace(type=device), places=(place,))
    )


def test_the_last_one_out_takes_it_back() -> None:
    torch = Torch(6)
    session = session_of(torch)
    inside, left = Event(), Event()

    def second() -> None:
        with one_if(True, session):
            inside.set()
            left.wait(30)
            seen.append(torch.threads)

    seen: list[int] = []
    other = Thread(target=second)
    with one_if(True, session):
        other.start()
        assert inside.wait(30)
    assert torch.threads == 1  # the other one is at work still
    left.set()
    other.join(30)
    assert (seen, torch.threads) == ([1], 6)


def test_blocks_may_nest_and_fail() -> None:
    torch = Torch(6)
    session = session_of(torch)
    with pytest.raises(ZeroDivisionError), one_if(True, session), one_if(True, session):
        raise ZeroDivisionError
    assert torch.threads == 6


@pytest.mark.parametrize(("small", "device"), [(False, "cpu"), (True, "cuda")])
def test_other_work_keeps_its_threads(small: bool, device: str) -> None:
    torch = Torch(6)
    with one_if(small, session_of(torch, device)):
        assert torch.threads == 6
