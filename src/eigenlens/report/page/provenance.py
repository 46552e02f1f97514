"""Where a page comes from: model, files and their hashes, options, versions, seed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.errors import EigenlensError

MOST_BYTES = 4_000_000_000
"""Files beyond this total are listed without a hash: reading them would take minutes."""

PACKAGES = ("numpy", "scipy", "torch", "transformers", "plotly")


def files_of(checkpoint: Checkpoint | None) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of the weight files and the config; None for a hash not taken."""
    source = None if checkpoint is None else checkpoint.source
    if source is None or source.folder is None:
        return []
    try:
        names = {source.store.info(name).where for name in source.store.names()}
    except EigenlensError:
        names = set()
    if source.format != "gguf":
        names.add("config.json")
    paths = [source.folder / Path(name).name for name in sorted(names)]
    paths = [path for path in paths if path.is_file()]
    total = sum(path.stat().st_size for path in paths)
    return [
        {
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": _hash(path) if total <= MOST_BYTES else None,
        }
        for path in paths
    ]


def _hash(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def versions() -> dict[str, str]:
    """Versions of Python, eigenlens and what computes for it; absent packages are left out."""
    from eigenlens import __version__

    found = {"eigenlens": __version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def today() -> str:
    """The date in UTC."""
    return datetime.now(UTC).date().isoformat()
