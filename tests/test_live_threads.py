"""Blocks of one thread that overlap leave as many threads as there were."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from eigenlens import blas
from eigenlens.live.modes import evaluating
from eigenlens.live.threads import one_if, usual_threads


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


def test_blocks_may_end_in_any_order() -> None:
    """Those of generators that are followed side by side do."""
    for within in (False, True):
        first, second = usual_threads(torch), usual_threads(torch)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        if not within:
            second.__exit__(None, None, None)
        with one_if(True, session_of()):
            if within:
                second.__exit__(None, None, None)
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == of_a_new_thread() == 3


def test_a_block_that_began_within_another_may_outlive_it() -> None:
    outer, inner = usual_threads(torch), one_if(True, session_of())
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert torch.get_num_threads() == 1, "of the block that is still open"
    inner.__exit__(None, None, None)
    assert torch.get_num_threads() == of_a_new_thread() == 3


def test_a_block_that_another_thread_ends_is_ended() -> None:
    block = usual_threads(torch)
    block.__enter__()
    torch.set_num_threads(1)
    other = Thread(target=lambda: block.__exit__(None, None, None))
    other.start()
    other.join(30)
    with one_if(True, session_of()):
        pass
    torch.set_num_threads(3)
    with one_if(True, session_of()):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == of_a_new_thread() == 3


def test_a_limit_that_fails_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(with_scipy: bool) -> Any:
        raise OSError("no such library")

    monkeypatch.setattr(blas, "_controller", fail)
    monkeypatch.setattr(blas, "_held", {})
    with pytest.raises(OSError, match="no such"), blas.one_thread():
        pass
    assert not blas.in_use()


def test_an_eval_that_fails_leaves_the_modes_as_they_were() -> None:
    class Model(torch.nn.Sequential):
        def eval(self) -> Any:
            self[0].eval()
            raise RuntimeError("halfway")

    model = Model(torch.nn.Dropout(), torch.nn.Dropout())
    with pytest.raises(RuntimeError, match="halfway"), evaluating(model):
        pass
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(("small", "device"), [(False, "cpu"), (True, "cuda")])
def test_other_work_keeps_its_threads(small: bool, device: str) -> None:
    with one_if(small, session_of(device)):
        assert torch.get_num_threads() == 3
