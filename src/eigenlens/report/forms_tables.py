"""What `eigenlens apply` and `eigenlens unsteer` print, and the lines on a written edit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eigenlens.circuit.edits import RECORD
from eigenlens.inert import inert
from eigenlens.report.samples import size_text
from eigenlens.report.words import count_text
from eigenlens.steering.applying import Application
from eigenlens.steering.record import UNDO
from eigenlens.steering.undo import Undone
from eigenlens.steering.written import Written

_MEANINGS = {
    "edit": "|dW|: norm of what was added",
    "arrived": "arrived: share of it that the stored type can hold (1 is all)",
    "SHA-256": "SHA-256: of the tensor's bytes",
}
"""What a row says that its name does not, by the row."""


def apply_view(result: Application) -> RenderableType:
    """Everything that `eigenlens apply` prints as a table."""
    heading = Text(inert(result.source), style="bold")
    heading.append(f"  with {inert(str(result.delta))}", style="not bold")
    return Group(heading, written_view(result.written))


def written_view(written: Written) -> RenderableType:
    """Where an edit lies now, what changed there, and how it is used or taken back."""
    edit = written.edit
    rows = {
        "edit": f"{_where(edit.stack, edit.layer, edit.site)}, |dW| {edit.dW_norm:.4g}",
        "tensor": inert(written.tensor),
    }
    if written.file is not None:
        rows["file"] = inert(written.file)
    if written.projection is not None:
        rows["arrived"] = f"{written.projection:.4f}"
    if written.sha256_after is not None and written.sha256_before is not None:
        rows["SHA-256"] = f"was {written.sha256_before[:16]}, now {written.sha256_after[:16]}"
    if written.noted:
        rows["noted"] = f"that the weights were edited: in {inert(', '.join(written.noted))}"
    rows["written"] = f"{count_text(len(written.files), 'file')}, {size_text(written.size)}"
    grid = _grid()
    for name, text in rows.items():
        grid.add_row(name, Text(text))
    legend = "; ".join(text for name, text in _MEANINGS.items() if name in rows)
    return Group(grid, Text(form_sentence(written)), Text(f"{legend}.", style="dim"))


def form_sentence(written: Written) -> str:
    """How a form is used, in plain words."""
    place, typed = (inert(p) for p in (str(written.folder), shlex.quote(str(written.folder))))
    if written.form == "lora":
        return (
            f"{place} is a LoRA adapter of rank 1; peft.PeftModel.from_pretrained(model, folder) "
            "loads it, and the base model stays as it is."
        )
    if written.form == "delta":
        return (
            f"{place} holds the edit alone; eigenlens apply {typed} MODEL --write DIR adds it to "
            "the model."
        )
    return (
        f"{place} loads like the model itself; one tensor of it differs, and eigenlens unsteer "
        f"{typed} restores its bytes."
    )


def unsteer_view(result: Undone) -> RenderableType:
    """Everything that `eigenlens unsteer` prints as a table."""
    edit = result.edit
    grid = _grid()
    grid.add_row("undone", f"{_where(edit.get('stack'), edit.get('layer'), edit.get('site'))}")
    grid.add_row("was", Text(inert(str(edit.get("label", "")))))
    grid.add_row("tensor", Text(inert(str(edit["tensor"]))))
    grid.add_row("SHA-256", f"restored to {inert(str(edit['sha256_before']))[:16]}")
    return Group(
        Text(inert(str(result.folder)), style="bold"),
        grid,
        Text(_left_sentence(result)),
        Text("SHA-256: of the tensor's bytes, as they were before the edit.", style="dim"),
    )


def _left_sentence(result: Undone) -> str:
    if result.remaining:
        verb = "are" if result.remaining > 1 else "is"
        return (
            f"{count_text(result.remaining, 'older edit')} {verb} left in the folder; the next "
            "unsteer undoes the youngest of them."
        )
    return f"No edit is left: the folder is as it was before, without {RECORD} and {UNDO}."


def _where(stack: Any, layer: Any, site: Any) -> str:
    sites: Mapping[str, str] = {"attention": "attention output", "ffn": "feed-forward output"}
    return f"{inert(str(stack))} layer {inert(str(layer))}, {sites.get(str(site), '')}"


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    return grid
