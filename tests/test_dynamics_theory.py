"""What the spectrum foretells, seen: every prediction against the iterated map or its Jacobian."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import eigenlens
from eigenlens.dynamics.maps import LayerMap, l2_map, on_sphere
from eigenlens.dynamics.masks import Mask, parse_mask
from eigenlens.dynamics.matrices import MatrixLayer, random_starts
from eigenlens.dynamics.outcome import Outcome, Tolerance, classify
from eigenlens.dynamics.predict import (
    bipartite_multipliers,
    causal_position_multipliers,
    consensus_multipliers,
    predict,
)
from eigenlens.dynamics.run import Run, decay, iterate, unit
from eigenlens.dynamics.stability import jacobian, leading_multipliers
from eigenlens.errors import OptionError

FULL, CAUSAL = Mask(), Mask(causal=True)


def with_spectrum(
    values: list[complex], seed: int = 0, condition: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """A real matrix with these eigenvalues (pairs as a+bi once) and its real Jordan basis."""
    blocks = [
        np.array([[v.real, v.imag], [-v.imag, v.real]]) if complex(v).imag else [[complex(v).real]]
        for v in map(complex, values)
    ]
    D = scipy.linalg.block_diag(*blocks)
    draw = np.random.default_rng(seed)
    q, _ = np.linalg.qr(draw.standard_normal(D.shape))
    p, _ = np.linalg.qr(draw.standard_normal(D.shape))
    V = q @ np.diag(np.geomspace(1, condition, len(D))) @ p
    V /= np.linalg.norm(V, axis=0)
    return V @ D @ np.linalg.inv(V), V


def one_head(F: np.ndarray, mask: Mask = FULL, logits: float = 0.3, seed: int = 1) -> MatrixLayer:
    d = F.shape[0]
    B = logits * np.random.default_rng(seed).standard_normal((1, d, d))
    return MatrixLayer(F[None], B, None, mask)


def orthogonal(columns: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.qr(columns)[0])


def go(step: LayerMap, X: np.ndarray, steps: int, target: np.ndarray) -> Run:
    basis = orthogonal(target.reshape(X.shape[-1], -1))
    return iterate([step], X, steps, basis, [basis])


def end(run: Run, start: int = 0, *, stream: bool = False, tolerance: Any = None) -> Outcome:
    path, at = run.passes[:, start], run.at
    keep = at > 0
    time = np.log(at[keep]) if stream else at[keep]
    late = len(time) // 4
    return classify(
        unit(run.final[start]), path[keep][late:], time[late:], tolerance or Tolerance()
    )


def near(v: np.ndarray, n: int, noise: float, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed).standard_normal((1, n, len(v)))
    return on_sphere(v + noise * draw, 1.0)


# -- 5.1 invariance ------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["full", "causal", "window:3"])
def test_equal_tokens_take_the_exact_power_step(mask: str) -> None:
    draw = np.random.default_rng(0)
    heads = draw.normal(0, 0.5, (3, 6, 6))
    layer = MatrixLayer(heads, draw.normal(0, 1, (3, 6, 6)), None, parse_mask(mask))
    x = unit(draw.standard_normal(6))
    y = l2_map(layer, "normalised")(np.tile(x, (1, 5, 1)))
    np.testing.assert_allclose(y[0], np.tile(unit(x + layer.F @ x), (5, 1)), atol=1e-15)


def test_the_first_causal_token_takes_it_from_any_start() -> None:
    layer = one_head(with_spectrum([1, 0.5, -0.3, 0.1])[0], CAUSAL)
    X = random_starts(1, 6, 4, 1.0, seed=3)
    x = X[0, 0]
    step = l2_map(layer, "normalised")
    for _ in range(20):
        X, x = step(X), unit(x + layer.F @ x)
        np.testing.assert_allclose(X[0, 0], x, atol=1e-14)


# -- 5.2 local stability of consensus ------------------------------------------------------------


def assert_same_spectrum(J: np.ndarray, expected: np.ndarray, atol: float) -> None:
    """The eigenvalues of J are `expected`, told by the traces of its powers.

    Single eigenvalues of a defective J (a window mask has equal weights on the diagonal) carry only
    a root of the precision; traces carry all of it.
    """
    assert len(J) == len(expected)
    power = np.eye(len(J))
    for p in range(1, 9):
        power = power @ J
        size = max(1.0, np.sum(np.abs(expected) ** p))
        assert abs(np.trace(power) - np.sum(expected**p)) <= atol * size


@pytest.mark.parametrize("mask", ["full", "causal", "window:2", "window:3"])
def test_jacobian_at_consensus(mask: str) -> None:
    values = [1.2, 0.4 + 0.9j, -0.6, 0.3]
    F, V = with_spectrum(values)
    n, step = 5, l2_map(one_head(F, parse_mask(mask)), "normalised")
    X = np.tile(V[:, 0], (n, 1))
    found = jacobian(step, X)
    every = np.array([1.2, 0.4 + 0.9j, 0.4 - 0.9j, -0.6, 0.3])
    expected = np.r_[consensus_multipliers(every, parse_mask(mask), n), np.zeros(n)]
    assert_same_spectrum(found, expected, 1e-9)
    other = parse_mask("causal" if mask == "full" else "full")
    with pytest.raises(AssertionError):  # the check sees another mask
        assert_same_spectrum(
            found, np.r_[consensus_multipliers(every, other, n), np.zeros(n)], 1e-2
        )
    lead = leading_multipliers(step, X, 3)
    np.testing.assert_allclose(np.abs(lead), np.sort(np.abs(expected))[::-1][:3], atol=1e-9)


def test_arnoldi_agrees_with_the_whole_jacobian(monkeypatch: pytest.MonkeyPatch) -> None:
    F, V = with_spectrum([1.2, 0.4 + 0.9j, -0.6, 0.3])
    step, X = l2_map(one_head(F), "normalised"), np.tile(V[:, 0], (6, 1))
    whole = leading_multipliers(step, X, 3)
    monkeypatch.setattr("eigenlens.dynamics.stability.DENSE_LIMIT", 1)
    np.testing.assert_allclose(np.abs(leading_multipliers(step, X, 3)), np.abs(whole), atol=1e-5)


def test_jacobian_at_causal_consensus_with_a_position_term() -> None:
    draw = np.random.default_rng(5)
    n, d, h = 4, 5, 2
    F, V = with_spectrum([1.0, 0.5, -0.4, 0.2, 0.1])
    part = draw.normal(0, 0.2, (d, d))
    part -= np.outer(part @ V[:, 0], V[:, 0])  # each head keeps v_1: F_h v_1 is along v_1
    heads = np.stack([0.4 * F + part, 0.6 * F - part])
    layer = MatrixLayer(heads, draw.normal(0, 0.4, (h, d, d)), draw.normal(0, 1, (h, n, n)), CAUSAL)
    X = np.tile(V[:, 0], (n, 1))
    found = jacobian(l2_map(layer, "normalised"), X)
    expected = causal_position_multipliers(heads, layer.weights(X[None])[0], V[:, 0], 1.0)
    assert_same_spectrum(found, np.r_[expected, np.zeros(n)], 1e-9)


@pytest.mark.parametrize(("second", "stable"), [(0.9, True), (1.3, False), (-1.8, True)])
def test_full_attention_is_stable_iff_the_leader_leads(second: float, stable: bool) -> None:
    F, V = with_spectrum([1.1, second, 0.2])
    X = np.tile(V[:, 0], (4, 1))
    lead = leading_multipliers(l2_map(one_head(F), "normalised"), X, 1)
    assert (abs(lead[0]) < 1) == stable


# -- 5.3 two rates -------------------------------------------------------------------------------


def test_tokens_agree_fast_and_align_slowly() -> None:
    values = np.array([1.0, 0.8, 0.1, -0.2])
    F, V = with_spectrum(list(values))
    foretold = predict(values.astype(complex), "normalised", FULL, 8)
    assert foretold.disagreement_rate == pytest.approx(0.5)
    assert foretold.alignment_rate == pytest.approx(0.9)
    run = go(l2_map(one_head(F), "normalised"), near(V[:, 0], 8, 0.3), 220, V[:, 0])
    time = np.arange(len(run.disagreement))
    together, aligned = decay(run.disagreement[:, 0], time), decay(run.misalignment[:, 0], time)
    assert together is not None
    assert aligned is not None
    assert math.exp(together) == pytest.approx(0.5, abs=1e-3)
    assert math.exp(aligned) == pytest.approx(0.9, abs=1e-4)
    assert end(run).label == "consensus"


def test_causal_disagreement_rate() -> None:
    values = np.array([1.5, 0.9, -0.5, -1.9])
    F, V = with_spectrum(list(values))
    foretold = predict(values.astype(complex), "normalised", CAUSAL, 6)
    by_hand = max(abs(1 + v / i) for i in range(2, 7) for v in values[1:]) / 2.5
    assert foretold.disagreement_rate == pytest.approx(by_hand)
    run = go(l2_map(one_head(F, CAUSAL), "normalised"), near(V[:, 0], 6, 0.1), 100, V[:, 0])
    rate = decay(run.disagreement[:, 0], np.arange(len(run.disagreement)))
    assert rate is not None
    assert math.exp(rate) == pytest.approx(0.58, abs=0.005)
    assert predict(values.astype(complex), "normalised", FULL, 6).disagreement_rate == 0.4


# -- 5.4 to 5.6: rotation, flip, no consensus ----------------------------------------------------


def test_a_complex_pair_turns_by_its_argument() -> None:
    pair = 0.6 + 1.44j  # arg(1 + lambda) = .7328
    F, V = with_spectrum([pair, 0.5, -0.3])
    foretold = predict(np.array([pair, pair.conjugate(), 0.5, -0.3]), "normalised", FULL, 6)
    assert foretold.label == "rotation"
    assert foretold.angle_per_step == pytest.approx(math.atan2(1.44, 1.6))
    run = go(l2_map(one_head(F), "normalised"), random_starts(1, 6, 4, 1.0, 2), 600, V[:, :2])
    found = end(run)
    assert found.label == "rotation"
    assert found.settled
    assert found.period is None
    assert found.angle_per_step == pytest.approx(foretold.angle_per_step, abs=2e-4)


def test_a_rational_angle_closes() -> None:
    turn = math.tan(2 * math.pi / 7)
    pair = complex(0.5, 1.5 * turn)
    F, V = with_spectrum([pair, 0.1, -0.3])
    run = go(l2_map(one_head(F), "normalised"), random_starts(1, 5, 4, 1.0, 2), 200, V[:, :2])
    assert end(run).period == 7


def test_a_slow_rotation_is_not_taken_for_consensus() -> None:
    pair = complex(1.0, 2 * math.tan(0.01))
    F, V = with_spectrum([pair, -0.5, -0.3], condition=1.3)
    run = go(l2_map(one_head(F), "normalised"), random_starts(1, 5, 4, 1.0, 2), 2600, V[:, :2])
    found = end(run)
    assert (found.label, found.settled) == ("rotation", True)
    assert found.angle_per_step == pytest.approx(0.01, rel=0.01)


def test_a_slow_alignment_is_not_taken_for_rotation() -> None:
    F, V = with_spectrum([1.0, 0.98, -0.5, -0.3])
    run = go(l2_map(one_head(F), "normalised"), random_starts(1, 5, 4, 1.0, 2), 100, V[:, 0])
    assert end(run).label == "consensus"
    assert not end(run).settled


def test_a_negative_multiplier_flips_every_step() -> None:
    F, V = with_spectrum([-3.5, 0.5, 0.2])
    run = go(l2_map(one_head(F, logits=0.05), "normalised"), near(V[:, 0], 5, 0.1), 200, V[:, 0])
    assert end(run).label == "flip"
    values = np.array([-3.5, 0.5, 0.2], dtype=complex)
    foretold = predict(values, "normalised", FULL, 5)
    assert (foretold.label, foretold.stable) == ("flip", True)
    labels = {
        end(
            go(
                l2_map(one_head(F, logits=2.0, seed=s), "normalised"),
                random_starts(1, 5, 3, 1.0, s),
                300,
                V[:, 0],
            )
        ).label
        for s in range(12)
    }
    assert "flip" in labels
    assert len(labels) > 1  # from some starts only


def test_tokens_balance_where_all_eigenvalues_are_between_minus_2_and_0() -> None:
    draw = np.random.default_rng(0)
    q = orthogonal(draw.standard_normal((6, 6)))
    F = q @ np.diag([-0.4, -0.7, -0.9, -1.1, -1.3, -1.5]) @ q.T
    n = 5
    run = go(
        l2_map(one_head(F, logits=0.02), "normalised"), random_starts(1, n, 6, 1.0, 1), 400, q[:, 0]
    )
    assert run.cosine[-1, 0] == pytest.approx(-1 / (n - 1), abs=1e-3)
    found = end(run)
    assert found.label != "consensus"
    assert found.balanced
    foretold = predict(np.diag(q.T @ F @ q).astype(complex), "normalised", FULL, n)
    assert (foretold.label, foretold.stable) == ("none", False)


def test_a_leading_kernel_attracts() -> None:
    draw = np.random.default_rng(4)
    W_O, W_V = draw.standard_normal((8, 3)), draw.standard_normal((3, 8))
    left = W_O @ np.linalg.inv(W_V @ W_O) @ np.diag([-0.3, -0.6, -0.9])
    F = left @ W_V
    core = np.sort(np.linalg.eigvals(W_V @ left).real)
    np.testing.assert_allclose(core, [-0.9, -0.6, -0.3], atol=1e-12)
    kernel = scipy.linalg.null_space(W_V)
    run = go(l2_map(one_head(F, CAUSAL), "normalised"), random_starts(1, 1, 8, 1.0, 0), 200, kernel)
    assert run.misalignment[-1, 0] < 1e-10


# -- 5.7 bipartite -------------------------------------------------------------------------------


@pytest.mark.parametrize("plus", [1, 2, 3])
@pytest.mark.parametrize("logit", [-1.0, 0.8, 2.0])
@pytest.mark.parametrize("k", [0, 2])
def test_bipartite_stability(plus: int, logit: float, k: int) -> None:
    n, values = 4, np.array([1.1, 0.5, 0.8, -0.4])
    draw = np.random.default_rng(7)
    q = orthogonal(draw.standard_normal((4, 4)))
    F, v = q @ np.diag(values) @ q.T, q[:, k]
    # Logits of v_k with itself `logit`, and none between v_k and the rest.
    rest = draw.normal(0, 0.3, (4, 4))
    rest -= np.outer(v, v @ rest)
    rest -= np.outer(rest @ v, v)
    layer = MatrixLayer(F[None], (logit * np.outer(v, v) + rest)[None])
    signs = np.r_[np.ones(plus), -np.ones(n - plus)]
    X = signs[:, None] * v
    step = l2_map(layer, "normalised")
    foretold = bipartite_multipliers(values.astype(complex), k, plus, n - plus, logit)
    moved = step(X[None])[0]
    if foretold is None:
        assert not np.allclose(moved, X)
        return
    np.testing.assert_allclose(moved, X, atol=1e-14)
    found = jacobian(step, X)
    assert_same_spectrum(found, np.r_[foretold, np.zeros(n)], 1e-8)


def test_bipartite_is_reached_and_named() -> None:
    q = orthogonal(np.random.default_rng(0).standard_normal((3, 3)))
    F = q @ np.diag([1.0, 0.2, 0.1]) @ q.T
    layer = MatrixLayer(F[None], 6.0 * np.outer(q[:, 0], q[:, 0])[None])
    signs = np.array([1, 1, 1, -1, -1])
    X = on_sphere(
        signs[:, None] * q[:, 0] + 0.1 * np.random.default_rng(1).standard_normal((1, 5, 3)), 1
    )
    found = end(go(l2_map(layer, "normalised"), X, 200, q[:, 0]))
    assert (found.label, found.groups) == ("bipartite", (3, 2))


# -- 5.8 pre-norm streams ------------------------------------------------------------------------


def test_the_stream_aligns_as_a_power_of_depth() -> None:
    values = np.array([1.0, 0.6, -1.0])
    F, V = with_spectrum(list(values))
    foretold = predict(values.astype(complex), "stream", FULL, 1)
    assert foretold.exponent == pytest.approx(-0.4)
    run = go(l2_map(one_head(F), "stream"), near(V[:, 0], 1, 0.1), 6000, V[:, 0])
    steps = np.arange(1, len(run.misalignment)) + 1.0  # the start has the length of one step
    slope = np.polyfit(np.log(steps[600:]), np.log(run.misalignment[601:, 0]), 1)[0]
    assert slope == pytest.approx(-0.4, abs=2e-3)


def test_half_turns_of_the_stream_take_a_constant_factor() -> None:
    pair = 1 + 2j
    F, V = with_spectrum([pair], condition=1.7)
    foretold = predict(np.array([pair, pair.conjugate()]), "stream", FULL, 1)
    assert (foretold.label, foretold.angle_per_step) == ("rotation", 2.0)
    X, layer, halves = random_starts(1, 1, 2, 1.0, 1), l2_map(one_head(F), "stream"), []
    dual = np.linalg.inv(V)
    for t in range(6000):
        before, X = dual[0] @ X[0, 0], layer(X)
        after = dual[0] @ X[0, 0]
        if before * after < 0:  # crosses an axis: once a half turn
            halves.append(t + before / (before - after))
    first, second = np.diff(halves[-3:])  # differences: when the clock was set does not matter
    factor = second / first
    assert factor == pytest.approx(math.exp(math.pi / 2), rel=0.01)  # e^(pi Re/Im)


def test_the_two_maps_can_disagree() -> None:
    F, V = with_spectrum([1, 0.6, 0.2, -3.5], condition=1.2)
    X = random_starts(1, 1, 4, 1.0, 0)
    normalised = go(l2_map(one_head(F), "normalised"), X, 300, V[:, 3])
    stream = go(l2_map(one_head(F), "stream"), X, 6000, V[:, 0])
    assert normalised.misalignment[-1, 0] < 1e-8
    assert stream.misalignment[-1, 0] < 0.06
    assert stream.misalignment[-1, 0] < 0.5 * stream.misalignment[600, 0]
    assert end(normalised).label == "flip"


# -- symmetries ----------------------------------------------------------------------------------


def test_symmetries_of_the_map() -> None:
    draw = np.random.default_rng(0)
    heads, B = draw.normal(0, 0.5, (3, 6, 6)), draw.normal(0, 1, (3, 6, 6))
    X, order, h = random_starts(2, 5, 6, 1.0, 0), draw.permutation(5), draw.permutation(3)
    step = l2_map(MatrixLayer(heads, B), "normalised")
    np.testing.assert_allclose(step(X[:, order]), step(X)[:, order], atol=1e-14)
    shuffled = l2_map(MatrixLayer(heads[h], B[h]), "normalised")
    np.testing.assert_allclose(shuffled(X), step(X), atol=1e-14)
    causal = l2_map(MatrixLayer(heads, B, None, CAUSAL), "normalised")
    assert not np.allclose(causal(X[:, order]), causal(X)[:, order])


def test_jacobian_spectra_are_closed_under_conjugation() -> None:
    F, V = with_spectrum([1.2, 0.4 + 0.9j, -0.6])
    J = jacobian(l2_map(one_head(F), "normalised"), np.tile(V[:, 0], (3, 1)))
    found = np.linalg.eigvals(J)
    assert_same_spectrum(J, found.conj(), 1e-9)
    assert np.abs(found.imag).max() > 0.1


def test_an_unknown_mask_is_told_every_word_that_its_caller_takes() -> None:
    with pytest.raises(OptionError, match="use full, causal or window:W"):
        parse_mask("foo")
    with pytest.raises(OptionError, match="use auto, full, causal or window:W"):
        parse_mask("foo", "auto")
    with pytest.raises(OptionError, match="use auto, full, causal or window:W"):
        eigenlens.simulate("sample:gpt2-tiny", mask="foo")
