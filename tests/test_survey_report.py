"""The table and the page of a survey: columns explained, names inert, regimes over steps."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from eigenlens.cli.app import app
from eigenlens.report.survey_page import survey_page
from eigenlens.report.survey_panels import SURVEYS, scale, scale_of, steps
from eigenlens.report.survey_plots import SURVEY_PLOTS
from eigenlens.report.survey_tables import survey_sentences, survey_view
from eigenlens.surveys.result import ModelSummary, Run, Survey

HOSTILE = "/home/me/runs/<script>alert(1)</script>\\u202e[red]=1+1"


def entry(model: str, **values: Any) -> ModelSummary:
    base: dict[str, Any] = {
        "series": model,
        "train_step": None,
        "status": "complete",
        "reason": None,
        "model_type": "llama",
        "d_model": 64,
        "n_layers": 4,
        "placement": "pre",
        "layers": 4,
        "skipped": 0,
        "regimes": {"real_dominant": 0.75, "flip": 0.25},
        **dict.fromkeys(("gap", "disagreement_rate", "alignment_rate", "exponent")),
        **dict.fromkeys(("gamma", "gain", "rho", "beyond_random")),
    }
    return ModelSummary(model=model, **{**base, **values})


def run_of(name: str, *numbers: int) -> list[ModelSummary]:
    return [
        entry(f"{name}@step{n}", series=name, train_step=n, gap=n / 1000, exponent=-n / 1000)
        for n in numbers
    ]


def made(*models: ModelSummary, **values: Any) -> Survey:
    return Survey("/home/me/out", {"k": 8, "trace": False}, models, **values)


FAILED = entry("/home/me/x", status="failed", reason="/home/me/x: broke", layers=0, regimes={})


def printed(result: Survey) -> str:
    out = io.StringIO()
    Console(file=out, width=100, highlight=False, markup=False, emoji=False).print(
        survey_view(result)
    )
    return out.getvalue()


def test_the_table_fits_explains_its_columns_and_lists_what_failed() -> None:
    post = {"disagreement_rate": 0.5, "alignment_rate": 0.9, "gap": 0.1}
    traced = {"gamma": 0.25, "gain": -0.03125, "rho": 0.5, "beyond_random": 0.5}
    models = [entry("a" * 120, **post, **traced), *run_of("org/b", 100, 200), FAILED]
    partial = entry("p", status="partial", layers=1)
    result = made(*models, partial, entry("m", status="missing", layers=0, regimes={}))
    text = printed(result)
    assert max(map(len, text.splitlines())) <= 100
    flat = " ".join(text.split())
    for heading in ("real", "flip", "gap", "together", "align", "depth^", "gamma", "beyond"):
        assert flat.count(heading) >= 2, heading
    for shown in ("75 %", "0.500", "0.900", "-0.100", "-0.031", "p (partial)"):
        assert shown in flat
    assert "6 checkpoints: 3 complete, 1 partial, 1 failed, 1 missing" in flat
    assert "failed: /home/me/x: broke" in flat
    assert "not there yet: m;" in flat
    assert "complex" not in text.split("\n\n")[0]  # no column for what does not occur
    assert printed(made(FAILED, run=Run(0, 0, 1, 2.0))).count("1 failed") == 2


def test_one_sign_stands_for_nothing() -> None:
    """A regime that no layer is in and a number that there is not; a share of zero is a number."""
    none = entry("n", regimes={"real_dominant": 1.0}, gap=0.5, beyond_random=0.0)
    (row,) = [
        line.split() for line in printed(made(none, entry("b"))).splitlines() if " n " in line
    ]
    assert row == ["n", "64", "4", "100", "%", "-", "50.0", "%", "0", "%"]
    assert "(flip), - for none" in " ".join(printed(made(none, entry("b"))).split())


@pytest.mark.parametrize("word", ["sumary", "summarry", "Summary"])
def test_a_misspelt_command_is_answered_by_the_one_that_is_meant(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["survey", word, "DIR"])
    assert told.exit_code == 2
    flat = " ".join(told.stderr.replace("\u2502", " ").split())
    assert f"no such command '{word}'; did you mean 'summary'?" in flat
    (tmp_path / word).write_text("org/a\n")  # which is a LIST then
    told = CliRunner().invoke(app, ["survey", word, "DIR"])
    assert "a second LIST was given, 'DIR'" in " ".join(told.stderr.replace("\u2502", " ").split())


def test_a_pattern_that_the_shell_has_expanded_is_told_to_be_quoted(tmp_path: Path) -> None:
    words = ["survey", "small/a", "small/b", "small/c", "--out", str(tmp_path / "s")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    told = " ".join(done.stderr.replace("\u2502", " ").split())
    assert "a second LIST was given, 'small/b'" in told
    assert "quote a pattern" in told
    assert "No such command" not in told
    assert not list(tmp_path.iterdir())


def test_names_are_inert_in_the_table() -> None:
    text = printed(made(entry("a\x1b[31m[red]b[/red]", gap=0.5), FAILED))
    assert "\x1b" not in text
    assert "a\\x1b[31m[red]b[/red]" in text.replace("\n", "")


def test_sentences_tell_the_extremes() -> None:
    found = survey_sentences(made(*run_of("org/b", 100, 700, 300)))
    most = "Most layers of the average checkpoint are real dominant (75 %): one direction leads"
    assert found[0].startswith(most)
    assert "clearest in org/b@step700" in found[1]
    assert "weakest in org/b@step100" in found[1]
    assert survey_sentences(made()) == ["The list names no checkpoint."]


def test_equal_leads_have_no_extremes() -> None:
    """One checkpoint, or several that the digits shown do not tell apart."""
    pair = [entry("a", gap=0.25), entry("b", gap=0.25 + 1e-9)]
    (_, lead) = survey_sentences(made(*pair))
    assert lead == "The lead is equally clear in every checkpoint (median gap 25.0 %)."
    for models, where in ((pair, "In each of 2 checkpoints."), (pair[:1], "In a.")):
        page = survey_page(made(*models)).decode()
        assert "Median gap 25.0\N{NO-BREAK SPACE}%" in page
        assert where in page
        assert "clearest in" not in page


def test_the_panel_over_steps_has_the_runs_that_have_some_in_order() -> None:
    models = [*run_of("org/b", 300, 20, 100), *run_of("org/c", 5), entry("plain"), FAILED]
    data = steps(made(*models))
    assert list(dict.fromkeys(data["train_step"])) == [20, 100, 300]
    assert set(data["series"]) == {"org/b"}
    shares: dict[int, float] = {}
    for n, share in zip(data["train_step"], data["share"], strict=True):
        shares[n] = shares.get(n, 0) + share
    assert shares == {20: 1.0, 100: 1.0, 300: 1.0}
    plot = SURVEY_PLOTS["survey_steps"](data)
    (real,) = [t for t in plot["data"] if t["name"] == "real dominant"]
    assert (real["x"], real["y"]) == ([20, 100, 300], [75.0] * 3)
    assert plot["data"][-1]["y"] == pytest.approx([2.0, 10.0, 30.0])
    assert "frames" not in plot
    two = SURVEY_PLOTS["survey_steps"](steps(made(*models, *run_of("org/c", 6))))
    assert [f["data"][0]["x"] for f in two["frames"]] == [[20, 100, 300], [5, 6]]


def test_the_panel_over_scale_has_the_last_step_of_a_run_small_models_first() -> None:
    small = entry("s", d_model=8, n_layers=2)
    data = scale(made(*run_of("org/b", 300, 20), small, FAILED))
    assert list(dict.fromkeys(data["model"])) == ["s", "org/b@step300"]
    assert scale_of(small) == 12 * 2 * 64
    assert scale_of(FAILED) is not None
    assert scale_of(entry("x", d_model=None)) is None
    gap = SURVEY_PLOTS["survey_gap"](data)
    assert [(t["x"], t["y"]) for t in gap["data"]] == [([12.0 * 4 * 64**2], [30.0])]
    bars = SURVEY_PLOTS["survey_scale"](data)["data"]
    assert [(t["name"], t["x"]) for t in bars] == [
        ("real dominant", [75.0, 75.0]),
        ("flip", [25.0, 25.0]),
    ]


def test_the_page_is_closed_shows_all_figures_and_no_folder_of_this_machine() -> None:
    models = [*run_of("org/b", 300, 20), entry(HOSTILE, gap=0.5), FAILED]
    page = survey_page(made(*models)).decode()
    plotly = page.index("<script>")
    own = page[:plotly]
    assert re.findall(r'data-plot="(\w+)"', own) == list(SURVEYS)
    plots = json.loads(re.search(r'id="plots">(.*?)</script>', own, re.S)[1])  # type: ignore[index]
    assert set(plots) == set(SURVEYS) == set(SURVEY_PLOTS)
    data = json.loads(re.search(r'id="data">(.*?)</script>', own, re.S)[1])  # type: ignore[index]
    assert data["schema"] == "eigenlens.survey/1"
    assert data["failed"] == [{"model": "x", "reason": "broke"}]
    assert "<script>alert" not in page
    assert "/home/me" not in page
    assert "\u202e" not in page
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", own)
    assert "default-src 'none'" in own


def test_a_page_without_a_spectrum_says_so() -> None:
    page = survey_page(made(FAILED)).decode()
    assert "Nothing to show" in page
    assert "data-plot=" not in page[: page.index("<script>")]


def test_local_names_are_cut_as_far_as_they_stay_apart(tmp_path: Path) -> None:
    names = [f"/home/me/{run}/step{n}" for run in ("a", "b") for n in (1, 2)]
    runs = [f"/home/me/{run}" for run in ("a", "a", "b", "b")]
    models = [
        entry(n, series=s, train_step=i % 2, gap=0.5)
        for i, (n, s) in enumerate(zip(names, runs, strict=True))
    ]
    page = survey_page(made(*models)).decode()
    own = page[: page.index("<script>")]
    assert all(f"<td>{run}/step{n}</td>" in own for run in ("a", "b") for n in (1, 2))
    plots = json.loads(re.search(r'id="plots">(.*?)</script>', own, re.S)[1])  # type: ignore[index]
    names = plots["survey_steps"]["layout"]["meta"]["control"]["names"]
    assert names == ["a", "b"]
