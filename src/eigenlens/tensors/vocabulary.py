"""What a token id reads as: vocabulary files, and the two alphabets that hide spaces and bytes.

Texts are given as the model has them; whoever shows them makes them inert first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.tensors.files import JSON_LIMIT, file_size, read_bytes, read_json, shown

_METASPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ID_LIMIT = 1 << 24


@cache
def _byte_alphabet() -> dict[str, int]:
    """Character to byte, for the byte-level alphabet of GPT-2.

    The bytes that print in Latin-1 stand for themselves; the others, in order, for U+0100 onwards.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


def byte_level_text(token: str) -> str:
    """A token of the byte-level alphabet as text; bytes that are no character read ``<0xE2>``.

    A token with a character outside the alphabet (an added token) is returned as it is.
    """
    alphabet = _byte_alphabet()
    if any(character not in alphabet for character in token):
        return token
    return _decoded(bytes(alphabet[character] for character in token))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        lost = "".join(f"<0x{byte:02X}>" for byte in raw[error.start : error.end])
        return raw[: error.start].decode("utf-8") + lost + _decoded(raw[error.end :])


def metaspace_text(token: str) -> str:
    """A SentencePiece token as text: metaspace as space, an ASCII byte token as its character."""
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        value = int(byte[1], 16)
        return chr(value) if value < 0x80 else token
    return token.replace(_METASPACE, " ")


def _listed(
    pairs: Iterable[tuple[Any, Any]], decode: Callable[[str], str], raw: frozenset[int], where: str
) -> list[str]:
    """(token, id) pairs as a list; ids without a token get a visible placeholder."""
    found: dict[int, str] = {}
    for token, ident in pairs:
        if not isinstance(token, str) or type(ident) is not int or not 0 <= ident < _ID_LIMIT:
            raise FormatError(
                f"{where}: the entry {inert(repr(token))[:60]} has the id "
                f"{inert(repr(ident))[:30]}; ids are whole numbers below {_ID_LIMIT}, get the "
                "file again"
            )
        found[ident] = token if ident in raw else decode(token)
    size = max(found, default=-1) + 1
    return [found.get(ident, f"<no token {ident}>") for ident in range(size)]


def _decoder_kinds(value: Any) -> set[str]:
    """Every ``type`` in a decoder's description (a Sequence holds several)."""
    if isinstance(value, list):
        return {kind for item in value for kind in _decoder_kinds(item)}
    if not isinstance(value, dict):
        return set()
    inner = _decoder_kinds(value.get("decoders"))
    if value.get("type") == "Replace" and value.get("pattern") == {"String": _METASPACE}:
        return inner | {"Metaspace"}
    return inner | {str(value.get("type"))}


def read_tokenizer_json(path: Path) -> list[str]:
    """Token texts of a tokenizer.json, added tokens included as they are written.

    Byte-level and metaspace vocabularies are decoded to text; WordPiece keeps its ``##``.
    """
    from tokenizers import Tokenizer

    if file_size(path) > JSON_LIMIT:
        raise FormatError(
            f"{shown(path)}: has more than {JSON_LIMIT} bytes, too many for a tokenizer.json"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every kind of damage
        raise FormatError(
            f"{shown(path)}: is not a tokenizer.json that can be read ({inert(str(error))[:100]})"
        ) from error
    kinds: set[str] = set()
    for part in (tokenizer.decoder, tokenizer.pre_tokenizer):
        if part is not None:
            kinds |= _decoder_kinds(json.loads(part.__getstate__()))
    decode: Callable[[str], str] = str
    if "ByteLevel" in kinds:
        decode = byte_level_text
    elif "Metaspace" in kinds:
        decode = metaspace_text
    added = frozenset(tokenizer.get_added_tokens_decoder())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return _listed(vocabulary.items(), decode, added, shown(path))


def read_vocab_json(path: Path) -> list[str]:
    """Token texts of a vocab.json (token to id); its alphabet is told from its space marker."""
    vocabulary = read_json(path, "vocab.json")
    decode: Callable[[str], str] = str
    if any(token.startswith("\u0120") for token in vocabulary):
        decode = byte_level_text
    elif any(token.startswith(_METASPACE) for token in vocabulary):
        decode = metaspace_text
    return _listed(vocabulary.items(), decode, frozenset(), shown(path))


def read_vocab_txt(path: Path) -> list[str]:
    """Token texts of a vocab.txt: line number is id."""
    size = file_size(path)
    if size > JSON_LIMIT:
        raise FormatError(
            f"{shown(path)}: has more than {JSON_LIMIT} bytes, too many for a vocab.txt"
        )
    try:
        text = read_bytes(path, 0, size, "vocab.txt").tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{shown(path)}: is not UTF-8 text (byte {error.start})") from error
    # Only the newline ends a line: a vocabulary may hold U+2028 and other line breaks as tokens.
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


VOCABULARY_FILES: dict[str, Callable[[Path], list[str]]] = {
    "tokenizer.json": read_tokenizer_json,
    "vocab.json": read_vocab_json,
    "vocab.txt": read_vocab_txt,
}
