"""Make text that comes from a model harmless before it is shown.

Tensor names, tokens and config values are written by whoever made the checkpoint. Printed as they
are they can move the cursor, recolour a terminal, reverse the reading order of a table row, or
become a formula in a spreadsheet. Rich markup is not this module's topic: the printer hands texts
over as `rich.text.Text`, which reads no markup.
"""

from __future__ import annotations

import unicodedata

# Cc control characters (ESC, newline, C1), Cf invisible format characters (bidi overrides,
# zero-width joiners, tags), Cs lone surrogates (not encodable as UTF-8), Zl and Zp the two Unicode
# line breaks.
_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# What a spreadsheet takes for the start of a formula, with the full-width forms that some of them
# fold.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def inert(text: str) -> str:
    r"""`text` with every character that acts instead of being seen written as a visible escape.

    Control characters (so ANSI escapes and newlines), bidirectional overrides and other invisible
    format characters, line separators and lone surrogates become ``\n``, ``\x1b``, ``\u202e`` and
    so on. Everything else, spaces and backslashes included, stays, so the result is one line of
    encodable text; it is meant for display and is not reversible.

    Examples
    --------
    >>> inert("ok\x1b[31mred\n")
    'ok\\x1b[31mred\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _ACTIVE else c for c in text)


def inert_cell(text: str) -> str:
    """`inert` for a CSV cell: a text that would run as a formula gets a leading quote.

    Examples
    --------
    >>> inert_cell("=1+1")
    "'=1+1"
    """
    return ("'" if text.startswith(_FORMULA) else "") + inert(text)
