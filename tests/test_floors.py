"""The floors of the house: a room imports only from rooms below it, and the core stays light."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import eigenlens
from eigenlens.cli.spectrum import OperatorName, OrderName, SolverName
from eigenlens.spectra.maps import OPERATORS
from eigenlens.spectra.orders import ORDERS
from eigenlens.spectra.solvers import SOLVERS

ROOT = Path(eigenlens.__file__).parent
FLOORS = ["ground", "tensors", "circuit", "spectra", "live", "report", "cli"]
HEAVY = {"torch", "transformers", "accelerate", "pandas", "pyarrow", "gguf", "huggingface_hub"}
TORCH_ROOMS = {"live"}


def floor_of(module: str) -> int:
    """Floor of `eigenlens.x.y`; files that lie at the root are the ground."""
    parts = module.split(".")
    return FLOORS.index(parts[1]) if len(parts) > 1 and parts[1] in FLOORS else 0


def imported(tree: ast.AST) -> list[tuple[str, bool]]:
    """Modules that a file imports, and whether at the top (so at import time)."""
    top = {id(n) for n in ast.iter_child_nodes(tree)}
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(a.name, id(node) in top) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, id(node) in top))
    return found


def faults(module: str, source: str) -> list[str]:
    """What a file imports against the rules; `eigenlens` itself (its version) is free."""
    own = floor_of(module)
    out = []
    for name, at_top in imported(ast.parse(source)):
        root = name.split(".")[0]
        if root == "eigenlens" and name != "eigenlens" and floor_of(name) > own:
            out.append(f"{module} imports {name}, which is above it")
        if root in HEAVY and at_top:
            out.append(f"{module} imports {name} when it is loaded")
        if root in {"torch", "transformers"} and module.split(".")[1] not in TORCH_ROOMS:
            out.append(f"{module} imports {name}, which only {TORCH_ROOMS} may")
    return out


def files() -> list[tuple[str, str]]:
    """(module, source) of every file but the two faces of the package."""
    out = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if parts[-1] not in ("__init__", "__main__") or len(parts) > 2:
            out.append((".".join(parts), path.read_text()))
    return out


def test_floors_hold() -> None:
    found = files()
    assert len(found) > 40
    assert [f for module, source in found for f in faults(module, source)] == []


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("eigenlens.circuit.x", "from eigenlens.spectra.maps import Full", "above it"),
        ("eigenlens.spectra.x", "def f():\n    import torch", "only"),
        ("eigenlens.tensors.x", "import gguf", "when it is loaded"),
        ("eigenlens.errors", "def f():\n    from eigenlens.cli import main", "above it"),
    ],
)
def test_a_planted_import_is_seen(module: str, source: str, fault: str) -> None:
    assert any(fault in f for f in faults(module, source))


def test_the_command_line_offers_what_the_tables_hold() -> None:
    assert [o.value for o in OrderName] == ["auto", *ORDERS]
    assert [o.value for o in OperatorName] == list(OPERATORS)
    assert [o.value for o in SolverName] == ["auto", *SOLVERS]


def test_public_definitions_have_docstrings() -> None:
    missing = [
        f"{module}.{node.name}"
        for module, source in files()
        for node in ast.parse(source).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    assert missing == []
