"""The floors of the house: imports point downwards only, and tables and enumerations agree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import eigenlens
from eigenlens.cli.choices import Dtype, Format, OperatorName, OrderName, SolverName
from eigenlens.report.serialise import FORMATS
from eigenlens.spectra.maps import OPERATORS
from eigenlens.spectra.orders import ORDERS
from eigenlens.spectra.principal import REGIMES, TARGETS
from eigenlens.spectra.solvers import SOLVERS

PACKAGE = Path(eigenlens.__file__).parent
FLOORS = (
    ("cli",),
    ("report",),
    ("surveys", "claims", "integrations"),
    ("steering", "dynamics", "comparing"),
    ("tracing",),
    ("live",),
    ("measure",),
    ("spectra",),
    ("circuit",),
    ("tensors",),
    ("samples", "prompts", "arrays", "blas", "cache", "frames", "shown"),
    ("writing",),
    ("errors", "inert"),
)
HEIGHT = {room: -i for i, rooms in enumerate(FLOORS) for room in rooms}
NUMERIC = ("circuit", "spectra", "tensors", "measure", "prompts")
NEVER = ("torch", "transformers")
LAZY = (
    "gguf",
    "huggingface_hub",
    "scipy",
    "pandas",
    "pyarrow",
    "tokenizers",
    "plotly",
    "matplotlib",
    "dask",
    "distributed",
)
HEAVY_AT_TOP = {"cli": ("numpy", "rich", *NEVER, *LAZY), "report": (*NEVER, *LAZY)}


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Every imported module, and whether it is imported when the file is (not in a function)."""

    def walk(node: ast.AST, top: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield ("." * child.level) + (child.module or ""), top
                if child.module == "eigenlens":
                    yield from ((f"eigenlens.{alias.name}", top) for alias in child.names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                # Only type checkers follow these; the floors still hold for them.
                yield from ((n, False) for n, _ in walk(ast.Module(child.body, []), top))
            else:
                inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from walk(child, top and not inside)

    return walk(tree, True)


def faults(room: str, code: str) -> list[str]:
    """What a file with `code` in `room` does that the floors forbid."""
    found = []
    for name, top in imports(ast.parse(code)):
        base = name.split(".")[0]
        if name.startswith("."):
            found.append(f"{room} imports {name}: write imports in full")
        if base == "eigenlens" and "." in name:
            other = name.split(".")[1]
            if other in HEIGHT and HEIGHT[other] > HEIGHT[room]:
                found.append(f"{room} imports {name} from a floor above")
        if room in NUMERIC and base in NEVER:
            found.append(f"{room} imports {name}")
        if top and room in (*NUMERIC, "live") and base in LAZY:
            found.append(f"{room} imports {name} outside a function")
        if top and base in HEAVY_AT_TOP.get(room, ()):
            found.append(f"{room} imports {name} outside a function")
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str | None:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return None if first in ("__init__", "__main__") else first


@pytest.mark.parametrize("path", files(), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_downwards(path: Path) -> None:
    room = room_of(path)
    if room is None:
        top = {n.split(".")[0] for n, at_top in imports(ast.parse(path.read_text())) if at_top}
        assert top <= {"__future__", "importlib", "typing", "eigenlens"}
        return
    assert room in HEIGHT, f"{room} has no floor; give it one in FLOORS"
    # rich is what the tables are made of; only the command line loads them late.
    assert faults(room, path.read_text()) == []


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("tensors", "from eigenlens.circuit.circuit import OVCircuit"),
        ("circuit", "def f():\n    from eigenlens import spectra"),
        ("errors", "import eigenlens.samples"),
        ("report", "from eigenlens.cli import main"),
        ("circuit", "def f():\n    import torch"),
        ("spectra", "if True:\n    from transformers.models import bert"),
        ("tensors", "import gguf"),
        ("spectra", "try:\n    import scipy.linalg\nexcept ImportError:\n    pass"),
        ("cli", "import numpy as np"),
        ("circuit", "from .layouts import LAYOUTS"),
        ("circuit", "class A:\n    from huggingface_hub import hf_hub_download"),
    ],
)
def test_a_planted_import_is_found(room: str, code: str) -> None:
    assert len(faults(room, code)) == 1


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("tensors", "def f():\n    import gguf"),
        ("live", "def f():\n    import torch"),
        ("spectra", "import numpy as np\nfrom eigenlens.circuit.circuit import OVCircuit"),
        ("spectra", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas as pd"),
    ],
)
def test_what_is_allowed_is_not_found(room: str, code: str) -> None:
    assert faults(room, code) == []


def undocumented(code: str) -> list[str]:
    """Public modules, classes, functions and methods without a docstring."""
    found = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                if child.name.startswith("_"):
                    continue
                if not ast.get_docstring(child):
                    found.append(prefix + child.name)
                if isinstance(child, ast.ClassDef):
                    walk(child, f"{prefix}{child.name}.")

    tree = ast.parse(code)
    if not ast.get_docstring(tree):
        found.append("module")
    walk(tree, "")
    return found


def test_everything_public_has_a_docstring() -> None:
    missing = {p.relative_to(PACKAGE).as_posix(): undocumented(p.read_text()) for p in files()}
    assert {name: found for name, found in missing.items() if found} == {}
    assert undocumented('"""m"""\nclass A:\n    """a"""\n    def f(self): ...') == ["A.f"]


def test_choices_of_the_command_line_are_the_tables() -> None:
    assert set(OrderName) == {"auto", *ORDERS}
    assert set(OperatorName) == set(OPERATORS)
    assert set(SolverName) == {"auto", *SOLVERS}
    from eigenlens.arrays import COMPUTE_DTYPES

    assert set(Dtype) == set(COMPUTE_DTYPES)
    assert set(Format) == {"table", *FORMATS}


def test_regimes_and_targets_cover_what_is_returned() -> None:
    code = (PACKAGE / "spectra" / "principal.py").read_text()
    words = {
        node.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch("[a-z]+_(dominant|degenerate|consensus)|flip", node.value)
    }
    assert words == set(REGIMES)
    assert set(TARGETS) == {"v1", "plane", "span", "kernel"}
    from eigenlens.report.tables import _STYLES

    assert set(_STYLES) == set(REGIMES)


def test_public_names_exist() -> None:
    for name in eigenlens.__all__:
        assert getattr(eigenlens, name) is not None
