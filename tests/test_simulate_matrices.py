"""Simulations of matrices end where their spectra foretell, with figures beside each other."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from eigenlens.dynamics.effective import effective_matrix
from eigenlens.dynamics.result import Simulation
from eigenlens.dynamics.simulate import simulate_matrices
from eigenlens.errors import NumericsError, OptionError, ShapeError
from eigenlens.report.serialise import to_csv, to_json
from test_dynamics_theory import orthogonal, with_spectrum


def test_observed_and_predicted_stand_beside_each_other() -> None:
    F, V = with_spectrum([1.0, 0.8, 0.1, -0.2])
    found = simulate_matrices(F, n_tokens=8, steps=250, starts=4)
    outcome = found.outcome
    assert (outcome.label, outcome.target, outcome.settled) == ("consensus", "v1", True)
    assert outcome.predicted is not None
    assert outcome.predicted.label == "consensus"
    assert outcome.observed.disagreement_rate == pytest.approx(0.5, abs=1e-3)
    assert outcome.observed.alignment_rate == pytest.approx(0.9, abs=1e-3)
    assert outcome.distance < 1e-8
    assert outcome.step_reached is not None
    assert 3 <= outcome.step_reached <= 15
    assert found.basins[0].count == 4
    assert found.basins[0].interval[0] == pytest.approx(0.5101, abs=1e-3)  # Wilson, 4 of 4
    assert found.stability is not None
    assert found.stability[0] == pytest.approx(0.9, abs=1e-6)
    last = found.trajectory[-1]
    assert last["gamma"] == pytest.approx(1.0)
    np.testing.assert_allclose(np.abs(found.final[0] @ V[:, 0]), 1.0)


def test_a_complex_leader_ends_in_rotation_by_the_predicted_angle() -> None:
    F, _ = with_spectrum([0.6 + 1.44j, 0.5, -0.3])
    outcome = simulate_matrices(F, n_tokens=6, steps=300).outcome
    assert (outcome.label, outcome.target) == ("rotation", "plane")
    assert outcome.predicted is not None
    assert outcome.observed.angle_per_step == pytest.approx(
        outcome.predicted.angle_per_step, rel=1e-3
    )


def test_a_tie_ends_in_its_span_and_nothing_is_foretold_of_rates() -> None:
    F, V = with_spectrum([1.0, 0.995, 0.1, -0.2])
    outcome = simulate_matrices(F, n_tokens=6, steps=120).outcome
    assert (outcome.target, outcome.predicted) == ("span", None)
    assert outcome.distance < 1e-6
    final = simulate_matrices(F, n_tokens=6, steps=120).final[0]
    sines = [math.sqrt(1 - float(final[0] @ V[:, k]) ** 2) for k in (0, 1)]
    assert min(sines) > 0.01  # on neither of the two


def test_the_stream_and_the_normalised_map_disagree_where_theory_says() -> None:
    F, _ = with_spectrum([1, 0.6, 0.2, -3.5], condition=1.2)
    normalised = simulate_matrices(F, n_tokens=1, steps=300).outcome
    stream = simulate_matrices(F, n_tokens=1, steps=3000, form="stream").outcome
    assert normalised.label == "flip"
    assert stream.predicted is not None
    assert (stream.label, stream.predicted.label) == ("unsettled", "consensus")  # 4 degrees off
    assert stream.distance < 0.08
    assert stream.observed.exponent == pytest.approx(-0.4, abs=0.03)
    assert stream.predicted.exponent == pytest.approx(-0.4)


def test_different_layers_end_at_the_leading_direction_of_their_product() -> None:
    layers = np.stack([with_spectrum([1.0, 0.2, 0.1, -0.2], seed=s)[0] for s in range(3)])
    found = simulate_matrices(layers, n_tokens=5, steps=150)
    product = np.eye(4)
    for F in layers:
        product = (np.eye(4) + F) @ product
    values, vectors = np.linalg.eig(product)
    lead = vectors[:, np.argmax(np.abs(values))].real
    np.testing.assert_allclose(np.abs(found.final[0] @ lead), np.linalg.norm(lead), atol=1e-9)
    np.testing.assert_allclose(effective_matrix(list(layers), "normalised"), product - np.eye(4))
    assert [s["layer"] for s in found.trajectory[1:5]] == [0, 1, 2, 0]


@pytest.mark.parametrize(("first", "second"), [(0.6 + 0.9j, 0.9 + 0.3j), (1.1, 0.4)])
def test_rates_of_different_layers_are_those_of_a_step(first: complex, second: complex) -> None:
    """Layers with common eigenvectors, so that the multipliers of the pass are their products."""
    layers = np.stack([with_spectrum([v, v / 2, -0.2])[0] for v in map(_real, (first, second))])
    outcome = simulate_matrices(layers, n_tokens=6, steps=200).outcome
    m = (1 + first) * (1 + second)
    assert outcome.predicted is not None
    assert outcome.predicted.disagreement_rate == pytest.approx(abs(m) ** -0.5)
    if m.imag:
        assert outcome.predicted.angle_per_step == pytest.approx(np.angle(m) / 2)
        assert outcome.observed.angle_per_step == pytest.approx(np.angle(m) / 2, rel=1e-3)
    others = [(1 + first / 2) * (1 + second / 2), 0.64]
    rate = (max(map(abs, others)) / abs(m)) ** 0.5
    assert outcome.predicted.alignment_rate == pytest.approx(rate)
    assert outcome.observed.alignment_rate == pytest.approx(rate, rel=4e-3)
    assert outcome.observed.disagreement_rate == pytest.approx(abs(m) ** -0.5, rel=0.03)


def _real(v: complex) -> Any:
    return v if complex(v).imag else complex(v).real


def test_rare_outcomes_are_counted() -> None:
    q = orthogonal(np.random.default_rng(0).standard_normal((3, 3)))
    F = q @ np.diag([1.0, 0.2, 0.1]) @ q.T
    B = 8.0 * np.outer(q[:, 0], q[:, 0])
    found = simulate_matrices(F, logits=B, n_tokens=6, starts=40, steps=150)
    shares = {b.label: b for b in found.basins}
    assert set(shares) == {"consensus", "bipartite"}
    assert sum(b.count for b in found.basins) == 40
    assert all(b.interval[0] < b.share < b.interval[1] for b in found.basins)


def test_json_and_csv_hold_the_run(tmp_path: Any) -> None:
    found: Simulation = simulate_matrices(np.diag([1.0, 0.5]), n_tokens=3, steps=5)
    record = json.loads(to_json(found))
    assert record["schema"] == "eigenlens.simulate/1"
    assert record["outcome"]["predicted"]["alignment_rate"] == 0.75
    assert len(record["trajectory"]) == 6
    assert to_csv(found).splitlines()[0].startswith("step,layer,gamma")
    assert found.warnings == ("not settled after 5 steps",)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, OptionError, "give either F"),
        ({"F": np.eye(2), "heads": np.eye(2)[None]}, OptionError, "not both"),
        ({"F": np.ones((2, 3))}, ShapeError, "must be square"),
        ({"F": np.ones(3)}, ShapeError, "expected"),
        ({"F": np.diag([1, np.nan])}, NumericsError, "'F' has 1 entries"),
        ({"F": np.eye(2), "logits": np.eye(3)}, ShapeError, "logits have shape"),
        ({"F": np.eye(2), "mask": "window:0"}, OptionError, "W >= 1"),
        ({"F": np.eye(2), "form": "pre"}, OptionError, "normalised, stream"),
        ({"F": np.eye(2), "radius": "big"}, OptionError, "radius 'big'"),
        ({"F": np.eye(2), "radius": 0}, OptionError, "positive"),
        ({"F": np.eye(2), "steps": 0}, OptionError, "at least 1"),
        ({"F": np.eye(2), "starts": 0}, OptionError, "at least one"),
        ({"F": np.eye(2), "states": np.ones((2, 3))}, ShapeError, r"expected \(n, 2\)"),
        ({"F": np.eye(2), "seed": -1}, OptionError, "seed is -1"),
    ],
)
def test_wrong_input_is_told(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        simulate_matrices(**options)
