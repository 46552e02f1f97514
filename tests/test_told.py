"""What is about one layer is told in a few short lines, without its arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import eigenlens
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.shown import short

TEXTS = ["The function returns a list.", "A class is a template for objects."] * 2


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    tiny, other = "sample:albert-tiny", "sample:albert-tiny-rotating"
    traced = eigenlens.trace(tiny, texts=TEXTS, nulls=False)
    return {
        "spectrum": eigenlens.spectrum(tiny, per_head=True).layers[0],
        "trace": traced.layers[3],
        "compare": eigenlens.compare(tiny, other).layers[0],
        "circuit": next(iter(open_checkpoint("sample:llama-tiny").circuits())),
    }


def lines(part: Any) -> Iterator[tuple[str, str]]:
    _, *facts = str(part).splitlines()
    for line in facts:
        what, _, value = line.partition("  ")
        yield what, value.strip()


@pytest.mark.parametrize("name", ["spectrum", "trace", "compare", "circuit"])
def test_a_part_is_one_line_and_prints_as_a_line_a_fact(parts: dict[str, Any], name: str) -> None:
    part = parts[name]
    assert repr(part).startswith(f"<eigenlens {type(part).__name__} ")
    assert "\n" not in repr(part)
    assert len(repr(part)) <= 120
    assert repr([part]) == f"[{part!r}]"
    text = str(part)
    assert text.splitlines()[0] == f"{type(part).__name__} {part.name}"
    assert 6 <= len(text.splitlines()) <= 20
    assert max(map(len, text.splitlines())) <= 100
    for told in (text, repr(part)):
        assert "array(" not in told
        assert "None" not in told
        assert "np." not in told
        assert not re.search(r"\.0*[1-9]\d{4}", told)  # more digits than a person reads


def test_a_layer_tells_its_regime_gap_and_shapes(parts: dict[str, Any]) -> None:
    layer = parts["spectrum"]
    told = dict(lines(layer))
    assert told["shape"] == f"{layer.d} x {layer.d}, rank at most {layer.rank}"
    assert told["regime"] == f"{layer.regime} (target {layer.target})"
    assert float(told["gap"]) == pytest.approx(layer.gap, rel=1e-3)
    assert float(told["leading"]) == pytest.approx(layer.eigenvalues[0].real, rel=1e-3)
    assert float(told["largest residual"]) == pytest.approx(layer.residuals.max(), rel=1e-3)
    assert told["heads"] == str(len(layer.heads))
    assert "gap" not in dict(lines(replace(layer, gap=None)))
    assert layer.regime in repr(layer)


def test_a_traced_step_of_a_shared_layer_says_which(parts: dict[str, Any]) -> None:
    step = parts["trace"]
    assert step.name == "encoder.0, step 3"
    assert replace(step, step=0).name == "encoder.0"
    told = dict(lines(step))
    assert float(told["rho"]) == pytest.approx(step.rho, rel=1e-3)
    assert float(told["gain"]) == pytest.approx(step.gain, rel=1e-3)
    assert "p, corrected" not in told  # there is none without the nulls


def test_a_circuit_tells_its_factors(parts: dict[str, Any]) -> None:
    circuit = parts["circuit"]
    told = dict(lines(circuit))
    assert told["W_V"] == f"64 x 128, {circuit.W_V.dtype}"
    assert told["heads"] == "4 (2 for values) of 32"
    assert told["biases"] == "none"
    assert told["norms"] == "in rmsnorm"
    biased = replace(circuit, b_O=np.zeros(128), output_scale=np.full(128, 0.5), steps=3)
    assert dict(lines(biased)) | {"biases": "b_O", "output scale": "one a coordinate"} == dict(
        lines(biased)
    )
    assert dict(lines(biased))["steps"] == "3"


def test_a_name_from_a_file_cannot_reach_the_terminal(parts: dict[str, Any]) -> None:
    hostile = replace(parts["circuit"], stack="\x1b[31mred\n")
    assert "\x1b" not in repr(hostile)
    assert "\x1b" not in str(hostile)
    assert "\n" not in repr(hostile)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (1e-20, "1e-20"),
        (1 + 2j, "1+2i"),
        (1 - 0.5j, "1-0.5i"),
        (complex(3), "3"),
        ((0.25, 1 / 3), "[0.25, 0.3333]"),
        (7, "7"),
        (True, "True"),
        ("a\x1bb", "a\\x1bb"),
    ],
)
def test_values_are_short(value: object, text: str) -> None:
    assert short(value) == text
