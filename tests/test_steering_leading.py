"""What keeps the direction from leading, against F itself: |F u|, or the layer's own leader."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.circuit import OVCircuit, Placement
from eigenlens.report.words import complex_text
from eigenlens.steering.edit import Edit
from eigenlens.steering.eigenpair import leader_with, spectrum_change
from eigenlens.steering.leading import _lowered, first_strength, spectrum_warnings
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


def drawn(
    seed: int, d: int, placement: Placement, strength: float = 0.3
) -> tuple[OVCircuit, Edit, np.ndarray]:
    """A random layer, an edit with the eigen probe, and the edited F by plain products."""
    rng = np.random.default_rng(seed)
    W_V, W_O = rng.normal(0, 0.5, (d, d)), rng.normal(0, 0.5, (d, d))
    u = rng.normal(size=d)
    u /= np.linalg.norm(u)
    w = W_V @ u / np.linalg.norm(W_V @ u)
    edit = Edit(
        *("m", "t", "decoder", 0, "self", "attention", "all", "eigen", u, u, w, strength, "drawn")
    )
    F = (W_O + strength * np.outer(u, w)) @ W_V
    return OVCircuit(W_V, W_O, 1, 1, d, placement=placement), edit, F


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize(("seed", "d"), [(52, 4), (37, 4), (3, 4), (6, 4), (5, 16), (9, 16)])
def test_no_smaller_strength_does_and_all_larger_ones_do(
    seed: int, d: int, placement: Placement
) -> None:
    """Also where F's own leader falls, so that a pair below it leads."""
    circuit, edit, _ = drawn(seed, d, placement)
    change = spectrum_change(circuit, edit)
    assert change.after.cos_direction < 0.9
    first = first_strength(circuit, edit, change)
    assert first is not None

    def enough(strength: float) -> bool:
        return leader_with(circuit, replace(edit, strength=strength)).cos_direction >= 0.9

    assert all(enough(first * x) for x in np.geomspace(1, 50, 30))
    assert not all(enough(max(first * x, 0.3)) for x in np.geomspace(0.93, 0.999, 10))


@pytest.mark.parametrize(("seed", "strength"), [(23, 0.3), (24, 1.0), (28, 0.02)])
def test_of_a_post_norm_layer_the_sizes_are_told_that_are_compared(
    seed: int, strength: float
) -> None:
    """Its leader may well be negative or complex: what is above what is |1 + lambda|."""
    circuit, edit, F = drawn(seed, 6, "post", strength)
    (text,) = spectrum_warnings(circuit, edit, spectrum_change(circuit, edit))
    found = re.search(r"with it \(\|1 \+ lambda\| ([\d.]+) against ([\d.]+)\)", text)
    assert found is not None, text
    ours, theirs = map(float, found.groups())
    assert ours < theirs
    sizes = np.abs(1 + np.linalg.eigvals(F))
    assert theirs == pytest.approx(sizes.max(), rel=6e-3)
    assert np.abs(sizes - ours).min() < 6e-3 * ours
    straight, edit, _ = drawn(3, 6, "pre", 0.02)
    (text,) = spectrum_warnings(straight, edit, spectrum_change(straight, edit))
    assert "|1 + lambda|" not in text


@pytest.mark.parametrize(
    ("seed", "strength", "magnified"), [(2, 1.0, True), (39, 0.3, True), (2, 3.0, False)]
)
def test_a_bend_beyond_what_a_normal_F_would_make_is_told(
    seed: int, strength: float, magnified: bool
) -> None:
    circuit, edit, F = drawn(seed, 6, "pre", strength)
    change = spectrum_change(circuit, edit)
    (text,) = spectrum_warnings(circuit, edit, change)
    values, vectors = np.linalg.eig(F)
    at = int(np.argmax(values.real))
    along = abs(vectors[:, at] @ edit.direction)
    bent = np.sqrt(1 - along**2) / along
    image = float(np.linalg.norm(circuit.dense() @ edit.direction))
    assert bool(bent > 2 * image / abs(values[at])) is magnified
    assert ("magnified since F has eigenvalues near it" in text) is magnified
    weak = replace(change, formula=None)
    (text,) = spectrum_warnings(circuit, edit, weak)
    assert "too weak to make an eigenvector of its own" in text


def test_a_pair_below_the_layers_own_leader_is_told_as_that() -> None:
    result = steered(0.5)
    F, u, q = dense(result)
    (text,) = result.warnings
    assert "|F u|" not in text
    leader = np.linalg.eigvals(F + 0.5 * np.outer(u, q)).real.max()
    # Both, as a table of spectra prints them: the one that users know, and what it becomes.
    own = complex_text(eigenlens.spectrum(GPT2).layers[-1].eigenvalues[0])
    assert f"layer's own leader, {own} before the edit and {leader:+.3f} with it" in text
    assert abs(float(own) - leader) > 2e-3
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


@pytest.mark.parametrize("first", [1e-5, 0.3, 900.0])
def test_the_solver_is_asked_a_bounded_number_of_times(first: float) -> None:
    """And what is found by then does all the same."""
    asked: list[float] = []

    def leads(strength: float) -> bool:
        asked.append(strength)
        return strength >= first

    found = _lowered(1e4, 1e-6, leads)
    assert found >= first
    assert len(asked) <= 24
    assert found == min(s for s in asked if s >= first)
