"""An outcome is only named for a start that has settled, and then it is the one that stays."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.dynamics.effective import ORDER_OF, effective_matrix, find_target
from eigenlens.dynamics.maps import Form, l2_map
from eigenlens.dynamics.masks import Mask
from eigenlens.dynamics.matrices import MatrixLayer, random_starts
from eigenlens.dynamics.outcome import LABELS, UNSETTLED, Foretold, Outcome, Tolerance, classify
from eigenlens.dynamics.run import iterate
from eigenlens.dynamics.simulate import foretell, simulate_matrices
from eigenlens.dynamics.summary import basins, outcomes
from eigenlens.measure.significance import wilson
from eigenlens.report.figures import simulation_figure
from eigenlens.report.page.summary import _end
from eigenlens.report.serialise import to_json
from eigenlens.report.simulate_tables import (
    SPARE,
    _rounded,
    outcome_sentence,
    too_short_sentence,
    unsettled_sentence,
)
from test_dynamics_theory import orthogonal, with_spectrum
from test_simulate_cli import printed

Q = orthogonal(np.random.default_rng(0).standard_normal((3, 3)))
SPLIT = Q @ np.diag([1.0, 0.2, 0.1]) @ Q.T
CASES: dict[str, tuple[np.ndarray, np.ndarray | None, Form, int]] = {
    "a small gap": (with_spectrum([1.0, 0.96, -0.5, -0.3])[0], None, "normalised", 1200),
    "a slow pair": (with_spectrum([0.6 + 0.02j, 0.57, -0.3])[0], None, "normalised", 1500),
    "a pair that dies away": (
        with_spectrum([1.0, 0.85 + 0.4j, -0.3])[0],
        None,
        "normalised",
        1500,
    ),
    "two ends": (SPLIT, 8.0 * np.outer(Q[:, 0], Q[:, 0]), "normalised", 200),
    "a stream": (with_spectrum([1.0, 0.2, -0.1])[0], None, "stream", 3000),
}
"""Matrix, logits, form, and steps after which all is over."""


def ends(case: str, steps: int, told: bool = True, starts: int = 24) -> list[Outcome]:
    """What the starts of a case are after so many steps; not `told`: without the spectrum."""
    F, logits, form, _ = CASES[case]
    d = len(F)
    layer = MatrixLayer(F[None], None if logits is None else logits[None])
    whole = find_target(effective_matrix([F], form), ORDER_OF[form], 1e-4)
    run = iterate(
        [l2_map(layer, form)],
        random_starts(starts, 5, d, 1.0, 3),
        steps,
        whole.basis,
        [whole.basis],
    )
    foretold = foretell(whole, form, Mask(), 5, 1)
    assert foretold is not None
    return outcomes(run, form, Tolerance(), *((whole, foretold) if told else ()))


def wrong(case: str, told: bool, name: str = "named") -> list[str]:
    """Names that were given too early."""
    last = [x.named for x in ends(case, CASES[case][3], told)]
    assert UNSETTLED not in last
    early = [s for s in (6, 12, 25, 50, 100, 200) if s < CASES[case][3]]
    found = [(steps, [getattr(x, name) for x in ends(case, steps, told)]) for steps in early]
    return [
        f"{a} after {steps}, {b} in the end"
        for steps, labels in found
        for a, b in zip(labels, last, strict=True)
        if a not in (b, UNSETTLED)
    ]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_name_that_was_given_stays(case: str, told: bool) -> None:
    """Without the spectrum, too, as with a feed-forward part: then from motion alone."""
    assert wrong(case, told) == []


@pytest.mark.parametrize("case", CASES)
def test_names_given_without_waiting_would_be_found_wrong(case: str) -> None:
    """The planted bug: a judge that ignores whether a start has settled."""
    assert len(wrong(case, True, "label")) > 3


def test_the_intervals_hold_the_end_at_every_step() -> None:
    for case in CASES:
        last = Counter(x.named for x in ends(case, CASES[case][3]))
        for steps in (6, 12, 25, 50, 100):
            found = ends(case, steps)
            for b in basins(found):
                if b.label == UNSETTLED:
                    continue
                low, high = b.interval
                assert low is not None
                assert high is not None
                assert low <= last[b.label] / len(found) <= high, (case, steps, b)


def test_shares_are_of_all_starts_and_the_unsettled_ones_stand_last() -> None:
    kinds = [Outcome("consensus", (5,))] * 3 + [Outcome("rotation", (5,), settled=False)] * 5
    kinds += [Outcome("none", (1,) * 5, settled=False)] * 2
    found = basins(kinds)
    assert [(b.label, b.count, b.together) for b in found] == [
        ("consensus", 3, 3),
        ("unsettled", 7, 5),
    ]
    assert found[0].share == 0.3
    assert found[0].interval == (wilson(3.0, 10).low, wilson(10.0, 10).high)
    assert found[1].interval == (wilson(7.0, 10).low, wilson(7.0, 10).high)


# -- what settled means ----------------------------------------------------------------------------


def arc(angle: float, n: int, d: int = 3) -> np.ndarray:
    out = np.zeros((n, d))
    out[:, 0], out[:, 1] = np.cos(angle * np.arange(n)), np.sin(angle * np.arange(n))
    return out


def judged(path: np.ndarray, foretold: Foretold | None = None) -> Outcome:
    path = path / np.linalg.norm(path, axis=1, keepdims=True)
    U = np.tile(path[-1], (4, 1))
    return classify(U, path, np.arange(len(path), dtype=float), Tolerance(), foretold)


def test_a_steady_turn_is_a_rotation_once_it_is_seen_to_be_one() -> None:
    there = Foretold("rotation", 0.01, 1e-3)
    for angle in (0.01, 0.3, 1.9):
        half = max(int(np.pi / angle) + 3, 9)
        assert judged(arc(angle, half), there).named == "rotation"
        assert judged(arc(angle, 2 * half)).named == "rotation"  # in a plane of its own
    for few, foretold in ((290, there), (600, None)):
        found = judged(arc(0.01, few), foretold)
        assert (found.label, found.named) == ("rotation", UNSETTLED)


def test_a_turn_on_its_way_to_something_else_is_none() -> None:
    growing, shrinking = 0.01 * 1.03 ** np.arange(120), 0.97 ** np.arange(120)
    axis = np.eye(3)[2]
    assert judged(arc(0.3, 120)).named == "rotation"
    assert judged(arc(0.3, 120) + growing[:, None] * axis).named == UNSETTLED
    assert judged(arc(0.3, 120) + 0.2 * shrinking[:, None] * axis).named == "rotation"
    assert judged(arc(0.3, 120) + (0.4 + shrinking)[:, None] * axis).named == UNSETTLED
    # Where another end is foretold, what sticks out even a little will grow.
    little = arc(0.3, 120) + 0.02 * axis
    assert judged(little).named == "rotation"
    assert judged(little, Foretold("consensus", 0.01, 0.99)).named == UNSETTLED
    assert judged(little, Foretold("rotation", 0.01, 0.02)).named == "rotation"


def test_a_slow_approach_behind_a_fast_one_is_foretold() -> None:
    """Speeds alone see the fast part end; the spectrum knows of the slow one."""
    t = np.arange(14.0)
    path = np.c_[np.ones(14), 0.9 * 0.6**t, 0.5 * 0.9999**t]
    assert judged(path).named == "consensus"
    assert judged(path, Foretold("consensus", 1e-4, 0.45)).named == UNSETTLED
    assert judged(path, Foretold("consensus", 1e-4, 0.005)).named == "consensus"


def test_a_stream_that_turns_is_followed_through_the_logarithm_of_the_step() -> None:
    """The last thousand of ten thousand steps show but a tenth of a turn."""
    F, _ = with_spectrum([1 + 2j, 0.3])
    found = simulate_matrices(F, form="stream", n_tokens=4, starts=3, steps=10_000)
    assert [(b.label, b.count) for b in found.basins] == [("rotation", 3)]
    assert found.outcome.observed.angle_per_step == pytest.approx(2.0, rel=0.05)


def test_passes_of_a_stream_are_kept_evenly_in_the_logarithm() -> None:
    F, _ = with_spectrum([1.0, 0.3])
    layer = l2_map(MatrixLayer(F[None]), "stream")
    basis = np.eye(2)[:, :1]
    run = iterate([layer], random_starts(1, 3, 2, 1.0, 0), 5000, basis, [basis])
    assert run.at[-1] == run.steps == 5000
    assert list(run.at[:40]) == list(range(40))
    gaps = np.diff(np.log(run.at[65:]))
    assert gaps[:-1].min() > 1 / 64 - 1e-3
    assert gaps.max() < 1 / 32
    assert len(run.at) < 450
    U = run.final[0] / np.linalg.norm(run.final[0], axis=1, keepdims=True)
    mean = U.mean(axis=0)
    np.testing.assert_allclose(run.passes[-1, 0], mean / np.linalg.norm(mean), atol=1e-12)


def test_two_groups_at_rest_are_named_from_the_start() -> None:
    signs = np.array([1, 1, 1, -1, -1])[:, None] * Q[:, 0]
    found = simulate_matrices(SPLIT, logits=8.0 * np.outer(Q[:, 0], Q[:, 0]), states=signs)
    assert (found.outcome.label, found.outcome.settled) == ("bipartite", True)


# -- models ----------------------------------------------------------------------------------------


def test_a_model_with_a_real_leader_is_never_said_to_turn() -> None:
    """54 consensus and 10 rotation after 100 steps would be told; all 64 are consensus."""
    found = eigenlens.simulate("sample:albert-tiny", starts=64, steps=100)
    assert [(b.label, b.count, b.together) for b in found.basins] == [("unsettled", 64, 64)]
    assert found.warnings == ("64 of 64 starts not settled after 100 steps",)
    needed = found.outcome.steps_to_settle
    assert needed is not None
    later = eigenlens.simulate("sample:albert-tiny", starts=16, steps=int(needed))
    assert [(b.label, b.count) for b in later.basins] == [("consensus", 16)]
    assert later.outcome.steps_to_settle is None
    assert later.warnings == ()


@pytest.mark.parametrize("steps", [100, 152, 400])
def test_a_pair_that_dies_away_in_a_stack_is_no_rotation(steps: int) -> None:
    """It turns through several circles on its way to a real leader."""
    found = eigenlens.simulate("sample:bert-tiny", starts=16, steps=steps)
    assert [b.label for b in found.basins] == ["unsettled"]
    assert found.outcome.observed.angle_per_step is None


def test_a_slow_rotation_of_a_model_keeps_its_name() -> None:
    found = eigenlens.simulate("sample:albert-tiny-rotating", starts=16, steps=100)
    assert found.outcome.label == "unsettled"
    needed = found.outcome.steps_to_settle
    assert needed is not None
    later = eigenlens.simulate("sample:albert-tiny-rotating", starts=16, steps=int(needed))
    assert [(b.label, b.count) for b in later.basins] == [("rotation", 16)]
    assert later.outcome.observed.angle_per_step == pytest.approx(0.012, rel=0.03)


# -- what is said of it ----------------------------------------------------------------------------


def test_steps_to_settle_are_those_of_the_rate() -> None:
    F, V = with_spectrum([1.0, 0.96, -0.5])
    X = np.tile(V[:, 0] + 0.3 * V[:, 1], (4, 1))
    found = simulate_matrices(F, states=X, steps=20, tie_tolerance=1e-4)
    needed = found.outcome.steps_to_settle
    rate = 0.98
    by_hand = 20 + np.log(np.tan(found.outcome.distance) / np.tan(0.01)) / -np.log(rate)
    assert needed == np.ceil(by_hand)
    for steps, label in ((int(needed) - 8, "unsettled"), (int(needed), "consensus")):
        again = simulate_matrices(F, states=X, steps=steps, tie_tolerance=1e-4)
        assert again.outcome.label == label


def test_the_sentence_tells_how_many_and_how_long() -> None:
    F, _ = with_spectrum([1.0, 0.96, -0.5, -0.3])
    options: dict[str, Any] = {"n_tokens": 5, "tie_tolerance": 1e-4}
    some = simulate_matrices(F, steps=200, starts=24, **options)
    count = {b.label: b.count for b in some.basins}
    assert set(count) == {"consensus", "unsettled"}
    text = too_short_sentence(some)
    needed = some.outcome.steps_to_settle
    assert needed is not None
    assert text == (
        f"{count['unsettled']} of 24 starts have not settled after 200 steps, so that no outcome "
        f"is named: at the predicted 0.980 a step, about {_rounded(SPARE * needed)} steps would "
        "settle them."
    )
    view = " ".join(printed(some).split())
    assert text in view
    assert "share: of all 24 starts, settled or not" in view
    assert "still moved after 200 steps; tokens are one in all" in view
    one = simulate_matrices(F, steps=30, **options)
    assert "Not settled, so no outcome is named: at the predicted 0.980 a step" in printed(one)
    assert "and still moved after 30 steps; foretold is, in the end, consensus along v1" in (
        outcome_sentence(one)
    )
    assert re.search(r"ends in v1 \(\S+\)\s+in the end\s+\S+ degrees off so far", printed(one))
    done = simulate_matrices(F, steps=1200, starts=24, **options)
    assert re.search(r"ends in v1 \(\S+\)\s+yes\s+\S+ degrees off\s", printed(done))
    assert too_short_sentence(done) == ""
    assert "share, interval: of all 24 starts" in " ".join(printed(done).split())


def test_no_number_of_steps_is_invented() -> None:
    tied, _ = with_spectrum([1.0, 0.995, 0.1], condition=1.2)
    found = simulate_matrices(tied, n_tokens=5, steps=60)
    assert found.outcome.steps_to_settle is None
    assert "how many steps would settle it is not foretold" in unsettled_sentence(found)
    slow, _ = with_spectrum([1.0, 0.98, 0.1], condition=1.2)
    stream = simulate_matrices(slow, n_tokens=5, steps=60, form="stream", tie_tolerance=1e-4)
    assert stream.outcome.steps_to_settle is None
    assert "more than 1e15 steps would settle it" in unsettled_sentence(stream)
    assert [_rounded(x) for x in (7.0, 683.0, 1940.0, 1e9)] == ["7", "690", "2,000", "1.0e9"]


def test_no_token_apart_is_said_to_be_one() -> None:
    F, _ = with_spectrum([1.0, 0.96, -0.5, -0.3])
    soon = simulate_matrices(F, steps=4, starts=6, n_tokens=5, tie_tolerance=1e-4)
    assert [(b.label, b.together) for b in soon.basins] == [("unsettled", 0)]
    assert "In 6 of 6 starts tokens had not become one direction after 4 steps" in (
        outcome_sentence(soon)
    )
    assert "tokens are one in 0" in printed(soon)


def test_the_page_the_figure_and_json_name_nothing_either(tmp_path: Path) -> None:
    F, _ = with_spectrum([1.0, 0.96, -0.5, -0.3])
    found = simulate_matrices(F, steps=30, n_tokens=5, tie_tolerance=1e-4)
    answer = _end(found)
    assert answer.verdict == "Not settled after 30 steps"
    assert "about" in answer.detail
    assert "steps would settle it" in answer.detail
    assert b"not settled" in simulation_figure(found, tmp_path / "a.svg")
    record = json.loads(to_json(found))
    assert record["outcome"]["label"] == "unsettled"
    assert record["outcome"]["steps_to_settle"] == found.outcome.steps_to_settle
    assert record["basins"][0]["label"] == "unsettled"
    assert record["basins"][0]["together"] == 1
    assert UNSETTLED in LABELS


def test_the_most_frequent_outcome_goes_before_as_many_unsettled() -> None:
    from eigenlens.dynamics.summary import _most_frequent

    some = [Outcome("consensus", (3,)), Outcome("consensus", (3,), settled=False)]
    assert _most_frequent(some) == "consensus"
    assert _most_frequent([*some, replace(some[1], label="rotation")]) == UNSETTLED
