"""A delta file added to a model: read, checked to fit, and written in a form that people load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenlens import __version__
from eigenlens.circuit.checkpoint import open_checkpoint
from eigenlens.steering.delta import read_delta
from eigenlens.steering.forms import Destination
from eigenlens.steering.written import Written


@dataclass(frozen=True)
class Application:
    """A delta as it was applied; the result of ``eigenlens apply``."""

    source: str
    delta: Path
    written: Written

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema ``eigenlens.apply/1``."""
        return {
            "schema": "eigenlens.apply/1",
            "eigenlens_version": __version__,
            "model": self.source,
            "options": {"delta": str(self.delta), "as": self.written.form},
            "warnings": list(self.written.warnings),
            **self.written.to_dict(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One record, without lists."""
        found = self.written.to_dict()
        plain = {k: v for k, v in found.items() if not isinstance(v, (dict, list))}
        return [{**found["edit"], **plain}]


def apply(
    delta: str | Path,
    model: Any,
    place: str | Path,
    form: str = "checkpoint",
    *,
    force: bool = False,
    link: bool = False,
    architecture: Any = None,
) -> Application:
    """Add a delta to a model and write the result.

    Parameters
    ----------
    delta
        A file that `write_delta` wrote.
    model
        What `open_checkpoint` takes.
    place
        Where to write.
    form, force, link
        See `Destination`.
    architecture
        See `open_checkpoint`.

    Raises
    ------
    EigenlensError
        The delta is damaged or does not fit the model, or it cannot be written.
    """
    checkpoint = open_checkpoint(model, architecture)
    to = Destination(place, form, force, link)
    to.check(checkpoint)
    written = to.write(checkpoint, read_delta(delta))
    return Application(checkpoint.source_label, Path(delta), written)
