"""Blocks in place of whole matrices: group sums, the check for NaN, norms of large maps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenlens import OVCircuit, arrays, blas
from eigenlens.arrays import check_finite
from eigenlens.circuit import widening
from eigenlens.errors import NumericsError
from eigenlens.spectra import maps
from eigenlens.spectra.maps import Full, LowRank, times
from eigenlens.spectra.norms import product_rounding, spectral_norm

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("block", [1, 100, 1 << 16])
@pytest.mark.parametrize("transposed", [False, True])
def test_group_sums_in_blocks(
    block: int, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widening, "BLOCK", block)
    rng = np.random.default_rng(0)
    W_O = rng.standard_normal((13, 24)).astype(ml_dtypes.bfloat16)
    if transposed:
        W_O = np.asfortranarray(W_O)
    c = OVCircuit(np.ones((8, 13), dtype=np.float32), W_O, 6, 2, 4)
    wide = W_O.astype(np.float64)
    expected = np.concatenate([wide[:, 4 * i : 4 * i + 4] for i in range(6)], axis=1)
    expected = np.stack(
        [sum(expected[:, 12 * g + 4 * j : 12 * g + 4 * j + 4] for j in range(3)) for g in range(2)]
    )
    assert np.array_equal(c.grouped_output(), np.concatenate(expected, axis=1))


def test_group_sums_in_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    W_O = rng.standard_normal((31, 24)).astype(ml_dtypes.bfloat16)
    c = OVCircuit(np.ones((8, 31), dtype=np.float32), W_O, 6, 2, 4)
    own = OVCircuit(W_O.T[:, :24], W_O[:24], 4, 4, 6)
    alone = c.grouped_output()
    monkeypatch.setattr(widening, "BLOCK", 100)
    monkeypatch.setattr(blas, "_PARTS_FROM", 1)
    monkeypatch.setattr(blas, "cores", lambda: 2)
    assert np.array_equal(c.grouped_output(), alone)
    for dtype in (np.float64, np.float32):
        for found, stored in ((own.value(dtype), own.W_V), (own.grouped_output(dtype), own.W_O)):
            assert found.dtype == dtype
            assert np.array_equal(found, stored.astype(dtype))


@pytest.mark.parametrize("entries", [1, 1 << 30])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_part_is_worked_on_once(
    count: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "cores", lambda: 2)
    seen: list[int] = []
    blas.in_parts(seen.append, range(count), entries)
    assert sorted(seen) == list(range(count))

    def fail(part: int) -> None:
        raise ValueError(f"part {part}")

    if count:
        with pytest.raises(ValueError, match="part"):
            blas.in_parts(fail, range(count), entries)


@given(
    st.sampled_from(range(len(DTYPES))),
    st.integers(1, 700),
    st.integers(0, 10**6),
    st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_what_is_not_finite_is_found_anywhere(
    which: int, size: int, place: int, bad: float
) -> None:
    a = np.linspace(-3, 3, size).astype(DTYPES[which])
    check_finite("w", a)
    a[place % size] = bad
    with pytest.raises(NumericsError, match=r"'w' has 1 entries .* \(the first at \(\d+,\)\)"):
        check_finite("w", a)


def test_a_later_block_and_a_view_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_BLOCK", 64)
    for dtype in DTYPES:
        a = np.zeros((20, 30), dtype=dtype)
        a[19, 28] = np.nan
        for view in (a, a.T, a[::2, ::2], a[1::2, ::2]):
            bad = not np.isfinite(view.astype(np.float64)).all()
            if bad:
                with pytest.raises(NumericsError):
                    check_finite("w", view)
            else:
                check_finite("w", view)


def test_large_but_finite_numbers_pass() -> None:
    """Their sum overflows; they are finite all the same."""
    check_finite("w", np.full(1000, np.finfo(np.float32).max))
    check_finite("w", np.full(1000, ml_dtypes.finfo(ml_dtypes.bfloat16).max))
    check_finite("w", np.full(1000, np.finfo(np.float64).max))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_real_matrix_times_complex_columns(dtype: type) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((7, 5)).astype(dtype)
    x = (rng.standard_normal((5, 3)) + 1j * rng.standard_normal((5, 3))).astype(
        np.result_type(dtype, np.complex64)
    )
    for columns in (x, x[:, 0], x[:, ::2], x.real):
        found = times(a, columns)
        assert found.dtype == columns.dtype
        assert found.shape == (a @ columns).shape
        assert np.allclose(found, a @ columns, atol=1e-5 if dtype == np.float32 else 1e-13)


def test_norms_of_a_large_map_are_good_to_six_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    a = LowRank(1e25 * rng.standard_normal((400, 90)), 1e-30 * rng.standard_normal((90, 400)))
    exact = spectral_norm(a), a.frobenius_norm(exact=False)
    monkeypatch.setattr(maps, "_LARGE", 1)
    b = LowRank(a.left, a.right)
    assert b.rough_grams[0].dtype == np.float64
    rough = spectral_norm(b), b.frobenius_norm(exact=False)
    assert rough == pytest.approx(exact, rel=1e-6)
    assert rough != exact
    assert b.frobenius_norm() == pytest.approx(np.linalg.norm(a.dense()), rel=1e-12)


def test_norm_where_the_top_is_flat_or_nothing() -> None:
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((100, 100)))[0]
    assert spectral_norm(Full(3 * q)) == pytest.approx(3, rel=1e-12)
    assert spectral_norm(LowRank(q[:, :80], 2 * q[:, :80].T)) == pytest.approx(2, rel=1e-12)
    assert spectral_norm(Full(np.zeros((100, 100)))) == 0
    assert spectral_norm(LowRank(np.zeros((100, 80)), np.ones((80, 100)))) == 0
    near = q @ np.diag(np.linspace(1, 1 - 1e-9, 100)) @ q.T
    assert spectral_norm(Full(near)) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("block", [1, 40, 1 << 17])
@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_of_factors_by_blocks(
    block: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of rounding and of columns are those of the whole factors, whatever the blocks."""
    monkeypatch.setattr(blas, "_BLOCK", block)
    monkeypatch.setattr(blas, "cores", lambda: threads)
    monkeypatch.setattr(blas, "_PARTS_FROM", 1)
    rng = np.random.default_rng(5)
    L, R = rng.standard_normal((23, 7)), rng.standard_normal((7, 23))
    L[11, 3], R[5, 17] = -40.0, 70.0
    a = LowRank(L, R)
    variance = np.square(L) @ np.square(R)
    expected = np.sqrt(variance.sum(axis=1).max()) + np.sqrt(variance.sum(axis=0).max())
    squares = (L**2).sum(axis=0), (R**2).sum(axis=1)
    for _ in range(2):  # by passes over the factors, then from their Gram matrices
        assert product_rounding(a) == pytest.approx(expected, rel=1e-13)
        for found, known in zip(a.inner_squares(), squares, strict=True):
            np.testing.assert_allclose(found, known, rtol=1e-13)
        _ = a.grams
    left, right = a.exponents
    assert np.array_equal(left, np.frexp(np.abs(L).max(axis=0))[1])
    assert np.array_equal(right, np.frexp(np.abs(R).max(axis=1))[1])
    assert int(Full(L @ R).exponents) == np.frexp(np.abs(L @ R).max())[1]
