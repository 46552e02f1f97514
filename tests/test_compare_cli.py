"""`eigenlens compare` on the command line: ranking, sentences, JSON, CSV and exit codes."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import eigenlens
from eigenlens.cli.app import app
from eigenlens.report.compare_page import compare_page
from eigenlens.report.compare_tables import compare_sentences, compare_view, only_texts
from test_compare import circuit, narrowed

BERT = "sample:bert-tiny"


def run(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["compare", *(str(a) for a in args)])
    assert result.exit_code == code, (result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def refuse(name: str) -> Any:
    raise AssertionError(f"JSON holds {name}")


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return narrowed("bert-tiny", tmp_path_factory.mktemp("bf16"), ml_dtypes.bfloat16)


def test_the_table_is_ranked(rounded: Path) -> None:
    text = run(BERT, rounded).stdout
    assert max(map(len, text.splitlines())) <= 100
    rows = re.findall(r"^ *(\d) +(0\.\d+)", text, re.MULTILINE)
    result = eigenlens.compare(BERT, rounded)
    assert [int(layer) for layer, _ in rows] == [x.layer for x in result.ranking]
    assert [float(x) for _, x in rows] == sorted((float(x) for _, x in rows), reverse=True)
    sentence = " ".join(text.split())
    assert f"F differs in 4 of 4 layers, most in layer {result.ranking[0].layer} by" in sentence
    assert "No layer changed its regime." in sentence
    for column in ("|dF|/|F|", "rank of dF", "leading A", "shift", "angle"):
        assert f"{column}:" in sentence or f"{column}," in sentence


def test_equal_models_are_said_to_be_equal() -> None:
    text = run(BERT, BERT, "--fail-above", "0").stdout
    assert "Nothing moved: F is the same, bit by bit, in all 4 layers." in " ".join(text.split())


def test_json_and_csv(rounded: Path, tmp_path: Path) -> None:
    found = json.loads(
        run(BERT, rounded, "--format", "json", "-k", "3").stdout, parse_constant=refuse
    )
    assert found["schema"] == "eigenlens.compare/1"
    assert set(found) == {
        *("schema", "eigenlens_version", "model", "other", "options", "warnings"),
        *("largest_change", "ranking", "layers", "only"),
    }
    layer = found["layers"][0]
    assert {
        *("stack", "layer", "kind", "relative_change", "frobenius_difference", "rank"),
        *("effective_rank", "principal_angles", "regime_changed", "new_leader", "eigenvalues"),
    } <= set(layer)
    assert found["largest_change"] == max(x["relative_change"] for x in found["layers"])
    assert found["model"]["source"] == BERT
    assert {"before", "after", "distance", "bar", "kind", "certain", "changed"} <= set(
        layer["eigenvalues"][0]
    )
    target = tmp_path / "x.csv"
    assert "F differs in 4 of 4" in run(BERT, rounded, "--out", target, "-k", "3").stdout
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [float(r["relative_change"]) for r in rows] == [
        x["relative_change"] for x in found["layers"]
    ]


def test_fail_above_is_about_the_largest_change(rounded: Path) -> None:
    largest = eigenlens.compare(BERT, rounded, k=2).largest
    run(BERT, rounded, "-k", "2", "--fail-above", repr(largest))
    result = run(BERT, rounded, "-k", "2", "--fail-above", repr(largest * 0.999), code=1)
    assert "F differs in 4 of 4" in result.stdout  # the work is done and shown all the same
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert re.search(r"eigenlens: layer \d moved by .* more than the .* of --fail-above", lines[0])
    run(BERT, rounded, "--layers", "1", "-k", "2", "--fail-above", "1")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([BERT], 2, "B"),
        ([BERT, BERT, "--fail-above", "-1"], 2, "no bound"),
        ([BERT, BERT, "--fail-above", "nan"], 2, "no bound"),
        ([BERT, BERT, "--fail-above", "inf"], 2, "no bound"),
        ([BERT, "sample:none"], 1, "unknown sample 'none'"),
        ([BERT, "sample:gpt2-tiny"], 1, "no layer in common"),
        ([BERT, BERT, "--layers", "9"], 2, "has no layer 9: layers are 0 to"),
        ([BERT, BERT, "--out", "a.txt"], 2, ".json, .csv, .parquet"),
        ([BERT, BERT, "-k", "0"], 2, "k is 0"),
    ],
)
def test_wrong_use_is_one_line(args: list[str], code: int, message: str) -> None:
    result = run(*args, code=code)
    assert message in result.stderr
    if result.stderr.startswith("eigenlens: "):  # not the option parser's words
        assert len(result.stderr.splitlines()) == 1
        assert result.stdout == ""


def test_a_model_is_not_written_over(rounded: Path) -> None:
    before = (rounded / "config.json").read_bytes()
    result = run(BERT, rounded, "--out", rounded / "config.json", code=2)
    assert "a file of the model itself" in result.stderr
    assert (rounded / "config.json").read_bytes() == before


def printed(result: Any) -> str:
    console = Console(width=100, record=True, file=io.StringIO(), highlight=False)
    console.print(compare_view(result))
    return console.export_text()


def test_a_pair_that_two_reals_became_is_one_row() -> None:
    base, turned = np.diag([1.0, 0.8, 0.3, -0.1]), np.diag([1.0, 0.8, 0.3, -0.1])
    turned[:2, :2] = [[0.9, 0.5], [-0.5, 0.9]]
    for a, b, words in (
        (base, turned, "two real eigenvalues that became a pair"),
        (turned, base, "a conjugate pair that became two real ones"),
    ):
        text = printed(eigenlens.compare(circuit(a), circuit(b)))
        rows = text.partition("where the leading eigenvalues")[2]
        assert rows.count("+0.900±0.500i") == 1
        assert rows.count(words) == 1
        assert "blank: as above" in " ".join(rows.split())
        assert "+1.000" in rows
        assert "+0.800" in rows


def test_what_is_followed_is_said_to_be_the_layer_that_changed_most() -> None:
    one = printed(eigenlens.compare(circuit(np.eye(4)), circuit(2 * np.eye(4))))
    assert "the largest |dF|/|F|" not in one
    assert "blank:" not in one
    layers = [replace(circuit(np.diag([1.0, 0.5, 0.2, 0.1])), layer=i) for i in range(3)]
    other = [layers[0], replace(layers[1], W_O=1.5 * layers[1].W_O), layers[2]]
    several = printed(eigenlens.compare(layers, other))
    assert "layer 1 went, the layer with the largest |dF|/|F|" in " ".join(several.split())


def test_layers_of_one_side_are_listed_together() -> None:
    layers = [replace(circuit(np.diag([1.0, 0.5, 0.2, 0.1])), layer=i) for i in range(5)]
    result = eigenlens.compare(layers, layers, layers=[0])
    alone = tuple(
        {
            "stack": "decoder",
            "kind": "self",
            "layer": i,
            "reason": "the other one has no such layer",
        }
        for i in range(1, 5)
    )
    result = replace(result, only={"a": (), "b": alone})
    assert only_texts(result) == ["only B has layers 1-4: the other one has no such layer"]
    assert "in the one layer that both have." in compare_sentences(result)[0]


def test_the_sentences_say_what_happened() -> None:
    rng = np.random.default_rng(0)
    base = np.diag([1.0, 0.8, 0.3, -0.1])
    one = base + 0.5 * np.outer(rng.standard_normal(4), rng.standard_normal(4))
    text = " ".join(compare_sentences(eigenlens.compare(circuit(base), circuit(one))))
    assert "the difference is all but of rank one" in text
    turned = base.copy()
    turned[:2, :2] = [[1.0, 0.5], [-0.5, 1.0]]
    text = " ".join(compare_sentences(eigenlens.compare(circuit(base), circuit(turned))))
    assert "real dominant -> complex dominant" in text
    other = rng.standard_normal((4, 4))
    apart = eigenlens.compare(circuit(np.eye(4)), circuit(other - np.trace(other) / 4 * np.eye(4)))
    assert "nothing in common" in " ".join(compare_sentences(apart))
    same = eigenlens.compare(circuit(base), circuit(base + 1e-17 * rng.standard_normal((4, 4))))
    assert "Nothing moved beyond rounding in the one layer: " in " ".join(compare_sentences(same))
    for result in (apart, same):
        assert max(map(len, printed(result).splitlines())) <= 100


@pytest.mark.parametrize(
    ("degrees", "said"),
    [(3.2, "at most 3.2 degrees."), (0.04, "at most 0.04 degrees."), (1e-4, "less than 0.01")],
)
def test_a_small_turn_is_told_as_it_is(degrees: float, said: str) -> None:
    """Under an angle of 0.0 in the table `at most 5 degrees` would say next to nothing."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    Q = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]])
    base = np.diag([1.0, 0.6, 0.3])
    text = " ".join(compare_sentences(eigenlens.compare(circuit(base), circuit(Q @ base @ Q.T))))
    assert f"What tokens are drawn to turned by {said}" in text


def test_names_of_a_model_stay_text(tmp_path: Path) -> None:
    folder = tmp_path / "[red]x\x1b[31m<b>"
    folder.mkdir()
    narrowed("bert-tiny", folder, np.float16)
    result = run(BERT, folder, "-k", "2")
    for text in (result.stdout, result.stderr):
        assert "\x1b" not in text
    assert "[red]x\\x1b[31m<b>" in result.stdout.replace("\n", "")


def test_the_page_holds_the_data_and_no_address(rounded: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    run(BERT, rounded, "--html", target, "-k", "3")
    page = target.read_text(encoding="utf-8")
    result = eigenlens.compare(BERT, rounded, k=3)
    found = re.search(
        r'<script[^>]*type="application/json"[^>]*id="data"[^>]*>(.*?)</script>', page
    )
    found = found or re.search(r'id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found
    record = json.loads(found[1], parse_constant=refuse)
    assert record["layers"][0]["relative_change"] == result.layers[0].relative
    body = page.split("<body", 1)[1].split("<script", 1)[0]
    for name in ("changes", "moves"):
        assert f'data-plot="{name}"' in body
    assert f"Up to {100 * result.largest:.3g}\N{NO-BREAK SPACE}% of |F|" in body
    assert not re.search(r'(?:src|href)="(?!#|data:)', body)
    assert str(rounded.parent) not in page
    assert rounded.name in page


def test_a_hostile_name_is_text_in_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    narrowed("bert-tiny", folder, np.float16)
    run(folder, BERT, "--html", tmp_path / "page.html", "-k", "2")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert str(tmp_path) not in page


def test_the_page_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ".html" in run("sample:none", BERT, "--html", "a.txt", code=2).stderr
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = run("sample:none", BERT, "--html", "a.html", code=1)
    assert "pip install 'eigenlens[report]'" in result.stderr


def test_the_page_has_no_empty_figure(tmp_path: Path) -> None:
    """Equal models have nothing to draw; what grew from zero has no bar."""
    zero, one = (np.zeros((4, 4)), np.eye(4)), (np.eye(4), np.eye(4))
    same = compare_page(eigenlens.compare(one, one)).decode("utf-8").split("<script", 1)[0]
    assert "data-plot=" not in same
    grown = compare_page(eigenlens.compare(zero, one)).decode("utf-8").split("<script", 1)[0]
    assert re.findall('data-plot="(.*?)"', grown) == ["moves"]
    assert "From zero" in grown


def test_a_local_model_shows_no_folder(
    rounded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path without a dot or slash in front is a path all the same."""
    monkeypatch.chdir(rounded.parent.parent)
    run(BERT, f"{rounded.parent.name}/{rounded.name}", "--html", tmp_path / "p.html", "-k", "2")
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert rounded.name in page
    assert f"{rounded.parent.name}/" not in page
