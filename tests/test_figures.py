"""Paper figures: every panel is drawn, the same bytes each time, and the data beside them agree."""

from __future__ import annotations

import csv
import io
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens.cli.app import app
from eigenlens.dynamics.simulate import simulate_matrices
from eigenlens.errors import SourceError
from eigenlens.report.figures.style import REGIME_MARKS, house_style, new_figure, plain, saved
from eigenlens.report.figures.table import (
    DRAWN,
    KINDS,
    PANELS,
    check_folder,
    csv_of,
    figure_files,
    title_of,
)
from eigenlens.report.panels.figure import COLOURS, REGIME_COLOURS
from eigenlens.spectra.principal import REGIMES

SAVED = ("spectrum", "compare")  # saving takes longer than drawing
MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    many = eigenlens.spectrum("sample:bert-tiny", per_head=True, k=6, decode=2)
    one = simulate_matrices(np.diag([1.0, 0.6, 0.2]), n_tokens=5, steps=25)
    both = eigenlens.compare("sample:gpt2-tiny", "sample:gptneo-tiny", k=3)
    return {"spectrum": many, "simulate": one, "compare": both, "steer": swept()}


def swept() -> Any:
    """A steering as far as its figure looks: five strengths, and activation addition."""
    from types import SimpleNamespace

    def row(method: str, strength: float, p: float, kl: float, cosine: float) -> dict[str, Any]:
        return {
            "method": method,
            "strength": strength,
            "target_probability": p,
            "kl": kl,
            "after_sublayer_mean_cosine": cosine,
            "perplexity": 10.0,
            "target_rank": 3.0,
        }

    rows = [
        row("unedited", 0.0, 1e-4, 0.0, 0.01),
        *(row("edit", s, s / 100, s**2 / 1e3, s / 40) for s in (0.5, 1.0, 4.0, 20.0, 30.0)),
        row("activation addition", 3.0, 0.02, 0.01, 0.01),
    ]
    return SimpleNamespace(
        before=1,
        after=1,
        edit=SimpleNamespace(strength=4.0),
        rows=lambda: rows,
        model={"source": "x"},
    )


@pytest.fixture(scope="module")
def files(results: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[Path, bytes]:
    some = {name: results[name] for name in SAVED}
    return figure_files(some, tmp_path_factory.mktemp("figures") / "new")


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_every_panel_becomes_its_files(files: dict[Path, bytes]) -> None:
    names = {name for name, panel in PANELS.items() if panel.needs in SAVED}
    assert {p.name for p in files} == {
        f"{name}.{kind}" for name in names for kind in (*(KINDS if name in DRAWN else ()), "csv")
    }
    for path, content in files.items():
        kind = path.suffix.removeprefix(".")
        assert content.startswith(MAGIC.get(kind, content[:1]))
        assert len(content) > 50
        assert not path.parent.exists(), "whoever writes the files makes the folder"


def test_only_tables_are_not_drawn() -> None:
    assert {name for name in PANELS if name not in DRAWN} == {"tokens"}
    assert set(DRAWN) <= set(PANELS)


def test_the_data_beside_a_figure_are_the_results(
    files: dict[Path, bytes], results: dict[str, Any]
) -> None:
    by_name = {p.name: content for p, content in files.items()}
    layers = results["spectrum"].layers
    rows = rows_of(by_name["eigenvalues.csv"])
    listed = [complex(float(r["re"]), float(r["im"])) for r in rows if int(r["index"]) >= 0]
    assert listed == [complex(v) for x in layers for v in x.eigenvalues]
    gaps = [float(r["gap"]) for r in rows_of(by_name["regimes.csv"])]
    assert gaps == [x.gap for x in layers]
    run_data = PANELS["trajectory"].data(results["simulate"])
    steps = rows_of(csv_of(run_data).encode())
    assert [float(r["disagreement"]) for r in steps] == [
        row["disagreement"] for row in results["simulate"].trajectory
    ]
    changes = rows_of(by_name["changes.csv"])
    assert [float(r["relative_change"]) for r in changes] == [
        x.relative for x in results["compare"].layers
    ]


def test_a_csv_cell_runs_no_formula() -> None:
    text = csv_of({"token": ["=1+1", "ok"], "score": [1.5, None]})
    assert text == "token,score\n'=1+1,1.5\nok,\n"


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_data_give_the_same_bytes(
    kind: str, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = PANELS["regimes"].data(results["spectrum"])

    def draw() -> Any:
        return DRAWN["regimes"](data, "x")

    first = saved(draw, kind)
    later = time.time() + 3 * 365 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 40}):
        assert saved(draw, kind) == first
        assert matplotlib.rcParams["font.size"] == 30  # the user's settings come back
    assert b"2029" not in first
    other = dict(data, gap=[2 * g for g in data["gap"]])
    assert saved(lambda: DRAWN["regimes"](other, "x"), kind) != first


def drawn(name: str, data: Any) -> Any:
    with house_style():
        return DRAWN[name](data, "x")


def test_what_is_drawn_is_the_data(results: dict[str, Any]) -> None:
    data = PANELS["eigenvalues"].data(results["spectrum"])
    figure = drawn("eigenvalues", data)
    points = np.concatenate([c.get_offsets() for c in figure.axes[0].collections])
    assert sorted(points[:, 0]) == sorted(data["re"])
    low, high = figure.axes[0].get_xlim()
    assert low < min(data["re"])
    assert high > max(data["re"])
    bars = drawn("regimes", PANELS["regimes"].data(results["spectrum"])).axes[0].patches
    heights = {round(b.get_x() + b.get_width() / 2): b.get_height() for b in bars}
    assert [heights[i] for i in range(4)] == [100 * x.gap for x in results["spectrum"].layers]
    changes = drawn("changes", PANELS["changes"].data(results["compare"])).axes[0].patches
    assert [b.get_height() for b in changes] == [x.relative for x in results["compare"].layers]
    arrows = drawn("moves", PANELS["moves"].data(results["compare"])).axes[0].texts
    ends = [(t.xyann, t.xy) for t in arrows]
    assert ends == [
        ((m.before.real, m.before.imag), (m.after.real, m.after.imag))
        for x in results["compare"].layers
        for m in x.matches
    ]


def test_the_edit_stands_out_among_the_strengths(results: dict[str, Any]) -> None:
    data = PANELS["strengths"].data(results["steer"])
    assert [s for s, c in zip(data["strength"], data["chosen"], strict=True) if c] == [4.0]
    axes = drawn("strengths", data).axes
    assert [a.get_xscale() for a in axes] == ["log"] * 3
    large = [line for line in axes[0].lines if line.get_markersize() > 7 and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in large] == [[4.0]]
    assert list(axes[0].lines[0].get_ydata()) == [1e-4, 1e-4]  # the unedited model
    still = dict(data, chosen=[False] * len(data["chosen"]))
    assert not any(
        len(x.get_xdata()) and x.get_markersize() > 7
        for x in drawn("strengths", still).axes[0].lines
    )


def test_no_text_leaves_its_figure(results: dict[str, Any]) -> None:
    """Axis titles, tick labels and legends lie within the page of every figure."""
    for name, draw in DRAWN.items():
        if PANELS[name].needs not in results:
            continue
        with house_style():
            figure = draw(PANELS[name].data(results[PANELS[name].needs]), "sample:bert-tiny")
            figure.canvas.draw()
            page = figure.bbox.padded(2)
            for axes in figure.axes:
                texts = [axes.xaxis.label, axes.yaxis.label, axes._left_title]
                texts += axes.get_legend().get_texts() if axes.get_legend() else []
                for text in texts:
                    box = text.get_window_extent()
                    assert not text.get_text() or (
                        page.x0 <= box.x0
                        and box.x1 <= page.x1
                        and page.y0 <= box.y0
                        and box.y1 <= page.y1
                    ), (name, text.get_text())


def test_single_layers_and_many() -> None:
    one = eigenlens.spectrum("sample:albert-tiny-rotating", per_head=True, k=4)
    for name in ("eigenvalues", "depth", "regimes", "heads"):
        assert drawn(name, PANELS[name].data(one)).axes
    rng = np.random.default_rng(0)
    stack = [
        eigenlens.OVCircuit(
            rng.standard_normal((4, 16)), rng.standard_normal((16, 4)), 2, 2, 2, layer=i
        )
        for i in range(40)
    ]
    many = eigenlens.spectrum(stack, k=3, per_head=True)
    figure = drawn("depth", PANELS["depth"].data(many))
    ticks = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert ticks[0] == "0"
    assert 10 <= len(ticks) <= 31
    assert len(drawn("heads", PANELS["heads"].data(many)).axes) == 3  # two maps and the bar


def test_regimes_differ_by_more_than_colour() -> None:
    assert set(REGIME_MARKS) == set(REGIMES) == set(REGIME_COLOURS)
    assert len({hatch for _, hatch in REGIME_MARKS.values()}) == len(REGIMES)
    assert len({mark for mark, _ in REGIME_MARKS.values()}) == len(REGIMES)


def greys(colours: list[str]) -> list[float]:
    rgb = [[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours]
    return [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in rgb]


def test_lines_of_a_group_differ_in_grey() -> None:
    shades = greys([COLOURS["blue"], COLOURS["vermilion"], COLOURS["green"]])
    assert min(abs(a - b) for i, a in enumerate(shades) for b in shades[:i]) > 0.02


def test_names_of_a_model_stay_text() -> None:
    assert plain("a$b$\x1b[2J") == "a\\$b\\$\\x1b[2J"
    folder = "/home/somebody/models/$evil$"
    result = eigenlens.spectrum((np.diag([1.0, 0.5]), np.eye(2)), k=2)
    from dataclasses import replace

    named = replace(result, model={**result.model, "source": folder})
    assert title_of({"spectrum": named}) == "$evil$"
    assert title_of({"spectrum": replace(result, model={**result.model, "source": "a/b"})}) == "a/b"
    data = PANELS["depth"].data(named)
    for kind in KINDS:
        content = saved(lambda: DRAWN["depth"](data, title_of({"spectrum": named})), kind)
        assert b"somebody" not in content
        assert b"somebody" not in unpacked(content)


def unpacked(pdf: bytes) -> bytes:
    out = b""
    for part in pdf.split(b"stream\n")[1:]:
        try:
            out += zlib.decompressobj().decompress(part)
        except zlib.error:
            continue
    return out


def test_folders_are_checked_before_the_work(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "new")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError, match="is a file"):
        check_folder(tmp_path / "file")
    with pytest.raises(SourceError, match="there is no folder"):
        check_folder(tmp_path / "a" / "b")


def run(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, (result.stderr, result.exception)
    return result


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["spectrum", "sample:bert-tiny", "-k", "3"], {"eigenvalues", "depth", "regimes"}),
        pytest.param(
            ["compare", "sample:bert-tiny", "sample:bert-tiny"],
            {"changes", "moves"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["simulate", "sample:bert-tiny", "--steps", "8"],
            {"trajectory"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["trace", "sample:bert-tiny", "--text", "a b c", "--directions", "200"],
            {"alignment", "collapse"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_command_line_draws(args: list[str], names: set[str], tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    result = run(*args, "--figures", folder)
    assert {p.name for p in folder.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in (*KINDS, "csv")
    }
    assert str(folder) in result.stderr.replace("\n", "")
    assert result.stdout


def test_what_is_missing_is_said_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run("spectrum", "sample:none", "--figures", tmp_path / "a" / "b", code=1)
    assert "there is no folder" in result.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("spectrum", "sample:none", "--figures", tmp_path / "a", code=1)
    assert "pip install 'eigenlens[report]'" in result.stderr
    assert not (tmp_path / "a").exists()


def test_a_figure_knows_no_window() -> None:
    sys.modules.pop("matplotlib.pyplot", None)
    with house_style():
        new_figure(1.0)
    assert "matplotlib.pyplot" not in sys.modules
