"""Strict JSON, files written whole or not at all, and tables that say what the result holds."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.errors import SourceError
from eigenlens.report.sentences import spectrum_sentences
from eigenlens.report.serialise import strict, to_csv, to_json
from eigenlens.writing import write_atomically


class Fake:
    def __init__(self, record: dict[str, Any], rows: list[dict[str, Any]] | None = None) -> None:
        self.record, self.flat = record, rows or []

    def to_dict(self) -> dict[str, Any]:
        return self.record

    def rows(self) -> list[dict[str, Any]]:
        return self.flat


def refuse(name: str) -> Any:
    raise AssertionError(f"JSON holds {name}")


def test_what_is_not_finite_becomes_null_and_is_named() -> None:
    record, lost = strict({"a": [1.0, math.nan], "b": {"c": np.float64(math.inf)}, "z": 1 + 2j})
    assert record == {"a": [1.0, None], "b": {"c": None}, "z": [1.0, 2.0]}
    assert lost == ["a[1]", "b.c"]
    text = to_json(Fake({"warnings": ["old"], "x": np.array([np.nan, -np.inf, 2.0])}))
    found = json.loads(text, parse_constant=refuse)
    assert found["x"] == [None, None, 2.0]
    assert found["warnings"][0] == "old"
    assert "x[0], x[1]" in found["warnings"][1]
    with pytest.raises(AssertionError, match="NaN"):
        json.loads(json.dumps(math.nan), parse_constant=refuse)


def test_a_finite_record_gets_no_warning() -> None:
    assert json.loads(to_json(Fake({"warnings": [], "x": 1.5}))) == {"warnings": [], "x": 1.5}


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"old")

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(SourceError, match=r"out\.json.*No space left"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1"])
def test_a_csv_cell_runs_no_formula(text: str) -> None:
    lines = to_csv(Fake({}, [{"name": text, "x": -1.5}])).splitlines()
    assert lines[0] == "name,x"
    assert lines[1].startswith("'")
    assert lines[1].endswith(",-1.5")


def test_sentences_agree_with_the_result() -> None:
    one = eigenlens.spectrum("sample:albert-rxn").layers[0]
    text = " ".join(spectrum_sentences(eigenlens.spectrum("sample:albert-rxn")))
    assert one.angle is not None
    assert one.steps_to_separate is not None
    assert one.steps_to_separate > one.steps
    assert f"{math.degrees(abs(one.angle)):.0f} degrees" in text
    assert f"in {math.ceil(one.steps_to_separate)} steps, more than the 12" in text
    many = eigenlens.spectrum("sample:minilm", k=4)
    text = " ".join(spectrum_sentences(many))
    counted = [int(n) for n in re.findall(r"(\d+) layers? \(", text)]
    assert sum(counted) == len(many.layers)
    led = {x.layer: x.gap for x in many.layers if x.gap is not None}
    match = re.search(r"clearest in layer (\d+) .*weakest in layer (\d+)", text)
    assert match
    assert led[int(match[1])] == max(led.values())
    assert led[int(match[2])] == min(led.values())


def test_equal_leads_have_no_extremes() -> None:
    W_V, one = np.diag([1.0, 0.5, 0.1]), {"n_heads": 1, "n_kv_heads": 1, "head_dim": 3}
    layers = [eigenlens.OVCircuit(W_V, np.eye(3), layer=i, **one) for i in range(3)]
    found = eigenlens.spectrum(layers, k=2)
    text = " ".join(spectrum_sentences(found))
    assert "equally clear in layers 0-2 (25.0 % ahead of the second in each)." in text
    assert "clearest" not in text
