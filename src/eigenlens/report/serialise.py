"""Results as strict JSON, CSV or parquet, written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from eigenlens.errors import MissingDependencyError, OptionError, SourceError
from eigenlens.inert import inert, inert_cell

if TYPE_CHECKING:
    from eigenlens.tensors.source import Source


class Result(Protocol):
    """What every command's result offers: a nested record for JSON and flat rows for tables."""

    def to_dict(self) -> dict[str, Any]:
        """The nested record."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """The flat records, all with the same keys."""
        ...


def strict(record: Any) -> tuple[Any, list[str]]:
    """A copy of `record` that is valid JSON, and the paths of the numbers that became null.

    JSON has no NaN and no infinity; numpy scalars and arrays become plain numbers and lists; texts
    are made inert, since names and tokens come from the model's author.
    """
    lost: list[str] = []

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return {
                inert(str(k)): walk(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [walk(v, f"{path}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, np.ndarray):
            return walk(value.tolist(), path)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, complex):
            return walk([value.real, value.imag], path)
        if isinstance(value, float) and not math.isfinite(value):
            lost.append(path)
            return None
        if isinstance(value, str):
            return inert(value)
        return value

    return walk(record, ""), lost


def to_json(result: Result) -> str:
    """The result as strict JSON text; numbers that became null are named in ``warnings``."""
    record, lost = strict(result.to_dict())
    if lost:
        shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        record["warnings"] = [
            *record.get("warnings", []),
            f"not a finite number, written as null: {shown} (infinite: an unbounded error bar, or "
            "a residual relative to the eigenvalue 0)",
        ]
    return json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def to_csv(result: Result) -> str:
    """The flat rows as CSV; a cell that a spreadsheet would run as a formula is quoted inert."""
    rows = result.rows()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
    for row in rows:
        writer.writerow([inert_cell(v) if isinstance(v, str) else v for v in row.values()])
    return text.getvalue()


def _parquet(result: Result) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependencyError(
            "a .parquet file needs pyarrow: pip install 'eigenlens[report]'"
        ) from None
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(result.rows()), sink)
    return sink.getvalue()


_OF_A_MODEL = re.compile(r"config|index|tokenizer|vocab|special_tokens|merges|\.bin$|\.gguf$")
FORMATS: dict[str, Callable[[Result], str]] = {"json": to_json, "csv": to_csv}
"""Text formats for stdout, besides the table."""

SUFFIXES: dict[str, Callable[[Result], bytes]] = {
    ".json": lambda r: to_json(r).encode(),
    ".csv": lambda r: to_csv(r).encode(),
    ".parquet": _parquet,
}
"""File formats of ``--out`` by suffix."""


def check_target(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse an output path before any work is done.

    Raises
    ------
    OptionError
        The suffix is not one of `suffixes`.
    SourceError
        The folder does not exist or takes no files, or the path is a folder, a device or a file
        that may not be written.
    """
    if path.suffix.lower() not in suffixes:
        raise OptionError(
            f"cannot tell the format of {inert(str(path))!r}: end it in {', '.join(suffixes)}"
        )
    if path.is_dir():
        raise SourceError(f"{inert(str(path))!r} is a folder; name a file in it")
    if not path.absolute().parent.is_dir():
        raise SourceError(
            f"cannot write {inert(str(path))!r}: there is no folder "
            f"{inert(str(path.parent))!r}; create it first"
        )
    if path.exists() and not path.is_file():
        raise SourceError(f"{inert(str(path))!r} is no ordinary file; name another one")
    place = path.resolve()
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise SourceError(f"cannot write {inert(str(path))!r}: Permission denied")


def check_apart(targets: Sequence[Path | None], source: Source | None) -> None:
    """Refuse to write over a file of the model that is read.

    Raises
    ------
    OptionError
        A target is one of the model's weight files, or its config, index or vocabulary.
    """
    if source is None or source.folder is None:
        return
    folder = source.folder.resolve()
    for target in targets:
        if target is None or not target.exists() or target.resolve().parent != folder:
            continue
        weights = {source.store.info(name).where for name in source.store.names()}
        name = target.resolve().name
        if name in weights or target.name in weights or _OF_A_MODEL.search(name):
            raise OptionError(
                f"{inert(str(target))!r} is a file of the model itself; write to another place"
            )


def file_bytes(result: Result, path: Path) -> bytes:
    """A result in the format of the path's suffix.

    Raises
    ------
    OptionError, SourceError, MissingDependencyError
        The suffix is unknown, the place not writable, or pyarrow missing.
    """
    check_target(path, list(SUFFIXES))
    return SUFFIXES[path.suffix.lower()](result)
