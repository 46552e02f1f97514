"""Numbers and sentences as people read them, and the key tree of the JSON."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import eigenlens
from eigenlens.cli.app import app
from eigenlens.report.sentences import spectrum_sentences
from eigenlens.report.serialise import strict, to_csv
from eigenlens.report.tables import WIDTH, spectrum_view
from eigenlens.report.words import (
    complex_text,
    count_text,
    layer_list,
    percent,
    size_of,
    steps_text,
)

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.2381, "+1.238"),
        (-0.1334 + 2.169j, "-0.133±2.169i"),
        (-0.1334 - 2.169j, "-0.133±2.169i"),
        (-0.0001 + 2j, "+0.000±2.000i"),
        (0, "+0.000"),
        (-1.243e-5, "-1.24e-05"),
        (0.0113 + 0.0004j, "+0.0113±0.0004i"),
        (0.5 + 1e-9j, "+0.500±0.000i"),
        (123456.0 - 1j, "+1.23e+05±1.00e+00i"),
    ],
)
def test_eigenvalues(value: complex, text: str) -> None:
    assert complex_text(complex(value)) == text


def test_other_numbers() -> None:
    assert [percent(x) for x in (None, 0.1404, 12.3)] == ["-", "14.0 %", "1230 %"]
    steps = [steps_text(x) for x in (None, math.inf, 1.0, 15.2, 9998.5, 3.2e11, 4e120)]
    assert steps == ["-", "> 1e6", "1", "16", "9999", "> 1e6", "> 1e6"]
    sizes = (9999.5, 2e4, 22273.2, 149000.0, 263286.0, 950001.0, 1e6)
    assert [steps_text(x) for x in sizes] == ["1e4", "2e4", "3e4", "2e5", "3e5", "1e6", "1e6"]
    assert [size_of(x) for x in (0.0, 5.0588, 0.0301, 1.2e-5, 1e-8, 1e5)] == [
        "0.00",
        "5.06",
        "0.0301",
        "1.20e-05",
        "1.00e-08",
        "1.00e+05",
    ]
    assert layer_list([0, 2, 3, 4, 7]) == "0, 2-4, 7"
    assert layer_list(list(range(0, 20, 2))) == "0, 2, 4, 6, 8, 10 and 4 more"
    assert layer_list([0, 2, 4, 6, 8, 10, 12, 14, 15, 16]) == "0, 2, 4, 6, 8, 10 and 4 more"
    assert [count_text(n, "prompt") for n in (0, 1, 2)] == ["0 prompts", "1 prompt", "2 prompts"]


def spectra() -> tuple[eigenlens.Spectrum, list[Any]]:
    draw = np.random.default_rng(3)
    circuits = [
        eigenlens.OVCircuit(
            draw.normal(0, 0.2, (4, 4)),
            draw.normal(0, 0.2, (4, 4)),
            n_heads=1,
            n_kv_heads=1,
            head_dim=4,
            stack=stack,
            layer=layer,
            kind=kind,
            placement="post",
        )
        for stack, kind in (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))
        for layer in range(2)
    ]
    return eigenlens.spectrum(circuits), circuits


def test_stacks_and_cross_attention_are_told_apart() -> None:
    result, circuits = spectra()
    text = spectrum_sentences(result)
    names = {t.split(":")[0] for t in text}
    assert names == {
        "encoder",
        "decoder",
        "decoder.cross",
        "Cross attention reads the states of another stack",
    }
    shown = io.StringIO()
    Console(width=WIDTH, file=shown).print(spectrum_view(result))
    lines = [" ".join(x.split()) for x in shown.getvalue().splitlines()]
    rows = [x.split()[0] for x in lines if re.match(r"(en|de)coder\.(cross\.)?\d [+-]", x)]
    assert rows == [
        *("encoder.0", "encoder.1", "decoder.0", "decoder.1"),
        *("decoder.cross.0", "decoder.cross.1"),
    ]
    assert " in layer " not in " ".join(text)  # of which stack?
    assert max(map(len, shown.getvalue().splitlines())) <= WIDTH
    rows = {line.split(",")[2:5:2][0] for line in to_csv(result).splitlines()[1:]}
    assert rows == {"encoder", "decoder"}
    assert len(circuits) == len(result.layers)


def test_one_stack_needs_no_name() -> None:
    result = eigenlens.spectrum("sample:bert-tiny", k=2)
    assert not any(":" in t.split(" ")[0] for t in spectrum_sentences(result))
    none = replace(result, layers=())
    assert spectrum_sentences(none) == ["No layer has an attention matrix with a spectrum here."]
    assert to_csv(none) == ""


def test_a_table_says_how_many_eigenvalues_it_does_not_show() -> None:
    def told(**asked: Any) -> str:
        shown = io.StringIO()
        result = eigenlens.spectrum("sample:gpt2-tiny", **asked)
        Console(width=WIDTH, file=shown).print(spectrum_view(result))
        return " ".join(shown.getvalue().split())

    result = eigenlens.spectrum("sample:gpt2-tiny", k=8)
    sizes = [x.eigenvalues.size for x in result.layers]
    assert f"of the {min(sizes)} to {max(sizes)} eigenvalues that were computed" in told(k=8)
    assert len(to_csv(result).splitlines()) == 1 + sum(sizes), "where they are said to be"
    assert "of the 128 eigenvalues that were computed: --format json" in told(k=128, layers=[0])
    assert "eigenvalues that were computed" not in told(k=1)


def test_texts_are_inert_and_scalars_plain_in_json() -> None:
    record, lost = strict(
        {
            "\x1b[31m": "a\u202eb\n",
            "n": (np.int64(3), np.float32(0.5), np.bool_(True)),
            "z": np.array([1j]),
        }
    )
    assert record == {"\\x1b[31m": "a\\u202eb\\n", "n": [3, 0.5, True], "z": [[0.0, 1.0]]}
    assert lost == []
    assert strict({"z": complex(math.nan, 1)}) == ({"z": [None, 1.0]}, ["z[0]"])


def key_tree(value: Any) -> Any:
    """The nested keys of a record; of a list, those of its first entry."""
    if isinstance(value, dict):
        return {k: key_tree(v) for k, v in value.items()}
    if isinstance(value, list):
        return [key_tree(value[0])] if value else []
    return type(value).__name__


def test_the_key_tree_of_the_json_is_the_golden_one() -> None:
    """Keys may be added, and then the file with them; they may not go, nor change their type."""
    args = ["spectrum", "sample:albert-tiny-rotating", "--per-head", "--decode", "2", "--all"]
    found = json.loads(CliRunner().invoke(app, [*args, "--format", "json"]).stdout)
    assert key_tree(found) == json.loads((GOLDEN / "spectrum_keys.json").read_text())


@pytest.mark.parametrize("sample", ["minilm", "albert-rxn"])
def test_the_table_of_a_sample_is_the_golden_one(sample: str) -> None:
    found = CliRunner().invoke(app, ["spectrum", f"sample:{sample}"]).stdout
    assert masked(found) == (GOLDEN / f"{sample}.txt").read_text().splitlines()


def masked(text: str) -> list[str]:
    """Lines with the spaces joined, and the error bars, which depend on the machine, left out."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip(" ─")]
    return [
        " ".join("ERROR" if word[1:3] == "e-" else word for word in line.split()) for line in lines
    ]
