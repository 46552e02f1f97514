"""Repeated eigenvalues: what a Krylov space of one vector cannot see is found all the same."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from eigenlens.spectra import krylov
from eigenlens.spectra.deflated import deflated, independent
from eigenlens.spectra.maps import Full
from eigenlens.spectra.orders import ORDERS, leading_first, whole_pairs
from eigenlens.spectra.solvers import Krylov, RawPairs, eigenpairs


def _with_values(values: list[float], n: int, rng: np.random.Generator) -> np.ndarray:
    """A matrix that is not normal, with these eigenvalues and a crowd in [-.5, .5]."""
    diagonal = np.concatenate([values, rng.uniform(-0.5, 0.5, n - len(values))])
    basis = rng.standard_normal((n, n))
    return np.asarray(basis @ np.diag(diagonal) @ np.linalg.inv(basis))


@pytest.mark.parametrize("order", ["residual", "real", "modulus"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_krylov_sees_every_copy_of_a_clear_leader(dtype: str, order: str) -> None:
    """A Krylov space of one vector holds one copy; LAPACK holds all."""
    rng = np.random.default_rng(0)
    fourfold = _with_values([2, 2, 2, 2, 1.5, 1.5, 1], 440, rng)
    twice = np.kron(np.eye(2), _with_values([3, 2, 1], 220, rng))
    plane = np.kron(np.eye(2), rng.standard_normal((220, 220)) / 15)
    loose = 1e-8 if dtype == "float64" else 1e-3
    for matrix in (fourfold, twice, plane):
        a = Full(matrix.astype(dtype))
        found = eigenpairs(a, 8, ORDERS[order], solver="krylov")
        whole = eigenpairs(Full(matrix), 8, ORDERS[order], solver="dense")
        keys = (np.sort(ORDERS[order].key(x.values[:8])) for x in (found, whole))
        assert np.allclose(*keys, rtol=0, atol=loose)
        sizes = np.linalg.svd(np.asarray(found.right)[:, :8], compute_uv=False)
        assert sizes[-1] > 1e-5  # eight directions, not one of them twice


@pytest.mark.parametrize("order", ["residual", "real", "modulus"])
def test_krylov_sees_a_copy_just_outside_a_disk(order: str) -> None:
    """The next eigenvalues are a twentieth less."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        turn = np.linalg.qr(rng.standard_normal((430, 430)))[0]
        disk = rng.standard_normal((430, 430)) / np.sqrt(430)
        disk[:2], disk[:, :2] = 0, 0
        disk[0, 0] = disk[1, 1] = 1.05
        a = Full(turn @ disk @ turn.T)
        found = eigenpairs(a, 2, ORDERS[order], solver="krylov")
        whole = eigenpairs(a, 2, ORDERS[order], solver="dense")
        keys = (ORDERS[order].key(x.values[:2]) for x in (found, whole))
        assert np.allclose(*keys, rtol=0, atol=1e-9)


def test_ordinary_matrices_are_seldom_looked_through_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[bool] = []
    honest = krylov._may_lead
    monkeypatch.setattr(krylov, "_may_lead", lambda *a: looks.append(honest(*a)) or looks[-1])
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for order in ORDERS.values():
            for _ in range(3):
                matrix = rng.standard_normal((430, 430)) / 20
                matrix[:, 0] += 3 * rng.standard_normal(430) / 20
                assert Krylov().solve(matrix.astype(dtype), 8, order) is not None
    assert len(looks) == 18
    assert sum(looks) <= 3  # what seems to lead and does not costs time alone


def test_a_known_direction_again_is_not_a_new_pair() -> None:
    vectors = np.eye(6, 3) + 0j
    assert independent(vectors, 1e-8)
    again = np.concatenate([vectors, vectors[:, :1] + vectors[:, 1:2]], axis=1)
    assert not independent(again, 1e-8)


def test_what_is_left_has_the_other_pairs() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((30, 30))
    values, left, right = scipy.linalg.eig(matrix, left=True)
    index = leading_first(values, ORDERS["modulus"])
    keep = index[: whole_pairs(values[index], 6)]
    rest = deflated(matrix, RawPairs(values[keep], right[:, keep], left[:, keep], complete=False))
    forward = np.stack([rest @ x for x in np.eye(30)], axis=1)
    backward = np.stack([rest.T @ x for x in np.eye(30)], axis=1)
    assert np.allclose(forward, backward.T, atol=1e-12)
    found = np.linalg.eigvals(forward)
    expected = np.concatenate([np.delete(values, keep), np.zeros(len(keep))])
    assert np.allclose(np.sort(np.abs(found)), np.sort(np.abs(expected)), atol=1e-10)
    assert np.allclose(rest.rest(right[:, keep[0]].real), 0, atol=1e-12)
