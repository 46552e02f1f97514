"""The spectra of the bundled models against a second computation that shares no code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import eigenlens
import independent
from eigenlens.spectra.result import LayerSpectrum
from independent import GOLDEN, KEYS, NAMES, Heads, layers_of

GOLD: dict[str, list[dict[str, Any]]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
PLACES = [(name, layer) for name in NAMES for layer in range(len(GOLD[name]))]


def close(expected: Any, scale: float = 1.0) -> Any:
    """Float64 through two routes; conditions of these eigenvalues are below 100."""
    return expected if expected is None else pytest.approx(expected, rel=1e-8, abs=1e-10 * scale)


def check_leader(found: LayerSpectrum, gold: dict[str, Any], scale: float) -> None:
    """Leader, gap, angle, regime."""
    lead = found.eigenvalues[0]
    assert found.regime == gold["regime"]
    assert [lead.real, abs(lead.imag)] == close(gold["value"], scale)
    assert found.gap == close(gold["gap"])
    assert found.angle == close(gold["angle"])
    steps = gold["steps_to_separate"]  # under `real` a power of 1/gap, so the log is compared
    assert (found.steps_to_separate is None) == (steps is None)
    if steps is not None and found.steps_to_separate is not None:
        assert np.log(found.steps_to_separate) == close(np.log(steps))


def check_layer(found: LayerSpectrum, gold: dict[str, Any]) -> None:
    """Everything that the golden file says of a layer under one order, operator raw."""
    scale = gold["spectral_norm"]
    assert found.spectral_norm == close(scale)
    assert found.frobenius_norm == close(gold["frobenius_norm"])
    assert np.sum(np.abs(found.eigenvalues) > 1e-9 * scale) == gold["rank"]
    for measure in ("henrici", "negative_fraction", "unit_negative_fraction"):
        assert getattr(found, measure) == close(gold[measure])
    mine = gold["orders"][found.order]
    check_leader(found, mine, scale)
    upper = [v for v in found.eigenvalues if v.imag >= 0 and abs(v) > 1e-9 * scale]
    leading = mine["leading"]
    shown = np.array([[v.real, v.imag] for v in upper[: len(leading)]])
    assert shown == close(np.array(leading), scale)
    entries = len(mine["right"])
    assert np.abs(found.right_vectors[:entries, 0]) == close(np.array(mine["right"]))
    assert np.abs(found.left_vectors[:entries, 0]) == close(np.array(mine["left"]))


def test_the_golden_file_is_what_the_script_computes() -> None:
    fresh = independent.golden()
    assert list(fresh) == list(GOLD)

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, dict):
            return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
        if isinstance(a, list):
            return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(b, float):
            return bool(a == pytest.approx(b, rel=1e-6, abs=1e-10))
        return bool(a == b)

    assert same(fresh, GOLD)
    changed = json.loads(json.dumps(GOLD))
    changed["gpt2-tiny"][1]["orders"]["real"]["leading"][3][0] += 1e-4
    assert not same(fresh, changed)


@pytest.mark.parametrize(("name", "layer"), PLACES)
def test_spectra_of_the_bundled_models(name: str, layer: int) -> None:
    gold = GOLD[name][layer]
    for order in KEYS:
        result = eigenlens.spectrum(f"sample:{name}", order=order, layers=[layer], all=True)
        check_layer(result.layers[0], gold)
    krylov = eigenlens.spectrum(f"sample:{name}", layers=[layer], solver="krylov").layers[0]
    assert krylov.order == gold["order"]
    check_leader(krylov, gold["orders"][gold["order"]], gold["spectral_norm"])


@pytest.mark.parametrize(("name", "layer"), PLACES)
def test_heads_and_folded_norms_of_the_bundled_models(name: str, layer: int) -> None:
    gold = GOLD[name][layer]
    found = eigenlens.spectrum(f"sample:{name}", layers=[layer], per_head=True).layers[0]
    assert found.heads is not None
    assert len(found.heads) == len(gold["heads"])
    for head, expected in zip(found.heads, gold["heads"], strict=True):
        lead = head.eigenvalues[0]
        assert [lead.real, abs(lead.imag)] == close(expected["leading"], gold["spectral_norm"])
        assert head.ov_trace_ratio == close(expected["ov_trace_ratio"])
        assert head.share is not None
        share = [head.share.real, abs(head.share.imag)]
        assert share == close(expected["share"], gold["spectral_norm"])
    found = eigenlens.spectrum(f"sample:{name}", layers=[layer], operator="folded").layers[0]
    check_leader(found, gold["folded"], found.spectral_norm)


def stacked(heads: Heads) -> tuple[np.ndarray, np.ndarray]:
    """The pair ``(W_V, W_O)`` that `eigenlens.spectrum` takes."""
    return np.concatenate([v for _, v in heads]), np.concatenate([o for o, _ in heads], axis=1)


def planted(bug: str, name: str, heads: Heads) -> tuple[np.ndarray, np.ndarray]:
    """A mistake that keeps every shape."""
    outs, values = [o for o, _ in heads], [v for _, v in heads]
    if bug == "transposed":
        W_V, W_O = stacked(heads)
        return W_O.T, W_V.T
    if bug == "values tiled, not repeated":
        return stacked(list(zip(outs, values[::2] * 2, strict=True)))
    if bug == "keys for values":
        weights = independent.read_weights(independent.SAMPLES / name / "model.safetensors")
        d = len(outs[0])
        keys = weights["transformer.h.1.attn.c_attn.weight"][:, d : 2 * d].T
        return keys, stacked(heads)[1]
    if bug == "one head lost":
        return stacked(heads[:-1])
    return stacked(heads)


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("none", "gpt2-tiny"),
        ("none", "llama-tiny"),
        ("transposed", "gpt2-tiny"),
        ("transposed", "albert-tiny"),
        ("values tiled, not repeated", "llama-tiny"),
        ("keys for values", "gpt2-tiny"),
        ("one head lost", "bert-tiny"),
    ],
)
def test_planted_bugs_are_seen(bug: str, name: str) -> None:
    layer = min(1, len(GOLD[name]) - 1)
    heads, _, _ = list(layers_of(name))[layer]
    gold = GOLD[name][layer]
    pair = planted(bug, name, heads)
    found = eigenlens.spectrum(pair, order=gold["order"], all=True).layers[0]
    if bug == "none":
        check_layer(found, gold)
        return
    with pytest.raises(AssertionError):
        check_layer(found, gold)


def test_the_kernel_counts() -> None:
    """A layer of rank 3 in four dimensions whose own eigenvalues are all negative."""
    values = np.array([0, -0.3, -0.6, -0.9], dtype=complex)
    bars = np.full(4, 1e-15)
    assert independent.judge(values, bars, "residual")["regime"] == "no_consensus"
    assert independent.judge(values[1:], bars[1:], "modulus")["regime"] == "flip"
    W_V = np.eye(3, 4)
    W_O = W_V.T @ np.diag([-0.3, -0.6, -0.9])
    for order in ("residual", "real"):
        found = eigenlens.spectrum((W_V, W_O), order=order).layers[0]
        expected = independent.judge(values, bars, order)
        assert expected["value"] == [0.0, 0.0]
        assert (found.regime, found.target) == (expected["regime"], "kernel")
        assert found.gap == close(expected["gap"])  # to -0.3 under `residual`, not to -0.6
