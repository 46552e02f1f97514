"""What must not travel with a page: folders of this machine, user names, access tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_ABSOLUTE = re.compile(
    r"(?<![\w.:/<])(?:[A-Za-z]:[\\/]|~?[\\/]|\.\.?[\\/])(?:[^\s'\"\\/:;,]+[\\/])+"
)
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{8,}\b")


class Veil:
    """Shortens paths to their last part and takes out tokens.

    Parameters
    ----------
    paths
        Paths that are known to occur: the model's, those of options. Each is replaced as a whole,
        whatever characters it holds.
    """

    def __init__(self, paths: Iterable[str | Path] = ()) -> None:
        known: dict[str, str] = {}
        for path in paths:
            for form in {str(path), str(Path(path).expanduser().absolute())}:
                name = Path(form).name
                if name and name != form:
                    known[form] = name
        home = str(Path.home())
        if home not in ("/", ""):
            known.setdefault(home + os.sep, "")
        self._known = sorted(known.items(), key=lambda item: -len(item[0]))

    def text(self, text: str) -> str:
        """`text` with paths shortened and tokens taken out."""
        for long, short in self._known:
            text = text.replace(long, short)
        return _TOKEN.sub("[token]", _ABSOLUTE.sub("", text))

    def record(self, value: Any) -> Any:
        """A copy of nested data with every text shortened."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Path):
            return value.name
        if isinstance(value, Mapping):
            return {key: self.record(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.record(item) for item in value]
        return value
