"""LAPACK's geevx: equal to scipy's to the bit, and no other thread waits for it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from eigenlens.spectra import lapack
from eigenlens.spectra.lapack import both_sides


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 50, 150])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_answer_is_scipys(order: str, n: int, dtype: str) -> None:
    a = np.array(np.random.default_rng(n).standard_normal((n, n)), dtype=dtype, order=order)
    kept = a.copy()
    found = both_sides(a)
    assert np.array_equal(a, kept), "the matrix is left as it was"
    assert n < 50 or np.count_nonzero(found[0].imag) > 10
    for x, y in zip(found, scipy.linalg.eig(a, left=True, right=True), strict=True):
        assert x.dtype == np.result_type(dtype, np.complex64)
        assert np.array_equal(x, y)


def test_pairs_are_conjugates_and_meet_their_equations() -> None:
    a = np.random.default_rng(3).standard_normal((60, 60))
    values, left, right = both_sides(a)
    norm = np.linalg.norm(a, 2)
    assert np.abs(a @ right - right * values).max() < 1e-13 * norm
    assert np.abs(a.T @ left - left * values.conj()).max() < 1e-13 * norm
    first = np.flatnonzero(values.imag > 0)
    for x in (values, left.T, right.T):
        assert np.array_equal(x[first + 1], x[first].conj())


def test_no_convergence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> None:
        given[-1]._obj.value = 3

    monkeypatch.setattr(lapack, "_geevx", lambda letter: fails)
    with pytest.raises(np.linalg.LinAlgError, match="geevx of a 4 x 4 matrix: info 3"):
        both_sides(np.eye(4))


def test_other_threads_go_on() -> None:
    """How far plain Python comes in another thread meanwhile, beside a call that holds it back."""
    a = np.random.default_rng(0).standard_normal((600, 600))
    turns = [0]
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        moments = [turns[0]]
        for call in (both_sides, lambda m: scipy.linalg.eig(m, left=True, right=True)):
            call(a)
            moments.append(turns[0])
    finally:
        done.set()
        thread.join()
    free, held = np.diff(moments)
    assert free > 3 * held
