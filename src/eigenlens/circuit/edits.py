"""How many edits of eigenlens a model's folder says it holds."""

from __future__ import annotations

from eigenlens.errors import EigenlensError
from eigenlens.tensors.files import read_json
from eigenlens.tensors.folder import inside
from eigenlens.tensors.source import Source

RECORD = "eigenlens.json"
"""The file that lists the edits of a steered folder."""
SCHEMA = "eigenlens.steered/1"


def edit_count(source: Source | None) -> int:
    """Edits that a folder's `RECORD` lists; 0 without one, and of a file in another format.

    A record that cannot be read counts as none: whoever undoes an edit is told of the damage.
    """
    if source is None or source.folder is None or source.format != "safetensors":
        return 0
    if not (source.folder / RECORD).is_file():
        return 0
    try:
        record = read_json(inside(source.folder, RECORD), RECORD)
    except EigenlensError:
        return 0
    edits = record.get("edits")
    return len(edits) if record.get("schema") == SCHEMA and isinstance(edits, list) else 0
