"""What reproducing the claims returns, and its JSON and flat forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eigenlens.claims.verdicts import VERDICTS, Finding
from eigenlens.shown import Shown


@dataclass(frozen=True)
class Row:
    """One claim on one model."""

    claim: str
    statement: str
    choice: str
    model: str
    finding: Finding

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        f = self.finding
        return {
            "claim": self.claim,
            "statement": self.statement,
            "choice": self.choice,
            "model": self.model,
            "verdict": f.verdict,
            "measured": f.measured,
            "value": f.value,
            "interval": None if f.interval is None else list(f.interval),
            "details": dict(f.details),
        }


@dataclass(frozen=True, repr=False)
class Reproduction(Shown, shown_as="reproduce"):
    """The claims of a suite, each with what was measured.

    Attributes
    ----------
    options
        The suite and how much was measured.
    rows_
        In the order of the claims, then of the models.
    warnings
        Sentences a reader should see.
    """

    SCHEMA = "eigenlens.reproduce/1"

    options: dict[str, Any]
    rows_: tuple[Row, ...]
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line; `print` gives the table."""
        told = ", ".join(f"{n} {verdict}" for verdict, n in self.counts.items() if n)
        return f"<eigenlens Reproduction: {told}>"

    @property
    def counts(self) -> dict[str, int]:
        """How many rows have each verdict."""
        return {v: sum(r.finding.verdict == v for r in self.rows_) for v in VERDICTS}

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.reproduce/1``."""
        return {
            **self._head(model=None),
            "counts": self.counts,
            "claims": [row.to_dict() for row in self.rows_],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a claim and model."""
        out = []
        for row in self.rows_:
            whole = row.to_dict()
            low, high = whole.pop("interval") or (None, None)
            whole.pop("details")
            out.append(whole | {"low": low, "high": high})
        return out
