"""`eigenlens simulate` on the command line: the table, the sentence, JSON, CSV, the figure."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from eigenlens.cli.app import app
from eigenlens.dynamics.simulate import simulate_matrices
from eigenlens.report.figures import simulation_figure
from eigenlens.report.simulate_tables import outcome_sentence, simulate_view
from test_dynamics_theory import orthogonal, with_spectrum

RXN = "sample:albert-rxn"


def run(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["simulate", *(str(a) for a in args)])
    assert result.exit_code == code, (result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def printed(result: Any) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"), highlight=False)  # noqa: SIM115
    console.print(simulate_view(result))
    console.file.close()
    return console.export_text()


def test_the_table_sets_predicted_beside_observed() -> None:
    text = run(RXN).stdout
    assert max(map(len, text.splitlines())) <= 100
    rows = {line[:36].strip(): line[36:].split() for line in text.splitlines()}
    assert rows["outcome"] == ["rotation", "rotation"]
    assert rows["angle (rad per step)"] == ["1.190", "1.191"]
    predicted, observed = (float(x) for x in rows["disagreement per step"])
    assert predicted == pytest.approx(observed, rel=0.02)
    assert "ends in the plane of -0.133±2.169i" in text
    sentence = " ".join(text.split())
    assert "which turns by 68.2 degrees a step in the plane of -0.133±2.169i" in sentence
    assert "this was foretold." in sentence


def test_json_csv_and_file(tmp_path: Path) -> None:
    found = json.loads(run("sample:bert-tiny", "--steps", "6", "--format", "json").stdout)
    assert found["schema"] == "eigenlens.simulate/1"
    assert set(found) == {
        *("schema", "eigenlens_version", "model", "options", "warnings", "outcome", "basins"),
        *("stability", "eigenvalues", "trajectory"),
    }
    fields = {"label", "step_reached", "target", "observed", "predicted"}
    assert fields <= set(found["outcome"])
    rates = {"disagreement_rate", "alignment_rate", "angle_per_step"}
    assert rates <= set(found["outcome"]["observed"])
    assert rates <= set(found["outcome"]["predicted"])
    columns = {"step", "layer", "cosine", "disagreement", "gamma", "gain", "rho"}
    assert columns <= set(found["trajectory"][0])
    assert [row["layer"] for row in found["trajectory"]] == [None, 0, 1, 2, 3, 0, 1]
    target = tmp_path / "run.csv"
    assert "sample:bert-tiny" in run("sample:bert-tiny", "--steps", "6", "--out", target).stdout
    lines = target.read_text().splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("step,layer,gamma")


def test_basins_of_many_starts() -> None:
    text = run(RXN, "--starts", "4", "--length", "6", "--random-states", "--steps", "100").stdout
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(r"rotation +4 +1\.000 +0\.510 to 1\.000", text)
    flat = " ".join(text.split())
    assert "In 4 of 4 starts all tokens became one direction" in flat
    assert "share, interval: of all 4 starts" in flat


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["sample:none"], 1, "unknown sample 'none'"),
        (["sample:bert-tiny", "--mask", "windw"], 2, "full, causal or window:W"),
        (["sample:bert-tiny", "--radius", "-2"], 2, "must be a positive number"),
        (["sample:bert-tiny", "--steps", "0"], 2, "steps is 0"),
        (["sample:bert-tiny", "--length", "5000"], 2, "has 128 positions"),
        (["sample:bert-tiny", "--figure", "a.jpg"], 2, ".png, .pdf, .svg"),
        (["sample:bert-tiny", "--figure", "none/a.png"], 1, "no folder"),
        (["sample:bert-tiny", "--layers", "9"], 2, "no layer 9"),
        (["sample:bert-tiny", "--text", "a", "--random-states"], 2, "exclude each other"),
        (["sample:bert-tiny", "--prompts", "none.txt"], 1, "no such file"),
        (["sample:bert-tiny", "--norm", "l3"], 2, "l3"),
    ],
)
def test_wrong_use_is_one_line(args: list[str], code: int, message: str) -> None:
    result = run(*args, code=code)
    assert message in result.stderr
    if result.stderr.startswith("eigenlens: "):  # not the option parser's words
        assert len(result.stderr.splitlines()) == 1
        assert result.stdout == ""


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_a_figure_is_written(suffix: str, magic: bytes, tmp_path: Path) -> None:
    target = tmp_path / f"run{suffix}"
    run("sample:bert-tiny", "--steps", "8", "--figure", target)
    assert target.read_bytes().startswith(magic)


def figure_lines(result: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, bool]]:
    """(x, y, dashed) of every line of the figure."""
    from matplotlib.axes import Axes

    found: list[tuple[Any, Any, bool]] = []
    plot = Axes.plot

    def keep(self: Axes, x: Any, y: Any, **options: Any) -> Any:
        found.append((np.asarray(x), np.asarray(y), "ls" in options))
        return plot(self, x, y, **options)

    monkeypatch.setattr(Axes, "plot", keep)
    svg = simulation_figure(result, Path("a.svg"))
    assert b"predicted slope" in svg or b"<svg" in svg
    return found


def test_the_figure_draws_the_predicted_slopes(monkeypatch: pytest.MonkeyPatch) -> None:
    F, _ = with_spectrum([1.0, 0.8, 0.1, -0.2])
    found = simulate_matrices(F, n_tokens=8, steps=150)
    lines = figure_lines(found, monkeypatch)
    curves, slopes = [x for x in lines if not x[2]], [x for x in lines if x[2]]
    assert (len(curves), len(slopes)) == (3, 2)
    rates = [float(np.exp(np.polyfit(x, np.log(y), 1)[0])) for x, y, _ in slopes]
    assert rates == pytest.approx([0.5, 0.9], abs=1e-6)
    np.testing.assert_allclose(
        curves[1][1][:5], [row["disagreement"] for row in found.trajectory[:5]]
    )
    monkeypatch.undo()
    stream = simulate_matrices(F, n_tokens=1, steps=500, form="stream")
    slopes = [x for x in figure_lines(stream, monkeypatch) if x[2]]
    assert len(slopes) == 1
    x, y, _ = slopes[0]
    assert np.polyfit(np.log(x), np.log(y), 1)[0] == pytest.approx(-0.2, abs=1e-6)


def test_without_matplotlib_it_is_said_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("sample:none", "--figure", tmp_path / "a.png", code=1)
    assert "pip install 'eigenlens[report]'" in result.stderr


def test_every_outcome_has_a_sentence() -> None:
    def after(values: list[complex], **options: Any) -> str:
        F, _ = with_spectrum(values, condition=1.2)
        return outcome_sentence(simulate_matrices(F, **{"n_tokens": 6, "steps": 400, **options}))

    assert after([1.0, 0.5, 0.1]).endswith("stands still along v1 (+1.000); this was foretold.")
    turning = after([0.6 + 1.44j, 0.5, -0.3])
    assert "turns by 42.0 degrees a step in the plane of +0.600±1.440i" in turning
    flipping = after([1, 0.6, 0.2, -3.5], n_tokens=1)
    assert "changes sign every step along v1 (-3.500); this was foretold." in flipping
    assert "their span" not in flipping
    tied = after([1.0, 0.995, 0.1], steps=120)
    assert tied.endswith("that they end there was foretold, the rates were not.")
    apart = after([-0.4, -0.7, -0.9, -1.1, -1.3], steps=300)
    assert "no consensus was foretold" in apart
    soon = after([1.0, 0.98, 0.1], steps=30, tie_tolerance=1e-4)
    assert "still moved after 30 steps" in soon
    assert "foretold is, in the end, consensus along v1" in soon
    q = orthogonal(np.random.default_rng(0).standard_normal((3, 3)))
    F, B = q @ np.diag([1.0, 0.2, 0.1]) @ q.T, 6.0 * np.outer(q[:, 0], q[:, 0])
    signs = np.array([1, 1, 1, -1, -1])[:, None] * q[:, 0]
    two = outcome_sentence(simulate_matrices(F, logits=B, states=signs, steps=60))
    assert "in two groups from step" in two
    assert "(3 and 2); foretold was consensus along v1" in two


def test_what_was_reached_is_named_when_it_is_not_the_target() -> None:
    F, V = with_spectrum([1.0, 0.5, 0.1])
    start = np.tile(V[:, 1].real, (4, 1))
    found = simulate_matrices(F, states=start, steps=20)
    assert (found.outcome.reached, found.outcome.target) == ("v2", "v1")
    assert "in v2, not in the leading one; foretold was consensus" in outcome_sentence(found)
    assert found.stability is not None
    assert found.stability[0] == pytest.approx(2 / 1.5, abs=1e-6)  # v1 grows there
    assert "it is not stable" in printed(found)


def test_markup_in_a_name_is_only_text() -> None:
    from dataclasses import replace

    found = simulate_matrices(np.diag([1.0, 0.5]), n_tokens=3, steps=5)
    evil = replace(found, model={**found.model, "source": "[red]x$y$\x1b[2J"})
    assert "[red]x$y$" in printed(evil)
    assert "\x1b" not in printed(evil)
    assert simulation_figure(evil, Path("a.png")).startswith(b"\x89PNG")


def test_choices_are_those_of_the_library() -> None:
    from eigenlens.cli.simulate import FormName, NormName
    from eigenlens.dynamics.simulate import FORMS
    from eigenlens.live.replay import NORMS

    assert tuple(NormName) == NORMS
    assert tuple(FormName) == ("auto", *FORMS)
