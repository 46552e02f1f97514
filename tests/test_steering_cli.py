"""`eigenlens steer`: the interface, what is printed, what is written, one line for what fails."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens.cli.app import app
from eigenlens.cli.choices import WriteForm
from eigenlens.cli.steer import ProbeName, SiteName, StepsName
from eigenlens.steering.edit import SITES, STEPS
from eigenlens.steering.measures import PLACES
from eigenlens.steering.probes import PROBES
from eigenlens.steering.result import FORM_NAMES

GPT2 = "sample:gpt2-tiny"
RETURN = ("--token", " return")


def invoke(*args: str | Path, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["steer", *(str(a) for a in args)])
    assert result.exit_code == code, (result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def refused(*args: str | Path, code: int = 2) -> str:
    """The one line on stderr of a run with an option that has to change, or one that failed (1)."""
    lines: list[str] = invoke(*args, code=code).stderr.strip().splitlines()
    errors = [line for line in lines if "warning:" not in line]
    assert len(errors) == 1, lines
    assert errors[0].startswith("eigenlens: ")
    assert "not foreseen" not in errors[0]
    return errors[0]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options that make a run quick: four short texts to judge on."""
    path = tmp_path_factory.mktemp("texts") / "held-out.txt"
    lines = ["Return the name of the first open file.", "If x is greater than zero, go on."]
    path.write_text("\n".join([*lines, "The list of all names in the file.", "Raise an error."]))
    return ("--evaluate", str(path))


@pytest.fixture(scope="module")
def swept(short: tuple[str, ...]) -> dict[str, Any]:
    """A sweep as JSON."""
    text = invoke(GPT2, *RETURN, "--sweep", "--format", "json", *short).stdout
    found: dict[str, Any] = json.loads(text)
    return found


def test_choices_are_the_tables() -> None:
    assert set(SiteName) == set(SITES)
    assert set(StepsName) == set(STEPS)
    assert set(ProbeName) == set(PROBES)
    assert set(WriteForm) == set(FORM_NAMES)


def test_json_has_the_fields_of_the_interface(swept: dict[str, Any]) -> None:
    assert swept["schema"] == "eigenlens.steer/1"
    assert set(swept) >= {"eigenlens_version", "model", "options", "warnings", "direction"}
    assert set(swept["edit"]) >= {
        *("layer", "site", "probe", "strength", "dW_norm", "alpha_qu", "realised_ratio"),
    }
    for side in ("before", "after"):
        assert set(swept["spectrum"][side]) >= {"eigenvalue", "gap", "cos_direction"}
    assert set(swept["tokens"]) == set(PLACES)
    for place in swept["tokens"].values():
        assert set(place) >= {"mean_cosine", "min_cosine", "positive_fraction", "first"}
        assert set(place["first"]) >= {"mean_cosine", "min_cosine", "positive_fraction"}
        assert -1 <= place["min_cosine"] <= place["mean_cosine"] <= 1
    effect = swept["effect"]
    assert effect["kl_unedited"] <= 1e-6
    assert effect["kl"] <= swept["options"]["max_kl"] == 0.5
    assert effect["target_probability_after"] > 20 * effect["target_probability_before"]
    assert effect["perplexity_after"] > effect["perplexity_before"] > 1
    assert swept["written"] is None


def test_the_curve_holds_the_chosen_strength_and_the_window(swept: dict[str, Any]) -> None:
    curve = swept["curve"]
    strengths = [point["strength"] for point in curve]
    assert strengths == sorted(strengths)
    assert swept["edit"]["strength"] in strengths
    kls = [point["kl"] for point in curve]
    assert kls == sorted(kls)
    low, high = swept["window"]["low"], swept["window"]["high"]
    assert low < high <= swept["edit"]["strength"] * (1 + 1e-12)
    inside = [p for p in curve if low <= p["strength"] <= high]
    assert all(p["kl"] <= 0.5 for p in inside)
    assert curve[-1]["tokens"]["after_sublayer"]["mean_cosine"] > 0.99
    other = swept["activation"]
    assert other["kl"] == pytest.approx(swept["effect"]["kl"], rel=0.06)
    versions = {"before", "after", "activation"}
    assert {"prompt", "distinct", *versions} == set(swept["continuations"][0])
    shares = [x for c in swept["continuations"] for x in c["distinct"].values()]
    assert len(shares) == 3 * len(swept["continuations"])
    assert all(0 < share <= 1 for share in shares)


def test_the_table_is_narrow_and_says_it_in_words(short: tuple[str, ...]) -> None:
    out = invoke(GPT2, *RETURN, "--sweep", *short).stdout
    assert max(map(len, out.splitlines())) <= 100
    text = " ".join(out.split())
    for phrase in (
        "towards token ' return'",
        "spectrum before after",
        "which is what the exact formula gives",
        "held-out tokens point towards it",
        "times as probable as before at a KL of",
        "Plain activation addition of the same KL",
        "Useful strengths are",
        "<- this edit",
        "too strong",
        "a text goes on",
    ):
        assert phrase in text, phrase


def test_csv_has_one_row_a_strength(short: tuple[str, ...]) -> None:
    text = invoke(GPT2, *RETURN, "--strength", "4", "--format", "csv", *short).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [r["method"] for r in rows] == ["unedited", "edit", "activation addition"]
    assert [float(r["kl"]) > 0 for r in rows] == [False, True, True]
    assert rows[1]["strength"] == "4.0"
    bare = invoke(GPT2, *RETURN, "--strength", "4", "--weights-only", "--format", "csv").stdout
    assert "eigenvalue_re" in bare.splitlines()[0]


def test_the_same_run_gives_the_same_output(short: tuple[str, ...]) -> None:
    asked = (GPT2, *RETURN, "--strength", "4", "--format", "json", *short)
    assert invoke(*asked).stdout == invoke(*asked).stdout


def test_weights_only_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from eigenlens.cli.app import app\n"
        "app(['steer', 'sample:gpt2-tiny', '--token', ' return', '--weights-only', '--strength',"
        " '9'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "leading eigenvalue" in done.stdout
    assert "probe eigen" in done.stdout


def test_what_applies_to_other_models(short: tuple[str, ...]) -> None:
    masked = json.loads(
        invoke("sample:bert-tiny", "--token", "name", "--format", "json", *short).stdout
    )
    assert masked["model"]["head"] == "masked"
    assert masked["effect"]["perplexity_after"] is None
    assert masked["effect"]["target_probability_after"] is not None
    assert masked["continuations"] == []
    assert masked["tokens"]["after_final_norm"] is None
    shared = json.loads(
        invoke(
            *("sample:albert-tiny", "--token", "name", "--strength", "4"),
            *("--steps-edited", "all", "--format", "json", *short),
        ).stdout
    )
    assert (shared["edit"]["steps"], shared["edit"]["calls"]) == ("all", 12)
    part = json.loads(invoke(GPT2, *RETURN, "--site", "ffn", "--format", "json", *short).stdout)
    assert part["spectrum"] is None
    assert part["edit"]["alpha_qu"] is None
    assert part["effect"]["kl"] <= 0.5


def test_bad_input_is_one_clear_line(tmp_path: Path, short: tuple[str, ...]) -> None:
    bad = tmp_path / "bad.npy"
    np.save(bad, np.ones(3))
    assert "say what to steer towards" in refused(GPT2)
    assert "give one of them" in refused(GPT2, "--token", "name of the file")
    assert "has 3 numbers, the residual stream of this model has 128" in refused(
        GPT2, "--direction", bad
    )
    assert "layers are 0 to 3" in refused(GPT2, *RETURN, "--layer", "4")
    none = tmp_path / "none.txt"
    assert "no such file" in refused(GPT2, *RETURN, "--calibrate", none, code=1)
    assert "has not seen" in refused(GPT2, *RETURN, "--calibrate", short[1], *short)
    assert "belong to --write" in refused(GPT2, *RETURN, "--as", "lora")
    assert "--link is for --as checkpoint" in refused(
        GPT2, *RETURN, "--write", tmp_path / "x", "--as", "lora", "--link"
    )
    assert "with --weights-only give a number" in refused(GPT2, *RETURN, "--weights-only")
    assert "leave one of them out" in refused(GPT2, *RETURN, "--weights-only", "--figures", "f")
    assert "cannot tell the format" in refused(GPT2, *RETURN, "--out", tmp_path / "x.txt")
    assert invoke(GPT2, *RETURN, "--strength", "much", code=2).stdout == ""
    assert invoke(GPT2, *RETURN, "--probe", "best", code=2).stdout == ""


@pytest.mark.parametrize("form", FORM_NAMES)
def test_an_edit_is_written(form: str, tmp_path: Path) -> None:
    target = tmp_path / ("edit.safetensors" if form == "delta" else "out")
    asked = (GPT2, *RETURN, "--weights-only", "--strength", "9", "--write", target, "--as", form)
    found = json.loads(invoke(*asked, "--format", "json").stdout)
    assert found["written"]["form"] == form
    assert target.exists()
    if form == "checkpoint":
        before = eigenlens.open_checkpoint(GPT2).circuits()[-1]
        after = eigenlens.open_checkpoint(target).circuits()[-1]
        spectrum = eigenlens.spectrum(target, layers=[3]).layers[0]
        assert spectrum.eigenvalues[0].real == pytest.approx(
            found["spectrum"]["after"]["eigenvalue"][0], rel=1e-2
        )
        assert not np.array_equal(before.W_O, after.W_O)
    assert "force" in refused(*asked)
    assert "Written as" in invoke(*asked, "--force").stdout


def test_names_from_a_model_are_inert(short: tuple[str, ...]) -> None:
    line = refused(GPT2, "--token", "a\x1b[31m b")
    assert "\x1b" not in line
    assert "\\x1b" in line
