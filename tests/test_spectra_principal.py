"""The decision table of theory section 4: which regime, which target, which gap, how sure."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from eigenlens import OVCircuit, spectrum
from eigenlens.errors import OptionError
from eigenlens.spectra.maps import Full, LowRank
from eigenlens.spectra.orders import ORDERS, leading_first, resolve_order, whole_pairs
from eigenlens.spectra.principal import REGIMES, Principal, find_principal, target_basis
from eigenlens.spectra.solvers import Eigenpairs, eigenpairs
from matrices import jordan, prescribed


def decide(
    values: list[complex], order: str, d: int | None = None, tie: float = 0.01, seed: int = 0
) -> tuple[Principal, Eigenpairs, Full | LowRank]:
    """Principal pair of a non-normal matrix with these eigenvalues, inside R^d if d is larger."""
    matrix = prescribed(values, seed).matrix
    n = matrix.shape[0]
    a: Full | LowRank = Full(matrix)
    if d is not None:
        rng = np.random.default_rng(seed)
        frame = np.linalg.qr(rng.standard_normal((d, n)))[0]
        a = LowRank(frame @ matrix, frame.T)
    pairs = eigenpairs(a, None, ORDERS[order])
    found = find_principal(pairs, a.d, a.rank_bound, ORDERS[order], tie)
    assert found is not None
    return found, pairs, a


TABLE = [
    # order, eigenvalues, d, regime, target
    ("residual", [0.5, 0.3, -0.2], None, "real_dominant", "v1"),
    ("residual", [0.5 + 1j, 0.3], None, "complex_dominant", "plane"),
    ("residual", [-3.5, 0.3, 0.1], None, "flip", "v1"),
    ("residual", [-0.3, -0.6, -0.9], None, "no_consensus", "v1"),
    ("residual", [-0.3, -0.6, -0.9], 8, "no_consensus", "kernel"),
    ("residual", [1.0, -3.0, 0.2], None, "near_degenerate", "span"),
    ("residual", [1.0, 0.995, 0.2], None, "near_degenerate", "span"),
    ("residual", [1.0, 0.9 + 0.6j], None, "near_degenerate", "span"),
    ("residual", [0.4, 0.1], 6, "real_dominant", "v1"),
    ("residual", [-0.5 + 0.4j, -0.7], None, "no_consensus", "plane"),
    ("residual", [2.0, 2.0, 1.0], None, "real_dominant", "span"),
    ("real", [0.5, 0.3, -5.0], None, "real_dominant", "v1"),
    ("real", [0.5 + 3j, 0.3, -5.0], None, "complex_dominant", "plane"),
    ("real", [-0.1, -0.5], None, "no_consensus", "v1"),
    ("real", [-0.1, -0.5], 5, "no_consensus", "kernel"),
    ("real", [0.5, 0.499, -5.0], None, "near_degenerate", "span"),
    ("real", [-3.0, 0.2, 0.1], 9, "real_dominant", "v1"),
    ("modulus", [1.5, 0.3], None, "real_dominant", "v1"),
    ("modulus", [-1.5, 0.3], None, "flip", "v1"),
    ("modulus", [1.5, -1.5, 0.3], None, "near_degenerate", "span"),
    ("modulus", [0.2 + 1.5j, 0.3], None, "complex_dominant", "plane"),
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("order", "values", "d", "regime", "target"), TABLE)
def test_decision_table(
    order: str, values: list[complex], d: int | None, regime: str, target: str, seed: int
) -> None:
    found, _, _ = decide(values, order, d, seed=seed)
    assert (found.regime, found.target) == (regime, target)
    assert regime in REGIMES


def test_all_regimes_are_in_the_table() -> None:
    assert {row[3] for row in TABLE} == set(REGIMES)


def test_the_two_maps_disagree() -> None:
    """Theory 5.8: the normalised map goes to -3.5, the pre-norm stream to +1."""
    values: list[complex] = [1.0, 0.6, 0.2, -3.5]
    normalised, pairs, _ = decide(values, "residual")
    assert pairs.values[normalised.members[0]] == pytest.approx(-3.5)
    stream, pairs, _ = decide(values, "real")
    assert pairs.values[stream.members[0]] == pytest.approx(1.0)


GAPS = [
    ("residual", [1.0, 0.5], None, 0.25),
    ("residual", [0.5 + 1j, 0.2], None, 1 - 1.2 / abs(1.5 + 1j)),
    ("residual", [2.0, 2.0, 1.0], None, 1 / 3),
    ("residual", [0.25], 4, 0.2),
    ("real", [2.0, 1.0, -9.0], None, 0.5),
    ("real", [2.0, -1.0], None, 1.5),
    ("real", [2.0, -1.0], 5, 1.0),
    ("real", [-1.0, -2.0], None, None),
    ("modulus", [2.0, -1.0], None, 0.5),
]


@pytest.mark.parametrize(("order", "values", "d", "gap"), GAPS)
def test_gap(order: str, values: list[complex], d: int | None, gap: float | None) -> None:
    found, _, _ = decide(values, order, d)
    assert found.gap == (None if gap is None else pytest.approx(gap, rel=1e-9))


def test_kernel_counts_though_the_core_alone_would_lead() -> None:
    """Theory section 3: core -.3, -.6, -.9 in d = 8: the core says m = .7, the kernel has m = 1."""
    found, pairs, a = decide([-0.3, -0.6, -0.9], "residual", 8)
    assert pairs.values[0] == pytest.approx(-0.3)
    assert found.gap == pytest.approx(0.3)
    complement = target_basis(a, pairs, found)
    rng = np.random.default_rng(1)
    x = rng.standard_normal(8)
    for _ in range(200):
        x = x + a.matvec(x)
        x /= np.linalg.norm(x)
    assert np.linalg.norm(complement.T @ x) < 1e-12, "power steps end in the kernel"


@pytest.mark.parametrize("size", [2, 3])
def test_jordan_block_is_near_degenerate_and_its_target_is_invariant(size: int) -> None:
    known = jordan(1.0, size, [0.3, -0.2 + 0.4j])
    a = Full(known.matrix)
    pairs = eigenpairs(a, None, ORDERS["residual"])
    found = find_principal(pairs, a.d, a.rank_bound, ORDERS["residual"])
    assert found is not None
    assert found.regime == "near_degenerate"
    assert found.defective
    assert found.steps_to_separate is None
    basis = target_basis(a, pairs, found)
    assert basis.shape == (a.d, size)
    assert np.allclose(basis.T @ basis, np.eye(size), atol=1e-12)
    image = a.matvec(basis)
    assert np.linalg.norm(image - basis @ (basis.T @ image)) < 1e-9 * pairs.norm


def test_exactly_triangular_jordan_block() -> None:
    """LAPACK returns 2, 2 exactly here, with parallel vectors: no semisimple multiple."""
    a = Full(np.array([[2.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.5]]))
    pairs = eigenpairs(a, None, ORDERS["residual"])
    found = find_principal(pairs, 3, 3, ORDERS["residual"])
    assert found is not None
    assert found.regime == "near_degenerate"
    assert target_basis(a, pairs, found).shape == (3, 2)


@pytest.mark.parametrize("values", [[1.0, 0.4], [0.5 + 1j, 0.1], [1.0, -3.0, 0.2]])
def test_target_basis_is_where_power_steps_go(values: list[complex]) -> None:
    found, pairs, a = decide(values, "residual", 9)
    basis = target_basis(a, pairs, found)
    assert np.allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-12)
    x = np.random.default_rng(0).standard_normal(9)
    for _ in range(300):
        x = x + a.matvec(x)
        x /= np.linalg.norm(x)
    assert np.linalg.norm(basis.T @ x) == pytest.approx(1, abs=1e-10)
    other = target_basis(a, pairs, replace(found, members=(pairs.values.size - 1,), target="v1"))
    assert np.linalg.norm(other.T @ x) < 0.999, "the check tells another direction apart"


def test_angles() -> None:
    assert decide([0.5 + 1j, 0.1], "residual")[0].angle == pytest.approx(math.atan2(1, 1.5))
    assert decide([-3.5, 0.1], "residual")[0].angle == pytest.approx(math.pi)
    assert decide([0.5, 0.1], "residual")[0].angle == 0
    turning = decide([0.5 + 1j, 0.1], "real")[0]
    assert turning.angle == pytest.approx(2.0)
    assert turning.angle_unit == "rad per unit of log depth"
    assert decide([-0.5, -1.0], "real")[0].angle is None
    assert decide([0.5 + 1j, 0.1], "modulus")[0].angle == pytest.approx(math.atan2(1, 0.5))


def test_steps_to_separate_is_what_iterating_takes() -> None:
    found, _, _ = decide([1.0, 0.5], "residual")
    steps = found.steps_to_separate
    assert steps is not None
    assert (1.5 / 2.0) ** steps == pytest.approx(0.1)
    # under `real` the ratio decays as t^-gap
    found, _, _ = decide([2.0, 1.0], "real")
    assert found.steps_to_separate == pytest.approx(100)
    assert decide([-0.3, -0.6], "real")[0].steps_to_separate is None


def test_tie_tolerance_and_error_bars() -> None:
    values: list[complex] = [1.0, 0.9]
    assert decide(values, "residual", tie=0.01)[0].regime == "real_dominant"
    assert decide(values, "residual", tie=0.06)[0].regime == "near_degenerate"
    _, pairs, a = decide(values, "residual")
    fuzzy = replace(pairs, error_bars=np.array([0.06, 0.06]))
    found = find_principal(fuzzy, a.d, a.rank_bound, ORDERS["residual"])
    assert found is not None
    assert found.regime != "real_dominant", "a gap inside the bars is no gap"


def test_a_list_that_ends_inside_the_tie_asks_for_more() -> None:
    _, pairs, a = decide([1.0, 0.999, 0.998, 0.5], "residual")
    part = replace(pairs.take(slice(0, 2)), complete=False)
    assert find_principal(part, a.d, a.rank_bound, ORDERS["residual"]) is None
    more = replace(pairs.take(slice(0, 4)), complete=False)
    found = find_principal(more, a.d, a.rank_bound, ORDERS["residual"])
    assert found is not None
    assert len(found.members) == 3


def test_sorting_does_not_depend_on_rounding() -> None:
    tied = np.array([1.0, -3.0, 0.5 + 2j, 0.5 - 2j])
    wobbled = tied * (1 + 1e-15 * np.array([1, -1, 1, 1]))
    for order in ORDERS.values():
        assert np.array_equal(leading_first(tied, order), leading_first(wobbled, order))
    assert tied[leading_first(tied, ORDERS["residual"])].tolist()[:2] == [0.5 + 2j, 0.5 - 2j]
    assert tied[leading_first(tied, ORDERS["residual"])].tolist()[2:] == [1.0, -3.0]


def test_pairs_with_one_real_part_stand_together() -> None:
    values = np.array([1 + 2j, 1 - 2j, 1 + 3j, 1 - 3j])
    index = leading_first(values, ORDERS["real"])
    assert values[index].tolist() == [1 + 3j, 1 - 3j, 1 + 2j, 1 - 2j]
    assert whole_pairs(values[index], 1) == 2
    assert whole_pairs(values[index], 3) == 4


def test_auto_follows_the_placement() -> None:
    chosen = {p: resolve_order("auto", p).name for p in ("post", "pre", "parallel", "sandwich")}
    assert chosen == {"post": "residual", "pre": "real", "parallel": "real", "sandwich": "real"}
    assert resolve_order("auto", None).name == "residual"
    with pytest.raises(OptionError, match="order 'size' is unknown; use one of auto, residual"):
        resolve_order("size", "pre")


@pytest.mark.parametrize("k", [1, 2, 3])
def test_gap_does_not_depend_on_k(k: int) -> None:
    """A short list must not let the kernel pass for the second eigenvalue."""
    import eigenlens

    whole = eigenlens.spectrum("sample:llama-tiny", layers=[1, 3], k=8)
    short = eigenlens.spectrum("sample:llama-tiny", layers=[1, 3], k=k)
    for long_one, short_one in zip(whole.layers, short.layers, strict=True):
        assert short_one.gap == pytest.approx(long_one.gap, rel=1e-9)
        assert short_one.regime == long_one.regime
        assert short_one.henrici is None


@pytest.mark.parametrize("scale", [1.0, 1e-180, 1e150])
@pytest.mark.parametrize("r", [12, 8])
def test_the_kernel_of_a_pruned_head_is_found(r: int, scale: float) -> None:
    """Shapes allow more than there is: what leads is the kernel, and all of it."""
    rng = np.random.default_rng(2)
    left, right = np.zeros((12, r)), rng.standard_normal((r, 12))
    left[:, : r - 4] = -right[: r - 4].T  # negative definite but for one head, which adds nothing
    a = LowRank(left * scale, right)
    rows = Full(a.dense()).row_space(), a.row_space()
    expected = np.linalg.qr(right[: r - 4].T)[0]
    for basis in rows:
        assert basis.shape == (12, r - 4)
        assert np.linalg.svd(basis.T @ expected, compute_uv=False) == pytest.approx(1.0, abs=1e-10)
    zero = LowRank(np.zeros((12, r)), right)
    assert zero.row_space().shape == Full(zero.dense()).row_space().shape == (12, 0)
    c = OVCircuit(right, left * scale, n_heads=r // 4, n_kv_heads=r // 4, head_dim=4)
    layer = spectrum([c], order="real").layers[0]
    assert layer.target == "kernel"
    kernel = layer.basis()
    assert kernel.shape == (12, 16 - r)
    assert np.abs(c.dense() @ kernel).max() <= 1e-12 * layer.spectral_norm
