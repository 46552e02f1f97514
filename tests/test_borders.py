"""P-values at the border of significance: never rounded across it, and what hangs on one draw."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import eigenlens
from eigenlens.measure.borders import draws_to_turn
from eigenlens.measure.significance import holm
from eigenlens.report.page.tables import data_table
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.plots.table import PLOTS
from eigenlens.report.trace_tables import trace_view
from eigenlens.report.trace_words import trace_sentences
from eigenlens.report.words import p_text
from eigenlens.tracing.options import ALLOWED_DIRECTIONS
from eigenlens.tracing.result import LEVEL

M = 1200
BORDER = 30 * 2 / (M + 1)  # .049958: one of 1200 directions as far, corrected over 30 layers


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (None, "-"),
        (1e-5, "< .001"),
        (0.4217, "0.422"),
        (0.05, "0.050"),
        (0.0504, "0.050"),
        (0.0496, "0.0496"),
        (BORDER, "0.04996"),
        (0.05 - 1e-12, "< 0.05"),
    ],
)
def test_a_p_value_stays_on_its_side(p: float | None, text: str) -> None:
    assert p_text(p, LEVEL) == text


@pytest.mark.parametrize("seed", range(200))
def test_no_shown_p_value_contradicts_its_verdict(seed: int) -> None:
    p = LEVEL + 10.0 ** -np.random.default_rng(seed).uniform(2, 14) * (-1) ** seed
    shown = p_text(p, LEVEL)
    assert (float(shown) < LEVEL if shown[0] != "<" else True) == (p < LEVEL)


def brute(p: Sequence[float | None], m: int, most: int) -> list[int | None]:
    """Every count of extreme draws in reach, each corrected anew."""
    out: list[int | None] = []
    for i, own in enumerate(p):
        found = None
        if own is not None:
            r = round(own * (m + 1)) - 1
            before = (holm(p)[i] or 0.0) < LEVEL
            for few in range(most, 0, -1):
                tried = list(p)
                tried[i] = (r + few * (1 if before else -1) + 1) / (m + 1)
                if 0 <= r + few * (1 if before else -1) <= m:
                    found = few if ((holm(tried)[i] or 0.0) < LEVEL) != before else found
        out.append(found)
    return out


@pytest.mark.parametrize("seed", range(60))
def test_the_draws_that_turn_a_verdict_are_those_of_a_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = 200, int(rng.integers(1, 8))
    r = rng.integers(0, 12, n)
    p = [None if rng.random() < 0.1 else float((x + 1) / (m + 1)) for x in r]
    found = draws_to_turn(p, [m] * n, LEVEL)
    assert found == brute(p, m, 2)


def test_draws_that_turn_a_verdict_known_by_hand() -> None:
    """Beside a clear one a test is not corrected: below .05 are up to 9 of 200 draws as far."""
    turned = [draws_to_turn([(r + 1) / 201, 1 / 201], [200, 200], LEVEL)[0] for r in range(7, 14)]
    assert turned == [None, 2, 1, 1, 2, None, None]


def at_border(extreme: Sequence[int]) -> eigenlens.Trace:
    """A trace of as many layers as counts, of which each has so many directions as far."""
    found = eigenlens.trace("sample:gpt2-tiny", texts=["a b c d"], nulls=True, directions=200)
    p = [(r + 1) / (M + 1) for r in extreme]
    corrected = holm(p)
    layers = []
    for i, (raw, whole) in enumerate(zip(p, corrected, strict=True)):
        x = found.layers[i % len(found.layers)]
        nulls = {**(x.nulls or {})}
        nulls["random_direction"] = {**nulls["random_direction"], "n": M}
        layers.append(replace(x, layer=i, step=i, nulls=nulls, p_value=raw, p_holm=whole))
    return replace(found, layers=tuple(layers))


@pytest.fixture(scope="module")
def border() -> eigenlens.Trace:
    return at_border([600, 1, *[600] * 28])


def text_of(view: Any) -> str:
    out = io.StringIO()
    Console(width=100, file=out, highlight=False).print(view)
    return " ".join(out.getvalue().split())


def test_one_direction_at_the_border_is_told(border: eigenlens.Trace) -> None:
    assert border.verdict["beyond_random"] == 1
    text = text_of(trace_view(border))
    assert "0.04996" in text
    assert "0.0500" not in text
    assert (
        "The yes in 1 layer (1) hangs on one of the 1200 random directions: had one more such a "
        "rho, it would be a no. More of them tell better (--directions 4800)."
    ) in text
    assert text.index("Do tokens tilt") < text.index("hangs on")


def test_one_layer_is_told_without_counts(border: eigenlens.Trace) -> None:
    """Not `in none of 1 layer`, nor `in 1 of 1`."""
    for x in border.layers[:2]:
        text = " ".join(trace_sentences(replace(border, layers=(x,))))
        assert "of 1 layer" not in text
        assert "in the one layer here" in text
        answer = text.partition("eigenvector? ")[2]
        assert answer.startswith("Yes, beyond" if x.beyond else "No more than towards random")


def test_a_no_at_the_border_is_told_as_well() -> None:
    text = trace_sentences(at_border([600, 2, *[600] * 28]))[-1]
    assert "In none of 30 layers" in text
    assert "The no in 1 layer (1) hangs on one of the 1200 random directions" in text
    assert "had one fewer such a rho, it would be a yes." in text


def test_nothing_hangs_on_a_direction_far_from_the_border() -> None:
    text = trace_sentences(at_border([600, 0, 600, 600]))[-1]
    assert "Yes in 1 of 4 layers" in text
    assert "hangs" not in text


def test_at_the_most_directions_another_seed_is_the_advice(border: eigenlens.Trace) -> None:
    layers = []
    for x in border.layers:
        nulls = {**(x.nulls or {})}
        nulls["random_direction"] = {**nulls["random_direction"], "n": ALLOWED_DIRECTIONS}
        p = 33 / (ALLOWED_DIRECTIONS + 1) if x.layer == 1 else 1.0
        layers.append(replace(x, nulls=nulls, p_value=p, p_holm=min(1.0, 30 * p)))
    text = trace_sentences(replace(border, layers=tuple(layers)))[-1]
    assert "hangs on one of the 20000 random directions" in text
    assert "Another draw tells better (--seed)." in text


def test_the_page_rounds_no_p_value_across(border: eigenlens.Trace) -> None:
    data = FIGURES["alignment"].data(border)
    table = data_table("alignment", data, "")
    assert "<td>0.04996</td>" in table
    assert not re.search(r">0\.050*<", table)
    traces = PLOTS["alignment"](data)["data"]
    told = [t["customdata"][1][1] for t in traces if t["name"] == "measured"]
    assert told[0] == "0.04996"
