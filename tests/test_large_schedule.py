"""Layers in sequence: what is in memory, where errors surface, how threads are limited."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl

import eigenlens
from eigenlens import blas
from eigenlens.spectra import analyse, schedule
from eigenlens.spectra.estimate import LayerCost
from eigenlens.spectra.schedule import in_sequence, workers_for

COST = LayerCost("decoder.0", 64, 32, "dense", 4096, 10, 40, True, 1000, 1.0, 1.0, 0.0)


class Watched:
    """Counts what has been read and not yet been solved."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.lock, self.alive, self.most, self.begun = threading.Lock(), 0, 0, []
        self.fails_at = fails_at

    def read(self, i: int) -> int:
        with self.lock:
            self.begun.append(i)
            self.alive += 1
            self.most = max(self.most, self.alive)
        if i == self.fails_at:
            raise ValueError(f"layer {i}")
        return i

    def solve(self, i: int) -> int:
        time.sleep(0.002 * (3 - i % 3))  # later layers may be done first
        with self.lock:
            self.alive -= 1
        return i * i


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_in_sequence_with_few_layers_in_memory(workers: int, count: int) -> None:
    watched = Watched()
    found = list(in_sequence(count, watched.read, watched.solve, workers))
    assert found == [i * i for i in range(count)]
    assert sorted(watched.begun) == list(range(count))
    # one is read ahead of a single worker
    assert watched.most <= max(workers, 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_surfaces_at_its_own_layer(workers: int) -> None:
    watched = Watched(fails_at=3)
    found = in_sequence(50, watched.read, watched.solve, workers)
    assert [next(found) for _ in range(3)] == [0, 1, 4]
    with pytest.raises(ValueError, match="layer 3"):
        next(found)
    assert len(watched.begun) <= 3 + 2 * workers + 1
    with pytest.raises(StopIteration):
        next(found)


def test_leaving_early_begins_no_more() -> None:
    watched = Watched()
    found = in_sequence(100, watched.read, watched.solve, 2)
    next(found)
    found.close()
    time.sleep(0.05)
    assert len(watched.begun) <= 8


def test_layers_share_the_cores_where_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "cores", lambda: 2)
    assert workers_for([COST] * 5) == 2
    assert workers_for([COST]) == 1
    assert workers_for([]) == 1
    with blas.one_thread():  # a survey's workers share the cores already
        assert workers_for([COST] * 5) == 1
    # Llama 70B: 1.5 times V and O in float32, and 220 MB
    large = replace(
        COST, solver="krylov", solved=1024, weights=75_497_472, memory_bytes=330_000_000
    )
    assert workers_for([COST, large]) == 2
    assert workers_for([COST, replace(large, memory_bytes=340_000_000)]) == 1
    dense = replace(large, solver="dense")
    assert workers_for([COST, replace(dense, memory_bytes=10**9)]) == 2
    assert workers_for([COST, replace(dense, memory_bytes=10**9 + 1)]) == 1
    monkeypatch.setattr(schedule, "cores", lambda: 8)  # four workers would leave cores idle
    assert workers_for([large] * 20) == 1
    assert workers_for([COST] * 20) == 4


def test_workers_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    circuits = [
        eigenlens.OVCircuit(
            0.2 * rng.standard_normal((40, 90)), 0.2 * rng.standard_normal((90, 40)), 1, 1, 40
        )
        for _ in range(6)
    ]
    found = []
    for workers in (1, 2):
        monkeypatch.setattr(analyse, "workers_for", lambda costs, w=workers: w)
        found.append(eigenlens.spectrum(circuits))
    for a, b in zip(*(f.layers for f in found), strict=True):
        assert np.array_equal(a.eigenvalues, b.eigenvalues)
        assert np.array_equal(a.right_vectors, b.right_vectors)


def limits() -> set[int]:
    return {x["num_threads"] for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"}


def test_one_thread_inside_and_the_old_number_after() -> None:
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = limits()
        first, second = blas.one_thread(), blas.one_thread()
        first.__enter__()
        assert limits() == {1}
        second.__enter__()
        first.__exit__(None, None, None)
        assert limits() == {1}, "another block is still open"
        second.__exit__(None, None, None)
        assert limits() == before
        with blas.threads_for(blas.SMALL):
            assert limits() == {1}
        with blas.threads_for(blas.SMALL + 1):
            assert limits() == before


def test_any_thread_may_hold_the_limit() -> None:
    """Whichever thread came first: threadpoolctl by itself lets that one alone, in silence."""
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        _by_threads(limits())


def _by_threads(before: set[int]) -> None:
    with blas.one_thread():  # this thread, which stays alive, has set numbers
        assert limits() == {1}
    first, second = blas.one_thread(), blas.one_thread()
    found = []

    def enter(block: AbstractContextManager[None]) -> None:
        block.__enter__()
        found.append(limits())

    def leave(block: AbstractContextManager[None]) -> None:
        block.__exit__(None, None, None)
        found.append(limits())

    for work, block in ((enter, first), (enter, second), (leave, first), (leave, second)):
        thread = threading.Thread(target=work, args=(block,))
        thread.start()
        thread.join()
    assert found == [{1}, {1}, {1}, before]
    assert limits() == before


def test_scipys_blas_counts_from_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread imports scipy its name is known, but not yet its BLAS."""
    spec = SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "scipy.linalg", SimpleNamespace(__spec__=spec))
    assert not blas._has_scipy()
    spec._initializing = False
    assert blas._has_scipy()
    monkeypatch.delitem(sys.modules, "scipy.linalg")
    assert not blas._has_scipy()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_the_usual_number_again() -> None:
    """The thread that holds the limit is not there in the child, and will not take it back."""
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("{2} False\n", 0), done.stderr


FORKED = """
import os, threading, warnings
import numpy as np
import threadpoolctl
from eigenlens import blas

warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside threads
threadpoolctl.threadpool_limits(2, user_api="blas")
inside, over = threading.Event(), threading.Event()

def hold():
    with blas.one_thread():
        inside.set()
        over.wait()

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if not child:
    counts = {x["num_threads"] for x in threadpoolctl.threadpool_info()}
    os.write(1, f"{counts} {blas.in_use()}\\n".encode())
    os._exit(0)
_, status = os.waitpid(child, 0)
over.set()
thread.join()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
