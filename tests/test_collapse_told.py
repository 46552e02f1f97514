"""What is said of collapse: the middle of the depth, and measures that contradict each other."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from eigenlens.measure.collapse import cosine, frobenius_residual, stable_rank
from eigenlens.report.collapse_words import contradiction, rank_sentence
from eigenlens.report.page import Report, make_report
from eigenlens.report.page.blocks import more
from eigenlens.report.page.summary import answers
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.trace_tables import trace_view


@pytest.fixture(scope="module")
def made() -> Report:
    return make_report(
        "sample:gpt2-tiny", sections=["collapse"], texts=["def f(x): return x"], steps=4
    )


def with_states(made: Report, states: list[dict[str, float]], sinks: int) -> Any:
    """The report's material with these measures behind the blocks of its layers."""
    trace = made.material.trace
    assert trace is not None
    layers = tuple(
        replace(
            x,
            collapse={**x.collapse, **state},
            collapse_block={**(x.collapse_block or {}), **state},
            sinks={**x.sinks, "n": sinks, "share": sinks / 960},
        )
        for x, state in zip(trace.layers, states, strict=True)
    )
    start = {**trace.stacks[0].start, "cosine": 0.1, "effective_rank": 12.8}
    material = copy.copy(made.material)
    stacks = (replace(trace.stacks[0], start=start),)
    material.trace = replace(trace, layers=layers, stacks=stacks)
    return material


def state(rank: float, stable: float, rest: float) -> dict[str, float]:
    return {
        "cosine": 0.6,
        "effective_rank": rank,
        "stable_rank": stable,
        "frobenius_residual": rest,
    }


USUAL = state(10.0, 1.9, 0.7)
LONG = state(1.5, 1.001, 0.96)
ONE = state(1.2, 1.01, 0.1)


def test_the_rank_in_the_middle_is_named(made: Report) -> None:
    material = with_states(made, [USUAL, LONG, USUAL, state(7.8, 1.6, 0.8)], 0)
    detail = answers(material, ["trace"])[-1].detail
    assert (
        "the effective rank goes from 12.8 to 7.8, between them down to 1.5 after layer 1" in detail
    )


def test_ranks_that_only_fall_have_no_middle(made: Report) -> None:
    trace = made.material.trace
    assert trace is not None
    text = rank_sentence(12.8, [11.0, 9.0, 8.0, 7.8], trace.layers, trace.layers)
    assert text == "the effective rank goes from 12.8 to 7.8"
    up = rank_sentence(3.0, [9.0, 1.0, 2.0, 2.5], trace.layers, trace.layers)
    assert up.endswith("between them down to 1.0 after layer 1 and up to 9.0 after layer 0")
    assert rank_sentence(None, [1.0] * 4, trace.layers, trace.layers) == ""


def test_one_long_token_makes_the_measures_contradict() -> None:
    """That the sentence holds: one long token, and the others nearly alike or not."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((16, 32)) + 1.0
    assert stable_rank(X) > 1.25
    X[0] *= 300
    assert stable_rank(X) < 1.01
    assert frobenius_residual(X) > 0.9
    assert cosine(X) < 0.7


def test_a_contradiction_is_told_with_the_sinks_behind_it(made: Report) -> None:
    material = with_states(made, [USUAL, LONG, LONG, USUAL], 64)
    detail = answers(material, ["trace"])[-1].detail
    said = (
        "In layers 1-2 the measures seem to contradict each other: stable ranks near 1 would mean "
        "one direction, residuals near 1 that tokens differ."
    )
    assert said in detail
    assert "sinks outweigh the others there: 64 tokens (6.7 %) with norms above" in detail
    assert detail.endswith("The cosine counts every token alike: read it there.")
    assert said in more("collapse", material)
    assert "contradict" not in more("alignment", material)
    out = io.StringIO()
    Console(width=100, file=out, highlight=False).print(trace_view(material.trace, collapse=True))
    assert said in " ".join(out.getvalue().split())


def test_without_sinks_none_are_blamed(made: Report) -> None:
    material = with_states(made, [LONG, USUAL, USUAL, USUAL], 0)
    text = contradiction(material.trace)
    assert text.startswith("In layer 0 the measures seem to contradict")
    assert "sinks" not in text
    assert "a few long tokens outweigh" in text


@pytest.mark.parametrize("states", [[USUAL] * 4, [ONE] * 4, [USUAL, ONE, USUAL, ONE]])
def test_measures_that_agree_are_not_said_to_contradict(
    made: Report, states: list[dict[str, float]]
) -> None:
    material = with_states(made, states, 64)
    assert contradiction(material.trace) == ""
    assert "contradict" not in answers(material, ["trace"])[-1].detail


def test_the_scale_of_every_collapse_measure_is_told(made: Report) -> None:
    trace = made.material.trace
    assert trace is not None
    out = io.StringIO()
    Console(width=100, file=out, highlight=False).print(trace_view(trace, collapse=True))
    text = " ".join(out.getvalue().split())
    legend = text[text.index("states after attention;") :]
    for word in ("cosine, across:", "residual, Frobenius, high/low:", "eff. rank, stable,"):
        assert word in legend
    assert "(0: all are equal)" in legend
    assert "(1: one direction)" in legend
    assert "(1: one)" in legend
    assert "a few long tokens can decide them" in FIGURES["collapse"].caption
    for shown in ("high/low ratio", "effective rank", "participation ratio", "stable rank"):
        assert shown in FIGURES["collapse"].caption
    assert max(map(len, out.getvalue().splitlines())) <= 100
