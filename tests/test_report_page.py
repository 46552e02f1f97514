"""The HTML report without a browser: data, sections, what is escaped, what stays private."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import re
import shutil
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import eigenlens.report.page.gather as gathering
from eigenlens.cli.app import app
from eigenlens.errors import MissingDependencyError, OptionError, SourceError
from eigenlens.report.figures.style import house_style
from eigenlens.report.figures.table import DRAWN
from eigenlens.report.page import Report, make_report, write_report
from eigenlens.report.page.embed import rounded, script_json
from eigenlens.report.page.gather import Material
from eigenlens.report.page.private import Veil
from eigenlens.report.page.sections import SECTIONS
from eigenlens.report.page.states import N_PROMPTS
from eigenlens.report.page.summary import answers, regime_runs
from eigenlens.report.panels.figure import REGIME_COLOURS, Columns
from eigenlens.report.panels.simulations import trajectory
from eigenlens.report.panels.sphere import States, axes_of, sphere
from eigenlens.report.panels.table import FIGURES
from eigenlens.report.plots.library import as_figure
from eigenlens.report.plots.parts import layer_ticks
from eigenlens.report.plots.table import PLOTS
from eigenlens.samples import sample_path
from eigenlens.spectra.analyse import spectrum
from eigenlens.spectra.principal import REGIMES
from hostile import FOLDER, PROMPTS, SCRIPT, hostile_model

GOLDEN = Path(__file__).parent / "golden" / "report_gpt2_tiny.json"
OFFLINE = ("spectrum", "heads", "tokens")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The full report of the hostile model."""
    folder = hostile_model(tmp_path_factory.mktemp("house"))
    return make_report(str(folder), texts=list(PROMPTS), steps=24)


@pytest.fixture(scope="module")
def offline() -> Report:
    """The report of a bundled sample, from its weights alone."""
    return make_report("sample:gpt2-tiny", sections=OFFLINE)


class Page(HTMLParser):
    """Tags, attributes and texts as a browser's parser sees them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif not self._inside or self._inside[-1] != "style":
            self.texts.append(data)

    def block(self, name: str) -> str:
        return next(text for attrs, text in self.scripts if attrs.get("id") == name)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def acting(page: Page) -> list[str]:
    """What a page holds that could run or fetch, besides its two scripts."""
    found = [f"<{tag}>" for tag, _ in page.tags if tag in ("img", "iframe", "svg", "object", "a")]
    found = [f for f in found if f != "<a>"]
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if name.startswith("on"):
                found.append(f"<{tag} {name}>")
            if name in ("src", "href", "action", "data", "srcset") and not re.match(
                r"#|data:,$", value or ""
            ):
                found.append(f"<{tag} {name}={value}>")
    running = [attrs for attrs, _ in page.scripts if attrs.get("type") != "application/json"]
    return found + ["<script>"] * (len(running) - 2)


# -- the data behind the figures -------------------------------------------------------------------


def results(report: Report) -> dict[str, Any]:
    m = report.material
    return {"spectrum": m.spectrum, "trace": m.trace, "simulate": m.simulate, "states": m.states}


@pytest.mark.parametrize("name", FIGURES)
def test_columns_are_tidy_and_plain(made: Report, name: str) -> None:
    figure = FIGURES[name]
    data = figure.data(results(made)[figure.needs])
    assert len({len(column) for column in data.values()}) == 1
    assert len(next(iter(data.values()))) > 0
    kinds = {type(v) for column in data.values() for v in column}
    assert kinds <= {int, float, str, bool, type(None)}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_words(name: str) -> None:
    figure = FIGURES[name]
    assert figure.name == name
    for words in (figure.title, figure.caption, figure.alt):
        assert len(words) > 10 or words == figure.title
    assert name in PLOTS or name == "tokens"


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_plotly_figures(made: Report, name: str) -> None:
    plot = PLOTS[name](FIGURES[name].data(results(made)[FIGURES[name].needs]))
    figure = as_figure(plot, FIGURES[name].title)
    assert isinstance(figure, go.Figure)
    assert len(figure.data) > 0
    for frame in plot.get("frames", []):
        assert len(frame["data"]) == len(frame["traces"])
        assert max(frame["traces"]) < len(plot["data"])


def test_every_regime_has_a_colour() -> None:
    assert set(REGIME_COLOURS) == set(REGIMES)
    assert len(set(REGIME_COLOURS.values())) == len(REGIMES)


def test_leaders_and_kernel_among_the_eigenvalues() -> None:
    W_V = np.array([[1.0, 0.0, 0.0], [0.0, -0.5, 0.0]])
    data = FIGURES["eigenvalues"].data(spectrum((W_V, W_V.T)))
    assert data["re"] == pytest.approx([1.0, 0.25, 0.0])
    assert data["index"] == [0, 1, -1]
    assert data["leading"] == [True, False, False]
    assert data["multiplier"] == pytest.approx([2.0, 1.25, 1.0])
    kernel = FIGURES["eigenvalues"].data(spectrum((W_V, -W_V.T)))
    assert kernel["leading"] == [False, False, True]


def test_head_shares_add_up_to_one(offline: Report) -> None:
    data = FIGURES["heads"].data(offline.material.spectrum)
    for position in set(data["position"]):
        own = [s for s, p in zip(data["share"], data["position"], strict=True) if p == position]
        assert sum(own) == pytest.approx(1.0, abs=1e-9)


def states_of(X: np.ndarray, plane: np.ndarray) -> States:
    n = X.shape[1]
    return States(
        labels=tuple(str(i) for i in range(len(X))),
        prompts=("p",),
        owners=(0,) * n,
        positions=tuple(range(n)),
        tokens=tuple(f"t{i}" for i in range(n)),
        special=(False,) * n,
        states=X,
        plane=plane,
    )


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_tokens_lie_on_the_sphere(dim: int) -> None:
    rng = np.random.default_rng(3)
    plane, _ = np.linalg.qr(rng.standard_normal((12, 3)))
    found = states_of(rng.standard_normal((2, 5, 12)), plane[:, :dim])
    data = sphere(found)
    squares = [x * x + y * y + z * z for x, y, z in zip(*(data[k] for k in "xyz"), strict=True)]
    assert squares == pytest.approx([1.0] * 10)
    assert all(0 < share <= 1 for share in data["share"])
    axes = axes_of(found)
    assert axes.T @ axes == pytest.approx(np.eye(3), abs=1e-12)
    shown = min(dim, 2)
    assert np.abs(axes[:, :shown].T @ plane[:, :shown]) == pytest.approx(np.eye(shown), abs=1e-12)


def test_states_in_the_plane_lie_on_the_ring() -> None:
    rng = np.random.default_rng(4)
    plane, _ = np.linalg.qr(rng.standard_normal((9, 2)))
    data = sphere(states_of(rng.standard_normal((1, 6, 2)) @ plane.T * 7.0, plane))
    assert data["z"] == pytest.approx([0.0] * 6, abs=1e-12)
    assert data["share"] == pytest.approx([1.0] * 6)
    assert data["alignment"] == pytest.approx([1.0] * 6)


def test_captured_states_are_those_of_the_prompts(made: Report) -> None:
    states = made.material.states
    assert states is not None
    assert len(states.prompts) == min(len(PROMPTS), N_PROMPTS)
    assert states.labels == ("start", "0", "1", "2", "3")
    assert SCRIPT in states.tokens
    assert sum(states.special) == 2 * len(PROMPTS)  # [CLS] and [SEP]
    trace = made.material.trace
    assert trace is not None
    assert len(states.tokens) == trace.layers[0].n_tokens
    # The mean cosine over prompts of the block's output is what the trace says of it.
    for depth, cosine in (
        (0, trace.stacks[0].start["cosine"]),
        (4, (trace.layers[-1].collapse_block or {})["cosine"]),
    ):
        X = states.states[depth]
        U = X / np.linalg.norm(X, axis=1, keepdims=True)
        means = []
        for prompt in range(len(PROMPTS)):
            own = U[[i for i, owner in enumerate(states.owners) if owner == prompt]]
            n = len(own)
            means.append(((own @ own.T).sum() - n) / (n * (n - 1)))
        assert np.mean(means) == pytest.approx(cosine, abs=1e-5)


def test_the_predicted_line_has_the_predicted_slope(made: Report) -> None:
    result = made.material.simulate
    assert result is not None
    assert result.outcome.predicted is not None
    fallen = [
        {**row, "disagreement": 0.5 * 0.6 ** row["step"], "misalignment": 0.4 * 0.8 ** row["step"]}
        for row in result.trajectory
    ]
    foretold = replace(
        result.outcome.predicted, disagreement_rate=0.6, alignment_rate=0.7, exponent=None
    )
    planted = replace(
        result,
        trajectory=tuple(fallen),
        outcome=replace(result.outcome, predicted=foretold),
        options={**result.options, "form": "normalised", "layers": [0, 1]},
    )
    data = trajectory(planted)
    pairs = [
        (a, b)
        for a, b in zip(data["disagreement"], data["predicted_disagreement"], strict=True)
        if b is not None
    ]
    assert len(pairs) > 5
    assert all(a == pytest.approx(b, rel=1e-9) for a, b in pairs)
    line = [
        (s, v)
        for s, v in zip(data["step"], data["predicted_misalignment"], strict=True)
        if v is not None
    ]
    assert all(s % 2 == 0 for s, _ in line)  # whole passes of two layers
    (s0, v0), (s1, v1) = line[0], line[-1]
    assert math.log(v1 / v0) / (s1 - s0) == pytest.approx(math.log(0.7))
    # The caption tells of dashed lines where there are any.
    unread = replace(planted, outcome=replace(planted.outcome, predicted=None))
    dashed = "Dashed: the slopes"
    for result, told in ((planted, True), (unread, False)):
        given = Material(spectrum=made.material.spectrum, simulate=result)
        html = make_report(None, sections=["simulate"], given=given).html
        caption = html.split("<figcaption>")[1].split("</figcaption>")[0]
        assert (dashed in caption) is told
        assert ("predicted slope" in html.split("</figure>", 1)[1]) is told
        assert caption.startswith("The model&#x27;s own attention")
    # And of points where some steps end no pass: those of the angle, which are marked.
    one = replace(planted, options={**planted.options, "layers": [0]})
    for result, marked in ((planted, True), (one, False)):
        data = trajectory(result)
        plot = {t["name"]: t for t in PLOTS["trajectory"](data)["data"]}
        angle = plot["sine of the angle to the target"]
        assert ("markers" in angle["mode"]) is marked
        assert (len(angle["x"]) < len(data["step"])) is marked
        assert "markers" not in plot["disagreement"]["mode"]
        assert ("Points, joined by a line" in FIGURES["trajectory"].further(data)) is marked


# -- the page --------------------------------------------------------------------------------------


def test_nothing_of_the_model_acts(made: Report) -> None:
    page = Page(made.html)
    assert acting(page) == []
    assert SCRIPT in page.text  # shown, as text
    assert FOLDER in page.text
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"svg", "b", "img", "iframe", "object"}


def test_planted_markup_is_found(made: Report) -> None:
    for planted in (
        "<img src=x onerror=alert(1)>",
        "<script>alert(1)</script>",
        "<a href='https://example.invalid'>x</a>",
        "<p onclick=alert(1)>x</p>",
    ):
        html = made.html.replace("<h1>", f"<h1>{planted}", 1)
        assert acting(Page(html)) != []


def test_only_the_page_s_scripts_may_run(made: Report) -> None:
    page = Page(made.html)
    policy = next(
        a["content"] or ""
        for tag, a in page.tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "http" not in policy
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    running = [text for attrs, text in page.scripts if attrs.get("type") is None]
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running
    ]
    assert digests == allowed
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert "unsafe-eval" not in policy


def test_the_page_is_one_small_file(made: Report) -> None:
    assert len(made.html.encode()) < 8e6
    style = made.html.split("<style>")[1].split("</style>")[0]
    assert not re.search(r"url\(|@import|https?:", style)
    script = Page(made.html).scripts[-1][1]
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|sendBeacon", script)
    assert "showSendToCloud: false" in script


def test_data_in_scripts_cannot_leave_them(made: Report) -> None:
    page = Page(made.html)
    for name in ("data", "plots"):
        block = page.block(name)
        assert not re.search("[<>&\u2028\u2029\u202e]", block)
        json.loads(block, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    assert json.loads(page.block("data")) == made.record
    nasty = {"<!--": "</script>\u2028&"}
    assert json.loads(script_json(nasty)) == nasty
    assert not re.search("[<>&\u2028]", script_json(nasty))
    with pytest.raises(ValueError, match="Out of range"):
        script_json([math.nan])
    assert rounded([1.23456789, math.inf, True, 3]) == [1.23457, None, True, 3]


def texts_of(value: Any) -> list[str]:
    """Every text of a plot that plotly reads markup in."""
    if isinstance(value, dict):
        return [t for k, v in value.items() if k != "hovertemplate" for t in texts_of(v)]
    if isinstance(value, list):
        return [t for v in value for t in texts_of(v)]
    return [value] if isinstance(value, str) else []


def test_plotly_reads_no_markup_of_the_model(made: Report) -> None:
    plots = json.loads(Page(made.html).block("plots"))
    texts = texts_of(plots)
    assert not [t for t in texts if "<" in t]
    assert any("&lt;script&gt;alert(1)" in t for t in texts)
    templates = re.findall(r'"hovertemplate":"([^"]*)"', json.dumps(plots))
    assert not [t for t in templates if "alert" in t]


def test_nothing_of_this_machine_is_in_the_page(made: Report, tmp_path: Path) -> None:
    for secret in (str(tmp_path.parent), "somebody", "house0", str(Path.home()) + "/"):
        assert secret not in made.html
    assert made.record["model"]["source"] == FOLDER
    names = {f["file"] for f in made.record["provenance"]["files"]}
    assert names == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/models/x: has no config.json", "x: has no config.json"),
        ("see /home/ann/a b/m and 'C:\\Users\\ann\\m'", "see m and 'm'"),
        ("~/models/m is a folder", "m is a folder"),
        ("../../ann/m", "m"),
        ("meta-llama/Llama-3 at 1/2 or gain/gap", "meta-llama/Llama-3 at 1/2 or gain/gap"),
        ("token hf_abcdefghijklmnop was refused", "token [token] was refused"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ],
)
def test_the_veil_shortens_paths(text: str, shown: str) -> None:
    assert Veil(["/home/ann/a b/m"]).text(text) == shown


def test_the_veil_reaches_into_records() -> None:
    record = {"a": [Path("/x/y"), ("/q/r/s", 3)], "b": None}
    assert Veil().record(record) == {"a": ["y", ["s", 3]], "b": None}


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_has_its_figure(made: Report, name: str) -> None:
    html = made.html.split(f'<section id="{name}"')[1].split("</section>")[0]
    for figure in SECTIONS[name].figures:
        assert f'id="figure-{figure}"' in html
    assert "Left out" not in html
    assert made.missing == {}


def test_figures_speak_to_those_who_do_not_see_them(made: Report) -> None:
    page = Page(made.html)
    charts = [a for tag, a in page.tags if a.get("class") == "chart"]
    assert {a["data-plot"] for a in charts} == set(PLOTS)
    assert all(a["role"] == "img" and len(a["aria-label"] or "") > 40 for a in charts)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("main") == tags.count("h1") == tags.count("nav") == 1
    assert tags.count("details") >= len(PLOTS)
    assert next(a for tag, a in page.tags if tag == "html")["lang"] == "en"
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert all(b - a <= 1 for a, b in pairwise(levels))
    anchors = {a["href"] for tag, a in page.tags if tag == "a"}
    ids = {f"#{a['id']}" for _, a in page.tags if a.get("id")}
    assert anchors <= ids


# -- sections, and results that exist --------------------------------------------------------------


def test_sections_pick(offline: Report) -> None:
    assert re.findall(r'<section id="(\w+)"', offline.html) == [
        "summary",
        *OFFLINE,
        "provenance",
    ]
    assert offline.record["trace"] is None
    assert len(offline.answers) == 2
    assert "--sections spectrum,heads,tokens" in offline.record["provenance"]["command"]


def test_an_unknown_section_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"section 'spectra' is unknown.*nearest: 'spectrum'"):
        make_report("sample:gpt2-tiny", sections=["spectra"])
    with pytest.raises(OptionError, match="no section is chosen"):
        make_report("sample:gpt2-tiny", sections=[])
    with pytest.raises(OptionError, match="option 'nulls' is unknown"):
        make_report("sample:gpt2-tiny", sections=["spectrum"], nulls=False)
    with pytest.raises(OptionError, match=r"end it in \.html, \.htm"):
        write_report("sample:gpt2-tiny", tmp_path / "report.pdf")
    with pytest.raises(SourceError, match="there is no folder"):
        write_report("sample:gpt2-tiny", tmp_path / "no" / "report.html")


def test_without_torch_the_page_says_so(monkeypatch: pytest.MonkeyPatch, offline: Report) -> None:
    def absent(*_: Any) -> Any:
        raise MissingDependencyError("torch is not installed: pip install 'eigenlens[models]'")

    monkeypatch.setattr(gathering, "_opened", absent)
    report = make_report("sample:gpt2-tiny", given=Material(spectrum=offline.material.spectrum))
    assert set(report.missing) == {"alignment", "collapse", "sphere", "simulate"}
    for name in report.missing:
        html = report.html.split(f'<section id="{name}"')[1].split("</section>")[0]
        assert "Left out: torch is not installed: pip install" in html
        assert "<figure" not in html
    assert [a.known for a in report.answers] == [True, True, False, False, False]


def test_wrong_prompts_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no prompt"):
        make_report("sample:bert-tiny", sections=["alignment"], texts=[])


def test_results_that_exist_are_not_computed_again(
    monkeypatch: pytest.MonkeyPatch, made: Report
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        pytest.fail("computed again")

    for name in ("compute_spectrum", "_live"):
        monkeypatch.setattr(gathering, name, never)
    m = made.material
    again = make_report(
        None,
        given=Material(spectrum=m.spectrum, trace=m.trace, simulate=m.simulate, states=m.states),
    )
    assert again.missing == {}
    assert again.record["trace"]["layers"] == made.record["trace"]["layers"]
    assert "not read from local files" in again.html


def test_a_report_needs_a_model_or_results() -> None:
    with pytest.raises(OptionError, match="neither a model nor a finished spectrum"):
        make_report(None, sections=["spectrum"])


def test_plain_matrices_have_a_report() -> None:
    rng = np.random.default_rng(0)
    W_V, W_O = rng.standard_normal((2, 6, 6)) * 0.5
    report = make_report((W_V, W_O), sections=["spectrum", "tokens"])
    assert "cannot be read in tokens" in report.html
    assert "figure-eigenvalues" in report.html
    assert "figure-regimes" not in report.html  # one layer: the summary says it
    assert report.missing.keys() == {"tokens"}


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "verdict"),
    [(0.99, "Yes: nearly one direction"), (0.5, "Partly: cosine 0.10 to 0.50"), (0.12, "No: ")],
)
def test_the_verdict_on_collapse(made: Report, end: float, verdict: str) -> None:
    trace = made.material.trace
    assert trace is not None
    blocks = [{**(x.collapse_block or {}), "cosine": end} for x in trace.layers]
    layers = tuple(replace(x, collapse_block=b) for x, b in zip(trace.layers, blocks, strict=True))
    stack = replace(trace.stacks[0], start={**trace.stacks[0].start, "cosine": 0.1})
    material = copy.copy(made.material)
    material.trace = replace(trace, layers=layers, stacks=(stack,))
    found = {a.question: a for a in answers(material, ["trace"])}
    assert found["Do tokens become alike?"].verdict.startswith(verdict)


def test_the_summary_answers_every_question(made: Report) -> None:
    assert [a.question for a in made.answers] == [
        "Which regime is each layer in?",
        "How strong is the pull?",
        "Do real tokens tilt?",
        "Do tokens become alike?",
        "Where would the deep stack end?",
    ]
    assert all(a.known and a.detail.endswith(".") for a in made.answers)


def test_stacks_are_told_apart() -> None:
    rng = np.random.default_rng(1)
    layers = [
        replace(
            spectrum(tuple(rng.standard_normal((2, 4, 4)))).layers[0],
            stack=stack,
            layer=layer,
            regime=regime,
        )
        for stack, layer, regime in (
            ("encoder", 0, "real_dominant"),
            ("encoder", 1, "flip"),
            ("decoder", 0, "real_dominant"),
            ("decoder", 1, "real_dominant"),
        )
    ]
    whole = replace(spectrum((np.eye(4), np.eye(4))), layers=tuple(layers))
    assert regime_runs(whole) == [
        ("real_dominant", "encoder 0; decoder 0-1"),
        ("flip", "encoder 1"),
    ]
    line = PLOTS["depth"](FIGURES["depth"].data(whole))["data"][1]
    assert line["x"] == [0, 1, None, 2, 3]  # no line from one stack to the other
    assert FIGURES["regimes"].data(whole)["label"][:3] == ["encoder.0", "encoder.1", "decoder.0"]
    page = Page(make_report(None, given=Material(spectrum=whole), sections=["spectrum"]).html)
    assert "real dominant: encoder 0; decoder 0-1" in page.text


# -- golden data -----------------------------------------------------------------------------------


def golden_of(report: Report) -> dict[str, Any]:
    """What is kept of the data behind the page: small, and without what machines differ in."""
    keep: dict[str, Columns] = {}
    for name in ("regimes", "heads", "tokens"):
        keep[name] = FIGURES[name].data(report.material.spectrum)
    keep["tokens"] = {
        k: [v for v, r in zip(column, keep["tokens"]["rank"], strict=True) if r < 2]
        for k, column in keep["tokens"].items()
    }
    leading = [
        [layer["layer"], layer["eigenvalues"][:4]] for layer in report.record["spectrum"]["layers"]
    ]
    model = dict(report.record["model"])
    return rounded(
        {"model": model, "summary": report.record["summary"], "leading": leading, **keep}, 8
    )


def different(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two records differ; numbers by more than 1e-6."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [d for k in a for d in different(a[k], b[k], f"{path}.{k}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [d for i, (x, y) in pairs for d in different(x, y, f"{path}[{i}]")]
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float))
    same = math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) if numbers else a == b
    return [] if same else [f"{path}: {a!r} is not {b!r}"]


def test_golden_data(offline: Report) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert different(golden_of(offline), golden) == []
    planted = copy.deepcopy(golden)
    planted["heads"]["share"][3] += 1e-4
    planted["tokens"]["token"][0] += "x"
    assert len(different(golden_of(offline), planted)) == 2


# -- the command -----------------------------------------------------------------------------------


def run(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["report", *(str(a) for a in args)])
    assert result.exit_code == code, (result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def test_the_command_writes_the_page_and_prints_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = run("sample:gpt2-tiny", "--sections", "spectrum, heads", "--out", path)
    assert f"written: {path}" in result.stderr
    assert "Which regime is each layer in?" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= max(100, len(str(path)) + 40)
    html = path.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert re.findall(r'<section id="(\w+)"', html) == [
        *("summary", "spectrum", "heads", "provenance")
    ]
    found = json.loads(
        run("sample:gpt2-tiny", "--sections", "heads", "--out", path, "--format", "json").stdout
    )
    assert found["schema"] == "eigenlens.report/1"
    assert list(found)[:5] == ["schema", "eigenlens_version", "model", "options", "warnings"]


@pytest.mark.parametrize("name", ["mine.html", "my page.htm"])
def test_the_command_of_the_page_names_its_file_and_no_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "secret" / name
    path.parent.mkdir()
    run("sample:gpt2-tiny", "--sections", "heads", "--out", path)
    html = path.read_text(encoding="utf-8")
    shown = f"'{name}'" if " " in name else name
    assert f"--out {escape(shown)} --sections heads</code>" in html
    assert "secret" not in html
    assert "report.html" not in html


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("sample:gpt2-tiny", "--sections", "all"), 2, "section 'all' is unknown"),
        (("sample:gpt2-tiny", "--out", "report.json"), 2, "end it in .html, .htm"),
        (("sample:none",), 1, "unknown sample 'none'"),
    ],
)
def test_failures_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*args, code=code)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_heads_are_zero_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "zero"
    shutil.copytree(sample_path("bert-tiny"), folder)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith("self.value.weight"):
            tensors[name] = np.zeros_like(tensors[name])
    save_file(tensors, folder / "model.safetensors")
    made = make_report(str(folder), sections=["spectrum", "heads"])
    assert made.missing == {"heads": "Every head of these layers is 0 or is not square."}


def test_steps_that_cannot_be_are_refused(offline: Report) -> None:
    with pytest.raises(OptionError, match="steps is 0"):
        make_report("sample:gpt2-tiny", sections=["simulate"], steps=0)
    made = make_report(
        None, sections=["spectrum"], given=Material(spectrum=offline.material.spectrum), steps=0
    )
    assert made.missing == {}  # where nothing is simulated they say nothing


def test_without_a_spectrum_nothing_is_claimed_of_a_pull(offline: Report) -> None:
    found = offline.material.spectrum
    assert found is not None
    made = make_report(None, sections=["heads"], given=Material(spectrum=replace(found, layers=())))
    strength = next(a for a in made.answers if a.question == "How strong is the pull?")
    assert strength.verdict == "Not known"
    assert made.missing == {"heads": "No layer has an F with a spectrum."}


def test_the_colour_bar_names_layers() -> None:
    """Never a half, nor a place where a layer of a stack is meant."""
    data = {"position": [0, 0, 1, 2], "label": ["encoder 0", "encoder 0", "<b> 0", "decoder 1"]}
    ticks = layer_ticks(data)
    assert ticks["tickvals"] == [0, 1, 2]
    assert ticks["ticktext"] == ["encoder 0", "&lt;b&gt; 0", "decoder 1"]
    many = layer_ticks({"position": list(range(64)), "label": list(map(str, range(64)))})
    assert len(many["tickvals"]) <= 7


def under(order: str, found: Any) -> Any:
    """The columns of the complex plane of a spectrum, as if its layers were led by `order`."""
    data = FIGURES["eigenvalues"].data(found)
    return {**data, "order": [order] * len(data["order"])}


def test_the_circle_is_round_beside_a_far_leader(offline: Report) -> None:
    found = offline.material.spectrum
    assert found is not None
    plot = PLOTS["eigenvalues"](under("residual", found))
    layout = plot["layout"]
    assert layout["yaxis"]["scaleanchor"] == "x"
    across, up = layout["xaxis"]["range"], layout["yaxis"]["range"]
    assert max(x.eigenvalues[0].real for x in found.layers) > 3
    assert (up[1] - up[0]) / (across[1] - across[0]) == pytest.approx(0.6)
    assert plot["data"][0]["name"] == "|1 + λ| = 1"


def test_the_plane_of_a_pre_norm_model_has_the_rule_of_its_order(offline: Report) -> None:
    """Nothing there grows by |1 + lambda|: no circle is drawn or told, and the points fill it."""
    found = offline.material.spectrum
    assert found is not None
    assert {x.order for x in found.layers} == {"real"}
    data = FIGURES["eigenvalues"].data(found)
    plot = PLOTS["eigenvalues"](data)
    line = plot["data"][0]
    assert (line["name"], set(line["x"])) == ("Re λ = 0", {0.0})
    assert "scaleanchor" not in plot["layout"]["yaxis"]
    low, high = plot["layout"]["yaxis"]["range"]
    assert line["y"] == [low, high]
    size = max(map(abs, data["im"]))
    assert high == -low == pytest.approx(1.12 * size)
    told = FIGURES["eigenvalues"].further(data)
    assert "right of the dashed line a direction grows" in told
    assert "circle" not in told + FIGURES["eigenvalues"].caption + FIGURES["eigenvalues"].alt
    assert "circle around -1" in FIGURES["eigenvalues"].further(under("residual", found))
    assert "|1 + λ|" not in str(plot["data"][0])
    assert "right of the dashed line" in offline.html
    with house_style():
        axes = DRAWN["eigenvalues"](data, "x").axes[0]
        other = DRAWN["eigenvalues"](under("residual", found), "x").axes[0]
    assert not axes.patches
    assert len(other.patches) == 1
    assert "Re λ = 0" in [t.get_text() for t in axes.get_legend().get_texts()]


def test_a_simulation_whose_steps_are_left_open_goes_on_until_it_settles() -> None:
    """100 steps do not settle it, the steps foretold do."""
    found = make_report("sample:albert-tiny", sections=["simulate"])
    simulation = found.material.simulate
    assert simulation is not None
    assert 100 < simulation.options["steps"] <= 1000
    assert simulation.outcome.settled
    assert found.to_dict()["options"]["steps"] == simulation.options["steps"]
    short = make_report("sample:albert-tiny", sections=["simulate"], steps=100)
    assert short.to_dict()["options"]["steps"] == 100
    assert not short.material.simulate.outcome.settled  # type: ignore[union-attr]
