"""A note at the top of a steered folder's model card: its figures are those of the original.

The note is a fixed run of bytes that is put in, and taken out again by `unsteer`. It is put in with
the folder's first edit; the record of that edit lists the files, under ``noted``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_WORDS = (
    "Edited by eigenlens: the weights are not those that this card describes, and its figures are "
    "those of the original model; eigenlens.json lists the edits, eigenlens unsteer undoes them."
)
_LINE = f"> **{_WORDS}**\n\n".encode()
_KEY = f'\n  "edited": {json.dumps(_WORDS)},'.encode()


# Front matter may stand behind a byte order mark; each of its fences is a line of its own.
_MARK = b"\xef\xbb\xbf"
_FENCE = rb"---[ \t]*\r?\n"
_OPENED = re.compile(b"(?:%b)?%b" % (_MARK, _FENCE))
_CLOSED = re.compile(rb"^" + _FENCE, re.MULTILINE)


def _into_text(data: bytes) -> bytes | None:
    """At the top; behind the front matter of a card of the hub, which has to come first."""
    at = len(_MARK) if data.startswith(_MARK) else 0
    opened = _OPENED.match(data)
    if opened is not None:
        closed = _CLOSED.search(data, opened.end())
        if closed is None:
            return None
        at = closed.end()
    return data[:at] + _LINE + data[at:]


def _into_json(data: bytes) -> bytes | None:
    """As the first key of an object that has others; in UTF-8, as the note is."""
    try:
        found: Any = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found or "edited" in found:
        return None
    at = data.index(b"{") + 1
    return data[:at] + _KEY + data[at:]


_CARDS: Mapping[str, tuple[Callable[[bytes], bytes | None], bytes]] = {
    "README.md": (_into_text, _LINE),
    "CARD.md": (_into_text, _LINE),
    "card.json": (_into_json, _KEY),
}
"""The files that describe a model: how a note is put in, and the bytes that are put in."""


def noted(name: str, data: bytes) -> bytes | None:
    """A file with the note in it; None where it is no card, or one that takes none."""
    if name not in _CARDS or _CARDS[name][1] in data:
        return None
    return _CARDS[name][0](data)


def without(name: str, data: bytes) -> bytes:
    """The file as it was before `noted`; as it is where the note is gone."""
    return data.replace(_CARDS[name][1], b"", 1) if name in _CARDS else data


def is_card(name: str) -> bool:
    """Whether a file, by its path in the folder, is one that describes the model."""
    return name in _CARDS
