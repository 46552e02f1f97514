"""Nulls: Haar measure, planes, means of 1/2, rotated weights, the top singular vector."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eigenlens.errors import OptionError
from eigenlens.measure import nulls
from eigenlens.measure.alignment import Targets, alignment, expected_alignment, gain, gamma, rho
from eigenlens.measure.nulls import (
    MIN_DIRECTIONS,
    Null,
    haar_orthogonal,
    random_bases,
    spread,
    top_left_singular,
)
from eigenlens.spectra.maps import Full, LowRank


def states(seed: int, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, X + 0.5 * rng.standard_normal((n, d))


@pytest.mark.parametrize("d", [1, 2, 7, 40])
def test_haar_matrices_are_orthogonal_and_seeded(d: int) -> None:
    Q = haar_orthogonal(d, 3)
    np.testing.assert_allclose(Q.T @ Q, np.eye(d), atol=1e-13)
    np.testing.assert_array_equal(Q, haar_orthogonal(d, 3))
    assert not np.array_equal(Q, haar_orthogonal(d, 5)) or d == 1


def mean_trace(fix: bool) -> tuple[float, float]:
    """Mean and standard error of tr Q over 2000 draws, d = 3; 0 under the Haar measure."""
    G = np.random.default_rng(0).standard_normal((2000, 3, 3))
    Q = nulls._positive_qr(G) if fix else np.linalg.qr(G)[0]
    traces = np.trace(Q, axis1=1, axis2=2)
    return float(traces.mean()), float(traces.std()) / math.sqrt(2000)


def test_haar_needs_the_sign_fix() -> None:
    mean, error = mean_trace(fix=True)
    assert abs(mean) < 4 * error
    mean, error = mean_trace(fix=False)  # the planted bug: LAPACK's own signs
    assert abs(mean) > 10 * error


@pytest.mark.parametrize(("d", "k"), [(6, 1), (6, 2), (5, 5), (30, 3)])
def test_random_bases_are_orthonormal_and_isotropic(d: int, k: int) -> None:
    B = random_bases(d, k, m=3000, seed=1)
    assert B.shape == (3000, d, k)
    gram = np.einsum("mdi,mdj->mij", B, B)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(k), gram.shape), atol=1e-12)
    # The mean projector of isotropic planes is k/d times the identity.
    P = np.einsum("mdi,mei->mde", B, B)
    error = np.maximum(P.std(axis=0) / math.sqrt(3000), 1e-12)
    assert (np.abs(P.mean(axis=0) - k / d * np.eye(d)) < 4.5 * error).all()
    a = Targets(B).alignment(np.eye(d)[:1])[:, 0]
    error = float(a.std()) / math.sqrt(3000) + 1e-12
    assert abs(float(a.mean()) - expected_alignment(d, k)) < 4 * error


def test_random_bases_refuse_what_is_no_null() -> None:
    with pytest.raises(OptionError, match="at least 200"):
        random_bases(4, 1, m=199)
    with pytest.raises(OptionError, match="1 to 4"):
        random_bases(4, 5)
    with pytest.raises(OptionError, match="GB: at most 2"):
        random_bases(4096, 1024)


@pytest.mark.parametrize("k", [1, 2])
def test_null_is_the_loop_over_directions(k: int) -> None:
    bases = random_bases(9, k, seed=2)
    null = Null(Targets(bases))
    X, Y = states(0, 30, 9)
    for cut in (slice(0, 7), slice(7, 8), slice(8, 30)):
        null.add(X[cut], Y[cut])
    before = [alignment(X, B) for B in bases]
    after = [alignment(Y, B) for B in bases]
    np.testing.assert_allclose(null.gamma(), [gamma(b) for b in after], atol=1e-14)
    pairs = list(zip(before, after, strict=True))
    np.testing.assert_allclose(null.gain(), [gain(a, b) for a, b in pairs], atol=1e-14)
    np.testing.assert_allclose(null.rho(), [rho(a, b) for a, b in pairs])
    # Planted: before and after exchanged.
    swapped = Null(Targets(bases))
    swapped.add(Y, X)
    np.testing.assert_allclose(swapped.rho(), 1 - null.rho())
    assert np.abs(swapped.rho() - null.rho()).max() > 0.1


def test_float32_products_give_the_same_null() -> None:
    X, Y = (s.astype(np.float32) for s in states(1, 60, 64))
    bases = random_bases(64, seed=3)
    wide, narrow = Null(Targets(bases)), Null(Targets(bases, dtype="float32"))
    wide.add(X, Y)
    narrow.add(X, Y)
    np.testing.assert_allclose(narrow.gamma(), wide.gamma(), atol=1e-6)
    # A token whose two alignments agree to rounding may change sides: one of 60, at most.
    np.testing.assert_allclose(narrow.rho(), wide.rho(), atol=1 / 60 + 1e-9)


@pytest.mark.parametrize("k", [1, 2])
def test_mean_rho_of_random_directions_is_half_and_wide(k: int) -> None:
    """For any step: a reflection that swaps x and x+ maps the directions onto themselves."""
    rng = np.random.default_rng(4)
    common = rng.standard_normal(32)
    X = 2 * common + rng.standard_normal((20, 32))
    Y = X + 3 * rng.standard_normal(32)  # every token gets the same push
    null = Null(Targets(random_bases(32, k, m=2000, seed=5)))
    null.add(X, Y)
    values = null.rho()
    assert abs(float(values.mean()) - 0.5) < 4 * float(values.std()) / math.sqrt(2000)
    s = null.spreads()["rho"]
    assert s.low < 0.2
    assert s.high > 0.8  # so one direction's rho by itself proves nothing


def test_spread_quantiles() -> None:
    s = spread(np.arange(1001) / 1000)
    assert (s.low, s.median, s.high) == pytest.approx((0.025, 0.5, 0.975))
    assert s.mean == pytest.approx(0.5)
    assert MIN_DIRECTIONS == 200


def test_a_rotated_layer_moves_rotated_tokens_alike() -> None:
    rng = np.random.default_rng(6)
    X, A = rng.standard_normal((12, 8)), rng.dirichlet(np.ones(12), size=12)
    W_V, W_O = rng.standard_normal((8, 8)), rng.standard_normal((8, 8))
    Q, B = haar_orthogonal(8), np.linalg.qr(rng.standard_normal((8, 2)))[0]
    V, O = W_V @ Q.T, Q @ W_O  # noqa: E741
    plain = alignment(X + A @ X @ W_V.T @ W_O.T, B)
    turned = alignment(X @ Q.T + A @ (X @ Q.T) @ V.T @ O.T, Q @ B)
    np.testing.assert_allclose(turned, plain, atol=1e-12)


@pytest.mark.parametrize(("d", "r"), [(12, 5), (300, 40), (300, 300)])
def test_top_left_singular_is_the_svd(d: int, r: int) -> None:
    rng = np.random.default_rng(7)
    W_O, W_V = 0.2 * rng.standard_normal((d, r)), 0.2 * rng.standard_normal((r, d))
    u = top_left_singular(LowRank(W_O, W_V))
    U, _, Vt = np.linalg.svd(W_O @ W_V)
    assert u.shape == (d, 1)
    assert abs(float(U[:, 0] @ u[:, 0])) == pytest.approx(1.0, abs=1e-8)
    assert u[np.argmax(np.abs(u)), 0] > 0
    assert abs(float(Vt[0] @ u[:, 0])) < 0.9  # planted: the right one is another vector
    same = top_left_singular(Full(W_O @ W_V))
    np.testing.assert_allclose(same, u, atol=1e-6)


def test_top_left_singular_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    F = rng.standard_normal((260, 260))
    expected = np.linalg.svd(F)[0][:, 0]
    import scipy.sparse.linalg as sparse

    def stall(*args: object, **kwargs: object) -> None:
        raise sparse.ArpackNoConvergence("stalled", np.zeros(0), np.zeros((0, 0)))

    monkeypatch.setattr(sparse, "eigsh", stall)
    assert abs(float(expected @ top_left_singular(Full(F))[:, 0])) == pytest.approx(1.0)


def test_random_weights_alone_give_rho_above_half() -> None:
    """Why rho > 1/2 is no evidence: isotropic tokens, random F, uniform attention, v1 of I + F."""
    rng = np.random.default_rng(9)
    values = []
    for _ in range(60):
        F = 0.2 * rng.standard_normal((24, 24))
        found, vectors = np.linalg.eig(F)
        v = vectors[:, np.argmax(np.abs(1 + found))]
        B = np.linalg.qr(np.stack([v.real, v.imag], axis=1))[0] if v.imag.any() else v.real[:, None]
        X = rng.standard_normal((16, 24))
        Y = X + X.mean(axis=0) @ F.T
        values.append(rho(alignment(X, B), alignment(Y, B)))
    mean, error = float(np.mean(values)), float(np.std(values)) / math.sqrt(60)
    assert mean > 0.5 + 4 * error
