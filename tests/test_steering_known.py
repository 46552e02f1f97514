"""Known answers: the exact eigenpair in many families, and the tables of a real model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.errors import NumericsError
from eigenlens.steering.eigenpair import alpha_qu, edited_circuit, spectrum_change
from eigenlens.steering.measures import Cosines
from eigenlens.steering.moments import Moments
from eigenlens.steering.probes import level, repeated_values
from eigenlens.steering.result import Steering
from eigenlens.steering.strength import kl_of

IDS = [[int(i) for i in np.random.default_rng(s).integers(5, 38, 9)] for s in range(24)]
TEXTS = {"calibrate": IDS[:12], "evaluate": IDS[12:]}
FAMILIES = [
    "albert",
    "bert",
    "distilbert",
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "opt",
    "llama",
    "mistral",
    "qwen3",
    "gemma2",
    "phi3",
]
SAMPLES = {
    "gpt2-tiny": " return",
    "llama-tiny": " return",
    "gptneo-tiny": " return",
    "albert-tiny": "return",
    "albert-tiny-rotating": "return",
    "bert-tiny": "return",
}


def exact(result: Steering) -> None:
    """The solver's pair, LAPACK's and the formula's are one."""
    change = result.spectrum
    assert change is not None
    assert change.formula is not None
    assert change.formula.residual < 1e-12
    assert change.formula.error is not None
    assert change.formula.error < 1e-9
    assert result.checkpoint is not None
    edit = result.edit
    circuits = result.checkpoint.circuits(stack=edit.stack, layers=[edit.layer])
    edited = edited_circuit(circuits[0], edit).dense()
    values, vectors = np.linalg.eig(edited)
    at = int(np.abs(values - change.formula.eigenvalue).argmin())
    assert abs(values[at] - change.formula.eigenvalue) < 1e-8 * abs(values[at])
    cosine = abs(np.vdot(vectors[:, at], edit.direction))
    assert cosine == pytest.approx(change.formula.cos_direction, abs=1e-7)
    assert cosine == pytest.approx(change.after.cos_direction, abs=1e-7)
    q = repeated_values(circuits[0]).T @ edit.w
    assert result.alpha_qu == pytest.approx(edit.strength * q @ edit.direction)


@pytest.mark.parametrize("name", FAMILIES)
def test_eigenvalue_and_vector_are_those_of_the_formula(name: str, tiny: Any) -> None:
    result = eigenlens.steer(tiny(name), 7, strength=60.0, **TEXTS)
    exact(result)
    assert result.spectrum is not None
    assert result.spectrum.after.cos_direction > 0.99
    assert result.after is not None
    assert result.realised is not None
    assert result.realised.ratio == pytest.approx(1.0)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_by_their_weights_alone(name: str) -> None:
    result = eigenlens.steer(f"sample:{name}", SAMPLES[name], weights_only=True, strength=40.0)
    exact(result)
    assert result.edit.probe == "eigen"
    assert result.spectrum is not None
    assert result.spectrum.after.cos_direction > 0.99
    assert np.linalg.norm(result.edit.w) == pytest.approx(1.0)


def test_placement_puts_the_eigenvalue_where_it_is_asked(tiny: Any) -> None:
    result = eigenlens.steer(tiny("llama"), 7, probe="placement", strength=25.0, **TEXTS)
    assert result.spectrum is not None
    assert result.spectrum.after.eigenvalue == pytest.approx(25.0)
    assert result.spectrum.after.cos_direction == pytest.approx(1.0, abs=1e-9)
    assert result.alpha_qu == pytest.approx(25.0)
    other = eigenlens.steer(tiny("llama"), 7, probe="eigen", strength=25.0, **TEXTS)
    assert other.spectrum is not None
    assert other.spectrum.after.eigenvalue != pytest.approx(25.0, rel=1e-3)


def test_a_weak_or_opposed_term_is_told() -> None:
    weak = eigenlens.steer("sample:llama-tiny", " return", weights_only=True, strength=1e-3)
    assert "is not the leading eigenvector" in weak.warnings[0]
    first = float(weak.warnings[0].rpartition("from strength ")[2].split()[0])
    strong = eigenlens.steer("sample:llama-tiny", " return", weights_only=True, strength=4 * first)
    assert strong.spectrum is not None
    assert strong.spectrum.after.cos_direction > 0.5
    rng = np.random.default_rng(0)
    W = rng.standard_normal((6, 6))
    # F is -1 times a positive matrix, so that u u^T W_V u points down
    source = (-(W @ W.T), np.eye(6))
    down = eigenlens.steer(
        source, direction=np.eye(6)[0], weights_only=True, probe="direction", strength=5.0
    )
    assert "not positive" in down.warnings[0]


def test_the_edit_of_a_grouped_layer_reads_repeated_values() -> None:
    circuit = open_checkpoint("sample:llama-tiny").circuits()[-1]
    assert circuit.n_kv_heads < circuit.n_heads
    result = eigenlens.steer("sample:llama-tiny", " return", weights_only=True, strength=9.0)
    edit = result.edit
    assert len(edit.w) == circuit.n_heads * circuit.head_dim
    change = spectrum_change(circuit, edit)
    assert change.formula is not None
    tiled = np.tile(circuit.value(), (circuit.n_heads // circuit.n_kv_heads, 1))
    wrong = edit.strength * (tiled.T @ edit.w) @ edit.direction
    assert alpha_qu(circuit, edit) != pytest.approx(wrong, rel=1e-2)  # a tile would be seen


# -- the real model ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paris() -> Any:
    """One loaded model, steered at several strengths."""
    from eigenlens.samples import sample_path
    from eigenlens.steering.opening import open_subject

    try:
        sample_path("smollm2")
    except eigenlens.EigenlensError as error:
        pytest.skip(str(error))
    subject = open_subject("sample:smollm2")

    def steered(**options: Any) -> Steering:
        return eigenlens.steer(subject, " Paris", **options)

    return steered


def rest(result: Steering) -> Cosines:
    assert result.after is not None
    pair = result.after.tokens["after_sublayer"]
    assert pair is not None
    assert pair[0] is not None
    return pair[0]


@pytest.mark.slow
def test_calibrated_sends_all_held_out_tokens_to_the_direction(paris: Any) -> None:
    strong = paris(strength=10_000.0)
    assert rest(strong).positive_fraction == 1.0
    assert rest(strong).min_cosine >= 0.95
    assert rest(strong).n_tokens > 400
    assert strong.spectrum.after.cos_direction >= 0.999
    assert kl_of(strong.after) > 50  # and the model is wrecked
    exact(strong)
    thousand = paris(strength=1_000.0)
    assert rest(thousand).positive_fraction == 1.0
    assert 0.5 < rest(thousand).min_cosine < 0.9


@pytest.mark.slow
def test_the_dose_response_of_a_real_model(paris: Any) -> None:
    # KL .018, .46 and 26 in the reference run on other texts; P .0003, .018, .071
    wanted = {30.0: (0.018, 3e-4), 100.0: (0.46, 0.018), 300.0: (26.0, 0.071)}
    for strength, (kl, probability) in wanted.items():
        found = paris(strength=strength)
        assert kl / 2 < found.after.kl < 2 * kl
        assert probability / 3 < found.after.target_probability < 3 * probability
    assert found.before.kl <= 1e-6


@pytest.mark.slow
def test_auto_raises_the_token_fifty_times_and_more(paris: Any) -> None:
    found = paris()
    before, after = found.before.target_probability, found.after.target_probability
    assert after >= 50 * before
    assert found.after.kl <= 0.5
    assert 60 < found.edit.strength < 160
    assert found.activation.kl == pytest.approx(found.after.kl, rel=0.06)
    assert [c.texts["before"] != c.texts["after"] for c in found.continuations].count(True) >= 2


@pytest.mark.slow
def test_the_probe_eigen_splits_the_tokens(paris: Any) -> None:
    found = paris(probe="eigen", strength=10_000.0)
    assert found.spectrum.after.cos_direction >= 0.999
    assert 0.2 < rest(found).positive_fraction < 0.8
    assert any("splits the tokens" in w for w in found.warnings)


def test_a_layer_that_adds_nothing_is_steered() -> None:
    """There is no |W| to compare |dW| with, and the direction leads alone."""
    W_V = np.random.default_rng(3).standard_normal((6, 6))
    u = np.eye(6)[2]
    source = (W_V, np.zeros((6, 6)))
    found = eigenlens.steer(source, direction=u, weights_only=True, probe="eigen", strength=3.0)
    assert found.relative_norm is None
    assert found.to_dict()["edit"]["relative_norm"] is None
    assert found.spectrum is not None
    assert found.spectrum.after.cos_direction == pytest.approx(1.0, abs=1e-12)
    assert found.alpha_qu == pytest.approx(3.0 * np.linalg.norm(W_V @ u), rel=1e-12)
    assert "of |W|" not in str(found)


def test_readings_that_are_not_finite_are_named() -> None:
    moments = Moments(np.zeros(3), np.diag([1.0, np.nan, 1.0]), 5)
    with pytest.raises(NumericsError, match="NaN or infinite over the calibration"):
        level(moments, np.eye(3)[0])
