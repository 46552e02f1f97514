"""The example scripts run on bundled samples and say what they promise to say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = ("first_look", "is_my_encoder_oversmoothing", "steer_and_check")


def run(name: str, *args: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](list(args))


def test_there_are_no_others() -> None:
    assert {p.stem for p in EXAMPLES.glob("*.py")} == {*SCRIPTS, "train_samples"}
    for name in SCRIPTS:
        text = (EXAMPLES / f"{name}.py").read_text()
        assert f"python examples/{name}.py" in text  # how to start it stands at its top


def test_first_look(capsys: pytest.CaptureFixture[str]) -> None:
    result = run("first_look", "sample:albert-tiny-rotating")
    text = capsys.readouterr().out
    layer = result.layers[0]
    assert f"{layer.eigenvalues[0].real:+.3f}" in text
    assert f"is {layer.gap:.0%} ahead of the next" in " ".join(text.split())
    assert repr(layer.tokens["right"].positive[0][0]) in text
    assert max(map(len, text.splitlines())) < 200


def test_first_look_of_a_model_without_tokens_or_torch(capsys: pytest.CaptureFixture[str]) -> None:
    run("first_look")
    assert "The clearest lead is in decoder." in capsys.readouterr().out


def test_is_my_encoder_oversmoothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The list is sorted.\nReturn the name of the file.\nA new string.\n")
    found = run("is_my_encoder_oversmoothing", "sample:bert-tiny", "--prompts", str(prompts))
    text = capsys.readouterr().out
    assert "3 sentences" in text
    rows = re.findall(r"^ +(\d) +(0\.\d+) +(0\.\d+) +\d+\.\d+$", text, re.MULTILINE)
    assert [int(r[0]) for r in rows] == [0, 1, 2, 3]
    assert float(rows[-1][2]) == pytest.approx(found["end"], abs=6e-4)
    assert f"Oversmoothing? {found['verdict']}" in text
    assert f"ends in '{found['deep']}'" in text


def test_steer_and_check(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("steer_and_check")
    text = capsys.readouterr().out
    assert "Seen from outside: 1 layer moved" in text
    top = found.ranking[0]
    assert top.layer == 3
    assert 1 <= top.difference.effective_rank < 1.2
    before, after = map(float, re.findall(r"probability of the token +(\S+) -> (\S+)", text)[0])
    assert after > 20 * before
