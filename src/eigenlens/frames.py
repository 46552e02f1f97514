"""What every result shares: the head of its JSON form, and its records as a pandas frame.

pandas is asked for only here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from eigenlens.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd


class Result(ABC):
    """What a command returns; ``class Spectrum(Result)`` with `SCHEMA`, `options` and `warnings`.

    Attributes
    ----------
    SCHEMA
        Name of the JSON form, ``eigenlens.spectrum/1``.
    options, warnings
        What was asked; sentences a reader should see.
    """

    SCHEMA: ClassVar[str]
    options: dict[str, Any]
    warnings: tuple[str, ...]

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Flat records: what the data frame, CSV and parquet hold."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""

    def _head(self, **models: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the JSON form begins with: schema, version, `models`, options and warnings.

        Parameters
        ----------
        models
            The model by the key ``model``, None where the result is of many; and a second one.
        """
        from eigenlens import __version__

        return {
            "schema": self.SCHEMA,
            "eigenlens_version": __version__,
            **{key: None if model is None else dict(model) for key, model in models.items()},
            "options": dict(self.options),
            "warnings": list(self.warnings),
        }

    def to_frame(self) -> pd.DataFrame:
        """A tidy pandas frame, one row a record of `rows`.

        Raises
        ------
        MissingDependencyError
            pandas is not installed.
        """
        return frame(self.rows())


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a record, one column a key.

    Raises
    ------
    MissingDependencyError
        pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingDependencyError(
            "a data frame needs pandas: pip install 'eigenlens[report]'"
        ) from None
    return pd.DataFrame(list(rows))
