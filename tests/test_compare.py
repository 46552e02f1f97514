"""Comparing checkpoints: against dense numpy, against what is known, and on real weights."""

from __future__ import annotations

import copy
import itertools
import math
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import eigenlens
from eigenlens import OVCircuit, open_checkpoint
from eigenlens.circuit import checkpoint as checkpoints
from eigenlens.comparing import difference as differences
from eigenlens.comparing.difference import difference
from eigenlens.comparing.matching import Points, match
from eigenlens.errors import ArchitectureError, NumericsError, OptionError
from eigenlens.report.compare_tables import compare_sentences
from eigenlens.report.serialise import to_json
from eigenlens.samples import sample_path
from eigenlens.spectra.maps import LowRank
from matrices import prescribed

BUNDLED = ("albert-tiny", "albert-tiny-rotating", "bert-tiny", "gpt2-tiny", "llama-tiny")


def factors(d: int, r: int, seed: int) -> LowRank:
    rng = np.random.default_rng(seed)
    return LowRank(0.2 * rng.standard_normal((d, r)), 0.2 * rng.standard_normal((r, d)))


def circuit(matrix: np.ndarray, **more: Any) -> OVCircuit:
    d = matrix.shape[0]
    return OVCircuit(matrix, np.eye(d), n_heads=1, n_kv_heads=1, head_dim=d, **more)


def heads(d: int, n: int, h: int, groups: int = 1, seed: int = 0) -> OVCircuit:
    rng = np.random.default_rng(seed)
    return OVCircuit(
        0.2 * rng.standard_normal((n // groups * h, d)),
        0.2 * rng.standard_normal((d, n * h)),
        n_heads=n,
        n_kv_heads=n // groups,
        head_dim=h,
    )


def dense_numbers(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float, float]:
    """|A - B|_F, over |A|_F, |A - B|_2 and the effective rank, all from the dense difference."""
    sigma = np.linalg.svd(a - b, compute_uv=False)
    p = sigma[sigma > 1e-13 * np.linalg.norm(a)]
    p = p / p.sum()
    norm = float(np.linalg.norm(a - b))
    rank = math.exp(-float(p @ np.log(p)))
    return norm, norm / float(np.linalg.norm(a)), float(sigma[0]), rank


SHAPES = [(24, 5, 5), (24, 5, 9), (24, 20, 20), (24, 24, 24), (24, 40, 40), (24, 1, 40)]


@pytest.mark.parametrize(("d", "r", "s"), SHAPES)
def test_the_difference_is_that_of_the_dense_matrices(d: int, r: int, s: int) -> None:
    a, b = factors(d, r, 0), factors(d, s, 1)
    found = difference(a, b)
    norm, relative, top, rank = dense_numbers(a.dense(), b.dense())
    assert found.norm == pytest.approx(norm, rel=1e-12)
    assert found.relative == pytest.approx(relative, rel=1e-12)
    assert found.largest == pytest.approx(top, rel=1e-12)
    assert found.effective_rank == pytest.approx(rank, rel=1e-10)
    assert found.rank == min(r + s, d)
    assert found.norm_b == pytest.approx(np.linalg.norm(b.dense()), rel=1e-12)
    x, y = a.dense().ravel(), b.dense().ravel()
    assert found.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-12)


@pytest.mark.parametrize("bug", ["sign", "transpose", "one factor"])
def test_the_oracle_sees_a_wrong_difference(bug: str) -> None:
    a, b = factors(24, 5, 0), factors(24, 5, 1)
    wrong = {
        "sign": LowRank(-b.left, b.right),
        "transpose": LowRank(b.right.T, b.left.T),
        "one factor": LowRank(b.left, a.right),
    }[bug]
    truth = dense_numbers(a.dense(), b.dense())[0]
    assert difference(a, wrong).norm != pytest.approx(truth, rel=1e-3)


@given(st.integers(-250, 250), st.integers(-250, 250), st.integers(0, 20))
def test_the_relative_change_has_no_unit(left: int, right: int, seed: int) -> None:
    a, b = factors(12, 3, seed), factors(12, 3, seed + 100)
    scaled = [LowRank(np.ldexp(x.left, left), np.ldexp(x.right, right)) for x in (a, b)]
    one, two = difference(a, b), difference(*scaled)
    assert two.relative == one.relative
    assert two.effective_rank == one.effective_rank


@pytest.mark.parametrize("size", [1e-3, 1e-8, 1e-12])
def test_a_small_change_keeps_its_digits(size: float) -> None:
    a = factors(40, 8, 0)
    left = a.left + size * np.random.default_rng(5).standard_normal(a.left.shape)
    b = LowRank(left, a.right)
    truth = np.linalg.norm((a.left - left) @ a.right)  # the difference of the factors is exact
    assert difference(a, b).norm == pytest.approx(truth, rel=1e-10)
    assert difference(a, b).is_real
    # The Gram matrices of [L_A, -L_B] and [R_A; R_B] would lose it.
    outer = np.concatenate([a.left, -b.left], axis=1)
    inner = np.concatenate([a.right, b.right])
    gram = math.sqrt(max(float(np.vdot(outer.T @ outer, inner @ inner.T)), 0.0))
    if size < 1e-7:
        assert gram != pytest.approx(truth, rel=1e-3)


@settings(max_examples=25)
@given(st.one_of(st.floats(-3, 3), st.floats(0.95, 1.05)), st.integers(0, 20))
def test_scaling_is_known(c: float, seed: int) -> None:
    one = prescribed([1.5, 0.9 + 0.3j, 0.4, -0.2, 0.1], seed).matrix
    layer = eigenlens.compare(circuit(one), circuit(c * one), order="modulus").layers[0]
    assert layer.relative == pytest.approx(abs(1 - c), abs=1e-14)
    after = sorted((abs(m.after) for m in layer.matches), reverse=True)
    before = sorted((abs(c * m.before) for m in layer.matches), reverse=True)
    assert np.allclose(after, before, atol=1e-10)
    if abs(c) > 1e-3:
        assert layer.principal_angles[0] < 1e-7
    if abs(c - 1) < 0.05:  # nothing passes anything else
        assert all(abs(m.after - c * m.before) < 1e-10 for m in layer.matches)


def test_a_rank_one_edit_is_known() -> None:
    base = heads(32, 4, 4, groups=2)
    rng = np.random.default_rng(3)
    u, w, alpha = rng.standard_normal(32), rng.standard_normal(16), 0.37
    edited = replace(base, W_O=base.W_O + alpha * np.outer(u, w))
    # Query heads that share a value head add up.
    q = base.value().T @ w.reshape(2, 2, 4).sum(axis=1).ravel()
    found = eigenlens.compare(base, edited).layers[0].difference
    size = alpha * np.linalg.norm(u) * np.linalg.norm(q)
    assert found.norm == pytest.approx(size, rel=1e-12)
    assert found.largest == pytest.approx(size, rel=1e-12)
    assert (found.rank, found.effective_rank) == (1, 1.0)
    tiled = base.value().T @ w.reshape(2, 2, 4).sum(axis=0).ravel()  # heads tiled, not interleaved
    assert found.norm != pytest.approx(alpha * np.linalg.norm(u) * np.linalg.norm(tiled), rel=1e-3)


def test_permuting_heads_changes_nothing() -> None:
    base = heads(32, 4, 4)
    order = [2, 0, 3, 1]
    W_V = base.W_V.reshape(4, 4, 32)[order].reshape(16, 32)
    W_O = base.W_O.reshape(32, 4, 4)[:, order].reshape(32, 16)
    layer = eigenlens.compare(base, replace(base, W_V=W_V, W_O=W_O)).layers[0]
    assert layer.relative < 1e-14
    assert not layer.difference.is_real
    assert not layer.difference.identical
    assert (layer.difference.rank, layer.difference.effective_rank) == (0, 0.0)
    assert not any(m.changed for m in layer.matches)
    assert layer.principal_angles[0] < 1e-12
    half = eigenlens.compare(base, replace(base, W_V=W_V)).layers[0]
    assert half.difference.is_real
    assert any(m.changed for m in half.matches)


def as_points(values: list[complex], leaders: int | None = None) -> Points:
    folded = np.array([complex(v.real, abs(v.imag)) for v in values])
    places = tuple(i - (v.imag < 0) for i, v in enumerate(map(complex, values)))
    count = len(values) if leaders is None else leaders
    return Points(folded, np.zeros(len(values)), places, count, -np.inf)


def pairs_of(values: list[complex]) -> list[complex]:
    out: list[complex] = []
    for v in values:
        out += [v, v.conjugate()] if v.imag else [v]
    return out


SPECTRUM = st.lists(
    st.one_of(
        st.floats(-2, 2).map(complex),
        st.builds(complex, st.floats(-2, 2), st.floats(0.1, 2)),
    ),
    min_size=1,
    max_size=3,
)


@given(SPECTRUM, SPECTRUM)
def test_the_assignment_is_the_shortest_of_all(one: list[complex], two: list[complex]) -> None:
    a, b = pairs_of(one), pairs_of(two)
    n = max(len(a), len(b))
    a, b = (x + [0j] * (n - len(x)) for x in (a, b))  # as the kernel fills a side up
    found = match(as_points(a), as_points(b), "modulus")
    twice = sum(m.distance * (2 if m.kind == "pair" and whole(m, found) else 1) for m in found)
    fold = [
        [abs(complex(x.real, abs(x.imag)) - complex(y.real, abs(y.imag))) for y in b] for x in a
    ]
    whole_ones = [p for p in itertools.permutations(range(n)) if keeps_pairs(a, b, p)]
    best = min(sum(fold[i][p[i]] for i in range(n)) for p in whole_ones)
    assert twice == pytest.approx(best, abs=1e-5)
    told = [m.index_before for m in found if m.kind == "pair"]
    assert len(told) == len(set(told)), "a pair is told once"


def keeps_pairs(a: list[complex], b: list[complex], p: tuple[int, ...]) -> bool:
    """Whether both members of each pair go to one pair, or each to a real value, and back."""
    back = sorted(range(len(p)), key=p.__getitem__)
    for one, other, to in ((a, b, p), (b, a, back)):
        for i, x in enumerate(one):
            if x.imag > 0:
                y, z = other[to[i]], other[to[i + 1]]
                if (y.imag or z.imag) and y != z.conjugate():
                    return False
    return True


def test_one_pair_does_not_become_two() -> None:
    """For single points it is shortest to give either pair of B a member of A's one pair."""
    a = as_points(pairs_of([0.95j, -0.2 + 0j, 0.2 + 0j]))
    b = as_points(pairs_of([-0.3 + 0.6j, 0.3 + 0.6j]))
    found = match(a, b, "modulus")
    assert sorted(m.kind for m in found) == ["pair", "real_to_pair", "real_to_pair"]
    assert len({m.index_after for m in found if m.kind == "real_to_pair"}) == 1


def whole(m: Any, found: list[Any]) -> bool:
    """Whether both members of m's pair went the same way, so that it is told once for two."""
    return (
        sum(x.index_before == m.index_before for x in found) == 1
        and sum(x.index_after == m.index_after for x in found) == 1
    )


def test_two_that_pass_each_other_are_followed() -> None:
    """|1 + lambda| of the real one falls from 2 to 1.98, that of the pair rises to 2.26."""
    a = prescribed([1.0, 0.9 + 0.5j, 0.2, -0.1], 0).matrix
    b = prescribed([0.98, 1.2 + 0.5j, 0.2, -0.1], 0).matrix
    layer = eigenlens.compare(circuit(a), circuit(b)).layers[0]
    assert [(m.index_before, m.index_after) for m in layer.matches] == [
        *((0, 2), (1, 0), (3, 3), (4, 4))
    ]
    assert layer.leader is not None
    assert layer.leader.distance == pytest.approx(0.02, abs=1e-12)
    assert layer.new_leader
    assert layer.b is not None
    assert abs(layer.leader.before - (layer.b.eigenvalue or 0)) > 0.2  # by index it would be this
    same = eigenlens.compare(circuit(a), circuit(1.1 * a)).layers[0]
    assert not same.new_leader


def test_a_pair_that_becomes_two_reals_is_followed() -> None:
    a = prescribed([1.0 + 0.05j, 0.3]).matrix
    b = prescribed([1.06, 0.94, 0.3]).matrix
    layer = eigenlens.compare(circuit(a), circuit(b)).layers[0]
    assert sorted(m.kind for m in layer.matches) == ["pair_to_real", "pair_to_real", "real"]
    assert sorted(m.after.real for m in layer.matches) == pytest.approx([0.3, 0.94, 1.06])
    assert layer.regime_changed
    assert [x.regime for x in (layer.a, layer.b) if x] == ["complex_dominant", "real_dominant"]
    back = eigenlens.compare(circuit(b), circuit(a)).layers[0]
    assert sorted(m.kind for m in back.matches) == ["real", "real_to_pair", "real_to_pair"]


@settings(max_examples=20)
@given(st.integers(0, 30), st.sampled_from([1e-3, 1e-6]))
def test_a_small_change_is_matched_as_it_is(seed: int, size: float) -> None:
    values = [1.5, 1.0 + 0.4j, 0.4, -0.2 + 0.2j, 0.05, -1.1]
    rng = np.random.default_rng(seed)
    moved = [
        v + size * complex(rng.normal(), rng.normal() if complex(v).imag else 0) for v in values
    ]
    a, b = prescribed(values, seed).matrix, prescribed(moved, seed).matrix
    found = eigenlens.compare(circuit(a), circuit(b), k=8).layers[0].matches
    told = {m.before: m.after for m in found}
    assert len(told) == 6
    for before, after in told.items():
        place = int(np.argmin([abs(before - v) for v in values]))
        assert abs(after - moved[place]) < 1e-10
        assert all(m.changed for m in found)


def test_a_partner_below_the_leaders_is_found() -> None:
    rng = np.random.default_rng(0)
    values = np.sort(rng.uniform(0.1, 2, 60))[::-1]
    fallen = values.copy()
    fallen[0] = 0.0  # the leader falls below everything
    layer = eigenlens.compare(
        circuit(np.diag(values)), circuit(np.diag(fallen)), k=2, order="real"
    ).layers[0]
    assert layer.leader is not None
    assert all(m.certain for m in layer.matches)
    total = sum(m.distance for m in layer.matches)
    assert total <= values[0] - values[1] + values[1] - values[2] + 1e-12


def test_a_head_that_is_cut_off_falls_to_the_kernel() -> None:
    base = heads(16, 2, 4)
    W_O = base.W_O.copy()
    W_O[:, :4] = 0
    layer = eigenlens.compare(base, replace(base, W_O=W_O), k=8).layers[0]
    gone = [m for m in layer.matches if m.index_after is None]
    assert gone
    assert all(m.after == 0 for m in gone)
    assert layer.difference.rank == 4


def rotated(angle: float, d: int = 6) -> tuple[OVCircuit, OVCircuit]:
    """Symmetric matrices whose leaders are `angle` apart."""
    turn = np.eye(d)
    turn[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    base = np.diag([2.0, 0.5, *np.linspace(0.4, 0.1, d - 2)])
    return circuit(base), circuit(turn @ base @ turn.T)


@pytest.mark.parametrize("angle", [1e-9, 1e-3, 0.4, 1.5])
def test_the_angle_of_a_turned_leader_is_known(angle: float) -> None:
    found = eigenlens.compare(*rotated(angle)).layers[0].principal_angles
    assert found == (pytest.approx(angle, rel=1e-6, abs=1e-15),)


def test_angles_between_planes_and_kernels() -> None:
    plane = prescribed([1.0 + 0.5j, 0.2, 0.1], 1).matrix
    other = prescribed([1.0 + 0.5j, 0.2, 0.1], 2).matrix
    found = eigenlens.compare(circuit(plane), circuit(other)).layers[0]
    spans = []
    for matrix in (plane, other):
        values, vectors = np.linalg.eig(matrix)
        v = vectors[:, np.argmax(values.imag)]
        spans.append(np.stack([v.real, v.imag], axis=1))
    assert found.principal_angles == pytest.approx(scipy.linalg.subspace_angles(*spans), abs=1e-10)
    # Negative eigenvalues under `residual`: the kernel leads.
    left, right = np.random.default_rng(0).standard_normal((2, 8, 2))
    sinks = [-0.1 * x @ np.linalg.pinv(x) for x in (left, right)]
    layers = [
        OVCircuit(np.linalg.pinv(x), -0.1 * x, n_heads=1, n_kv_heads=1, head_dim=2)
        for x in (left, right)
    ]
    kernels = eigenlens.compare(*layers).layers[0]
    assert kernels.a is not None
    assert kernels.a.target == "kernel"
    truth = scipy.linalg.subspace_angles(*(scipy.linalg.null_space(x) for x in sinks))
    assert kernels.principal_angles == pytest.approx(truth[:2], abs=1e-10)
    assert truth[2:] == pytest.approx(0, abs=1e-7)
    mixed = eigenlens.compare(circuit(np.diag([1.0, *[0.1] * 7])), layers[1]).layers[0]
    one = scipy.linalg.subspace_angles(np.eye(8)[:, :1], scipy.linalg.null_space(sinks[1]))
    assert mixed.principal_angles == pytest.approx(one, abs=1e-10)


@pytest.mark.parametrize("name", BUNDLED)
def test_a_model_does_not_differ_from_itself(name: str) -> None:
    result = eigenlens.compare(f"sample:{name}", f"sample:{name}", k=4)
    assert result.largest == 0
    for layer in result.layers:
        d = layer.difference
        assert (d.norm, d.largest, d.rank, d.effective_rank, d.relative) == (0, 0, 0, 0, 0)
        assert all(m.distance == 0 and m.index_before == m.index_after for m in layer.matches)
        assert set(layer.principal_angles) == {0.0}
        assert not layer.regime_changed
        assert not layer.new_leader
        assert layer.a == layer.b


def narrowed(name: str, folder: Path, dtype: Any) -> Path:
    """A sample with its weights rounded, as a folder."""
    from safetensors.numpy import load_file, save_file

    source = open_checkpoint(f"sample:{name}").source
    assert source is not None
    assert source.folder is not None
    state = load_file(source.folder / "model.safetensors")
    save_file({k: v.astype(dtype) for k, v in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text((source.folder / "config.json").read_text())
    return folder


@pytest.mark.parametrize("name", ["bert-tiny", "llama-tiny"])
def test_rounding_to_bfloat16_stays_within_its_bound(name: str, tmp_path: Path) -> None:
    folder = narrowed(name, tmp_path, ml_dtypes.bfloat16)
    result = eigenlens.compare(f"sample:{name}", folder, k=4)
    before, after = open_checkpoint(f"sample:{name}").circuits(), open_checkpoint(folder).circuits()
    for layer, a, b in zip(result.layers, before, after, strict=True):
        norm, relative, _, _ = dense_numbers(a.dense(), b.dense())
        assert layer.difference.norm == pytest.approx(norm, rel=1e-9)
        assert layer.relative == pytest.approx(relative, rel=1e-9)
        sizes = np.linalg.norm(a.grouped_output()) * np.linalg.norm(a.value())
        assert 0 < layer.difference.norm <= 2.1 * 2**-8 * sizes
        assert layer.leader is not None
        assert layer.leader.changed
        assert layer.leader.distance < 0.05
    assert result.largest < 0.01
    assert result.ranking[0].relative == result.largest


def test_gguf_and_safetensors_of_one_model_are_the_same(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    from test_tensors_gguf_families import write

    model = copy.deepcopy(tiny("llama")).float()
    model.save_pretrained(tmp_path)
    result = eigenlens.compare(tmp_path, write(tmp_path / "m.gguf", "llama", model), k=2)
    assert result.largest == 0
    assert all(x.difference.identical for x in result.layers)
    assert result.warnings == ()


def test_what_differs_is_said() -> None:
    with pytest.raises(ArchitectureError, match=r"no layer in common.*encoder.*decoder"):
        eigenlens.compare("sample:bert-tiny", "sample:gpt2-tiny")
    stack = [replace(heads(16, 2, 4, seed=i), layer=i) for i in range(3)]
    wide = [replace(heads(24, 2, 4, seed=i), layer=i) for i in range(2)]
    with pytest.raises(ArchitectureError, match=r"d 16 and 24 .*3 and 2 layers"):
        eigenlens.compare(stack, wide)
    with pytest.raises(ArchitectureError, match=r"3 and 2 layers.*--layers"):
        eigenlens.compare(stack, stack[:2])
    assert len(eigenlens.compare(stack, stack[:2], layers=[1, 2]).layers) == 1
    with pytest.raises(OptionError, match=r", like .*, has no layer 7: layers are 0 to 2"):
        eigenlens.compare(stack, stack, layers=[7])
    with pytest.raises(OptionError, match="has no stack 'vision'"):
        eigenlens.compare(stack, stack, stack="vision")


def test_layers_of_only_one_are_listed() -> None:
    a = [replace(heads(16, 2, 4, seed=i), layer=i) for i in range(3)]
    b = [a[0], a[2]]
    tower = replace(heads(16, 2, 4), stack="vision")
    result = eigenlens.compare([*a, tower], b, k=2)
    assert [x.layer for x in result.layers] == [0, 2]
    assert [(x["stack"], x["layer"]) for x in result.only["a"]] == [("decoder", 1), ("vision", 0)]
    assert result.only["b"] == ()
    assert any("only arrays has decoder.1" in w for w in result.warnings)


def test_warnings_name_layers_as_tables_do() -> None:
    """By the number where there is one stack of one kind, else in full."""
    base = [replace(heads(16, 2, 4, seed=i), layer=i, b_O=np.ones(16)) for i in range(6)]
    moved = [replace(x, b_O=np.full(16, 2.0)) for x in base]
    (told,) = eigenlens.compare(base, moved, k=2).warnings
    assert told.startswith("in layers 0-5 the biases changed")
    (told,) = eigenlens.compare(base[:1], moved[:1], k=2).warnings
    assert told.startswith("in layer 0 the biases changed")
    across = replace(base[0], kind="cross")
    only, told = eigenlens.compare([*base[:2], across], moved[:2], k=2).warnings
    assert only == "only arrays has decoder.cross.0"
    assert told.startswith("in layers 0-1 the biases changed")


def test_what_f_does_not_hold_is_said() -> None:
    base = heads(16, 2, 4)
    biased = replace(base, b_O=np.ones(16))
    result = eigenlens.compare(biased, replace(biased, b_O=np.full(16, 2.0)), k=2)
    assert result.largest == 0
    assert result.layers[0].bias_change == 1.0
    assert any("biases changed" in w for w in result.warnings)
    scaled = eigenlens.compare(base, replace(base, output_scale=0.5), k=2).layers[0]
    assert scaled.relative == pytest.approx(0.5)  # the scale is part of what is added


def test_a_zero_layer_and_one_that_is_not_square() -> None:
    zero = circuit(np.zeros((4, 4)))
    result = eigenlens.compare(zero, circuit(np.eye(4)), k=2)
    assert result.largest == math.inf
    assert '"relative_change": null' in to_json(result)
    assert eigenlens.compare(zero, zero).largest == 0
    flat = OVCircuit(np.ones((2, 6)), np.ones((4, 2)), 1, 1, 2, kind="cross")
    layer = eigenlens.compare(flat, replace(flat, W_O=np.zeros((4, 2)))).layers[0]
    assert layer.relative == pytest.approx(1.0, rel=1e-15 * 8)
    assert (layer.a, layer.matches, layer.principal_angles) == (None, (), ())


def test_two_layers_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[Any] = []
    most = 0
    read = checkpoints.read_circuit

    def counted(plan: Any, store: Any) -> Any:
        nonlocal most
        found = read(plan, store)
        alive.append(weakref.ref(found))
        most = max(most, sum(ref() is not None for ref in alive))
        return found

    monkeypatch.setattr(checkpoints, "read_circuit", counted)
    eigenlens.compare("sample:bert-tiny", "sample:bert-tiny", k=2)
    assert (len(alive), most) == (8, 2)


def test_nothing_of_size_d_by_d_is_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    found = np.linalg.svd

    def seen(x: Any, *args: Any, **options: Any) -> Any:
        nonlocal largest
        largest = max(largest, *x.shape)
        return found(x, *args, **options)

    monkeypatch.setattr(differences.np.linalg, "svd", seen)
    difference(factors(300, 4, 0), factors(300, 4, 1))
    assert largest == 8


def test_the_frame_has_a_row_a_layer(tmp_path: Path) -> None:
    folder = narrowed("bert-tiny", tmp_path, np.float16)
    result = eigenlens.compare("sample:bert-tiny", folder, k=2)
    table = result.to_frame()
    assert list(table["layer"]) == [0, 1, 2, 3]
    assert list(table["relative_change"]) == [x.relative for x in result.layers]
    assert [x.name for x in result.ranking] == [
        f"encoder.{i}" for i in table.sort_values("relative_change", ascending=False)["layer"]
    ]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [1e-20, 1e-10, 1e-4, 1e4, 1e17])
def test_multiples_of_any_size_have_cosine_one(dtype: Any, size: float) -> None:
    x = factors(12, 4, 3)
    a = LowRank(x.left.astype(dtype), x.right.astype(dtype))
    b = LowRank((size * x.left).astype(dtype), (size * x.right).astype(dtype))
    found, sizes = difference(a, b), [float(np.linalg.norm(x.dense())) * s for s in (1, size**2)]
    assert found.cosine == pytest.approx(1, abs=1e-5)
    assert [found.norm_a, found.norm_b] == pytest.approx(sizes, rel=1e-5)
    assert difference(b, a).cosine == pytest.approx(1, abs=1e-5)


def test_a_layer_that_was_zero_is_not_called_unrelated() -> None:
    zero = (np.zeros((4, 4)), np.zeros((4, 4)))
    text = " ".join(compare_sentences(eigenlens.compare(zero, (np.eye(4), np.eye(4)))))
    assert "where it was 0" in text
    assert "in common" not in text


def test_rounding_is_no_change() -> None:
    """What differs by rounding counts as 0, and ranks behind what moved however small F is."""
    rng = np.random.default_rng(4)
    V, O_ = rng.normal(size=(6, 6)), rng.normal(size=(6, 6))
    same = eigenlens.compare((V, O_), (3 * V, O_ / 3))
    assert same.layers[0].difference.norm > 0
    assert same.largest == 0
    moved = eigenlens.compare((V, O_), (1.01 * V, O_)).layers[0]
    both = replace(same, layers=(replace(same.layers[0], stack="tiny"), moved))
    assert both.ranking[0] is moved
    assert both.largest == pytest.approx(0.01, rel=1e-9)


def test_an_error_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(sample_path("bert-tiny"), folder)
    tensors = load_file(folder / "model.safetensors")
    name = next(n for n in tensors if n.endswith("layer.1.attention.self.value.weight"))
    tensors[name] = np.full_like(tensors[name], np.nan)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(NumericsError, match=rf"damaged: tensor '{name}'"):
        eigenlens.compare("sample:bert-tiny", str(folder), layers=[1])


def test_a_torn_pair_disturbs_no_eigenvalue_that_stayed() -> None:
    """Whatever else there is: a crowd, or values whose distances an outlier makes look small."""
    torn = (
        (np.array([4.3025, 4.9344]), [4.6263 + 0.05j]),
        (
            np.array([4.7803, 4.8367]),
            [4.9051 + 0.3j],
        ),
    )
    for others in (
        [0.5] * 60,
        [0.5 + 1e-3 * i for i in range(60)],
        [1e4, *(0.5 + 1e-4 * np.arange(6))],
    ):
        a, b = (listed([*reals, *others], pairs) for reals, pairs in torn)
        found = match(a, b, "residual")
        stayed = sorted(m.before.real for m in found if m.distance == 0)
        assert stayed == sorted(float(x) for x in others)
        assert {m.kind for m in found if m.distance} == {"pair", "real"}


def listed(reals: list[float], pairs: list[complex]) -> Points:
    """Points of a matrix with these eigenvalues, all of which lead."""
    units = [[complex(r)] for r in reals] + [[p, p] for p in pairs]
    units.sort(key=lambda u: -abs(1 + u[0]))
    values, first = [], []
    for unit in units:
        first += [len(values)] * len(unit)
        values += unit
    return Points(np.array(values), np.full(len(values), 1e-12), tuple(first), len(values), -np.inf)
