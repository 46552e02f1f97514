"""Verdicts in words: majorities and ties, what was foretold, useful strengths, steps, angles."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import eigenlens
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.cli.app import app
from eigenlens.dynamics.simulate import simulate_matrices
from eigenlens.report.collapse_words import contradiction, rank_sentence
from eigenlens.report.compare_page import compare_page
from eigenlens.report.compare_tables import compare_sentences, compare_view
from eigenlens.report.model_words import facts_text
from eigenlens.report.names import left_out_texts
from eigenlens.report.page import Report, make_report
from eigenlens.report.page.gather import Material
from eigenlens.report.page.summary import answers, regime_runs
from eigenlens.report.sentences import spectrum_sentences
from eigenlens.report.simulate_tables import as_foretold, outcome_sentence
from eigenlens.report.steer_words import beside_addition, what_it_says, window_text
from eigenlens.report.survey_page import survey_page
from eigenlens.report.survey_tables import survey_sentences
from eigenlens.report.trace_tables import trace_view
from eigenlens.report.trace_words import (
    _beyond_rotated,
    _beyond_untrained,
    call_phrase,
    trace_sentences,
)
from eigenlens.report.words import most_frequent
from eigenlens.samples import sample_path
from eigenlens.steering.measures import Cosines, Measure
from test_compare import circuit
from test_survey_report import entry
from test_survey_report import made as surveyed

# -- majorities ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "first", "majority"),
    [
        ({"a": 0.6, "b": 0.4}, ["a"], True),
        ({"a": 0.5, "b": 0.5}, ["a", "b"], False),
        ({"a": 0.5, "b": 0.3, "c": 0.2}, ["a"], False),  # half is not most
        ({"a": 0.4, "b": 0.3, "c": 0.3}, ["a"], False),
        ({"a": 0.1 + 0.2, "b": 0.3, "c": 0.4 - 0.1}, ["a", "b", "c"], False),
        ({"a": 3, "b": 1}, ["a"], True),
        ({"a": 2, "b": 2, "c": 0}, ["a", "b"], False),
    ],
)
def test_what_is_most(shares: Any, first: list[str], majority: bool) -> None:
    assert most_frequent(shares) == (first, majority)


def survey_told(*regimes: dict[str, float]) -> tuple[str, str]:
    models = [entry(f"m{i}", regimes=r) for i, r in enumerate(regimes)]
    page = survey_page(surveyed(*models)).decode().replace("\N{NO-BREAK SPACE}", " ")
    (verdict,) = re.findall(r'What leads the layers\?</h3><p class="verdict">([^<]*)<', page)
    return survey_sentences(surveyed(*models))[0], verdict


def test_a_survey_says_most_of_a_majority_only() -> None:
    five = ("real_dominant", "complex_dominant", "flip", "near_degenerate", "no_consensus")
    told, verdict = survey_told(dict.fromkeys(five, 0.2), {"no_consensus": 0.5, "flip": 0.5})
    assert "No regime has most layers of the average checkpoint; most frequent, with 35 %" in told
    assert "flip (the leader" in told
    assert "no consensus (nothing" in told
    assert verdict == "No majority: flip, no consensus, 35 % each"
    told, verdict = survey_told({"real_dominant": 0.5, "complex_dominant": 0.5})
    assert told.startswith("Half of the layers are real dominant (one direction leads")
    assert ", the other half complex dominant (" in told
    assert verdict == "No majority: real dominant, complex dominant, 50 % each"
    told, verdict = survey_told({"flip": 0.4, "real_dominant": 0.3, "no_consensus": 0.3})
    assert told.startswith("No regime has most layers; most frequent, with 40 %: flip (the")
    assert verdict == "No majority: flip, 40 %"
    told, verdict = survey_told({"flip": 0.75, "real_dominant": 0.25})
    assert told.startswith("Most layers are flip (75 %): the leader reverses")
    assert verdict == "Mostly flip"


def test_the_words_of_a_survey_fit_the_share() -> None:
    told, verdict = survey_told({"flip": 1.0}, {"flip": 1.0})
    assert told.startswith("All layers of all 2 checkpoints are flip: ")
    assert verdict == "All flip"
    told, verdict = survey_told({"flip": 1.0}, {"flip": 0.9992, "real_dominant": 0.0008})
    assert told.startswith("Nearly all layers of the average checkpoint are flip (99.96 %): ")
    told, verdict = survey_told({"flip": 0.5, "real_dominant": 0.3, "no_consensus": 0.2})
    assert told.startswith("Half of the layers are flip (")
    assert verdict == "Half of them flip"
    told, verdict = survey_told({"flip": 0.502, "real_dominant": 0.498})
    assert told.startswith("Most layers are flip (50.2 %): ")
    told, verdict = survey_told({"flip": 0.498, "real_dominant": 0.3, "no_consensus": 0.202})
    assert told.startswith("No regime has most layers; most frequent, with 49.8 %: flip (")


def test_a_lead_is_told_of_those_that_have_one() -> None:
    pair = [entry("a", gap=0.1), entry("b", gap=0.1)]
    none = entry("c", gap=None, regimes={"no_consensus": 1.0})
    assert "in every checkpoint (median" in survey_sentences(surveyed(*pair))[1]
    told = survey_sentences(surveyed(*pair, none))[1]
    assert (
        told == "The lead is equally clear in the 2 checkpoints that have one (median gap 10.0 %)."
    )


# -- what was foretold -----------------------------------------------------------------------------


def test_an_end_elsewhere_is_not_as_foretold() -> None:
    """Tokens orthogonal to the leader cannot reach it: the label agrees, the place does not."""
    states = np.array([[0, 1, 0.2, 0], [0, 0.9, -0.1, 0.3], [0, 1.1, 0.1, 0.1]], dtype=float)
    run = simulate_matrices(np.diag([1, 0.5, 0.1, 0]), states=states, steps=200)
    assert run.outcome.label == "consensus"
    assert run.outcome.predicted is not None
    assert run.outcome.predicted.label == "consensus"
    assert run.outcome.reached != run.outcome.target
    assert not as_foretold(run)
    assert "foretold was consensus" in outcome_sentence(run)
    verdict = answers(Material(simulate=run), ["simulate"])[-1].verdict
    assert verdict.endswith(", not as foretold")


def test_an_end_where_it_was_foretold() -> None:
    run = simulate_matrices(np.diag([1, 0.5, 0.1, 0]), n_tokens=4, steps=200)
    assert as_foretold(run)
    assert "this was foretold" in outcome_sentence(run)
    assert answers(Material(simulate=run), ["simulate"])[-1].verdict == "One direction, as foretold"


# -- what is left out ------------------------------------------------------------------------------


def test_a_cross_attention_that_is_missing_is_no_whole_stack(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(sample_path("bert-tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"add_cross_attention": True, "is_decoder": True}
    (folder / "config.json").write_text(json.dumps(config))
    found = CliRunner().invoke(app, ["spectrum", str(folder), "--format", "json"])
    assert found.exit_code == 0, found.stderr
    (lost,) = json.loads(found.stdout)["skipped"]
    assert (lost["stack"], lost["layer"], lost["kind"]) == ("encoder", -1, "cross")
    assert lost["reason"] == "none of its tensors is in these files"
    table = CliRunner().invoke(app, ["spectrum", str(folder)]).stdout
    assert "\ncross attention of encoder left out: none of its tensors" in table


def test_what_is_left_out_of_a_stack_is_named() -> None:
    shown = [("decoder", "self"), ("decoder", "cross")]
    lost = [
        ("decoder", "cross", -1, "a"),
        ("decoder", "self", -1, "b"),
        ("vision", None, -1, "c"),
        ("encoder", "self", -1, "d"),
    ]
    assert left_out_texts(shown, lost) == [
        "cross attention of decoder left out: a",
        "self attention of decoder left out: b",
        "vision left out: c",
        "encoder left out: d",
    ]


# -- depth that is told by steps and stacks --------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> Report:
    return make_report(
        "sample:gpt2-tiny", sections=["collapse"], texts=["def f(x): return x"], steps=4
    )


def with_cosines(made: Report, cosines: list[float], **more: Any) -> eigenlens.Trace:
    trace = made.material.trace
    assert trace is not None
    layers = tuple(
        replace(x, step=i, collapse_block={**x.collapse, "cosine": c}, **more)
        for i, (x, c) in enumerate(zip(trace.layers, cosines, strict=True))
    )
    stack = replace(trace.stacks[0], start={**trace.stacks[0].start, "cosine": 0.1})
    return replace(trace, layers=layers, stacks=(stack,))


def told(trace: eigenlens.Trace) -> Any:
    return answers(Material(trace=trace), ["trace"])[-1]


def test_a_peak_of_a_shared_layer_is_told_by_its_step(made: Report) -> None:
    cosines = [0.2, 0.5, 0.8, 0.4]
    shared = with_cosines(made, cosines, layer=0)
    assert "with a peak of 0.800 after the block of step 2" in told(shared).detail
    blocks = with_cosines(made, cosines)
    assert "with a peak of 0.800 after the block of layer 2" in told(blocks).detail
    alone = [replace(x, collapse=x.collapse_block, collapse_block=None) for x in blocks.layers]
    attention = replace(blocks, layers=tuple(alone))
    assert "with a peak of 0.800 after layer 2" in told(attention).detail
    text = rank_sentence(9.0, [5.0, 1.0, 5.0, 8.0], shared.layers, shared.layers)
    assert text.endswith("between them down to 1.0 after step 1")
    states = {"stable_rank": 1.0, "frobenius_residual": 0.9}
    against = replace(
        shared,
        layers=tuple(
            replace(x, collapse_block={**x.collapse, **states} if x.step in (1, 2) else x.collapse)
            for x in shared.layers
        ),
    )
    clean = [x for x in against.layers if x.step not in (1, 2)]
    assert "In steps 1-2 the measures" in contradiction(
        replace(against, layers=tuple(x for x in against.layers if x not in clean))
    )


def test_a_step_has_its_stack_where_there_are_several(made: Report) -> None:
    trace = with_cosines(made, [0.1] * 4, layer=0)
    other = replace(trace.layers[0], stack="encoder")
    among = (*trace.layers, other)
    assert call_phrase(trace.layers[2], among) == "step 2 of decoder"
    assert call_phrase(other, among) == "encoder.0"


def test_each_stack_has_its_own_answer_on_collapse(made: Report) -> None:
    one, two = with_cosines(made, [0.2, 0.2, 0.2, 0.2]), with_cosines(made, [0.3, 0.5, 0.9, 0.97])
    own = [tuple(replace(x, stack=s) for x in t.layers) for s, t in (("enc", one), ("dec", two))]
    cross = tuple(replace(x, kind="cross") for x in own[1])
    stacks = [replace(one.stacks[0], stack=s) for s in ("enc", "dec")]
    stacks.append(replace(stacks[1], kind="cross"))
    both = replace(one, layers=(*own[0], *own[1], *cross), stacks=tuple(stacks))
    answer = told(both)
    assert answer.verdict == "enc: a little, cosine 0.10 to 0.20; dec: yes, nearly one direction"
    assert answer.detail.startswith("In enc, the mean cosine of two tokens of a prompt is 0.100")
    assert "In dec, the mean cosine" in answer.detail
    assert "dec.cross," not in answer.detail
    assert told(two).verdict == "Yes: nearly one direction"


def test_notes_on_overlaps_stand_with_their_own_stack(made: Report) -> None:
    """A stack without traced layers shifts nothing, and self and cross are told apart."""
    trace = with_cosines(made, [0.1] * 4)
    stack = trace.stacks[0]
    pair = replace(stack, layers=(0, 1), overlaps=((1.0, 0.25), (0.25, 1.0)))
    empty = replace(pair, stack="encoder", overlaps=((1.0, 0.75), (0.75, 1.0)))
    cross = replace(pair, kind="cross", overlaps=((1.0, 0.5), (0.5, 1.0)))
    layers = (*trace.layers, *(replace(x, kind="cross") for x in trace.layers))
    out = io.StringIO()
    both = replace(trace, layers=layers, stacks=(empty, pair, cross))
    Console(width=100, file=out, highlight=False).print(trace_view(both))
    text = " ".join(out.getvalue().split())
    assert re.search(r"leaders \(decoder\) [^:]*: [^:]*: of two layers 0\.250", text)
    assert re.search(r"leaders \(decoder\.cross\) [^:]*: [^:]*: of two layers 0\.500", text)
    assert "0.750" not in text


# -- facts of a model ------------------------------------------------------------------------------


def test_the_page_counts_heads_and_tells_of_edits() -> None:
    rng = np.random.default_rng(0)
    one = OVCircuit(rng.normal(size=(4, 8)), rng.normal(size=(8, 4)), 1, 1, 4, placement="pre")
    page = make_report([one], sections=["spectrum"]).html
    assert "1 layer, d 8, 1 head of 4, pre-norm" in page
    assert "1 heads" not in page
    model = {**eigenlens.spectrum([one]).model, "edits": 2, "model_type": "new"}
    told = facts_text(model, "layers", "d", "each head", "norm")
    assert told == "new, 1 layer, d 8, 1 head of 4, pre-norm, edited by eigenlens (2 edits)"
    grouped = {**model, "n_heads": 8, "n_kv_heads": 2, "edits": 0, "norm": "rmsnorm"}
    assert facts_text(grouped, "each head", "norm") == (
        "new, 8 heads (2 for values) of 4, pre-norm (rmsnorm)"
    )


def test_the_heading_of_a_page_tells_of_edits() -> None:
    rng = np.random.default_rng(0)
    one = OVCircuit(rng.normal(size=(4, 8)), rng.normal(size=(8, 4)), 1, 1, 4)
    found = eigenlens.spectrum([one])
    edited = replace(found, model={**found.model, "edits": 1})
    page = make_report(None, sections=["spectrum"], given=Material(spectrum=edited)).html
    assert "edited by eigenlens (1 edit)" in page[: page.index('id="summary"')]
    both = eigenlens.compare([one], [one], k=2)
    page = compare_page(replace(both, other={**both.other, "edits": 3})).decode()
    assert "edited by eigenlens (3 edits)" in page[: page.index('id="summary"')]


# -- strengths -------------------------------------------------------------------------------------


def measure(strength: float, kl: float, chance: float | None, cosine: float = 0.1) -> Measure:
    tokens = {"after_sublayer": (Cosines(cosine, cosine, 1.0, 9), None)}
    return Measure(strength, kl, None, chance, None, cast(Any, tokens))


def steered(**more: Any) -> Any:
    base = {
        "options": {"max_kl": 0.5},
        "window": None,
        "edit": SimpleNamespace(strength=1.0, label="token ' a'"),
        "direction": SimpleNamespace(label="token ' a'", targets=(1,)),
        "says": (),
    }
    return SimpleNamespace(**base | more)


def test_without_wanted_tokens_no_probability_is_spoken_of() -> None:
    points = [measure(1.0, 0.9, None), measure(9.0, 3.0, None)]
    bare = steered(direction=SimpleNamespace(label="x", targets=()))
    assert window_text(bare, points) == (
        "No strength is useful: each that was tried has a KL of more than 0.5."
    )
    text = window_text(steered(), points)
    assert "gives the wanted tokens at least twice the probability at a KL of 0.5 or less" in text
    down = steered(edit=SimpleNamespace(strength=-1.0, label="x"))
    assert "gives the wanted tokens at most half the probability" in window_text(down, points)


def test_one_useful_strength_is_no_range() -> None:
    window = SimpleNamespace(low=46.41588, high=46.41588)
    text = window_text(steered(window=window), [measure(46.4, 0.1, 0.5)])
    assert text == "One of these strengths is useful: 46.4 (KL at most 0.5)."
    wide = SimpleNamespace(low=21.5, high=100.0)
    text = window_text(steered(window=wide), [measure(46.4, 0.1, 0.5)])
    assert text == "Useful strengths are 21.5 to 100 (KL at most 0.5)."


def test_alignment_that_is_lost_again_does_not_go_on() -> None:
    stays = [measure(1, 0.1, 0.5, 0.2), measure(2, 0.2, 0.5, 0.95), measure(3, 0.3, 0.5, 0.99)]
    assert "from strength 2.00 on, where" in window_text(steered(), stays)
    lost = [*stays[:2], measure(3, 0.3, 0.5, 0.4)]
    assert "at strength 2.00, where" in window_text(steered(), lost)


def test_whose_probability_is_nothing() -> None:
    some, none = measure(1, 0.1, 0.3), measure(1, 0.1, 0.0)
    assert "leaves the wanted tokens without any probability (0" in beside_addition(some, none)
    text = beside_addition(none, some)
    assert "gives the wanted tokens a probability, which the edit does not (0.3000)" in text
    assert "without" not in text


def test_several_wanted_tokens_are_and_equal_ones_are_as_probable_as_before() -> None:
    pair = steered(
        edit=SimpleNamespace(strength=1.0, label="tokens ' Paris', ' Rome'"),
        direction=SimpleNamespace(label="", targets=(1, 2)),
    )
    text = what_it_says(pair, measure(0, 0, 0.1), measure(1, 0.1, 0.3))
    assert text.startswith("' Paris', ' Rome' are 3.0 times as probable as before at")
    one = what_it_says(steered(), measure(0, 0, 0.1), measure(1, 0.1, 0.3))
    assert one.startswith("' a' is 3.0 times as probable as before at")
    for factor in (1.0, 1.04, 1 / 1.04):
        same = what_it_says(steered(), measure(0, 0, 0.1), measure(1, 0.1, 0.1 * factor))
        assert same.startswith("' a' is about as probable as before at")
    assert "1.1 times as" in what_it_says(steered(), measure(0, 0, 0.1), measure(1, 0.1, 0.106))


# -- comparisons -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [np.zeros((4, 4)), -0.5 * np.eye(4)])
def test_no_angle_is_told_to_a_place_that_draws_nothing(nothing: np.ndarray) -> None:
    pulls = np.diag([1.0, 0.5, 0.2, 0.1])
    for a, b in ((nothing, pulls), (pulls, nothing)):
        result = eigenlens.compare([circuit(a)], [circuit(b)], k=2)
        assert result.layers[0].principal_angles  # it is in the JSON, a fact on subspaces
        text = " ".join(compare_sentences(result))
        assert "drawn" not in text
        assert "What leads is of another kind in layer 0" in text
        page = compare_page(result).decode()
        assert "Are tokens drawn elsewhere?" not in page
        out = io.StringIO()
        Console(width=100, file=out, highlight=False).print(compare_view(result))
        assert "no angle: A or B draws tokens nowhere" in " ".join(out.getvalue().split())
        assert "°" not in out.getvalue()
    turned = eigenlens.compare([circuit(pulls)], [circuit(pulls[::-1, ::-1])], k=2)
    assert "turned by more than 5 degrees in layer 0 (90.0°)" in " ".join(compare_sentences(turned))


# -- spectra ---------------------------------------------------------------------------------------


def test_nothing_falls_behind_what_attracts_nothing() -> None:
    F = np.diag([-0.5, -0.3, 0.0, 0.0])
    result = eigenlens.spectrum([circuit(F)], order="residual")
    assert result.layers[0].regime == "no_consensus"
    assert result.layers[0].steps_to_separate is not None
    assert "10 times behind" not in " ".join(spectrum_sentences(result))


def test_what_is_behind_from_the_start_is_at_once() -> None:
    one = np.outer([1.0, 0, 0, 0], [0.5, 0.1, 0, 0])
    result = eigenlens.spectrum([circuit(one)], order="modulus")
    assert result.layers[0].steps_to_separate == 0
    text = " ".join(spectrum_sentences(result))
    assert "The second direction falls 10 times behind the first at once." in text
    detail = answers(Material(spectrum=result), ["spectrum"])[1].detail
    assert "the second direction is 10 times behind at once." in detail
    near = np.diag([1.0, 0.05, 0, 0])
    text = " ".join(spectrum_sentences(eigenlens.spectrum([circuit(near)], order="modulus")))
    assert "10 times behind the first in 1 step." in text


def test_names_of_stacks_are_inert_and_one_thing_has_one_name() -> None:
    rng = np.random.default_rng(0)
    layers = [
        OVCircuit(rng.normal(size=(4, 8)), rng.normal(size=(8, 4)), 1, 1, 4, **more)
        for more in (
            {"stack": "a\x1b[31m"},
            {"stack": "b", "kind": "cross"},
            {"stack": "b", "kind": "cross", "layer": 1},
        )
    ]
    result = eigenlens.spectrum(layers)
    text = "\n".join(spectrum_sentences(result))
    assert "\x1b" not in text
    assert "a\\x1b[31m: " in text
    assert "b.cross: " in text
    assert " cross:" not in text
    assert all("\x1b" not in where for _, where in regime_runs(result))
    assert any("b.cross 0" in where for _, where in regime_runs(result))


# -- without nulls, and beside the untrained model -------------------------------------------------


def test_a_tilt_is_claimed_as_far_as_intervals_carry() -> None:
    """One layer whose interval holds 1/2 is not counted, and one that moves away is named."""
    result = eigenlens.trace("sample:gpt2-tiny", nulls=False)
    rows = [(0.7, (0.6, 0.8)), (0.55, (0.45, 0.65)), (0.45, (0.4, 0.55)), (0.2, (0.1, 0.3))]
    layers = [
        replace(x, rho=rho, rho_ci=ci) for x, (rho, ci) in zip(result.layers, rows, strict=True)
    ]
    told = trace_sentences(replace(result, layers=tuple(layers)))[-1]
    assert "More often than not in 1 of 4 layers (0), by their whole interval;" in told
    assert "not to be told in 2 (1-2);" in told
    assert "most tokens move away in 1 (3);" in told
    bare = [replace(x, rho_ci=None) for x in layers]
    told = trace_sentences(replace(result, layers=tuple(bare)))[-1]
    assert "in 2 of 4 layers (0-1); most tokens move away in 2 (2-3);" in told
    assert "interval" not in told
    words = ("More often than not;", "Not to be told,", "Not to be told,", "Most tokens move away;")
    for row, said in zip(layers, words, strict=True):
        told = trace_sentences(replace(result, layers=(row,)))[-1]
        assert f"principal eigenvector? {said}" in told


@pytest.mark.parametrize(
    ("fresh", "said"),
    [
        ([0.8, 0.9, 0.1], "In 2 of these 3 (0-1) a model without any training tilts as much"),
        ([0.8, 0.9, 0.7], "In all 3 a model without any training tilts as much or more"),
        ([0.1, 0.8, 0.1], "In 1 of these 3 (1) a model without"),
        ([0.7], "In it a model without"),
        ([0.1, 0.2], ""),
        ([0.6], ""),
    ],
)
def test_a_tilt_from_before_training_is_told(fresh: list[float], said: str) -> None:
    result = eigenlens.trace("sample:gpt2-tiny", nulls=False)
    rows = [
        replace(x, rho=0.7, nulls={"random_init": {"rho": f}})
        for x, f in zip(result.layers, fresh, strict=False)
    ]
    result = replace(result, layers=(*rows, *result.layers[len(rows) :]))
    text = _beyond_untrained(result, rows)
    assert (said in text) if said else text == ""
    assert _beyond_untrained(result, [replace(rows[0], nulls={})]) == ""
    assert _beyond_untrained(result, []) == ""


@pytest.mark.parametrize(
    ("rho", "said"),
    [
        (0.8, " Above F rotated at random with its whole interval, too."),
        (0.6, " It is not above F rotated at random with its whole interval."),
    ],
)
def test_one_layer_is_not_counted(rho: float, said: str) -> None:
    result = eigenlens.trace("sample:gpt2-tiny", nulls=False)
    nulls = {"matched_spectrum": {"rho": 0.65}}
    row = replace(result.layers[0], rho=rho, rho_ci=(rho - 0.1, rho + 0.1), nulls=nulls)
    assert _beyond_rotated(result, [row]) == said


def test_equal_F_does_not_mean_equal_models() -> None:
    same = eigenlens.compare("sample:gpt2-tiny", "sample:gpt2-tiny")
    (told,) = compare_sentences(same)
    assert "F alone is compared: they may differ in feed-forward layers" in told
    edited = replace(same, other={**same.other, "edits": 1})
    (told,) = compare_sentences(edited)
    assert "the edit that one of them holds is elsewhere" in told
    assert "layers that were not asked for" not in told
    part = eigenlens.compare("sample:gpt2-tiny", "sample:gpt2-tiny", layers=[0])
    (told,) = compare_sentences(part)
    assert "in the 1 layer asked for." in told
    assert "they may differ in layers that were not asked for, feed-forward layers" in told
