"""Layers whose output is multiplied with s: the edit is one of ``diag(s) F``, as a spectrum is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import NumericsError
from eigenlens.steering.edit import Edit
from eigenlens.steering.eigenpair import alpha_qu, leader_with, spectrum_change
from eigenlens.steering.leading import WANTED, first_strength, spectrum_warnings
from eigenlens.steering.probes import PROBES, at_strength, reader, scaled

D = 12
SCALES = {"number": 0.22, "vector": np.geomspace(0.05, 3.0, D)}
IDS = [[int(i) for i in np.random.default_rng(s).integers(5, 38, 9)] for s in range(24)]


def circuit_of(scale: Any, seed: int = 0) -> OVCircuit:
    draw = np.random.default_rng(seed)
    W_V, W_O = draw.normal(0, 0.4, (6, D)), draw.normal(0, 0.4, (D, 12))
    return OVCircuit(W_V, W_O, 4, 2, 3, placement="pre", output_scale=scale)


def by_hand(circuit: OVCircuit, edit: Edit | None = None) -> np.ndarray:
    """``diag(s) (W_O + dW_O) W_V`` by plain products."""
    heads = np.asarray(circuit.W_V, dtype=float).reshape(2, 3, D)
    values = np.concatenate([heads[0], heads[0], heads[1], heads[1]])
    W_O = np.array(circuit.W_O, dtype=float)
    if edit is not None:
        W_O += edit.strength * np.outer(edit.written, edit.w)
    return np.asarray(np.diag(np.broadcast_to(circuit.output_scale, D)) @ W_O @ values)


def edit_of(circuit: OVCircuit, name: str, strength: float, seed: int = 1) -> Edit:
    u = np.random.default_rng(seed).standard_normal(D)
    u /= np.linalg.norm(u)
    layer = reader(circuit)
    probe = PROBES[name](layer, u, None)
    probe = probe if name == "placement" else scaled(probe, None)
    there = at_strength(layer, u, probe, name, strength)
    return Edit(
        *("m", "t", "decoder", 0, "self", "attention", "all", name),
        *(u, there.written, there.w, strength, "drawn"),
    )


def leading(F: np.ndarray) -> tuple[float, np.ndarray]:
    values, vectors = np.linalg.eig(F)
    at = int(np.argmax(values.real))
    return float(values[at].real), vectors[:, at].real / np.linalg.norm(vectors[:, at].real)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("probe", ["eigen", "direction", "placement"])
def test_the_direction_leads_the_scaled_layer(scale: Any, probe: str) -> None:
    circuit = circuit_of(scale)
    sign = 1.0
    if probe == "direction":  # of q.u either sign: the strength that makes it positive
        sign = float(np.sign(alpha_qu(circuit, edit_of(circuit, probe, 1.0))))
    edit = edit_of(circuit, probe, sign * 500.0)
    value, vector = leading(by_hand(circuit, edit))
    u = edit.direction
    assert abs(vector @ u) > 0.999  # of written = u, a scale of each coordinate bends it
    assert alpha_qu(circuit, edit) == pytest.approx(value, rel=2e-2)
    change = spectrum_change(circuit, edit)
    assert change.after.eigenvalue == pytest.approx(value, rel=1e-10)
    assert change.formula is not None
    assert change.formula.eigenvalue == pytest.approx(value, rel=1e-10)
    assert change.formula.error == pytest.approx(0, abs=1e-10)
    assert change.formula.residual < 1e-10
    assert change.formula.cos_direction == pytest.approx(abs(vector @ u), abs=1e-10)
    if probe == "placement":
        assert value == pytest.approx(500.0, rel=1e-12)
        np.testing.assert_allclose(by_hand(circuit, edit) @ u, 500.0 * u, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("probe", ["eigen", "placement"])
def test_the_strength_that_is_named_is_one_of_the_scaled_layer(scale: Any, probe: str) -> None:
    circuit = circuit_of(scale)
    leader = leading(by_hand(circuit))[0]
    edit = edit_of(circuit, probe, 0.1 * leader)
    change = spectrum_change(circuit, edit)
    assert change.after.cos_direction < WANTED
    first = first_strength(circuit, edit, change)
    assert first is not None
    for strength, enough in ((first, True), (3 * first, True), (0.85 * first, False)):
        there = edit_of(circuit, probe, strength)
        cosine = abs(leading(by_hand(circuit, there))[1] @ edit.direction)
        if probe == "placement":
            cosine = leader_with(circuit, there).cos_direction  # near the next one both count
        assert bool(cosine >= WANTED) is enough, (strength, cosine)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_placed_pair_is_the_one_that_the_formula_gives_however_weak(scale: Any) -> None:
    circuit = circuit_of(scale)
    for strength in (0.02, 0.1, 0.4):
        formula = spectrum_change(circuit, edit_of(circuit, "placement", strength)).formula
        assert formula is not None
        assert formula.eigenvalue == pytest.approx(strength, rel=1e-10)


@pytest.mark.parametrize("strength", [0.05, 0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_numbers_in_the_warning_are_those_of_the_scaled_layer(scale: Any, strength: float) -> None:
    circuit = circuit_of(scale)
    edit = edit_of(circuit, "eigen", strength)
    change = spectrum_change(circuit, edit)
    told = spectrum_warnings(circuit, edit, change)
    if change.after.cos_direction >= WANTED:
        assert told == []
        return
    (text,) = told
    value = leading(by_hand(circuit, edit))[0]
    if "bent away" in text:
        image = np.linalg.norm(by_hand(circuit) @ edit.direction)
        numbers = (("|F u| is", image), ("new eigenvalue lambda", value))
    else:
        own = (("the layer's own leader,", leading(by_hand(circuit))[0]),)
        numbers = own + (("before the edit and", value),) * ("with it" in text)
    for words, expected in numbers:
        found = re.search(re.escape(words) + r" ([\d.e+-]*\d)", text)
        assert found is not None, text
        assert float(found[1]) == pytest.approx(expected, rel=6e-3)
    made = re.search(r"its new eigenvalue (-?[\d.]+)", text)
    if made is not None:
        assert float(made[1]) < value


def test_a_layer_that_the_model_multiplies_with_zero_cannot_be_edited() -> None:
    scale = np.ones(D)
    scale[3] = 0.0
    with pytest.raises(NumericsError, match="multiplies 1 of 12 coordinates"):
        edit_of(circuit_of(scale), "eigen", 1.0)
    with pytest.raises(NumericsError, match="multiplies 12 of 12"):
        edit_of(circuit_of(0.0), "placement", 1.0)
    u = np.zeros(D)
    u[0] = 1.0  # has nothing where the scale is 0
    np.testing.assert_array_equal(reader(circuit_of(scale)).writing(u), u)


def test_without_a_scale_the_direction_itself_is_written() -> None:
    edit = edit_of(circuit_of(1.0), "eigen", 1.0)
    np.testing.assert_array_equal(edit.written, edit.direction)
    scaled_edit = edit_of(circuit_of(0.25), "eigen", 1.0)
    np.testing.assert_array_equal(scaled_edit.written, 4 * scaled_edit.direction)


@pytest.fixture(scope="module")
def granite() -> Any:
    import torch
    import transformers

    torch.manual_seed(3)
    config = transformers.GraniteConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        residual_multiplier=0.22,
        initializer_range=0.2,
        max_position_embeddings=64,
    )
    return transformers.GraniteForCausalLM(config).double().eval()


def test_granite_from_its_weights(granite: Any) -> None:
    found = eigenlens.steer(granite, 7, weights_only=True, probe="placement", strength=5.0)
    assert found.spectrum is not None
    assert found.spectrum.after.eigenvalue == pytest.approx(5.0, rel=1e-6)
    assert found.spectrum.after.cos_direction == pytest.approx(1.0, abs=1e-6)
    assert found.spectrum.formula is not None
    assert found.spectrum.formula.error == pytest.approx(0.0, abs=1e-9)
    assert found.warnings == ()


@pytest.mark.parametrize("probe", ["calibrated", "placement"])
def test_granite_reaches_a_target_cosine(granite: Any, probe: str) -> None:
    texts = {"calibrate": IDS[:12], "evaluate": IDS[12:]}
    found = eigenlens.steer(granite, 18, target_cosine=0.4, probe=probe, dtype="float64", **texts)
    assert found.after is not None
    pair = found.after.tokens["after_sublayer"]
    assert pair is not None
    assert pair[0] is not None
    assert pair[0].mean_cosine == pytest.approx(0.4, abs=1e-6)


def test_a_token_receives_strength_times_its_reading(granite: Any) -> None:
    """What arrives in the stream is ``strength (w.z) u``, whatever the model multiplies it with."""
    import torch

    edit = eigenlens.steer(granite, 7, weights_only=True, layer=1, strength=3.0).edit
    block = granite.model.layers[1]
    states: list[Any] = []
    z: list[Any] = []
    hooks = [
        block.post_attention_layernorm.register_forward_pre_hook(lambda _, a: states.append(a[0])),
        block.self_attn.o_proj.register_forward_pre_hook(lambda _, a: z.append(a[0])),
    ]
    ids = torch.tensor([IDS[0]])
    with torch.no_grad():
        granite(ids)
        with edit.applied(granite):
            granite(ids)
    for hook in hooks:
        hook.remove()
    moved = (states[1] - states[0])[0].numpy()
    expected = 3.0 * np.outer(z[0][0].numpy() @ edit.w, edit.direction)
    np.testing.assert_allclose(moved, expected, atol=1e-9)
