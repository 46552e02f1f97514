"""The documentation keeps to what is tested: every formula names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "concepts").glob("*.md"))
FORMULA = re.compile(r"^```\n(?P<formula>.*?)^```\n(?P<after>[^\n]*)", re.M | re.S)
TESTED = re.compile(r"<!-- tested: (tests/\w+\.py)::(\w+) -->")


def faults(text: str) -> list[str]:
    """Formulas without a test, or with one that is not there."""
    found = []
    for block in FORMULA.finditer(text):
        named = TESTED.fullmatch(block["after"])
        first = block["formula"].splitlines()[0]
        if named is None:
            found.append(f"{first}: names no test")
            continue
        path = ROOT / named[1]
        tree = ast.parse(path.read_text()) if path.is_file() else ast.parse("")
        if named[2] not in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}:
            found.append(f"{first}: {named[1]} has no {named[2]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_formula_names_its_test(page: Path) -> None:
    text = page.read_text()
    assert FORMULA.search(text)
    assert faults(text) == []


def test_a_formula_without_a_test_is_seen() -> None:
    assert faults("```\nx = 1\n```\n\ntext") == ["x = 1: names no test"]
    gone = "```\nx = 1\n```\n<!-- tested: tests/test_docs.py::test_gone -->\n"
    assert faults(gone) == ["x = 1: tests/test_docs.py has no test_gone"]
    here = "<!-- tested: tests/test_docs.py::test_a_formula_without_a_test_is_seen -->"
    assert faults(f"```\nx = 1\n```\n{here}\n") == []
