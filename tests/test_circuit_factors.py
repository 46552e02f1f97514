"""What a circuit computes from its factors, against plain loops over heads, and what it refuses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenlens.arrays import check_finite, upcast
from eigenlens.circuit.circuit import Norm, OVCircuit
from eigenlens.circuit.layouts import LAYOUTS, Geometry, stacked
from eigenlens.errors import NumericsError, OptionError, ShapeError


def make(rng: Any, kv: int, group: int, h: int, d: int, **more: Any) -> OVCircuit:
    n = kv * group
    return OVCircuit(
        rng.normal(0, 0.2, (kv * h, d)),
        rng.normal(0, 0.2, (d, n * h)),
        n,
        kv,
        h,
        b_V=rng.normal(size=kv * h),
        b_O=rng.normal(size=d),
        **more,
    )


def by_heads(c: OVCircuit) -> tuple[Any, Any]:
    F, b, h = np.zeros((c.d_model, c.d_in)), np.array(c.b_O), c.head_dim
    for i in range(c.n_heads):
        j = i // (c.n_heads // c.n_kv_heads)
        rows = c.W_O[:, i * h : (i + 1) * h]
        F += rows @ c.W_V[j * h : (j + 1) * h]
        b += rows @ c.b_V[j * h : (j + 1) * h]
    return F, b


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(2, 9), st.integers(0, 99)
)
def test_factors_agree_with_a_loop_over_heads(
    kv: int, group: int, h: int, d: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    c = make(rng, kv, group, h, d)
    F, b = by_heads(c)
    np.testing.assert_allclose(c.dense(), F, atol=1e-14)
    np.testing.assert_allclose(c.bias, b, atol=1e-13)
    np.testing.assert_allclose(sum(c.head(i).dense() for i in range(c.n_heads)), F, atol=1e-14)
    np.testing.assert_allclose(c.grouped_output() @ c.value(), F, atol=1e-14)
    z = rng.normal(size=(d, 3)) + 1j * rng.normal(size=(d, 3))
    np.testing.assert_allclose(c.matvec(z), F @ z, atol=1e-13)
    np.testing.assert_allclose(c.matvec(z[:, 0]), F @ z[:, 0], atol=1e-13)
    # Traces of powers are the power sums of the spectrum: core and F share the non-zero part.
    core = c.core()
    assert c.rank_bound == min(kv * h, d)
    for k in (1, 2, 3):
        a, e = (np.trace(np.linalg.matrix_power(m, k)) for m in (core, F))
        np.testing.assert_allclose(a, e, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_narrow_weights_are_upcast_before_the_product(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    V, W = (rng.normal(size=s).astype(dtype) for s in ((6, 8), (8, 6)))
    c = OVCircuit(V, W, 3, 3, 2)
    assert c.W_V.dtype == dtype
    exact = W.astype(np.float64) @ V.astype(np.float64)
    np.testing.assert_allclose(c.dense(), exact, rtol=1e-15, atol=1e-15)
    assert c.dense(np.float32).dtype == np.float32


def test_a_half_precision_compute_dtype_is_refused() -> None:
    with pytest.raises(OptionError, match="float32 and float64"):
        upcast(np.ones(2), "float16")
    with pytest.raises(OptionError, match="float32 and float64"):
        upcast(np.ones(2), "nonsense")


def test_bad_entries_are_counted_and_placed() -> None:
    a = np.ones((3, 4))
    a[1, 2], a[2, 0] = np.nan, np.inf
    with pytest.raises(NumericsError, match=r"'w' has 2 entries .*\(1, 2\)"):
        check_finite("w", a)


def test_heads_out_of_range() -> None:
    c = make(np.random.default_rng(0), 2, 2, 2, 5)
    for i in (-1, 4):
        with pytest.raises(OptionError, match="heads are 0 to 3"):
            c.head(i)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"n_kv_heads": 3}, ShapeError, "not a multiple"),
        ({"head_dim": 3}, ShapeError, "W_V has shape"),
        ({"n_heads": 2}, ShapeError, "W_O has shape"),
        ({"n_heads": 0}, ShapeError, "at least 1"),
        ({"b_V": np.ones(3)}, ShapeError, "b_V has shape"),
        ({"b_O": np.ones(3)}, ShapeError, "b_O has shape"),
        ({"output_scale": np.ones(3)}, ShapeError, "output_scale has shape"),
        ({"norm_in": Norm("rmsnorm", np.ones(3))}, ShapeError, "norm_in gain"),
        ({"W_V": np.ones(4)}, ShapeError, "real floating-point matrix"),
        ({"W_V": np.ones((4, 5), complex)}, ShapeError, "real floating-point matrix"),
        ({"W_V": np.ones((4, 6))}, ShapeError, "d of W_O"),
        ({"W_V": np.full((4, 5), np.nan)}, NumericsError, "W_V of decoder layer 7"),
        ({"output_scale": float("inf")}, NumericsError, "output_scale"),
        ({"kind": "sideways"}, OptionError, "kind"),
        ({"placement": "nowhere"}, OptionError, "placement"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_refused(
    change: dict[str, Any], error: type[Exception], match: str
) -> None:
    good = {"W_V": np.ones((4, 5)), "W_O": np.ones((5, 8)), "n_heads": 4, "n_kv_heads": 2}
    good |= {"head_dim": 2, "layer": 7}
    assert OVCircuit(**good).d_model == 5
    with pytest.raises(error, match=match):
        OVCircuit(**(good | change))


def test_a_rectangular_cross_circuit_has_no_core() -> None:
    c = OVCircuit(np.ones((2, 3)), np.ones((4, 2)), 1, 1, 2, kind="cross")
    assert c.dense().shape == (4, 3)
    with pytest.raises(ShapeError, match="not square"):
        c.core()


G = Geometry(6, 1, 4, 2, 3)


@pytest.mark.parametrize("name", LAYOUTS)
def test_reading_undoes_writing_and_leaves_the_rest(name: str) -> None:
    layout = LAYOUTS[name]
    g = Geometry(6, 1, 4, 4, 3) if name in ("per_head", "blocks_of_four", "interleaved") else G
    rng = np.random.default_rng(0)
    stored = rng.normal(size=layout.shape(g, 6))
    W_V = rng.normal(size=(g.value_width, 6))
    edited = layout.write(g, stored, W_V)
    np.testing.assert_array_equal(layout.read(g, edited), W_V)
    assert np.count_nonzero(edited != stored) == W_V.size
    assert not np.array_equal(layout.read(g, stored), W_V)
    rows = layout.rows(g)
    if rows is not None:
        np.testing.assert_array_equal(edited[rows], W_V)


def test_fused_rows_are_where_the_models_put_them() -> None:
    labels = np.array([f"{p}{i}" for p, n in (("q", 12), ("k", 6), ("v", 6)) for i in range(n)])
    total, index = stacked(G)
    assert total == labels.size
    assert list(labels[index]) == [f"v{i}" for i in range(6)]
    g = Geometry(4, 1, 2, 2, 2)
    labels = np.array([f"{p}{h}{i}" for h in range(2) for p in "qkv" for i in range(2)])
    total, index = LAYOUTS["per_head"].fusing(g)
    assert total == labels.size
    assert list(labels[index]) == ["v00", "v01", "v10", "v11"]


def test_a_grouped_projection_that_divides_by_three_is_still_checked() -> None:
    """24 rows are three times 8, but the widths are 12 + 6 + 6."""
    layout = LAYOUTS["stacked"]
    layout.check(G, 6, "qkv", (24, 6))
    with pytest.raises(
        ShapeError, match=r"'qkv' has shape \(36, 6\), expected \(24, 6\).*n_kv_heads=2"
    ):
        layout.check(G, 6, "qkv", (36, 6))
    with pytest.raises(ShapeError, match="expected"):
        layout.check(G, 6, "qkv", (6, 24))
