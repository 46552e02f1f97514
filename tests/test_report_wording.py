"""What tables and pages say alike: digits of small models, names of layers, units, plurals."""

from __future__ import annotations

import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import eigenlens
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.circuit.inspection import inspect
from eigenlens.cli.app import app
from eigenlens.dynamics.simulate import simulate_matrices
from eigenlens.report.compare_page import compare_page
from eigenlens.report.compare_tables import compare_sentences, compare_view
from eigenlens.report.figures.style import house_style
from eigenlens.report.figures.table import DRAWN
from eigenlens.report.heads import head_fraction
from eigenlens.report.names import Names, bare_names, left_out_texts
from eigenlens.report.page import make_report
from eigenlens.report.page.embed import prose
from eigenlens.report.page.tables import TABLES
from eigenlens.report.panels.figure import COLOURS
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.panels.traces import call_labels
from eigenlens.report.plots.table import PLOTS
from eigenlens.report.simulate_tables import outcome_sentence, too_short_sentence
from eigenlens.report.tables import inspect_view, spectrum_view
from eigenlens.report.trace_tables import trace_view
from eigenlens.report.words import decimals
from eigenlens.samples import sample_path
from test_compare import circuit
from test_dynamics_theory import with_spectrum


def printed(view: Any, width: int = 100) -> str:
    out = io.StringIO()
    Console(width=width, file=out, highlight=False).print(view)
    return out.getvalue()


def flat(view: Any) -> str:
    return " ".join(printed(view).split())


def block(size: float, seed: int = 0, n_layers: int = 2, **more: Any) -> list[Any]:
    """Layers of several heads whose eigenvalues are about `size`."""
    rng = np.random.default_rng(seed)
    return [
        eigenlens.OVCircuit(
            rng.standard_normal((8, 16)) * size / 3,
            rng.standard_normal((16, 8)),
            **{"n_heads": 2, "n_kv_heads": 2, "head_dim": 4, "layer": i, "placement": "pre"} | more,
        )
        for i in range(n_layers)
    ]


# -- digits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "places"),
    [
        ([], 3),
        ([1.2, 0.34], 3),
        ([0.1, 5.0], 3),
        ([0.0999], 4),
        ([0.0113, 3.0], 4),
        ([0.00886], 5),
        ([1.1e-4], 6),
        ([1.1e-5], 3),  # an exponent says it shorter
        ([1.1e-5, 0.02], 4),
        ([0.0, np.inf, 2e5, 0.5], 3),
    ],
)
def test_decimals_of_a_column(sizes: list[float], places: int) -> None:
    assert decimals(sizes) == places


@pytest.mark.parametrize("size", [1.0, 0.03, 3e-3, 3e-4, 1e-5, 1e-8])
def test_leaders_keep_three_digits(size: float) -> None:
    result = eigenlens.spectrum(block(size), k=4)
    rows = [
        line.split()
        for line in printed(spectrum_view(result)).splitlines()
        if re.match(r" +\d +[+-]", line)
    ]
    assert len(rows) == 2
    for row, layer in zip(rows, result.layers, strict=True):
        lead = complex(layer.eigenvalues[0])
        real, _, imag = row[1].rstrip("i").partition("±")
        shown = complex(float(real), float(imag or 0))
        assert abs(shown - complex(lead.real, abs(lead.imag))) < 6e-3 * abs(lead)
        norm = next(float(w) for w in row[5:] if re.fullmatch(r"\d\.\d+(e-\d+)?", w))
        assert norm == pytest.approx(layer.spectral_norm, rel=6e-3, abs=5.1e-3 * (norm > 0.1))


def test_the_page_keeps_the_digits_of_small_models() -> None:
    result = eigenlens.spectrum(block(0.02), k=4)
    for name, column in (("eigenvalues", 2), ("regimes", 3)):
        _, rows = TABLES[name](FIGURES[name].data(result))
        lead = complex(result.layers[0].eigenvalues[0])
        assert float(rows[0][column].split("±")[0]) == pytest.approx(lead.real, rel=6e-3)
    detail = make_report(block(0.02), sections=["spectrum"]).answers[1].detail
    assert re.search(r"leading eigenvalue of layer \d is [+-]0\.0\d{3}", detail)


def moved(size: float, shift: float) -> eigenlens.Comparison:
    base = np.diag([1.0, 0.7, 0.3, 0.1]) * size
    other = base + np.diag([1.0, 0.5, 0, 0]) * shift
    return eigenlens.compare(circuit(base), circuit(other))


@pytest.mark.parametrize("shift", [4.2e-3, 4.2e-5, 4.2e-6])
def test_a_shift_that_is_told_is_seen(shift: float) -> None:
    text = printed(compare_view(moved(0.011, shift)))
    row = next(x for x in text.splitlines() if re.match(" +0 ", x)).split()
    # The digits of the two show it, to one unit of the last place of their difference.
    unit = 10.0 ** -len(row[4].partition(".")[2])
    assert float(row[4]) - float(row[3]) == pytest.approx(shift, abs=1.01 * unit)
    assert shift > 1.01 * unit
    assert "in brackets" not in flat(compare_view(moved(0.011, shift)))


def test_a_shift_too_small_to_see_is_told_as_a_part() -> None:
    result = moved(0.011, 3e-8)
    text = flat(compare_view(result))
    assert re.search(r"\+0\.0110\d* \+0\.0110\d* 3\.0e-08 \(2\.7e-06\)", text)
    assert "in brackets: shift over the size of A's" in text
    assert "3.0e-08 (2.7e-06)" in compare_page(result).decode()
    assert max(map(len, printed(compare_view(result)).splitlines())) <= 100


# -- shares of heads -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_shares_of_heads_are_the_same_in_both_views(seed: int) -> None:
    result = eigenlens.spectrum(block(0.5, seed), per_head=True)
    text = printed(spectrum_view(result))
    title, rows = TABLES["heads"](FIGURES["heads"].data(result))
    assert title[-1] == "share of leading"
    assert "share of leading" in text
    shown = re.findall(r"([+-]\d\.\d{3}) *$", text.split("trace ratio", 1)[1], re.MULTILINE)
    assert [float(x) for x in shown] == pytest.approx([row[-1] for row in rows], abs=6e-4)
    for layer in result.layers:
        parts = [head_fraction(h, layer) or 0.0 for h in layer.heads or ()]
        assert sum(parts) == pytest.approx(1, abs=1e-9)
    assert "JSON share: the same not divided by the eigenvalue" in " ".join(text.split())


# -- names -----------------------------------------------------------------------------------------


def test_one_function_names_layers() -> None:
    one, several = Names([("decoder", "self")]), Names([("decoder", "self"), ("decoder", "cross")])
    place = eigenlens.spectrum(block(0.5, stack="decoder")).layers
    assert (one(place[1]), one.phrase(place[1])) == ("1", "layer 1")
    assert one.phrases(place) == "layers 0-1"
    assert several.phrases(place) == "decoder.0, decoder.1"
    assert several.name("decoder", "cross", 3) == "decoder.cross.3"
    assert several.name("a\x1b", "self", 3) == "a\\x1b.3"
    assert bare_names(["decoder.0", "decoder.12"]) == ["0", "12"]
    assert bare_names(["decoder.0", "decoder.cross.0"]) == ["decoder.0", "decoder.cross.0"]
    lost = left_out_texts(
        [("decoder", "self")], [("decoder", "self", 2, "x"), ("vision", "self", -1, "y")]
    )
    assert lost == ["decoder.2 left out: x", "vision left out: y"]
    assert left_out_texts([("decoder", "self")], [("decoder", "self", 2, "x")]) == [
        "layer 2 left out: x"
    ]


def test_a_model_of_one_stack_is_told_by_numbers() -> None:
    command = CliRunner().invoke
    for args in (
        ["spectrum", "sample:gpt2-tiny", "--per-head", "--decode", "2"],
        ["spectrum", "sample:gpt2-tiny", "--dry-run"],
        ["inspect", "sample:gpt2-tiny"],
    ):
        out = command(app, args)
        assert out.exit_code == 0, out.stderr
        assert "decoder." not in out.stdout
    a, b = block(0.5), block(0.5)
    text = flat(compare_view(eigenlens.compare(a, [b[0], *block(0.6, 5)[1:]])))
    assert "decoder." not in text
    assert "F differs in 1 of 2 layers (layer 1) by" in text
    assert ", most in" not in text
    assert re.search(r"turned by more than 5 degrees in layer 1 \(\d", text)


def test_several_that_moved_name_the_one_that_moved_most() -> None:
    result = eigenlens.compare(block(0.5, 0, 3), block(0.6, 7, 3))
    text = " ".join(compare_sentences(result))
    assert re.search(r"more than 5 degrees in layers [0-2, -]+, most in layer \d \(", text)
    two = [*block(0.5, 0, 2, stack="encoder"), *block(0.5, 1, 2, stack="decoder")]
    other = [*block(0.5, 5, 2, stack="encoder"), *block(0.5, 6, 2, stack="decoder")]
    text = " ".join(compare_sentences(eigenlens.compare(two, other)))
    assert re.search(r"most in (en|de)coder\.\d by", text)
    assert not re.search(r"layer \d", text)


# -- one name for one thing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "heading"),
    [("real", "10x depth"), ("residual", "10x after"), ("modulus", "10x after")],
)
def test_the_page_heads_the_steps_as_the_table_does(order: str, heading: str) -> None:
    result = eigenlens.spectrum(block(0.5), order=order)
    headings, _ = TABLES["regimes"](FIGURES["regimes"].data(result))
    assert [h for h in headings if h.startswith("10x")] == [heading]
    assert heading in printed(spectrum_view(result))


@pytest.fixture(scope="module")
def traced() -> eigenlens.Trace:
    return eigenlens.trace("sample:gpt2-tiny", texts=["def f(x): return x"], nulls=True)


def test_the_trace_table_names_the_json_fields(traced: eigenlens.Trace) -> None:
    text = flat(trace_view(traced))
    nulls = traced.to_dict()["layers"][0]["nulls"]
    assert "p (JSON: p_holm):" in text
    assert "p_holm" in traced.to_dict()["layers"][0]
    for field in nulls:
        assert f"({field})" in text
    assert "rotated F: with F rotated at random (matched_spectrum)" in text
    assert "untrained: of an untrained model (random_init)" in text


def test_a_null_that_no_layer_has_is_no_column(traced: eigenlens.Trace) -> None:
    others = "towards the leaders of other layers (other_layer)"
    assert "  second  other  singular" in printed(trace_view(traced))
    assert f"other: {others}" in flat(trace_view(traced))
    alone = [
        replace(x, nulls={k: None if k == "other_layer" else v for k, v in (x.nulls or {}).items()})
        for x in traced.layers
    ]
    view = trace_view(replace(traced, layers=tuple(alone)))
    assert "  second  singular" in printed(view)
    assert f"not to be had here: {others}" in flat(view)


def test_only_points_of_a_tested_claim_are_filled(traced: eigenlens.Trace) -> None:
    """Rho where its corrected p is below .05; gamma above the band is not tested, so it is open."""
    low = {"rho": 0.0, "gamma": 0.0, "gain": -1.0}  # a band that every value is above
    layers = []
    for number, x in enumerate(traced.layers):
        random = {**x.nulls["random_direction"], "quantiles": {m: [v] * 3 for m, v in low.items()}}
        nulls = {**x.nulls, "random_direction": random}
        p = {0: 0.06, 1: 0.01}.get(number)  # from layer 2 on too few prompts for a test
        layers.append(replace(x, nulls=nulls, p_holm=p))
    data = FIGURES["alignment"].data(replace(traced, layers=tuple(layers)))
    measured = [t for t in PLOTS["alignment"](data)["data"] if t["name"] == "measured"]
    filled = [[s == "circle" for s in t["marker"]["symbol"]] for t in measured]
    first = [number == 1 for number in range(len(layers))]
    assert filled == [first, [False] * len(layers), [False] * len(layers)]
    with house_style():
        figure = DRAWN["alignment"](data, "x")
    for number, axes in enumerate(figure.axes):
        full = [
            x
            for line in axes.lines
            if line.get_marker() == "o" and line.get_markerfacecolor() == COLOURS["blue"]
            for x in line.get_xdata()
        ]
        assert full == ([1] if number == 0 else [])
    assert "turned: the other axis" in FIGURES["tokens"].caption
    assert "JSON" not in "".join(figure.caption for figure in FIGURES.values())
    caption = FIGURES["alignment"].caption
    assert "Only the points of rho can be filled, where its corrected p is below .05" in caption
    assert "Gamma and gain are not tested" in caption


def test_steps_of_several_stacks_are_told_apart(traced: eigenlens.Trace) -> None:
    x = traced.layers[0]
    assert call_labels([x, replace(x, step=1)]) == ["0", "1"]
    calls = [x, replace(x, step=1), replace(x, stack="encoder")]
    assert call_labels(calls) == ["decoder.0", "decoder.0, step 1", "encoder.0"]


# -- plain words -----------------------------------------------------------------------------------


def test_the_norm_of_f_is_not_called_a_bound_of_attention() -> None:
    """Heads that look at different tokens can write more: it bounds F, and equal tokens."""
    result = eigenlens.spectrum("sample:gpt2-tiny")
    page = make_report("sample:gpt2-tiny", sections=["spectrum"]).html
    assert "|F|: largest factor by which F stretches a state;" in flat(spectrum_view(result))
    assert "the largest factor by which F stretches a state" in page
    assert "where all tokens are alike): " in page
    assert "attention can stretch" not in page


ODD = [
    "layers 1, 3 have the same tensors (their numbers aside)",
    "layer 2 has others, which --format json lists",
]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{}", ["layers 1-3 have the same tensors (their numbers aside)"]),
        ("{}.of.{}", ["layers 1-3 have the same tensors (their numbers aside)"]),
        ("one", ["layers 1-3 have the same tensors (their numbers aside)"]),
        ("v3", ODD),  # a second number differs
        ("w2", ODD),  # a word differs
    ],
)
def test_inspect_says_which_layers_have_the_same_tensors(name: str, said: list[str]) -> None:
    record = inspect(open_checkpoint("sample:gpt2-tiny")).to_dict()
    base = record["layers"][0]
    layers = []
    for i in range(4):
        own = f"h.{name.format(i, i)}.v2"
        own = f"x.{i}.{name if i == 2 else 'v2'}" if said is ODD else own
        layers.append({**base, "layer": i, "tensors": {"V": own, "O": own, "b_V": None}})
    text = printed(inspect_view({**record, "layers": layers}))
    assert [line.strip() for line in text.splitlines() if " ha" in line and "layer" in line] == said
    alone = printed(inspect_view({**record, "layers": layers[:1]}))
    assert "same tensors" not in alone


def test_one_prompt_is_not_prompts(traced: eigenlens.Trace) -> None:
    assert " 1 prompt (" in flat(trace_view(traced))
    assert "1 prompts" not in flat(trace_view(traced))


def test_numbers_stay_with_their_units() -> None:
    assert prose("(41.7 % ahead, 3 degrees) & 5 heads") == (
        "(41.7\N{NO-BREAK SPACE}% ahead, 3\N{NO-BREAK SPACE}degrees) &amp; 5 heads"
    )
    assert prose("in layer 3 after 12 steps") == (
        "in layer\N{NO-BREAK SPACE}3 after 12\N{NO-BREAK SPACE}steps"
    )
    page = make_report("sample:gpt2-tiny", sections=["spectrum"]).html
    summary = page.split('id="summary"')[1].split("</section>")[0]
    assert re.search(r"\d\N{NO-BREAK SPACE}%", summary)
    assert not re.search(r"\d %", summary)


def test_the_reason_why_there_are_no_tokens_is_the_one_that_holds(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(sample_path("gpt2-tiny"), folder)
    for name in ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    reason = make_report(str(folder), sections=["tokens"]).missing["tokens"]
    assert reason.endswith("this model comes without a vocabulary.")
    plain = make_report(block(0.5), sections=["tokens"]).missing["tokens"]
    assert plain.endswith("plain matrices come without a vocabulary.")
    for text in (reason, plain):
        assert " or " not in text


# -- runs that are too short -----------------------------------------------------------------------


def stream(second: float, steps: int) -> eigenlens.Simulation:
    F, _ = with_spectrum([1.0, second, 0.1], condition=1.2)
    return simulate_matrices(
        F, form="stream", mask="full", steps=steps, n_tokens=6, tie_tolerance=1e-4
    )


def test_a_slow_prediction_says_how_many_steps_it_needs() -> None:
    short = stream(0.8, 60)
    text = too_short_sentence(short)
    size = float(re.findall(r"about (\S+) steps would be needed", text)[0])
    degrees = np.degrees(short.outcome.distance)
    assert size == pytest.approx(60 * degrees ** (1 / 0.2), rel=0.35)  # one digit
    assert size > 600
    assert "this run of 60 steps cannot test the prediction" in text
    assert too_short_sentence(stream(0.1, 400)) == ""  # it is there


def test_slower_than_any_float() -> None:
    short = stream(0.999, 60)
    assert "more than 1e300 steps" in too_short_sentence(short)


def test_steps_are_told_once() -> None:
    F, _ = with_spectrum([1.0, 0.98, 0.1], condition=1.2)
    for result in (
        simulate_matrices(F, form="stream", steps=20, n_tokens=6, tie_tolerance=1e-4),
        simulate_matrices(F, steps=3, n_tokens=6, tie_tolerance=1e-4),
    ):
        sentence = outcome_sentence(result)
        assert sentence.count("steps") == 1, sentence
        assert result.outcome.label == "unsettled"
        assert ", and still moved" in sentence
