"""Trained models iterated: they end where their spectra foretell, at the rates foretold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.report.simulate_tables import outcome_sentence


def plane(F: np.ndarray, key: Any) -> tuple[complex, np.ndarray]:
    """The eigenvalue of the largest key and an orthonormal basis of its plane."""
    values, vectors = np.linalg.eig(F)
    lead = int(np.argmax(key(values)))
    basis, _ = np.linalg.qr(np.c_[vectors[:, lead].real, vectors[:, lead].imag])
    return values[lead], basis


@pytest.fixture(scope="module")
def rxn() -> Any:
    return eigenlens.simulate("sample:albert-rxn", steps=150)


def test_albert_rxn_turns_in_the_plane_that_leads_i_plus_f(rxn: Any) -> None:
    out = rxn.outcome
    assert (out.label, out.target, out.reached, out.settled) == ("rotation", "plane", "plane", True)
    F = open_checkpoint("sample:albert-rxn").circuits()[0].dense()
    value, right = plane(F, lambda v: abs(1 + v))
    modulus, wrong = plane(F, abs)
    assert value == pytest.approx(-0.1327 + 2.1690j, abs=1e-4) or value.imag < 0
    assert abs(modulus) > abs(value)  # the textbook power method on F would pick the other
    U = rxn.final[0] / np.linalg.norm(rxn.final[0], axis=1, keepdims=True)
    assert np.linalg.norm(U @ right, axis=1).min() > 0.9999
    assert np.linalg.norm(U @ wrong, axis=1).max() < 0.5
    angle = abs(np.angle(1 + value))
    assert out.observed.angle_per_step == pytest.approx(angle, rel=0.01)
    assert abs(abs(np.angle(1 + modulus)) - angle) > 0.3 * angle  # and it turns otherwise
    assert out.observed.disagreement_rate == pytest.approx(1 / abs(1 + value), rel=0.03)
    assert out.observed.alignment_rate == pytest.approx(abs(1 + modulus) / abs(1 + value), rel=5e-3)
    assert rxn.stability is None  # a state that moves


def test_albert_rxn_agrees_fast_and_aligns_slowly(rxn: Any) -> None:
    """The known answer: cosine > .95 by step 4, > .999 by 12, alignment > .99 by 50."""
    rows = rxn.trajectory
    assert rows[4]["cosine"] > 0.95
    assert rows[12]["cosine"] > 0.999
    assert rows[50]["gamma"] > 0.99
    assert rows[12]["gamma"] < 0.99
    assert "68.2 degrees a step" in outcome_sentence(rxn)
    assert outcome_sentence(rxn).endswith("this was foretold.")


def test_a_run_stops_when_nothing_new_can_come() -> None:
    found = eigenlens.simulate("sample:albert-rxn", steps=1000)
    assert 200 < len(found.trajectory) - 1 < 600
    assert found.warnings == ()
    assert found.outcome.observed.angle_per_step == pytest.approx(1.19040, rel=1e-4)


def test_a_real_leader_ends_in_consensus_that_is_stable() -> None:
    found = eigenlens.simulate("sample:albert-tiny", steps=900)
    out = found.outcome
    assert (out.label, out.target, out.reached, out.settled) == ("consensus", "v1", "v1", True)
    assert out.predicted is not None
    assert out.observed.alignment_rate == pytest.approx(out.predicted.alignment_rate, abs=1e-3)
    assert out.observed.disagreement_rate == pytest.approx(
        out.predicted.disagreement_rate, rel=0.02
    )
    assert found.stability is not None
    assert found.stability[0] == pytest.approx(out.predicted.alignment_rate, abs=1e-4)
    early = eigenlens.simulate("sample:albert-tiny", steps=100)
    assert (early.outcome.label, early.outcome.settled) == ("unsettled", False)
    assert early.warnings == ("not settled after 100 steps",)


def test_different_post_norm_layers_agree_at_the_rate_of_their_product() -> None:
    out = eigenlens.simulate("sample:bert-tiny", steps=80).outcome
    assert out.predicted is not None
    assert out.observed.disagreement_rate == pytest.approx(
        out.predicted.disagreement_rate, rel=0.02
    )
    assert not out.settled  # a gap of 1.7 % a pass: agreement long before alignment


@pytest.mark.parametrize("name", ["gpt2-tiny", "gptneo-tiny", "llama-tiny"])
def test_pre_norm_streams_gather_slowly(name: str) -> None:
    found = eigenlens.simulate(f"sample:{name}", steps=200)
    assert found.options["form"] == "stream"
    assert found.outcome.predicted is not None
    assert found.outcome.predicted.exponent is not None
    assert found.outcome.predicted.exponent < 0
    cosine = [row["cosine"] for row in found.trajectory]
    assert cosine[0] < 0.3
    assert cosine[-1] > 0.9
    assert not found.outcome.settled
    assert found.outcome.distance < math.pi / 2
    away = [row["misalignment"] for row in found.trajectory]
    assert away[-1] < away[0]


def test_random_starts_of_a_trained_layer_all_turn() -> None:
    found = eigenlens.simulate(
        "sample:albert-rxn", starts=16, random_states=True, n_tokens=8, steps=120
    )
    assert [(b.label, b.count) for b in found.basins] == [("rotation", 16)]
    assert found.basins[0].interval[0] == pytest.approx(0.8064, abs=1e-3)  # Wilson, 16 of 16


def test_smiles_are_split_for_the_chemistry_model() -> None:
    found = eigenlens.simulate("sample:albert-rxn", texts=["CCO>>CC=O"], steps=120)
    assert found.options["n_tokens"] == 10  # 8 tokens between begin and end
    assert found.outcome.label == "rotation"


@pytest.mark.slow
def test_larger_samples() -> None:
    minilm = eigenlens.simulate("sample:minilm", steps=300)
    assert (minilm.outcome.label, minilm.outcome.reached) == ("consensus", "v1")
    assert minilm.outcome.observed.alignment_rate == pytest.approx(0.9639, abs=1e-3)
    smollm2 = eigenlens.simulate("sample:smollm2", steps=60)
    assert (smollm2.options["mask"], smollm2.options["form"]) == ("causal", "stream")
    assert len(smollm2.options["layers"]) == 30
