"""What keeps the direction from leading, against F itself: |F u|, or the layer's own leader."""

from __future__ import annotations

import re

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.steering.rank_one import at_value, top_pair
from eigenlens.steering.result import Steering

GPT2 = "sample:gpt2-tiny"


def steered(strength: float, probe: str | None = None) -> Steering:
    return eigenlens.steer(GPT2, " the", weights_only=True, strength=strength, probe=probe)


def dense(result: Steering) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F, u and q by plain products."""
    circuit = open_checkpoint(GPT2).circuits()[-1]
    F = np.asarray(circuit.W_O, dtype=float) @ np.asarray(circuit.W_V, dtype=float)
    return F, result.edit.direction, np.asarray(circuit.W_V, dtype=float).T @ result.edit.w


def number_after(words: str, text: str) -> float:
    found = re.search(re.escape(words) + r" (-?[\d.e+-]*\d)", text)
    assert found is not None, text
    return float(found[1])


def leading_cosine(F: np.ndarray, u: np.ndarray) -> float:
    values, vectors = np.linalg.eig(F)
    return float(abs(vectors[:, np.argmax(values.real)] @ u))


@pytest.mark.parametrize("strength", [2.0, 3.0])
def test_a_pair_that_leads_is_bent_by_what_F_makes_of_u(strength: float) -> None:
    result = steered(strength)
    F, u, q = dense(result)
    (text,) = result.warnings
    assert "leads, but its vector u + (lambda - F)^-1 F u is bent away" in text
    assert "own leader" not in text
    assert number_after("|F u| is", text) == pytest.approx(np.linalg.norm(F @ u), rel=5e-3)
    top = np.linalg.eigvals(F + strength * np.outer(u, q)).real.max()
    assert number_after("the new eigenvalue lambda", text) == pytest.approx(top, rel=5e-3)


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0, 3.0])
def test_the_strength_that_is_named_is_the_first(strength: float) -> None:
    result = steered(strength)
    F, u, q = dense(result)
    first = number_after("0.9 or more from strength", result.warnings[0])
    assert leading_cosine(F + first * np.outer(u, q), u) >= 0.9
    assert leading_cosine(F + 0.95 * first * np.outer(u, q), u) < 0.9
    assert steered(first).warnings == ()


def test_a_pair_below_the_layers_own_leader_is_told_as_that() -> None:
    result = steered(0.5)
    F, u, q = dense(result)
    (text,) = result.warnings
    assert "|F u|" not in text
    leader = np.linalg.eigvals(F + 0.5 * np.outer(u, q)).real.max()
    assert number_after("is not above the layer's own leader", text) == pytest.approx(
        leader, rel=5e-3
    )
    assert number_after("its new eigenvalue", text) < leader


def test_a_placed_eigenvalue_leads_above_the_others() -> None:
    result = steered(0.5, "placement")
    (text,) = result.warnings
    assert number_after("its new eigenvalue", text) == 0.5
    first = number_after("0.9 or more from strength", text)
    assert steered(first, "placement").warnings == ()
    assert steered(0.85 * first, "placement").warnings != ()  # nearer, the two count as tied


def test_at_value_undoes_the_secular_equation() -> None:
    rng = np.random.default_rng(0)
    F, u, q = rng.normal(size=(7, 7)), rng.normal(size=7), rng.normal(size=7)
    u /= np.linalg.norm(u)
    alpha = 40.0 * float(np.sign(u @ q))
    pair = top_pair(F, u, q, alpha)
    strength, vector = at_value(F, u, q, pair.value.real)
    assert strength == pytest.approx(alpha, rel=1e-10)
    assert abs(vector @ pair.vector) == pytest.approx(np.linalg.norm(vector), rel=1e-12)
