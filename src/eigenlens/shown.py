"""Results that show themselves: a table when printed, table and figure in a notebook.

Results sit on low floors and what shows them on a high one, so it is loaded when it is first asked
for, by name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from eigenlens.inert import inert


class Shown:
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
        count = f", {len(layers)} layer{'s' * (len(layers) != 1)}" if layers is not None else ""
        other = getattr(self, "other", None)
        beside = f" and {inert(str(other['source']))}" if other is not None else ""
        source = inert(str(model.get("source", "?")))
        return f"<eigenlens {type(self).__name__} of {source}{beside}{count}>"


def _notebook() -> Any:
    return import_module("eigenlens.report.notebook")
