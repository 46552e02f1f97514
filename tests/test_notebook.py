"""Results show themselves: short repr, printed tables, HTML without scripts, plotly figures."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.dynamics.simulate import simulate_matrices
from eigenlens.errors import MissingDependencyError, OptionError
from eigenlens.report import notebook
from eigenlens.report.compare_plots import COMPARISON_PLOTS
from eigenlens.report.figures.table import DRAWN, PANELS
from eigenlens.report.notebook import VIEWS
from eigenlens.report.plots.table import PLOTS
from eigenlens.report.steer_panels import STEERING_PLOTS
from eigenlens.shown import Shown

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&amp;\x1b[31m'


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return {
        "spectrum": eigenlens.spectrum("sample:bert-tiny", k=3, per_head=True),
        "compare": eigenlens.compare("sample:gpt2-tiny", "sample:gptneo-tiny", k=3),
        "simulate": simulate_matrices(np.diag([1.0, 0.6, 0.2]), n_tokens=5, steps=25),
    }


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of table cells row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("td", "th"):
            self.rows[-1][-1] += data


KINDS = ("spectrum", "compare", "simulate")
ALLOWED = {"div", "p", "br", "table", "thead", "tbody", "tr", "th", "td", "img", "details"}


@pytest.mark.parametrize("kind", KINDS)
def test_html_has_the_table_and_a_figure(kind: str, results: dict[str, Any]) -> None:
    found = Tags(results[kind]._repr_html_())
    assert {tag for tag, _ in found.tags} <= ALLOWED | {"summary"}
    images = [a for tag, a in found.tags if tag == "img"]
    assert len(images) == 1
    assert (images[0]["src"] or "").startswith("data:image/png;base64,iVBOR")
    assert len(images[0]["alt"] or "") > 20
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    assert not re.search(r"https?://", results[kind]._repr_html_())
    assert len({len(row) for row in found.rows[:3]}) == 1


def test_the_html_table_is_the_printed_one(results: dict[str, Any]) -> None:
    printed = str(results["spectrum"])
    for row in Tags(results["spectrum"]._repr_html_()).rows[1:5]:
        assert re.search(r"\s+".join(map(re.escape, row)), printed)
    first = results["spectrum"].layers[0].eigenvalues[0].real
    assert f"{first:+.3f}" in printed


@pytest.mark.parametrize("kind", KINDS)
def test_print_gives_the_table_and_repr_one_line(kind: str, results: dict[str, Any]) -> None:
    text = str(results[kind])
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) > 4
    line = repr(results[kind])
    assert len(line.splitlines()) == 1
    assert len(line) < 120
    assert type(results[kind]).__name__ in line


def test_long_tables_are_cut_and_said_to_be() -> None:
    rng = np.random.default_rng(0)
    stack = [
        eigenlens.OVCircuit(
            rng.standard_normal((2, 6)), rng.standard_normal((6, 2)), 1, 1, 2, layer=i
        )
        for i in range(notebook.MOST_ROWS + 7)
    ]
    text = eigenlens.spectrum(stack, k=2)._repr_html_()
    assert "and 7 more rows: to_frame() has them" in text
    assert len(Tags(text).rows) == notebook.MOST_ROWS + 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_says_is_only_text(kind: str, results: dict[str, Any]) -> None:
    result = results[kind]
    evil = replace(result, model={**result.model, "source": EVIL, "model_type": EVIL})
    text = evil._repr_html_()
    found = Tags(text)
    assert {tag for tag, _ in found.tags} <= ALLOWED | {"summary"}
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text + str(evil) + repr(evil)


def test_the_escape_is_what_keeps_it_out(
    results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = results["compare"]
    evil = replace(result, model={**result.model, "source": EVIL})
    monkeypatch.setattr(notebook.html, "escape", lambda text: text)
    assert "script" in {tag for tag, _ in Tags(evil._repr_html_()).tags}


@pytest.mark.parametrize("kind", KINDS)
def test_plot_is_a_plotly_figure_of_the_same_data(kind: str, results: dict[str, Any]) -> None:
    import plotly.graph_objects as go

    for name in VIEWS[kind].figures:
        figure = results[kind].plot(name)
        assert isinstance(figure, go.Figure)
        assert figure.layout.title.text == PANELS[name].title
        assert len(figure.data) > 0
        figure.to_json()
    assert results[kind].plot().layout.title.text == PANELS[VIEWS[kind].figures[0]].title


def test_plot_of_a_comparison_shows_its_numbers(results: dict[str, Any]) -> None:
    result = results["compare"]
    heights = [y for bar in result.plot("changes").data[:-1] for y in bar.y]
    assert sorted(heights) == sorted(x.relative for x in result.layers)
    moves = result.plot("moves").data
    assert list(moves[1].x) == [m.before.real for x in result.layers for m in x.matches]
    assert list(moves[2].y) == [m.after.imag for x in result.layers for m in x.matches]


def test_wrong_names_are_answered_with_the_right_ones(results: dict[str, Any]) -> None:
    with pytest.raises(
        OptionError, match=r"no figure 'dept'.*eigenvalues, depth.*nearest: 'depth'"
    ):
        results["spectrum"].plot("dept")
    bare = eigenlens.spectrum((np.eye(2), np.diag([2.0, 1.0])), k=2)
    with pytest.raises(OptionError, match="nothing to show"):
        bare.plot("heads")


def test_without_plotly_and_matplotlib_there_is_the_table(
    results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plotly", "plotly.graph_objects", "matplotlib", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    text = results["spectrum"]._repr_html_()
    assert "<table" in text
    assert "<img" not in text
    with pytest.raises(MissingDependencyError, match=r"pip install 'eigenlens\[report\]'"):
        results["spectrum"].plot()
    with pytest.raises(MissingDependencyError, match=r"pip install 'eigenlens\[report\]'"):
        results["simulate"].to_frame()


def test_a_simulation_has_a_frame(results: dict[str, Any]) -> None:
    table = results["simulate"].to_frame()
    assert list(table["step"]) == [row["step"] for row in results["simulate"].trajectory]
    assert list(table["disagreement"]) == [r["disagreement"] for r in results["simulate"].rows()]


def test_every_kind_of_result_is_shown() -> None:
    from eigenlens.claims.result import Reproduction
    from eigenlens.comparing.result import Comparison
    from eigenlens.dynamics.result import Simulation
    from eigenlens.spectra.result import Spectrum
    from eigenlens.steering.result import Steering
    from eigenlens.tracing.result import Trace

    classes = (Spectrum, Trace, Simulation, Comparison, Steering, Reproduction)
    assert all(issubclass(c, Shown) for c in classes)
    assert {c.shown_as for c in classes} == set(VIEWS)
    assert all(
        f in DRAWN and f in {**PLOTS, **COMPARISON_PLOTS, **STEERING_PLOTS}
        for v in VIEWS.values()
        for f in v.figures
    )


def test_results_load_nothing_to_show_themselves_before_they_are_asked() -> None:
    code = (
        "import sys, eigenlens.spectra.result, eigenlens.comparing.result;"
        "print([m for m in ('rich', 'matplotlib', 'plotly', 'eigenlens.report') "
        "if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
