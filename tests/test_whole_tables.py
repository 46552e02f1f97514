"""No table cuts a name or a number: of long stack names, deep layers and tiny weights either."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

import eigenlens
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.inspection import inspect
from eigenlens.dynamics.simulate import simulate_matrices
from eigenlens.report.compare_tables import compare_view
from eigenlens.report.notebook import html_of
from eigenlens.report.simulate_tables import simulate_view
from eigenlens.report.survey_tables import survey_view
from eigenlens.report.tables import inspect_view, plain_table, spectrum_view
from eigenlens.report.trace_tables import trace_view
from eigenlens.report.whole_table import WholeTable
from eigenlens.shown.names import Names
from test_survey_report import entry
from test_survey_report import made as surveyed

STACKS = [("text.encoder", "self"), ("text.decoder", "self"), ("text.decoder", "cross")]
NUMBER = r"[+-]\d+\.\d+(?:e[+-]\d+)?"


def printed(view: Any, width: int = 100) -> str:
    out = io.StringIO()
    Console(width=width, file=out, highlight=False, markup=False, emoji=False).print(view)
    return out.getvalue()


def whole(view: Any, layers: Any = (), width: int = 100) -> str:
    """The text of a view that is no wider than the terminal and cuts nothing."""
    text = printed(view, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    names = Names.of(layers)
    words = set(text.split())
    for x in layers:
        assert names(x) in words
    return text


def deep(size: float, seed: int = 0, stacks: Any = STACKS, d: int = 12, **more: Any) -> list[Any]:
    """Layers 9 to 11 of every stack, with eigenvalues of about `size`."""
    rng = np.random.default_rng(seed)
    return [
        OVCircuit(
            rng.standard_normal((d, d)) * size / 3,
            rng.standard_normal((d, d)),
            **{"n_heads": 2, "n_kv_heads": 2, "head_dim": d // 2, "placement": "pre"}
            | {"stack": stack, "kind": kind, "layer": layer}
            | more,
        )
        for stack, kind in stacks
        for layer in (9, 10, 11)
    ]


# -- the table itself ------------------------------------------------------------------------------

CELL = st.text("abc ", min_size=1, max_size=30).map(str.strip).filter(bool)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(CELL, st.sampled_from(("left", "right")), st.lists(CELL, min_size=3, max_size=3)),
        min_size=1,
        max_size=9,
    ),
    st.integers(8, 100),
)
def test_every_letter_of_every_cell_is_there(columns: Any, width: int) -> None:
    table = plain_table([(heading, side) for heading, side, _ in columns])
    for row in zip(*(cells for _, _, cells in columns), strict=True):
        table.add_row(*map(Text, row))
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    parts = text.count("─ ") + len(re.findall("─$", text, re.MULTILINE))
    assert parts  # each part has its rule
    wanted = sum(c.count(x) for h, _, cells in columns for c in (h, *cells) for x in "abc")
    key = sum(c.count(x) for c in (columns[0][0], *columns[0][2]) for x in "abc")
    found = sum(text.count(x) for x in "abc")
    assert (found - wanted) % max(key, 1) == 0  # the first column stands before every part
    assert found >= wanted


def test_numbers_are_never_folded_where_they_fit_beside_the_first_column() -> None:
    table = plain_table([("layer", "right"), *((f"n{i}", "right") for i in range(12))])
    cells = [f"+{i}.23456789e-05" for i in range(12)]
    table.add_row("text.decoder.cross.10", *cells)
    for width in (42, 60, 80, 100):
        text = printed(table, width)
        assert [w for w in text.split() if w.startswith("+")] == cells
        assert max(map(len, text.splitlines())) <= width
        assert text.split().count("text.decoder.cross.10") == text.count("layer")


def test_a_table_that_fits_is_one_and_words_wrap_first() -> None:
    table = plain_table([("layer", "right"), ("a", "right"), ("words", "left")], title="head")
    table.add_row("1", "+1.234", "one two three four five six")
    assert printed(table, 100).count("─ ") == 1
    narrow = printed(table, 26)
    assert narrow.count("layer") == 1
    assert "+1.234" in narrow
    assert "one two" in narrow  # words that fit stay together
    cut = printed(table, 16)
    assert cut.count("layer") == 2
    assert cut.count("head") == 1  # the title is told once


def test_sections_and_html_of_a_table_stay() -> None:
    table = plain_table([("a", "right"), ("b", "right")])
    table.add_row("1", "2")
    table.add_section()
    table.add_row("3", "4")
    assert isinstance(table, WholeTable)
    assert [row.end_section for row in table.rows] == [True, False]
    assert [line.strip() for line in printed(table).splitlines()][3:] == ["1  2", "", "3  4", ""]


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1.0, 1e-2, 6e-3, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_spectrum(size: float, placement: Any) -> None:
    result = eigenlens.spectrum(deep(size, placement=placement), k=4, per_head=True)
    text = whole(spectrum_view(result), result.layers)
    table = text[: text.index("|F|: largest")]
    for layer in result.layers:
        lead = complex(layer.eigenvalues[0])
        values = [abs(complex(float(x))) for x in re.findall(NUMBER, table)]
        assert min(abs(v - abs(lead.real)) for v in values) <= 6e-3 * abs(lead)
    words = {w for x in result.layers for w in x.regime.split("_")}
    assert words <= set(table.split())


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-6])
@pytest.mark.parametrize("shift", [3e-1, 1e-4, 3e-9])
def test_a_comparison(size: float, shift: float) -> None:
    base = deep(size)
    rng = np.random.default_rng(1)
    moved = [replace(x, W_V=x.W_V + shift * size * rng.standard_normal(x.W_V.shape)) for x in base]
    result = eigenlens.compare(base, moved, k=2)
    text = whole(compare_view(result), result.layers)
    for x in result.layers:
        assert x.a is not None
        for word in x.a.regime.split("_"):
            assert word in text.split()


def test_a_comparison_whose_regimes_change() -> None:
    other = [replace(x, W_V=-x.W_V) for x in deep(1e-6)]
    result = eigenlens.compare(deep(1e-6), other, k=2)
    assert any(x.regime_changed for x in result.layers)
    whole(compare_view(result), result.layers)


@pytest.fixture(scope="module")
def traced() -> eigenlens.Trace:
    texts = ["def f(x): return x", "import os", "for i in range(3): print(i)"]
    return eigenlens.trace("sample:gpt2-tiny", texts=texts, nulls=True, ladder=True, directions=200)


def test_a_trace(traced: eigenlens.Trace) -> None:
    layers = tuple(
        replace(x, stack=stack, kind=kind, layer=9 + i, p_holm=0.04996, gain=-0.1234567)
        for stack, kind in STACKS
        for i, x in enumerate(traced.layers)
    )
    stacks = tuple(replace(traced.stacks[0], stack=stack, kind=kind) for stack, kind in STACKS)
    result = replace(traced, layers=layers, stacks=stacks)
    text = whole(trace_view(result, collapse=True), layers)
    assert text.count("-0.1235") >= len(layers)
    for x in layers:
        if x.rho_ci is not None:
            assert f"[{x.rho_ci[0]:.3f}, {x.rho_ci[1]:.3f}]" in text


def test_an_inspection() -> None:
    record = inspect(eigenlens.open_checkpoint("sample:gpt2-tiny")).to_dict()
    layers = [
        {**x, "stack": stack, "kind": kind, "layer": 9 + i, "output_scale": 1.2345678e-05}
        for stack, kind in STACKS
        for i, x in enumerate(record["layers"])
    ]
    text = whole(inspect_view({**record, "layers": layers}))
    assert "text.decoder.cross.10" in text
    assert text.count("1.23457e-05") == len(layers)


def test_a_simulation_and_a_survey() -> None:
    run = simulate_matrices(np.diag([1e-6, 0.7e-6, 1e-7, 0]), n_tokens=4, steps=20)
    whole(simulate_view(run))
    names = ["organisation/a-model-with-a-very-long-name-indeed@step143000", "b"]
    rates = {"disagreement_rate": 0.123, "alignment_rate": 0.4, "exponent": -0.123, "gap": 12.5}
    more = {"gamma": 0.1, "gain": 0.1, "rho": 0.5, "beyond_random": 1.0}
    regimes = dict.fromkeys(("real_dominant", "complex_dominant", "flip"), 1 / 3)
    text = whole(
        survey_view(surveyed(*(entry(n, regimes=regimes, **rates, **more) for n in names)))
    )
    assert names[0] in text.replace("\n", "").replace(" ", "") or all(
        part in text for part in ("organisation/a-model", "step143000")
    )


def test_long_tokens_are_folded() -> None:
    result = eigenlens.spectrum("sample:gpt2-tiny", decode=2, k=2)
    found = result.layers[0]
    long = "x" * 90
    side = next(iter(found.tokens or {}))
    tokens = {side: replace((found.tokens or {})[side], positive=((long, 1.0),))}
    text = whole(spectrum_view(replace(result, layers=(replace(found, tokens=tokens),))))
    assert text.count("x") - printed(spectrum_view(replace(result, layers=()))).count("x") >= 90


def test_a_narrow_terminal() -> None:
    result = eigenlens.spectrum(deep(1e-6), k=4)
    for width in (80, 60, 40):
        whole(spectrum_view(result), result.layers, width)


def test_columns_are_in_their_sequence() -> None:
    text = printed(spectrum_view(eigenlens.spectrum(deep(1e-6), k=4)))
    heads = ["leading", "second", "gap", "10x depth", "|F|", "error", "regime"]
    places = [text.index(f" {h}") for h in heads]
    assert all(a < b for a, b in pairwise(places))


def test_the_html_has_the_table_in_one() -> None:
    result = eigenlens.spectrum(deep(1e-6), k=4)
    assert html_of(result).count(">regime<") == len({x.stack for x in result.layers})
