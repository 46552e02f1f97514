"""Results that show themselves: a table when printed, table and figure in a notebook.

Their parts tell their facts, a line each.

Results sit on low floors and what shows them on a high one, so it is loaded when it is first asked
for, by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from eigenlens.frames import Result
from eigenlens.inert import inert
from eigenlens.shown.names import full_name
from eigenlens.shown.words import count_text


class Told(ABC):
    """Mixin of what is about one layer: one line as its `repr`, one line a fact when printed.

    No array is in either. A dataclass needs ``repr=False`` besides.
    """

    BRIEF: ClassVar[tuple[str, ...]] = ()
    """Facts that are in the one line."""

    stack: str
    layer: int
    kind: str

    @property
    def name(self) -> str:
        """``decoder.3``, or ``decoder.cross.3`` for cross attention."""
        return full_name(self.stack, self.kind, self.layer)

    @abstractmethod
    def facts(self) -> Mapping[str, object]:
        """What is told, by what it is called; a fact that is None is left out."""

    def __repr__(self) -> str:
        """One line; `print` gives the facts."""
        known = self.facts()
        told = "; ".join(f"{x} {short(known[x])}" for x in self.BRIEF if known[x] is not None)
        return f"<eigenlens {type(self).__name__} {inert(self.name)}{': ' * bool(told)}{told}>"

    def __str__(self) -> str:
        known = {what: short(x) for what, x in self.facts().items() if x is not None}
        wide = max(map(len, known), default=0)
        lines = [f"{what:{wide}}  {x}" for what, x in known.items()]
        return "\n".join([f"{type(self).__name__} {inert(self.name)}", *lines])


def short(value: object) -> str:
    """Four digits of a number, brackets around an interval, a text as it is."""
    if isinstance(value, (bool, str)):
        return inert(str(value))
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, complex):
        return f"{value.real:.4g}{value.imag:+.4g}i" if value.imag else f"{value.real:.4g}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(short, value))}]"
    return inert(str(value))


class Shown(Result):
    """Mixin of result classes; ``class Spectrum(Shown, shown_as="spectrum")``.

    `shown_as` is the key of `eigenlens.report.notebook.VIEWS`. A dataclass needs ``repr=False``
    besides, or its own takes the place of the short one here.
    """

    shown_as: ClassVar[str] = ""

    def __init_subclass__(cls, shown_as: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.shown_as = shown_as or cls.shown_as

    def plot(self, name: str | None = None) -> Any:
        """The result as a plotly figure; in a notebook it shows itself.

        Parameters
        ----------
        name
            Which figure; None for the first that has something to show. An unknown name is
            answered with those that there are.

        Raises
        ------
        MissingDependencyError
            plotly is not installed.
        OptionError
            There is no such figure of this result.
        """
        return _notebook().plot_of(self, name)

    def _repr_html_(self) -> str:
        return str(_notebook().html_of(self))

    def __str__(self) -> str:
        return str(_notebook().text_of(self))

    def __repr__(self) -> str:
        """One line; `print` gives the table."""
        model = getattr(self, "model", {})
        layers = getattr(self, "layers", None)
        count = f", {count_text(len(layers), 'layer')}" if layers is not None else ""
        other = getattr(self, "other", None)
        beside = f" and {inert(str(other['source']))}" if other is not None else ""
        source = inert(str(model.get("source", "?")))
        return f"<eigenlens {type(self).__name__} of {source}{beside}{count}>"


def _notebook() -> Any:
    return import_module("eigenlens.report.notebook")
