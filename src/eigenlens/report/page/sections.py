"""The sections of the page: what each answers, its figures, and what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eigenlens.errors import OptionError, nearest
from eigenlens.inert import inert
from eigenlens.report.panels.table import FIGURES


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes
    ----------
    name
        What `--sections` calls it.
    title, lead
        Heading, and the sentence below it.
    figures
        Names of `FIGURES`, in order.
    live
        It needs the running model, so torch and transformers.
    """

    name: str
    title: str
    lead: str
    figures: tuple[str, ...]
    live: bool

    @property
    def needs(self) -> str:
        """The result that its figures are drawn from."""
        return FIGURES[self.figures[0]].needs


_ROWS = (
    Section(
        "spectrum",
        "Which direction leads each layer",
        "Read from the weights alone: the eigenvalues of F = W_O W_V, what attention writes when "
        "all tokens are alike.",
        ("regimes", "eigenvalues", "depth"),
        False,
    ),
    Section(
        "heads",
        "What each head adds",
        "F is the sum of its heads' matrices, so every head has a share of the leading eigenvalue.",
        ("heads",),
        False,
    ),
    Section(
        "tokens",
        "The leading directions in words",
        "The leading vectors of every layer, read through the model's own vocabulary.",
        ("tokens",),
        False,
    ),
    Section(
        "alignment",
        "Do real tokens tilt towards the leading direction?",
        "Real prompts run through the model; at each layer, alignment before and after attention.",
        ("alignment",),
        True,
    ),
    Section(
        "collapse",
        "Do tokens become alike?",
        "The same prompts: how similar the tokens of a prompt are at each depth.",
        ("collapse",),
        True,
    ),
    Section(
        "sphere",
        "Tokens on the sphere",
        "A few prompts on their way through the model; move the slider to follow them.",
        ("sphere",),
        True,
    ),
    Section(
        "simulate",
        "Where the deep stack would end",
        "The layers iterated far beyond the model's depth, beside what the eigenvalues foretell.",
        ("trajectory",),
        True,
    ),
)

SECTIONS: dict[str, Section] = {section.name: section for section in _ROWS}
"""Sections by name; a summary before and the provenance behind them are always there."""


def choose(names: Sequence[str] | None) -> tuple[Section, ...]:
    """Sections by name, in the order of the page; None for all.

    Raises
    ------
    OptionError
        A name is unknown, or there is none.
    """
    if names is None:
        return _ROWS
    for name in names:
        if name not in SECTIONS:
            raise OptionError(
                f"section '{inert(name)}' is unknown{nearest(name, SECTIONS)}; use some of "
                f"{','.join(SECTIONS)}"
            )
    if not names:
        raise OptionError(f"no section is chosen; use some of {','.join(SECTIONS)}")
    return tuple(section for section in _ROWS if section.name in names)
