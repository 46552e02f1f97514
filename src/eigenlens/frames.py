"""Flat records as a pandas frame; pandas is asked for only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eigenlens.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd


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
