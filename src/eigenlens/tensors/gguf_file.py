"""One .gguf file: its metadata as a config, its tensors dequantised one at a time.

The header is parsed here (the reader of the `gguf` package maps the file and makes an array of
every token: seconds and 200 MB for a small model); `gguf` gives the block sizes and the
dequantisation.

What differs from a transformers checkpoint, and is marked by ``"gguf": True`` in the config:
tensors have GGUF names (``blk.0.attn_v.weight``); Gemma's norm gains already contain the 1 +;
Llama's query and key rows are permuted for another RoPE layout (value and output are not); GPT-2's
matrices are (out, in).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.errors import FormatError, MissingDependencyError
from eigenlens.inert import inert
from eigenlens.tensors.dtypes import DTYPES, from_bytes
from eigenlens.tensors.files import file_size, identity, read_bytes, row_range, shown, unreadable
from eigenlens.tensors.gguf_config import gguf_config
from eigenlens.tensors.gguf_header import Header, Strings
from eigenlens.tensors.store import Array, Named, TensorInfo
from eigenlens.tensors.vocabulary import byte_level_text, metaspace_text

# GGML types that numpy holds as they are; all others go through gguf.quants.
_PLAIN = {
    "F64": "F64",
    "F32": "F32",
    "F16": "F16",
    "I8": "I8",
    "I16": "I16",
    "I32": "I32",
    "I64": "I64",
}
_PLAIN_TOKENS = (3, 4)  # token types "control" and "user-defined"


@dataclass(frozen=True)
class _Entry:
    info: TensorInfo
    kind: int
    start: int
    row_bytes: int  # of one run of the last axis


def _gguf() -> Any:
    try:
        import gguf
        import gguf.quants
    except ImportError as error:
        raise MissingDependencyError(
            "reading .gguf files needs the gguf package; install it with: pip install "
            "'eigenlens[gguf]'"
        ) from error
    return gguf


class GGUFFile(Named[_Entry]):
    """A store over one GGUF file; opening reads the header only.

    Attributes
    ----------
    fields
        Scalar and numeric metadata by key.

    Raises
    ------
    MissingDependencyError
        The `gguf` package is not installed.
    FormatError
        Not GGUF version 2 or 3, big-endian, damaged or truncated; the message names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._where = shown(self.path)
        self._identity = identity(self.path)
        self.fields: dict[str, Any] = {}
        self._entries: dict[str, _Entry] = {}
        size = file_size(self.path)
        try:
            with self.path.open("rb", buffering=1 << 20) as file:
                self._parse(Header(file, size, self._where), size)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _parse(self, header: Header, size: int) -> None:
        if size < 24 or header.take(4) != b"GGUF":
            raise header.bad("does not begin with 'GGUF', so is not a GGUF file")
        gguf = _gguf()
        version = header.number("I")
        if version not in (2, 3):
            found = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise FormatError(
                f"{self._where}: is {found}; only little-endian GGUF 2 and 3 are read"
            )
        n_tensors, n_fields = header.number("Q"), header.number("Q")
        if n_tensors * 24 > size or n_fields * 13 > size:
            raise header.bad(
                f"announces {n_tensors} tensors and {n_fields} fields, more than fit in it"
            )
        for _ in range(n_fields):
            key = header.text()
            if key in self.fields:
                raise header.bad(f"has the field '{inert(key)}' twice")
            self.fields[key] = header.value()
        raw = [self._tensor_header(header) for _ in range(n_tensors)]
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise header.bad("has an alignment that is not a power of two")
        base = -(-header.file.tell() // alignment) * alignment
        for name, shape, kind, offset in raw:
            if name in self._entries:
                raise header.bad(f"has the tensor '{inert(name)}' twice")
            self._entries[name] = self._entry(gguf, name, shape, kind, base + offset, size)

    @staticmethod
    def _tensor_header(header: Header) -> tuple[str, tuple[int, ...], int, int]:
        name, rank = header.text(), header.number("I")
        if rank > 8:
            raise header.bad(f"tensor '{inert(name)}' has {rank} axes")
        # GGUF lists the fastest axis first.
        shape = tuple(header.number("Q") for _ in range(rank))[::-1]
        return name, shape, header.number("I"), header.number("Q")

    def _entry(
        self, gguf: Any, name: str, shape: tuple[int, ...], kind: int, start: int, size: int
    ) -> _Entry:
        try:
            quant = gguf.GGMLQuantizationType(kind)
            block, block_bytes = gguf.GGML_QUANT_SIZES[quant]
        except (ValueError, KeyError):
            return _Entry(
                TensorInfo(name, f"GGML type {kind}", shape, self.path.name, self._identity),
                kind,
                start,
                -1,
            )
        last = shape[-1] if shape else 1
        row_bytes = last // block * block_bytes
        total = row_bytes * math.prod(shape[:-1])
        if last % block or start + total > size:
            raise FormatError(
                f"{self._where}: tensor '{inert(name)}' ({quant.name}, {shape}) needs {total} "
                f"bytes at {start}, the file has {size}; it is truncated or damaged, get it again"
            )
        return _Entry(
            TensorInfo(name, quant.name, shape, self.path.name, self._identity),
            kind,
            start,
            row_bytes,
        )

    def info(self, name: str) -> TensorInfo:
        """Stored type and shape (slowest axis first, as numpy has it)."""
        return self._find(name).info

    def read(self, name: str, rows: slice | None = None) -> Array:
        """One tensor, or rows of it, as float32 (float64 and integers stay as stored).

        Raises
        ------
        FormatError
            The quantisation is not one that the installed `gguf` can undo.
        """
        array = self._stored(name, rows)
        scale = self._scale(name)
        return array if scale is None else array * scale

    def _scale(self, name: str) -> np.float32 | None:
        """The one number that llama.cpp multiplies a weight's product with (NVFP4, BitNet)."""
        entry = self._entries.get(f"{name.removesuffix('.weight')}.scale")
        if entry is None or not name.endswith(".weight"):
            return None
        if math.prod(entry.info.shape) != 1 or entry.info.dtype != "F32":
            raise FormatError(
                f"{self._where}: tensor '{inert(entry.info.name)}' is {entry.info.dtype} "
                f"{entry.info.shape}, but must be one F32 number that scales '{inert(name)}'; get "
                "the file again"
            )
        found: np.float32 = self._stored(entry.info.name, None).reshape(-1)[0]
        return found

    def _stored(self, name: str, rows: slice | None) -> Array:
        entry = self._find(name)
        info, what = entry.info, f"tensor '{inert(name)}'"
        if entry.row_bytes < 0:
            raise self._unsupported(what, info.dtype)
        shape, first, last = info.shape, 0, None
        if rows is not None:
            first, last = row_range(rows, shape, f"{self._where}: {what}")
        if len(shape) < 2:
            whole = self._decode(entry, entry.start, 1, what).reshape(shape)
            return whole if rows is None else whole[first:last].copy()
        if last is not None:
            shape = (last - first, *shape[1:])
        inner = math.prod(shape[1:-1])
        start = entry.start + first * inner * entry.row_bytes
        return self._decode(entry, start, shape[0] * inner, what).reshape(shape)

    def _unsupported(self, what: str, dtype: str) -> FormatError:
        return FormatError(
            f"{self._where}: {what} is stored as {inert(dtype)}, which the installed gguf package "
            "cannot dequantise; upgrade it (pip install -U gguf) or use another quantisation"
        )

    def _decode(self, entry: _Entry, start: int, runs: int, what: str) -> Array:
        raw = read_bytes(self.path, start, runs * entry.row_bytes, what)
        kind = entry.info.dtype
        if kind in _PLAIN:
            plain = from_bytes(raw, DTYPES[_PLAIN[kind]])
            return plain.astype(np.float32) if kind == "F16" else plain
        gguf = _gguf()
        if runs == 0 or entry.row_bytes == 0:
            return np.empty(0, np.float32)
        try:
            blocks = raw.reshape(runs, entry.row_bytes)
            # A scale may be NaN or inf; whoever uses the weights checks them and names the tensor.
            with np.errstate(all="ignore"):
                found: Array = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(entry.kind))
        except NotImplementedError as error:
            raise self._unsupported(what, kind) from error
        return found.astype(np.float32, copy=False)

    def config(self) -> dict[str, Any]:
        """The metadata under the names that transformers' configs use (see `gguf_config`)."""
        infos = {name: entry.info for name, entry in self._entries.items()}
        return gguf_config(self.fields, infos, self._where)

    def tokens(self) -> Sequence[str] | None:
        """Text of every token id, or None when the file has no vocabulary.

        Byte-level tokens are decoded to text (bytes that are no whole character show as U+FFFD),
        the metaspace of SentencePiece becomes a space; control and user-defined tokens stay as
        they are.
        """
        strings = self.fields.get("tokenizer.ggml.tokens")
        if not isinstance(strings, Strings):
            return None
        size = file_size(self.path)
        try:
            with self.path.open("rb", buffering=1 << 20) as file:
                file.seek(strings.offset)
                header = Header(file, size, self._where)
                raw = [header.text() for _ in range(strings.count)]
        except OSError as error:
            raise unreadable(self.path, error) from error
        found = self.fields.get("tokenizer.ggml.token_type")
        kinds = (
            found.tolist()
            if isinstance(found, np.ndarray) and len(found) == len(raw)
            else [1] * len(raw)
        )
        model = self.fields.get("tokenizer.ggml.model")
        decode = {"gpt2": byte_level_text, "llama": metaspace_text, "t5": metaspace_text}.get(
            str(model), str
        )
        return [
            token if kind in _PLAIN_TOKENS else decode(token)
            for token, kind in zip(raw, kinds, strict=True)
        ]
