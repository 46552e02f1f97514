"""Real trained weights: known answers, LAPACK on the dense F, heads, decoding, vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.errors import OptionError, SourceError
from eigenlens.spectra.analyse import henrici
from eigenlens.spectra.orders import ORDERS
from matrices import distance

SAMPLES = ["sample:albert-rxn", "sample:minilm", "sample:smollm2"]
TINY = ["sample:albert-tiny", "sample:bert-tiny", "sample:llama-tiny"]


@pytest.fixture(scope="module")
def opened() -> dict[str, Checkpoint]:
    return {name: open_checkpoint(name) for name in SAMPLES + TINY}


KNOWN = [
    ("sample:albert-rxn", 0, "modulus", -1.728 + 2.116j),
    ("sample:albert-rxn", 0, "residual", -0.133 + 2.169j),
    ("sample:albert-rxn", 0, "real", 0.802 + 0.264j),
    ("sample:minilm", 0, "residual", 1.238),
    ("sample:minilm", 0, "modulus", 1.238),
    ("sample:minilm", 5, "modulus", 1.532 + 0.131j),
]


@pytest.mark.parametrize(("name", "layer", "order", "value"), KNOWN)
def test_known_answers(name: str, layer: int, order: str, value: complex) -> None:
    found = eigenlens.spectrum(name, order=order, layers=[layer]).layers[0]
    assert found.eigenvalues[0] == pytest.approx(value, abs=6e-4)


def test_albert_norm_and_regime() -> None:
    found = eigenlens.spectrum("sample:albert-rxn").layers[0]
    assert found.spectral_norm == pytest.approx(5.0588, abs=5e-5)
    assert (found.order, found.regime, found.target) == ("residual", "complex_dominant", "plane")
    assert found.steps == 12
    assert found.angle == pytest.approx(np.angle(1 - 0.13268 + 2.16899j), abs=1e-4)
    assert found.basis().shape == (256, 2)


def plain_matrix(checkpoint: Checkpoint, layer: int) -> np.ndarray:
    """F by a loop over heads on the stored arrays, in float64."""
    c = checkpoint.circuits()[layer]
    W_V, W_O = c.W_V.astype(np.float64), c.W_O.astype(np.float64)
    h, group = c.head_dim, c.n_heads // c.n_kv_heads
    F = np.zeros((c.d_model, c.d_model))
    for i in range(c.n_heads):
        j = i // group
        F += W_O[:, i * h : (i + 1) * h] @ W_V[j * h : (j + 1) * h]
    return F


CASES = [("sample:albert-rxn", 0), ("sample:minilm", 0), ("sample:minilm", 3)]
CASES += [("sample:smollm2", i) for i in (0, 29)]


@pytest.mark.parametrize(("name", "layer"), CASES)
def test_against_lapack_on_the_dense_matrix(
    name: str, layer: int, opened: dict[str, Checkpoint]
) -> None:
    F = plain_matrix(opened[name], layer)
    norm = np.linalg.norm(F, 2)
    exact = np.linalg.eigvals(F)
    for solver in ("dense", "krylov"):
        found = eigenlens.spectrum(opened[name], layers=[layer], solver=solver).layers[0]
        order = ORDERS[found.order]
        near = np.abs(found.eigenvalues[:, None] - exact[None, :])
        assert np.all(near.min(axis=1) <= 100 * found.error_bars)
        leading = np.sort(order.key(exact))[::-1][: found.eigenvalues.size]
        shown = order.key(found.eigenvalues)
        assert np.allclose(shown, leading, atol=1e-9 * norm)
        assert found.residuals.max() <= 1e-10
        v, w = found.right_vectors, found.left_vectors
        assert np.linalg.norm(F @ v - v * found.eigenvalues, axis=0).max() <= 1e-10 * norm
        assert np.linalg.norm(F.T @ w - w * found.eigenvalues.conj(), axis=0).max() <= 1e-10 * norm
        assert found.spectral_norm == pytest.approx(norm, rel=1e-9)
        assert found.frobenius_norm == pytest.approx(np.linalg.norm(F), rel=1e-12)
        # the same check must fail for the transposed matrix
        assert np.linalg.norm(F.T @ v - v * found.eigenvalues, axis=0).max() > 0.01 * norm


@pytest.mark.parametrize(("name", "layer"), [("sample:albert-rxn", 0), ("sample:llama-tiny", 2)])
def test_full_spectrum(name: str, layer: int, opened: dict[str, Checkpoint]) -> None:
    F = plain_matrix(opened[name], layer)
    exact = np.linalg.eigvals(F)
    exact = exact[np.argsort(-np.abs(exact))]
    found = eigenlens.spectrum(opened[name], layers=[layer], all=True, k=4).layers[0]
    rank = found.rank
    assert found.eigenvalues.size == rank
    assert distance(found.eigenvalues, exact[:rank]) < 1e-8
    assert found.right_vectors.shape[1] in (4, 5)
    truth = np.sqrt(np.linalg.norm(F) ** 2 - np.sum(np.abs(exact) ** 2)) / np.linalg.norm(F)
    assert found.henrici == pytest.approx(truth, rel=1e-8)
    real = exact[:rank].real
    assert found.negative_fraction == pytest.approx(np.sum(real < -1e-12) / F.shape[0])
    inside = np.sum((real < -1e-12) & (real >= -1))
    assert found.unit_negative_fraction == pytest.approx(inside / F.shape[0])
    assert found.negative_fraction > 0


def test_partial_spectrum_has_no_full_measures() -> None:
    found = eigenlens.spectrum("sample:minilm", layers=[1], k=3, solver="krylov").layers[0]
    assert found.solver == "krylov"
    assert found.henrici is None
    assert found.negative_fraction is None


def test_henrici_of_a_normal_and_of_a_nilpotent_matrix() -> None:
    assert henrici(np.array([1, 2j, -2j]), 3.0) == 0.0
    assert henrici(np.zeros(3, dtype=complex), 2.0) == 1.0
    assert henrici(np.zeros(3, dtype=complex), 0.0) is None


@pytest.mark.parametrize("operator", ["raw", "folded"])
@pytest.mark.parametrize("name", ["sample:albert-rxn", "sample:llama-tiny"])
def test_float32_agrees_within_its_own_bars(name: str, operator: str) -> None:
    wide = eigenlens.spectrum(name, layers=[0], operator=operator).layers[0]
    narrow = eigenlens.spectrum(name, layers=[0], operator=operator, dtype="float32").layers[0]
    assert narrow.residuals.max() <= 1e-5
    assert narrow.right_vectors.dtype == np.complex64
    bars = 20 * narrow.error_bars[0]
    assert abs(narrow.eigenvalues[0] - wide.eigenvalues[0]) <= bars < 1e-2


def test_folded_post_norm_gives_the_multipliers_of_the_layer(opened: dict[str, Checkpoint]) -> None:
    """M = diag(g) P (I + F): its eigenvalues are the multipliers, lambda = mu - 1 is reported."""
    F = plain_matrix(opened["sample:bert-tiny"], 2)
    norm = opened["sample:bert-tiny"].circuits()[2].norm_out
    assert norm is not None
    d = F.shape[0]
    M = np.diag(norm.gain.astype(np.float64)) @ (np.eye(d) - 1 / d) @ (np.eye(d) + F)
    mu = np.linalg.eigvals(M)
    found = eigenlens.spectrum(opened["sample:bert-tiny"], layers=[2], operator="folded").layers[0]
    assert np.abs(1 + found.eigenvalues[0]) == pytest.approx(np.abs(mu).max(), rel=1e-9)
    assert np.abs(mu - (1 + found.eigenvalues[0])).min() < 1e-9


def test_folded_pre_norm_is_f_times_the_gain(opened: dict[str, Checkpoint]) -> None:
    F = plain_matrix(opened["sample:smollm2"], 3)
    norm = opened["sample:smollm2"].circuits()[3].norm_in
    assert norm is not None
    exact = np.linalg.eigvals(F @ np.diag(norm.gain.astype(np.float64)))
    found = eigenlens.spectrum(opened["sample:smollm2"], layers=[3], operator="folded").layers[0]
    assert found.eigenvalues[0].real == pytest.approx(exact.real.max(), rel=1e-9)
    raw = eigenlens.spectrum(opened["sample:smollm2"], layers=[3]).layers[0]
    assert abs(raw.eigenvalues[0] - found.eigenvalues[0]) > 0.1


@pytest.mark.parametrize("operator", ["raw", "folded"])
@pytest.mark.parametrize("name", [*TINY, "sample:albert-rxn"])
def test_heads(name: str, operator: str, opened: dict[str, Checkpoint]) -> None:
    layer = 0 if "albert" in name else 3
    found = eigenlens.spectrum(
        opened[name], layers=[layer], per_head=True, operator=operator
    ).layers[0]
    c = opened[name].circuits()[layer]
    assert found.heads is not None
    assert len(found.heads) == c.n_heads
    post_folded = c.placement == "post" and operator == "folded"
    total = sum(h.share for h in found.heads if h.share is not None)
    if post_folded:  # the residual's own part is missing from the sum
        assert abs(total - found.eigenvalues[0]) > 1e-3
    else:
        assert total == pytest.approx(found.eigenvalues[0], abs=1e-9 * found.spectral_norm)
    if operator == "raw":
        for head in found.heads[:3]:
            own = c.head(head.head)
            exact = np.linalg.eigvals(own.W_O.astype(np.float64) @ own.W_V.astype(np.float64))
            ratio = exact.sum().real / np.abs(exact).sum()
            assert head.ov_trace_ratio == pytest.approx(ratio, abs=1e-6)
            assert np.abs(exact - head.eigenvalues[0]).min() < 1e-8


def test_copying_score_is_the_trace_ratio_through_the_vocabulary(
    opened: dict[str, Checkpoint],
) -> None:
    """Elhage et al. (2021): eigenvalues of W_U W_O W_V W_E, here formed from the whole matrices."""
    checkpoint = opened["sample:albert-rxn"]
    found = eigenlens.spectrum(checkpoint, per_head=True).layers[0]
    W_E = checkpoint.readout.W_E().astype(np.float64)
    W_U = checkpoint.readout.W_U().astype(np.float64)
    own = checkpoint.circuits()[0].head(2)
    whole = W_U @ own.dense() @ W_E.T
    exact = np.linalg.eigvals(whole)
    assert found.heads is not None
    score = found.heads[2].copying_score
    assert score == pytest.approx(exact.sum().real / np.abs(exact).sum(), abs=1e-6)
    assert abs(score - found.heads[2].ov_trace_ratio) > 0.01


def test_decode_reads_the_vectors_through_the_vocabulary(opened: dict[str, Checkpoint]) -> None:
    checkpoint = opened["sample:smollm2"]
    found = eigenlens.spectrum(checkpoint, layers=[1], decode=5).layers[0]
    assert found.tokens is not None
    assert set(found.tokens) == {"right", "left"}, "a real leader has no imaginary part"
    source = checkpoint.source
    assert source is not None
    texts = source.tokens()
    readout = checkpoint.readout
    norm = readout.final_norm
    assert norm is not None
    v = found.right_vectors[:, 0].real
    logits = readout.W_U().astype(np.float64) @ (norm.gain * v)
    best = [texts[i] for i in np.argsort(-logits, kind="stable")[:5]]
    assert [t for t, _ in found.tokens["right"].positive] == best
    assert found.tokens["right"].positive[0][1] == pytest.approx(logits.max(), rel=1e-4)
    reads = readout.W_E().astype(np.float64) @ found.left_vectors[:, 0].real
    worst = [texts[i] for i in np.argsort(reads, kind="stable")[:5]]
    assert [t for t, _ in found.tokens["left"].negative] == worst
    assert "norm" in found.tokens["right"].through


def test_decode_of_a_masked_model_says_that_it_is_the_raw_embedding() -> None:
    found = eigenlens.spectrum("sample:bert-tiny", layers=[0, 3], decode=3)
    first, last = found.layers
    assert first.tokens is not None
    assert last.tokens is not None
    assert "raw embedding" in first.tokens["right"].through
    assert "right_imag" in last.tokens


def test_decode_needs_a_vocabulary() -> None:
    with pytest.raises(OptionError, match="no token embedding"):
        eigenlens.spectrum((np.eye(3), np.eye(3)), decode=2)


def test_decode_of_a_state_dict_has_no_texts(opened: dict[str, Checkpoint]) -> None:
    source = opened["sample:bert-tiny"].source
    assert source is not None
    state = {n: source.store.read(n) for n in source.store.names() if "layer.0." in n or "emb" in n}
    config = {**source.config, "num_hidden_layers": 1}
    with pytest.raises(SourceError, match="no vocabulary"):
        eigenlens.spectrum((state, config), decode=2)


def test_frame_and_dict_agree() -> None:
    result = eigenlens.spectrum("sample:bert-tiny", layers=[0, 3], k=3)
    frame = result.to_frame()
    record: dict[str, Any] = result.to_dict()
    assert record["schema"] == "eigenlens.spectrum/1"
    assert len(frame) == sum(len(x["eigenvalues"]) for x in record["layers"])
    row = frame[(frame.layer == 3) & (frame["index"] == 0)].iloc[0]
    assert [row.re, row.im] == record["layers"][1]["eigenvalues"][0]
    assert row.regime == "complex_dominant"


def test_one_layer_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a circuit is read, no more are alive than other workers have, whatever their number."""
    import gc
    import weakref

    from eigenlens.blas import cores
    from eigenlens.circuit import checkpoint as room

    alive: list[weakref.ref[Any]] = []

    def counted(honest: Any) -> Any:
        def read(*args: Any) -> Any:
            gc.collect()
            others = sum(ref() is not None for ref in alive)
            assert others <= max(1, cores() - 1), "an earlier layer is still in memory"
            circuit = honest(*args)
            alive.append(weakref.ref(circuit))
            return circuit

        return read

    for name in ("read_circuit", "read_grouped"):
        monkeypatch.setattr(room, name, counted(getattr(room, name)))
    eigenlens.spectrum("sample:bert-tiny", k=2)
    assert len(alive) == 4
    eigenlens.spectrum("sample:bert-tiny", k=2, per_head=True)
    assert len(alive) == 8
