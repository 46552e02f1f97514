"""Reading forward through a GGUF header, with every length held against the file.

The reader of the `gguf` package maps the file and makes an array of every token: seconds and 200 MB
for a small model. Here lists of strings stay in the file until they are asked for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from eigenlens.errors import FormatError

_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate("BbHhIif?__Qqd")) | {_STRING: "", _ARRAY: ""}
_STRING_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True)
class Strings:
    """A string array left in the file: where its first element starts, and how many there are."""

    offset: int
    count: int


class Header:
    """Reads forward through a header, each length held against what is left of the file."""

    def __init__(self, file: BinaryIO, size: int, where: str) -> None:
        self.file, self.size, self.where = file, size, where

    def bad(self, what: str) -> FormatError:
        """The error for a header that is not as it should be."""
        return FormatError(f"{self.where}: {what}; get the file again")

    def take(self, n: int) -> bytes:
        """The next `n` bytes."""
        data = self.file.read(n) if n <= self.size else b""
        if len(data) != n:
            raise self.bad("ends inside its GGUF header; it is truncated or damaged")
        return data

    def number(self, code: str) -> Any:
        """The next number, by its `struct` code."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        """The next string."""
        length = self.number("Q")
        if length > _STRING_LIMIT:
            raise self.bad(f"has a string of {length} bytes in its header; it is damaged")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self) -> Any:
        """The next value: a number, text, an array of numbers, or where a list of strings is."""
        kind = self.number("I")
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(self._code(kind))
        inner, count = self.number("I"), self.number("Q")
        if inner == _STRING:
            return self._strings(count)
        code = self._code(inner)
        raw = self.take(count * struct.calcsize(code))
        return np.frombuffer(raw, dtype=np.dtype(f"<{code}")).copy()

    def _code(self, kind: int) -> str:
        code = _SCALARS.get(kind, "_")
        if code in ("_", ""):
            raise self.bad(f"has a metadata field of the unknown type {kind}")
        return code

    def _strings(self, count: int) -> Strings:
        if count * 8 > self.size:
            raise self.bad(f"announces {count} strings, more than fit in it")
        start = self.file.tell()
        read, unpack = self.file.read, struct.Struct("<Q").unpack
        for _ in range(count):
            head = read(8)
            length = unpack(head)[0] if len(head) == 8 else self.size + 1
            if length > min(self.size, _STRING_LIMIT) or len(read(length)) != length:
                raise self.bad("ends inside a list of strings; it is truncated or damaged")
        return Strings(start, count)
