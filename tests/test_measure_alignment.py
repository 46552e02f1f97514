"""Alignment and its sums: plain loops, exact expectations, invariance, streaming."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenlens.errors import EigenlensError, NumericsError, OptionError, ShapeError
from eigenlens.measure.alignment import (
    Targets,
    alignment,
    expected_alignment,
    gain,
    gamma,
    overlap,
    principal_cosines,
    rho,
    token_norms,
    wins,
)
from eigenlens.measure.sums import AlignmentSums

SEEDS = st.integers(0, 2**32 - 1)
Align = Callable[[np.ndarray, np.ndarray], np.ndarray]


def basis(rng: np.random.Generator, d: int, k: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


def slow_alignment(X: np.ndarray, B: np.ndarray) -> np.ndarray:
    """One token, one basis vector at a time."""
    out = []
    for x in X:
        square = 0.0
        for column in B.T:
            square += sum(a * b for a, b in zip(x, column, strict=True)) ** 2
        out.append(math.sqrt(square) / math.sqrt(sum(a * a for a in x)))
    return np.array(out)


def oracle(align: Align) -> float:
    """Largest difference from the loops, over vectors, planes and a tied span."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for d, k in ((3, 1), (8, 2), (16, 5), (5, 5)):
        X, B = 3 * rng.standard_normal((7, d)), basis(rng, d, k)
        worst = max(worst, float(np.abs(align(X, B) - slow_alignment(X, B)).max()))
    return worst


def test_alignment_is_the_loops() -> None:
    assert oracle(alignment) < 1e-14


@pytest.mark.parametrize(
    "planted",
    [
        lambda X, B: np.abs(X @ B).sum(axis=1) / np.linalg.norm(X, axis=1),
        lambda X, B: np.linalg.norm(X @ B, axis=1),
        lambda X, B: np.abs(X @ B[:, 0]) / np.linalg.norm(X, axis=1),
        lambda X, B: np.linalg.norm(X @ B, axis=1) / np.linalg.norm(X),
    ],
    ids=["sum of cosines", "no norm", "first vector only", "norm of all"],
)
def test_a_planted_alignment_is_caught(planted: Align) -> None:
    assert oracle(planted) > 1e-2


@given(SEEDS, st.integers(1, 12), st.integers(1, 5))
def test_alignment_ignores_scale_rotation_and_basis(seed: int, d: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    k = min(k, d)
    X, B = rng.standard_normal((6, d)), basis(rng, d, k)
    a = alignment(X, B)
    assert (a >= 0).all()
    assert (a <= 1).all()
    Q, turn = basis(rng, d, d), basis(rng, k, k)
    scale = rng.uniform(1e-3, 1e3, size=(6, 1)) * rng.choice([-1.0, 1.0], size=(6, 1))
    np.testing.assert_allclose(alignment(scale * X @ Q.T, Q @ B @ turn), a, atol=1e-12)


def test_the_whole_space_and_a_member_have_alignment_one() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((5, 6))
    np.testing.assert_allclose(alignment(X, np.eye(6)), 1.0, atol=1e-15)
    B = basis(rng, 6, 2)
    np.testing.assert_allclose(alignment(rng.standard_normal((5, 2)) @ B.T, B), 1.0, atol=1e-15)


def signed_of(X: np.ndarray, v: np.ndarray) -> np.ndarray:
    return Targets([v[:, None]]).signed(X)[0]


def test_complement_and_signs() -> None:
    rng = np.random.default_rng(2)
    X, Q = rng.standard_normal((9, 7)), basis(rng, 7, 7)
    kernel = Targets([Q[:, :3]], complement=True).alignment(X)[0]
    np.testing.assert_allclose(kernel, alignment(X, Q[:, 3:]), atol=1e-12)
    signed = signed_of(X, Q[:, 0])
    np.testing.assert_allclose(np.abs(signed), alignment(X, Q[:, :1]), atol=1e-15)
    np.testing.assert_allclose(signed_of(-X, Q[:, 0]), -signed)
    assert {*np.sign(signed)} == {-1.0, 1.0}


def test_many_targets_are_the_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((11, 10)).astype(np.float32)
    bases = [basis(rng, 10, k) for k in (1, 3, 1, 2)]
    monkeypatch.setattr("eigenlens.measure.alignment._BLOCK", 14)  # two tokens a block
    together = Targets(bases).alignment(X)
    assert together.shape == (4, 11)
    for row, B in zip(together, bases, strict=True):
        np.testing.assert_allclose(row, slow_alignment(X.astype(float), B), atol=1e-14)
    narrow = Targets(bases, dtype="float32").alignment(X)
    np.testing.assert_allclose(narrow, together, atol=1e-6)
    vectors = Targets(np.stack([bases[0], bases[2]]))
    np.testing.assert_allclose(np.abs(vectors.signed(X)), together[[0, 2]], atol=1e-14)


def test_a_zero_token_has_no_direction() -> None:
    X = np.array([[0.0, 0.0], [1.0, 1.0]])
    a = alignment(X, np.eye(2)[:, :1])
    assert np.isnan(a[0])
    assert a[1] == pytest.approx(math.sqrt(0.5))


def test_float32_states_far_apart_in_size_do_not_overflow() -> None:
    X = np.array([[3e30, 4e30], [3e-30, 4e-30]], dtype=np.float32)
    np.testing.assert_allclose(alignment(X, np.eye(2)[:, :1]), 0.6, rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: token_norms(np.array([[1.0], [np.nan]])), NumericsError, "1 of 2 .* token 1"),
        (lambda: alignment(np.array([[np.inf, 0.0]]), np.eye(2)), NumericsError, "float32"),
        (lambda: Targets([]), ShapeError, "at least one"),
        (lambda: Targets([np.eye(3), np.eye(2)]), ShapeError, "one d"),
        (lambda: Targets([np.zeros((3, 0))]), ShapeError, "1 <= k"),
        (lambda: Targets([np.ones((3, 2))]), NumericsError, "basis 0 is not orthonormal"),
        (lambda: Targets([np.full((3, 1), np.nan)]), NumericsError, "not orthonormal"),
        (lambda: Targets([np.eye(3)]).signed(np.ones((1, 3))), OptionError, "no sign"),
        (lambda: expected_alignment(3, 4), OptionError, "1 to 3"),
    ],
)
def test_bad_input_says_why(
    call: Callable[[], object], kind: type[EigenlensError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("d", "k"), [(2, 1), (3, 1), (64, 1), (5, 2), (64, 2), (10, 9)])
def test_expected_alignment_by_monte_carlo(d: int, k: int) -> None:
    G = np.random.default_rng(4).standard_normal((40_000, d))
    a = alignment(G, np.eye(d)[:, :k])
    error = float(a.std()) / math.sqrt(a.size)
    assert abs(float(a.mean()) - expected_alignment(d, k)) < 4 * error
    square = a**2
    error = float(square.std()) / math.sqrt(a.size)
    assert abs(float(square.mean()) - k / d) < 4 * error
    # The square root of the mean square is not the mean: the oracle tells them apart.
    assert abs(float(a.mean()) - math.sqrt(k / d)) > 4 * float(a.std()) / math.sqrt(a.size)


def test_expected_alignment_known_values() -> None:
    assert expected_alignment(2) == pytest.approx(2 / math.pi)
    assert expected_alignment(3) == pytest.approx(0.5)
    assert expected_alignment(7, 7) == pytest.approx(1.0)
    assert expected_alignment(4096) == pytest.approx(math.sqrt(2 / (math.pi * 4096)), rel=1e-4)
    d = 384
    formula = math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) / math.sqrt(math.pi)
    assert expected_alignment(d) == pytest.approx(formula, rel=1e-12)


def test_gamma_gain_rho_by_hand() -> None:
    before = np.array([0.1, 0.5, 0.5, 0.9])
    after = np.array([0.2, 0.4, 0.5, 1.0])
    assert gamma(after) == pytest.approx(0.525)
    assert gain(before, after) == pytest.approx(0.025)
    assert rho(before, after) == 0.625
    assert rho(before, after, tie=0.11) == 0.5
    np.testing.assert_array_equal(wins(before, after), [1, 0, 0.5, 1])


def test_rho_of_a_direction_and_its_reverse_step_sum_to_one() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 4, 100) / 4, rng.integers(0, 4, 100) / 4
    assert (a == b).any()
    assert rho(a, b) + rho(b, a) == 1.0


def test_overlap_of_subspaces() -> None:
    rng = np.random.default_rng(6)
    Q = basis(rng, 6, 6)
    assert overlap(Q[:, :2], Q[:, 2:4]) == pytest.approx(0.0, abs=1e-14)
    assert overlap(Q[:, :2], Q[:, :4]) == pytest.approx(1.0)
    u, v = Q[:, :1], np.array([[math.cos(0.3)], [math.sin(0.3)]])
    assert overlap(u, Q[:, :2] @ v) == pytest.approx(math.cos(0.3))
    np.testing.assert_allclose(principal_cosines(Q[:, :2], Q[:, 1:4]), [1, 0], atol=1e-14)


def random_tokens(m: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Alignments before and after (m, n), and the prompt of each token, not in order."""
    rng = np.random.default_rng(7)
    owner = rng.permutation(np.repeat(np.arange(5), [3, 8, 1, 6, 2]))
    shape = (m, owner.size)
    return rng.integers(0, 8, shape) / 8, rng.integers(0, 8, shape) / 8, owner


def sums_fault(sums: AlignmentSums, m: int) -> float:
    """Largest difference of streamed sums from plain means over all tokens kept."""
    before, after, owner = random_tokens(m)
    expected, found = [], []
    for t in range(m):
        expected += [gamma(after[t]), gain(before[t], after[t]), rho(before[t], after[t])]
        found += [sums.gamma()[t], sums.gain()[t], sums.rho()[t]]
        for p in range(5):
            own = owner == p
            expected += [own.sum(), after[t, own].sum(), wins(before[t, own], after[t, own]).sum()]
            found += [sums.counts[p], sums.after[p, t], sums.wins[p, t]]
    return float(np.abs(np.array(expected) - np.array(found)).max())


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("piece", [1, 4, 100])
def test_streamed_sums_are_the_means_over_all_tokens(m: int, piece: int) -> None:
    before, after, owner = random_tokens(m)
    sums = AlignmentSums(m)
    for start in range(0, owner.size, piece):
        cut = slice(start, start + piece)
        sums.add(before[:, cut], after[:, cut], owner[cut])
    assert sums_fault(sums, m) < 1e-12
    assert (sums.n_tokens, sums.n_prompts, sums.undefined) == (20, 5, 0)
    # Planted: the mean of prompt means weights a short prompt's tokens more.
    uneven = float(np.mean(sums.wins[:, 0] / sums.counts))
    assert abs(uneven - sums.rho()[0]) > 1e-3
    # Planted: a piece that is added twice, a piece that goes to another prompt.
    sums.add(before[:, :1], after[:, :1], owner[:1])
    assert sums_fault(sums, m) > 1e-3


def test_signed_gain_is_streamed_with_its_sign() -> None:
    rng = np.random.default_rng(8)
    X, Y, v = rng.standard_normal((6, 4)), rng.standard_normal((6, 4)), np.eye(4)[0]
    s, t = signed_of(X, v), signed_of(Y, v)
    sums = AlignmentSums()
    sums.add(np.abs(s), np.abs(t), 0, signed=(s, t))
    found = sums.signed_gain()
    assert found is not None
    assert found[0] == pytest.approx(float(np.mean(t - s)))
    assert found[0] != pytest.approx(sums.gain()[0])
    with pytest.raises(OptionError, match="every call"):
        sums.add(np.abs(s), np.abs(t), 0)
    plain = AlignmentSums()
    plain.add(np.abs(s), np.abs(t), 0)
    assert plain.signed_gain() is None


def test_zero_tokens_are_left_out_and_counted() -> None:
    X = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    Y = np.array([[1.0, 0.0], [2.0, 1.0], [1.0, 1.0]])
    B = np.eye(2)[:, :1]
    sums = AlignmentSums()
    sums.add(alignment(X, B), alignment(Y, B), np.array([0, 0, 1]))
    assert (sums.undefined, sums.n_tokens) == (1, 2)
    assert sums.rho()[0] == 0.5


def test_rounding_is_a_tie_and_movement_is_not() -> None:
    a = np.full(100, 0.25)
    noise = 1e-7 * np.sign(np.random.default_rng(9).standard_normal(100))
    for dtype, expected in (("float32", 0.5), ("float64", float((noise > 0).mean()))):
        sums = AlignmentSums()
        sums.add(a, a + noise, 0, dtype=dtype)
        assert sums.rho()[0] == expected
    assert expected != 0.5
    sums = AlignmentSums(tie=0.0)
    sums.add(a, a + 1e-9, 0)
    assert sums.rho()[0] == 1.0


@pytest.mark.usefixtures("unchecked")
def test_sums_refuse_what_does_not_fit() -> None:
    sums = AlignmentSums(2)
    with pytest.raises(ShapeError, match=r"\(2, n\)"):
        sums.add(np.ones(3), np.ones(3), 0)
    with pytest.raises(ShapeError, match=r"\(2, n\)"):
        sums.add(np.ones((2, 3)), np.ones((2, 4)), 0)
    with pytest.raises(OptionError, match="counted from 0"):
        sums.add(np.ones((2, 1)), np.ones((2, 1)), -1)
    assert np.isnan(sums.rho()).all()


def test_memory_does_not_grow_with_tokens() -> None:
    a = np.random.default_rng(10).random(2000)
    sums = AlignmentSums()
    sums.add(a, a[::-1].copy(), np.arange(2000) % 20)
    tracemalloc.start()
    try:
        for _ in range(50):
            sums.add(a, a[::-1].copy(), np.arange(2000) % 20)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sums.n_tokens == 102_000
    assert kept < 16_384  # 50 times 2000 tokens would be 800 kB
