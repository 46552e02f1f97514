"""The one error hierarchy: what was wrong, what was found, what is allowed, what to do.

Everything that eigenlens raises on purpose derives from `EigenlensError`; the command line turns it
into one line on stderr and exit code 1, or 2 for wrong usage, an `OptionError`. Messages are one
sentence or two, name the file, tensor or option they speak of, and end with the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EigenlensError(Exception):
    """Base of every error that eigenlens raises on purpose."""


class SourceError(EigenlensError):
    """A model source cannot be found, fetched or understood (folder, file, hub id, sample)."""


class FormatError(EigenlensError):
    """A weight, index or config file is damaged, unsafe or of a kind that is not read."""


class ArchitectureError(EigenlensError):
    """The model type is unknown, or its tensors are not where the architecture says they are."""


class ShapeError(EigenlensError):
    """A tensor's shape contradicts the config, or two factors do not fit each other."""


class NumericsError(EigenlensError):
    """Weights are not finite, or a solver missed its tolerance even after every fallback."""


class OptionError(EigenlensError):
    """An option has a value that this model or command does not allow."""


class UnreachableError(OptionError):
    """No value of an option gives what was asked for, whatever it is set to."""


class MissingDependencyError(EigenlensError):
    """An optional dependency is not installed; the message gives the pip command."""


def nearest(word: str, known: Iterable[str], n: int = 3) -> str:
    """``" (nearest: 'a', 'b')"`` for the known words most like `word`, or an empty string."""
    found = difflib.get_close_matches(word, list(known), n=n, cutoff=0.4)
    return f" (nearest: {', '.join(repr(f) for f in found)})" if found else ""
