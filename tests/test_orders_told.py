"""A model whose stacks are led under different orders: every sentence and picture says which."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import eigenlens
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.report.compare_panels import COMPARISONS
from eigenlens.report.compare_tables import compare_view
from eigenlens.report.figures.style import house_style
from eigenlens.report.figures.table import DRAWN
from eigenlens.report.order_words import leading_text, orders_of
from eigenlens.report.page import make_report
from eigenlens.report.page.tables import NOTES, TABLES
from eigenlens.report.panels.spectra import KEY_TITLES
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.plots.table import PLOTS
from eigenlens.report.tables import spectrum_view
from eigenlens.report.trace_tables import trace_view


def layers(seed: int = 0) -> list[OVCircuit]:
    rng = np.random.default_rng(seed)
    return [
        OVCircuit(
            rng.standard_normal((8, 8)),
            rng.standard_normal((8, 8)),
            n_heads=1,
            n_kv_heads=1,
            head_dim=8,
            stack=stack,
            layer=i,
            placement=placement,
        )
        for stack, placement in (("vision", "pre"), ("text", "post"))
        for i in range(2)
    ]


@pytest.fixture(scope="module")
def mixed() -> eigenlens.Spectrum:
    return eigenlens.spectrum(layers(), k=4)


def flat(view: Any) -> str:
    out = io.StringIO()
    Console(width=100, file=out, highlight=False, markup=False).print(view)
    return " ".join(out.getvalue().split())


WHERE = "by real (vision), by residual (text)"


def test_orders_are_told_by_stack(mixed: eigenlens.Spectrum) -> None:
    assert [x.order for x in mixed.layers] == ["real", "real", "residual", "residual"]
    assert orders_of(mixed.layers) == {"real": ["vision"], "residual": ["text"]}
    assert leading_text(mixed.layers) == f"leading {WHERE}"
    assert leading_text(mixed.layers[:2]) == "leading by real"
    cross = [*mixed.layers, replace(mixed.layers[3], kind="cross")]
    assert orders_of(cross)["residual"] == ["text", "text.cross"]


def test_the_table_has_both_legends(mixed: eigenlens.Spectrum) -> None:
    text = flat(spectrum_view(mixed))
    assert "leading by real (vision: Re lambda: " in text
    assert ", by residual (text: |1 + lambda|: " in text
    assert text.count("10x depth: factor by which depth must grow") == 1
    assert text.count("10x after: steps of this layer") == 1
    one = flat(spectrum_view(replace(mixed, layers=mixed.layers[:2])))
    assert "10x after" not in one
    assert "leading by real (Re lambda" in one


def test_an_order_that_suits_its_own_stack_is_not_called_unusual(
    mixed: eigenlens.Spectrum,
) -> None:
    asked = {"stack": "text", "order": "residual"}
    text = replace(mixed, layers=mixed.layers[2:], options={**mixed.options, **asked})
    assert text.model["placement"] == "pre"  # that of the first stack
    assert "asked for" not in flat(spectrum_view(text))
    assert "asked for" not in flat(spectrum_view(mixed))
    forced = eigenlens.spectrum(layers(), k=4, order="residual")
    assert "(asked for: vision is pre-norm, where" in flat(spectrum_view(forced))


def test_compare_and_trace_say_it(mixed: eigenlens.Spectrum) -> None:
    assert f"leading {WHERE}" in flat(compare_view(eigenlens.compare(layers(), layers(1), k=2)))
    trace = eigenlens.trace("sample:gpt2-tiny", texts=["def f(x): return x"], nulls=False)
    first = replace(trace.layers[0], stack="vision")
    second = replace(trace.layers[1], stack="text", order="residual")
    assert f"leading {WHERE}" in flat(trace_view(replace(trace, layers=(first, second), stacks=())))


def test_steps_and_depths_of_the_page_have_their_units(mixed: eigenlens.Spectrum) -> None:
    known = [replace(x, steps_to_separate=float(3 + i)) for i, x in enumerate(mixed.layers)]
    made = replace(mixed, layers=tuple(known))
    heads, rows = TABLES["regimes"](FIGURES["regimes"].data(made))
    column = heads.index("10x behind after")
    assert [row[column] for row in rows] == ["3 x depth", "4 x depth", "5 steps", "6 steps"]
    heads, rows = TABLES["regimes"](FIGURES["regimes"].data(replace(made, layers=made.layers[:2])))
    assert [row[heads.index("10x depth")] for row in rows] == ["3", "4"]


def test_tables_of_the_page_explain_their_columns(mixed: eigenlens.Spectrum) -> None:
    for made, heading, meanings in (
        (mixed, "key", ["Re λ (vision): the real part", "|1 + λ| (text): what a step"]),
        (replace(mixed, layers=mixed.layers[:2]), "Re λ", ["Re λ: the real part"]),
        (replace(mixed, layers=mixed.layers[2:]), "|1 + λ|", ["|1 + λ|: what a step"]),
    ):
        columns = FIGURES["depth"].data(made)
        heads, rows = TABLES["depth"](columns)
        assert heads[3] == heading
        assert rows[0][3] == pytest.approx(columns["key"][0])
        assert all(meaning in NOTES["depth"](columns) for meaning in meanings)
        note = NOTES["regimes"](FIGURES["regimes"].data(made))
        assert "Henrici: departure from normality" in note
        units = {"real": "10x depth: factor by", "residual": "10x after: steps of"}
        told = {order for order, unit in units.items() if unit in note}
        assert told == {x.order for x in made.layers}


def test_a_table_of_the_page_says_what_it_leaves_out() -> None:
    result = eigenlens.spectrum("sample:gpt2-tiny", k=128, layers=[0])
    note = NOTES["depth"](FIGURES["depth"].data(result))
    assert "; the first 4 of a layer, a pair as one, of 128 that were computed" in note
    few = NOTES["depth"](FIGURES["depth"].data(eigenlens.spectrum("sample:gpt2-tiny", k=1)))
    assert "that were computed" not in few


def test_the_page_tells_the_largest_lead_of_either(mixed: eigenlens.Spectrum) -> None:
    regimes = ("real_dominant", "real_dominant", "real_dominant", "no_consensus")
    given = [
        replace(x, gap=gap, regime=r)
        for x, gap, r in zip(mixed.layers, (0.1, 0.2, 0.5, 0.9), regimes, strict=True)
    ]
    report = make_report(None, sections=["spectrum"], given=_material(mixed, given))
    strength = report.answers[1]
    assert strength.verdict == "At most 20.0 % ahead (vision.1), 50.0 % ahead (text.0)"
    assert "eigenvalue of vision.1 is" in strength.detail
    assert "eigenvalue of text.0 is" in strength.detail
    caption = report.html.split('id="figure-eigenvalues"')[1].split("</figcaption>")[0]
    assert "Of vision: In a residual stream" in caption
    assert "Of text: With the residual connection" in caption


def _material(result: eigenlens.Spectrum, given: Any) -> Any:
    from eigenlens.report.page.gather import Material

    return Material(spectrum=replace(result, layers=tuple(given)))


def test_the_plane_has_both_guides_and_each_layer_its_own(mixed: eigenlens.Spectrum) -> None:
    plot = PLOTS["eigenvalues"](FIGURES["eigenvalues"].data(mixed))
    guide = plot["data"][0]
    assert guide["name"] == "Re λ = 0 or |1 + λ| = 1"
    gap = guide["x"].index(None)
    assert guide["x"][:gap] == [0.0, 0.0]
    circle = [(x + 1) ** 2 + y**2 for x, y in zip(guide["x"], guide["y"], strict=True) if x]
    np.testing.assert_allclose(circle, 1.0, atol=1e-12)
    frames = {f["name"]: f for f in plot["frames"]}
    assert frames["l0"]["traces"] == [0, 1, 2]
    assert frames["l0"]["data"][0]["name"] == "Re λ = 0"
    assert frames["l2"]["data"][0]["name"] == "|1 + λ| = 1"


def test_depth_has_a_neutral_line_for_each_order(mixed: eigenlens.Spectrum) -> None:
    data = FIGURES["depth"].data(mixed)
    plot = PLOTS["depth"](data)
    title = plot["layout"]["yaxis"]["title"]["text"]
    assert title == "Re λ (vision), |1 + λ| (text)"
    spans = [(s["x0"], s["x1"], s["y0"]) for s in plot["layout"]["shapes"]]
    assert spans == [(-0.5, 1.5, 0.0), (1.5, 3.5, 1.0)]
    told = {row[1] for row in plot["data"][0]["customdata"]}
    assert told == {KEY_TITLES["real"], KEY_TITLES["residual"]}
    with house_style():
        figure = DRAWN["depth"](data, "x")
    axes = figure.axes[0]
    lines = [line for line in axes.lines if line.get_linestyle() == "--"]
    found = [(list(line.get_xdata()), set(line.get_ydata())) for line in lines]
    assert found == [([-0.5, 1.5], {0.0}), ([1.5, 3.5], {1.0})]
    assert re.sub(r"\s+", " ", axes.get_ylabel()) == title
    legend = [t.get_text() for t in axes.get_legend().get_texts()]
    assert legend.count("neither grows nor shrinks") == 1


def test_the_drawn_plane_has_both_guides(mixed: eigenlens.Spectrum) -> None:
    from matplotlib.patches import Circle

    with house_style():
        figure = DRAWN["eigenvalues"](FIGURES["eigenvalues"].data(mixed), "x")
    axes = figure.axes[0]
    assert [p.center for p in axes.patches if isinstance(p, Circle)] == [(-1, 0)]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [0]
    legend = axes.get_legend() or figure.legends[0]
    assert "Re λ = 0 or |1 + λ| = 1" in [t.get_text() for t in legend.get_texts()]


def test_one_order_is_drawn_as_ever(mixed: eigenlens.Spectrum) -> None:
    data = FIGURES["depth"].data(replace(mixed, layers=mixed.layers[2:]))
    (line,) = PLOTS["depth"](data)["layout"]["shapes"]
    assert (line["xref"], line["y0"]) == ("paper", 1.0)
    plot = PLOTS["eigenvalues"](data)
    assert all(f["traces"] == [1, 2] for f in plot["frames"])


def test_moves_have_no_line_that_holds_for_one_order_only() -> None:
    """The picture of a comparison names no order, so that no dashed line could be read in it."""
    from matplotlib.patches import Circle

    data = COMPARISONS["moves"].data(eigenlens.compare(layers(), layers(1), k=2))
    with house_style():
        axes = DRAWN["moves"](data, "x").axes[0]
    assert not [p for p in axes.patches if isinstance(p, Circle)]
    assert not [line for line in axes.lines if line.get_linestyle() == "--"]
