"""How strong: the search under a bound, matched strengths, target cosines, the useful window."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import eigenlens
from eigenlens.errors import NumericsError, OptionError
from eigenlens.steering.measures import Measure, _not_negative
from eigenlens.steering.options import SteerOptions, token_list, two_texts
from eigenlens.steering.strength import (
    CLOSE,
    curve,
    for_cosine,
    kl_of,
    match_kl,
    search,
    useful_window,
)

IDS = [[int(i) for i in np.random.default_rng(s).integers(5, 38, 9)] for s in range(24)]
TEXTS = {"calibrate": IDS[:12], "evaluate": IDS[12:]}


def made(alpha: float, kl: float, p: float | None = None) -> Measure:
    return Measure(alpha, kl, None, p, None, {})


def power(alpha: float) -> Measure:
    """KL grows as a square, the target with the strength."""
    return made(alpha, 1e-3 * alpha**2, min(1.0, 1e-4 * alpha))


@pytest.mark.parametrize("start", [1e-3, 1.0, 22.0, 1e4])
@pytest.mark.parametrize("bound", [1e-3, 0.5, 20.0])
def test_the_search_ends_just_below_the_bound(start: float, bound: float) -> None:
    found = search(power, start, bound, target=True)
    assert CLOSE * bound <= kl_of(found.chosen) <= bound
    assert found.bounded
    assert len(found.tried) <= 14
    assert list(found.tried) == sorted(found.tried, key=lambda m: m.strength)


def test_with_a_target_the_best_one_is_taken_and_without_it_the_largest() -> None:
    def peaked(alpha: float) -> Measure:
        return made(alpha, 1e-3 * alpha**2, math.exp(-((math.log(alpha) - 1) ** 2)))

    best = search(peaked, 1.0, 0.5, target=True)
    assert best.chosen.target_probability == max(
        m.target_probability or 0 for m in best.tried if kl_of(m) <= 0.5
    )
    largest = search(peaked, 1.0, 0.5, target=False)
    assert largest.chosen.strength == max(m.strength for m in largest.tried if kl_of(m) <= 0.5)
    assert largest.chosen.strength > best.chosen.strength


def test_a_model_that_breaks_is_beyond_the_bound() -> None:
    def breaks(alpha: float) -> Measure:
        if alpha > 30:
            raise NumericsError("states are NaN")
        return made(alpha, math.nan if alpha > 20 else 1e-5 * alpha, 0.1)

    found = search(breaks, 1.0, 0.5, target=False)
    assert 10 < found.chosen.strength <= 20
    with pytest.raises(NumericsError, match="no strength has a KL below"):
        search(lambda alpha: made(alpha, 9.0), 1.0, 0.5, target=False)


def test_an_effect_that_levels_off_is_not_bounded() -> None:
    found = search(lambda alpha: made(alpha, 0.1 * alpha / (1 + alpha)), 1.0, 0.5, target=False)
    assert not found.bounded
    assert found.chosen.strength == found.tried[-1].strength


@pytest.mark.parametrize("start", [0.01, 3.0, 500.0, -3.0])
@pytest.mark.parametrize("kl", [1e-4, 0.5, 7.0])
def test_another_push_of_the_same_kl(start: float, kl: float) -> None:
    found = match_kl(lambda beta: made(beta, 0.02 * abs(beta) ** 1.7), start, kl)
    assert kl_of(found) == pytest.approx(kl, rel=0.05)
    assert found.strength * start > 0


def test_the_curve_is_in_thirds_of_decades_and_measures_nothing_twice() -> None:
    seen: list[float] = []

    def measure(alpha: float) -> Measure:
        seen.append(alpha)
        return power(alpha)

    known = power(50.0)
    points = curve(measure, 50.0, (known,))
    assert 50.0 not in seen
    assert known in points
    np.testing.assert_allclose(np.diff([math.log10(m.strength) for m in points]), 1 / 3)
    assert [m.strength < 0 for m in curve(measure, -2.0)] == [True] * 10


def test_the_useful_window() -> None:
    before = made(0.0, 0.0, 1e-3)
    points = [power(a) for a in (1, 5, 10, 19, 21, 30, 100)]  # p = .0021 at 21, KL .5 at 22.4
    window = useful_window(points, before, 0.5, down=False)
    assert window is not None
    assert (window.low, window.high) == (21, 21)
    assert useful_window(points[:4], before, 0.5, down=False) is None
    down = useful_window([made(-3, 0.1, 4e-4), made(-6, 0.9, 0.0)], before, 0.5, down=True)
    assert down is not None
    assert (down.low, down.high) == (-3, -3)
    free = useful_window([made(1, 0.1), made(2, 0.4), made(3, 2.0)], made(0, 0), 0.5, down=False)
    assert free is not None
    assert (free.low, free.high) == (1, 2)


@pytest.mark.parametrize("wanted", [0.2, 0.9])
def test_a_cosine_that_the_weakest_placement_passes_is_refused(wanted: float) -> None:
    """At strength 0 placement writes -F u: more than some targets, and no strength is less."""
    d = 6
    u, F = np.eye(d)[0], np.diag(np.r_[-4.0, np.zeros(d - 1)])
    rng = np.random.default_rng(3)
    states = rng.standard_normal((20, d)) * 2
    stage = SimpleNamespace(
        saturates=False,
        calls=1,
        last=False,
        post=False,
        scale=1.0,
        site="attention",
        place=SimpleNamespace(norm_out=None),
    )
    study = cast(
        Any,
        SimpleNamespace(
            stage=stage,
            first=np.zeros(20, dtype=bool),
            readings=lambda w: np.ones(20),
            sums=states,
            image=u,
        ),
    )

    def mean(alpha: float) -> float:
        after = states + (alpha * u - F @ u)
        return float(np.mean(after @ u / np.linalg.norm(after, axis=1)))

    assert float(np.mean(states @ u / np.linalg.norm(states, axis=1))) < 0.2 < mean(0.0) < 0.9

    def written(alpha: float) -> Any:
        return alpha * u - F @ u

    if wanted < mean(0.0):
        with pytest.raises(OptionError, match="weakest edit gives a mean cosine of 0"):
            for_cosine(study, np.ones(1), written, wanted)
    else:
        assert mean(for_cosine(study, np.ones(1), written, wanted)) == pytest.approx(wanted)


# -- on models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "bert", "albert", "llama", "opt-post"])
@pytest.mark.parametrize("cosine", [0.3, 0.7])
def test_a_target_cosine_is_reached_in_the_edited_model(
    name: str, cosine: float, tiny: Any
) -> None:
    found = eigenlens.steer(tiny(name), 7, target_cosine=cosine, **TEXTS)
    assert found.after is not None
    pair = found.after.tokens["after_sublayer"]
    assert pair is not None
    assert pair[0] is not None
    assert pair[0].mean_cosine == pytest.approx(cosine, abs=1e-6)
    assert found.edit.strength > 0


def test_a_smaller_strength_does_not_reach_it(tiny: Any) -> None:
    at = eigenlens.steer(tiny("gpt2"), 7, target_cosine=0.7, **TEXTS).edit.strength
    less = eigenlens.steer(tiny("gpt2"), 7, strength=0.98 * at, **TEXTS)
    assert less.after is not None
    pair = less.after.tokens["after_sublayer"]
    assert pair is not None
    assert pair[0] is not None
    assert pair[0].mean_cosine < 0.7 - 1e-3


def test_where_a_target_cosine_cannot_be_had(tiny: Any) -> None:
    with pytest.raises(OptionError, match="without any edit"):
        eigenlens.steer(tiny("gpt2"), 9, target_cosine=1e-9, **TEXTS)
    with pytest.raises(OptionError, match="norm on the attention output"):
        eigenlens.steer(tiny("gemma2"), 7, target_cosine=0.5, **TEXTS)
    with pytest.raises(OptionError, match="steps-edited last"):
        eigenlens.steer(tiny("albert"), 7, target_cosine=0.5, steps_edited="all", **TEXTS)
    with pytest.raises(OptionError, match="split whatever the strength"):
        eigenlens.steer(tiny("gpt2"), 7, target_cosine=0.999, probe="eigen", **TEXTS)


def test_auto_needs_a_head(tiny: Any) -> None:
    with pytest.raises(OptionError, match="give --strength or --target-cosine"):
        eigenlens.steer(tiny("gpt2", head=False), direction=np.arange(16.0), **TEXTS)
    found = eigenlens.steer(
        tiny("gpt2", head=False), direction=np.arange(16.0), strength=5.0, **TEXTS
    )
    assert found.after is not None
    assert found.after.kl is None
    assert found.after.target_probability is None
    assert found.after.tokens["after_final_norm"] is not None
    assert any("no output head" in w for w in found.warnings)


def test_auto_on_a_model_stays_below_the_bound(tiny: Any) -> None:
    found = eigenlens.steer(tiny("llama"), 7, max_kl=0.1, **TEXTS)
    assert found.before is not None
    assert found.after is not None
    assert CLOSE * 0.1 - 1e-3 <= kl_of(found.after) <= 0.1 + 1e-9
    before, after = found.before.target_probability, found.after.target_probability
    assert before is not None
    assert after is not None
    assert after > 1.5 * before


def test_a_negative_strength_suppresses(tiny: Any) -> None:
    found = eigenlens.steer(tiny("llama"), 7, strength=-8.0, **TEXTS)
    assert found.before is not None
    assert found.after is not None
    before, after = found.before.target_probability, found.after.target_probability
    assert before is not None
    assert after is not None
    assert after < 0.5 * before
    assert found.alpha_qu is not None
    assert found.alpha_qu < 0


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"token": ()}, "no direction given"),
        ({"from_layer": 1}, "--token and --from-layer given"),
        ({"strength": 0.0}, "not 0"),
        ({"strength": math.nan}, "number that is not 0"),
        ({"strength": "much"}, "auto, or a number"),
        ({"strength": 3.0, "target_cosine": 0.5}, "exclude each other"),
        ({"target_cosine": 1.0}, "between 0 and 1"),
        ({"max_kl": 0.0}, "positive number"),
        ({"max_kl": math.inf}, "positive number"),
        ({"site": "mlp"}, "allowed are attention, ffn"),
        ({"probe": "best"}, "allowed are calibrated, eigen"),
        ({"steps_edited": "first"}, "allowed are"),
        ({"site": "ffn", "probe": "eigen"}, "the feed-forward part has no F"),
        ({"weights_only": True}, "with --weights-only give a number"),
        ({"weights_only": True, "strength": 3.0, "sweep": True}, "leave out --weights-only"),
        ({"weights_only": True, "strength": 3.0, "probe": "calibrated"}, "fitted to text"),
        ({"batch_size": 0}, "at least 1"),
        ({"seed": -1}, "not negative"),
        ({"strength": 1e-308}, "its size lies between"),
        ({"strength": -1e308}, "its size lies between"),
        ({"strength": 10**400}, "number that is not 0"),
        ({"strength": True}, "auto, or a number"),
        ({"max_kl": 1e-9}, "rounding noise"),
        ({"max_kl": None}, "max_kl is None"),
        ({"target_cosine": "x"}, "target_cosine is 'x'"),
        ({"layer": None}, "layer is None: it is a whole number"),
        ({"layer": 1.0}, "whole number"),
        ({"layer": True}, "whole number"),
        ({"batch_size": 1.5}, "whole number"),
        ({"stack": 5}, "stack is 5"),
    ],
)
def test_options_are_checked_first(given: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        SteerOptions(**{"token": ("a",), **given})


def test_numbers_of_numpy_are_plain_numbers_in_the_record() -> None:
    options = SteerOptions(
        token=(5,), layer=np.int64(2), strength=np.float32(3), max_kl=np.float64(0.1)
    )
    kinds = {name: type(options.record()[name]) for name in ("layer", "strength", "max_kl")}
    assert kinds == {"layer": int, "strength": float, "max_kl": float}


@pytest.mark.parametrize("token", [True, 1.5, b" a", [None], [5, "a", 2.0]])
def test_what_is_no_token(token: Any) -> None:
    with pytest.raises(OptionError, match="it is a text or a token's number"):
        token_list(token)
    assert token_list(np.array([5, 6])) == (5, 6)


@pytest.mark.parametrize("contrast", ["ab", ("a.txt",), (5, 6), ([1], [2]), ("a", "b", "c")])
def test_what_is_no_contrast(contrast: Any) -> None:
    with pytest.raises(OptionError, match="no pair of texts"):
        two_texts(contrast)
    assert two_texts(["a.txt", ["x"]]) == ("a.txt", ["x"])


@pytest.mark.parametrize("given", [5, b"a.txt", [5, 6], [["a"]], ["a", 5], {"a": 1}])
def test_what_is_no_text(given: Any, tiny: Any) -> None:
    with pytest.raises(OptionError, match="is a file, a list of texts"):
        eigenlens.steer(tiny("gpt2"), 7, strength=1.0, calibrate=IDS[:12], evaluate=given)


def test_a_divergence_is_not_negative() -> None:
    assert [_not_negative(x) for x in (None, -1e-9, 0.5, math.inf)] == [None, 0.0, 0.5, math.inf]
    assert math.isnan(_not_negative(math.nan) or 0.0)
