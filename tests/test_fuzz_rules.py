"""A file of rules that says anything describes an architecture or is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eigenlens.circuit.rows import Architecture
from eigenlens.circuit.rules import read_rules
from eigenlens.errors import EigenlensError

GOOD = """
[[stack]]
name = "decoder"
value = "layers.{layer}.attn.v"
output = "layers.{layer}.attn.o"
norm_before = "layers.{layer}.norm1"
norm_kind = "rmsnorm"
value_bias = false
output_bias = { key = "use_bias", default = false, yes = true, no = false }

[keys]
n_heads = ["num_q_heads"]
"""
LINES = GOOD.strip().splitlines()
VALUES = [
    "1",
    "-1",
    "1e400",
    "nan",
    "true",
    '""',
    '"x"',
    '"{layer}"',
    '"{layer}{evil}"',
    '"{0.__class__}"',
    "[]",
    "[[]]",
    "{}",
    "{ key = 1 }",
    '{ key = "a", default = false, yes = true }',
    '"../../x{layer}"',
    '"layers.{layer}.attn.v" # more',
    "1979-05-27",
    '"""',
    "'''",
    "\\u0000",
    '"\\u0000{layer}"',
    '"' + "a" * 2000 + '{layer}"',
]


@st.composite
def broken_rules(draw: Any) -> str:
    """The good file with lines cut, doubled, exchanged, or given another key or value."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["cut", "double", "swap", "value", "key", "text"]))
        if kind == "cut" and len(lines) > 1:
            lines.pop(at)
        elif kind == "double":
            lines.insert(at, lines[at])
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == "value" and "=" in lines[at]:
            lines[at] = lines[at].split("=")[0] + "= " + draw(st.sampled_from(VALUES))
        elif kind == "key" and "=" in lines[at]:
            key = draw(st.sampled_from(["layout", "slots", "__class__", "placement", "nonsense"]))
            lines[at] = f"{key} = " + draw(st.sampled_from([lines[at].split("=", 1)[1], *VALUES]))
        else:
            lines[at] = draw(st.text(max_size=30))
    return "\n".join(lines)


def attempt(folder: Path, content: bytes) -> Architecture | None:
    path = folder / "rules.toml"
    path.write_bytes(content)
    try:
        return read_rules(path)
    except EigenlensError as error:
        text = str(error)
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    return None


def test_the_good_file_is_good(tmp_path: Path) -> None:
    found = attempt(tmp_path, GOOD.encode())
    assert found is not None
    assert found.stacks[0].namings[0].value == "layers.{layer}.attn.v"


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=broken_rules())
def test_broken_rules(tmp_path: Path, text: str) -> None:
    found = attempt(tmp_path, text.encode("utf-8", "surrogatepass"))
    if found is not None:  # what is accepted can be used: names hold a layer and nothing else
        for stack in found.stacks:
            for naming in stack.namings:
                assert naming.value.format(layer=3).count("3") >= 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_bytes_that_are_no_rules(tmp_path: Path, content: bytes) -> None:
    assert attempt(tmp_path, content) is None


@pytest.mark.parametrize("depth", [300, 100_000])
def test_deep_nesting(tmp_path: Path, depth: int) -> None:
    assert attempt(tmp_path, b"x = " + b"[" * depth + b"]" * depth) is None
