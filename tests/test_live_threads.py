"""Blocks of one thread that overlap leave as many threads as there were."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from eigenlens.live.threads import one_if


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(usual)


def session_of(device: str = "cpu") -> Any:
    geometry = SimpleNamespace(d_model=8)
    place = SimpleNamespace(plan=SimpleNamespace(geometry=geometry))
    return cast(
        Any, SimpleNamespace(torch=torch, device=SimpleNamespace(type=device), places=(place,))
    )


def of_a_new_thread() -> int:
    seen: list[int] = []
    thread = Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join(30)
    return seen[0]


def test_everyone_takes_back_its_own() -> None:
    session = session_of()
    inside, left = Event(), Event()

    def second() -> None:
        with one_if(True, session):
            inside.set()
            left.wait(30)
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    seen: list[int] = []
    other = Thread(target=second)
    with one_if(True, session):
        other.start()
        assert inside.wait(30)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    left.set()
    other.join(30)
    assert seen == [1, 3]
    assert torch.get_num_threads() == of_a_new_thread() == 3


def test_blocks_may_nest_and_fail() -> None:
    session = session_of()
    with one_if(True, session):
        with pytest.raises(ZeroDivisionError), one_if(True, session):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == of_a_new_thread() == 3


@pytest.mark.parametrize(("small", "device"), [(False, "cpu"), (True, "cuda")])
def test_other_work_keeps_its_threads(small: bool, device: str) -> None:
    with one_if(small, session_of(device)):
        assert torch.get_num_threads() == 3
