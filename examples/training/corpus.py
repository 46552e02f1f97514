"""The text: docstrings of the standard library and the topics of ``pydoc``, split by module.

The library's source files are read, never run, its tests left out. A hash of the module's name
decides what is held out, so every machine makes the same split.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NOT_READ = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
HELD_OUT_ONE_IN = 11


@dataclass(frozen=True)
class Corpus:
    """Training and held-out text of this Python.

    Attributes
    ----------
    train, held_out
        The two texts; modules are separated by an empty line.
    modules
        Number of modules in each.
    found
        Characters of all docstrings and topics before `clean` and before repeats were dropped.
    sha256
        Hash of the JSON list of all ``[module, text]`` pairs, sorted.
    """

    train: str
    held_out: str
    modules: tuple[int, int]
    found: int
    sha256: str

    @property
    def characters(self) -> int:
        """Characters of the two texts."""
        return len(self.train) + len(self.held_out)


def clean(text: str) -> list[str]:
    """Paragraphs of a docstring: single spaces, no ruled lines, no empty lines."""
    paragraphs = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = [" ".join(line.split()) for line in block.splitlines()]
        lines = [line for line in lines if re.search(r"\w", line)]
        if lines:
            paragraphs.append("\n".join(lines))
    return paragraphs


def documented(root: Path) -> Iterator[tuple[str, list[str], int]]:
    """Every module below a library folder, by path: name, paragraphs, characters as found."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        parts = path.relative_to(root).with_suffix("").parts
        if NOT_READ & set(parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in a few files
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):  # files that are broken on purpose
                continue
        nodes = [node for node in ast.walk(tree) if isinstance(node, owners)]
        texts = [ast.get_docstring(node, clean=False) for node in nodes]
        if parts == ("pydoc_data", "topics"):
            values = (getattr(node, "value", None) for node in tree.body)
            table = next(value for value in values if isinstance(value, ast.Dict))
            texts += ast.literal_eval(table).values()
        paragraphs = [paragraph for text in texts if text for paragraph in clean(text)]
        name = ".".join(parts).removesuffix(".__init__")
        yield name, list(dict.fromkeys(paragraphs)), sum(len(text) for text in texts if text)


def is_held_out(module: str) -> bool:
    """Whether a module is kept out of the training."""
    return hashlib.sha256(module.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def read_corpus() -> Corpus:
    """Collect and split the text; a held-out paragraph that is also in the training is dropped."""
    rows = list(documented(Path(sysconfig.get_paths()["stdlib"])))
    texts = [(module, parts) for module, parts, _ in rows if parts]
    known = {part for module, parts in texts if not is_held_out(module) for part in parts}
    train, held_out = [], []
    for module, parts in texts:
        if not is_held_out(module):
            train.append((module, "\n".join(parts)))
        elif kept := [part for part in parts if part not in known]:
            held_out.append((module, "\n".join(kept)))
    if not train or not held_out:
        raise SystemExit("no docstrings found: does this Python keep its library as .py files?")
    listing = json.dumps(sorted(train + held_out), ensure_ascii=False)
    return Corpus(
        "\n\n".join(text for _, text in train),
        "\n\n".join(text for _, text in held_out),
        (len(train), len(held_out)),
        sum(row[2] for row in rows),
        hashlib.sha256(listing.encode()).hexdigest(),
    )
