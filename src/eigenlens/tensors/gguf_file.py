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
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from eigenlens.errors import ArchitectureError, FormatError, MissingDependencyError
from eigenlens.inert import inert
from eigenlens.tensors.dtypes import DTYPES, from_bytes
from eigenlens.tensors.files import file_size, read_bytes, row_range, shown, unreadable
from eigenlens.tensors.store import Array, TensorInfo, missing
from eigenlens.tensors.vocabulary import byte_level_text, metaspace_text

# Architecture name in GGUF -> model_type of transformers. Mistral is stored as "llama", which is
# the same for attention values.
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "phi2": "phi",
    "phi3": "phi3",
    "gpt2": "gpt2",
}

_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate("BbHhIif?__Qqd")) | {_STRING: "", _ARRAY: ""}
_STRING_LIMIT = 64 * 1024 * 1024
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
class _Strings:
    """A string array left in the file: where its first element starts, and how many there are."""

    offset: int
    count: int


@dataclass(frozen=True)
class _Entry:
    info: TensorInfo
    kind: int
    start: int
    row_bytes: int  # of one run of the last axis


class _Header:
    """Reads forward through a header, each length held against what is left of the file."""

    def __init__(self, file: BinaryIO, size: int, where: str) -> None:
        self.file, self.size, self.where = file, size, where

    def bad(self, what: str) -> FormatError:
        return FormatError(f"{self.where}: {what}; get the file again")

    def take(self, n: int) -> bytes:
        data = self.file.read(n) if n <= self.size else b""
        if len(data) != n:
            raise self.bad("ends inside its GGUF header; it is truncated or damaged")
        return data

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > _STRING_LIMIT:
            raise self.bad(f"has a string of {length} bytes in its header; it is damaged")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self) -> Any:
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

    def _strings(self, count: int) -> _Strings:
        if count * 8 > self.size:
            raise self.bad(f"announces {count} strings, more than fit in it")
        start = self.file.tell()
        read, unpack = self.file.read, struct.Struct("<Q").unpack
        for _ in range(count):
            head = read(8)
            length = unpack(head)[0] if len(head) == 8 else self.size + 1
            if length > min(self.size, _STRING_LIMIT) or len(read(length)) != length:
                raise self.bad("ends inside a list of strings; it is truncated or damaged")
        return _Strings(start, count)


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


class GGUFFile:
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
        self.fields: dict[str, Any] = {}
        self._entries: dict[str, _Entry] = {}
        size = file_size(self.path)
        try:
            with self.path.open("rb", buffering=1 << 20) as file:
                self._parse(_Header(file, size, self._where), size)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _parse(self, header: _Header, size: int) -> None:
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
    def _tensor_header(header: _Header) -> tuple[str, tuple[int, ...], int, int]:
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
                TensorInfo(name, f"GGML type {kind}", shape, self.path.name), kind, start, -1
            )
        last = shape[-1] if shape else 1
        row_bytes = last // block * block_bytes
        total = row_bytes * math.prod(shape[:-1])
        if last % block or start + total > size:
            raise FormatError(
                f"{self._where}: tensor '{inert(name)}' ({quant.name}, {shape}) needs {total} "
                f"bytes at {start}, the file has {size}; it is truncated or damaged, get it again"
            )
        return _Entry(TensorInfo(name, quant.name, shape, self.path.name), kind, start, row_bytes)

    def names(self) -> frozenset[str]:
        """Every tensor name, as GGUF spells them."""
        return frozenset(self._entries)

    def _find(self, name: str) -> _Entry:
        if name not in self._entries:
            raise missing(name, self._entries, self.path.name)
        return self._entries[name]

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
        """The metadata under the names that transformers' configs use, with ``"gguf": True``.

        Raises
        ------
        ArchitectureError
            The architecture is not one of `MODEL_TYPES`, or its layers differ in their heads.
        FormatError
            A size is missing.
        """
        arch = self.fields.get("general.architecture")
        if arch not in MODEL_TYPES:
            raise ArchitectureError(
                f"{self._where}: GGUF architecture '{inert(str(arch))}' is not read; known: "
                f"{', '.join(MODEL_TYPES)}"
            )
        d_model = self._whole(arch, "embedding_length")
        n_heads = self._whole(arch, "attention.head_count")
        default = d_model // n_heads if n_heads else 0
        config: dict[str, Any] = {
            "model_type": MODEL_TYPES[arch],
            "gguf": True,
            "hidden_size": d_model,
            "num_hidden_layers": self._whole(arch, "block_count"),
            "num_attention_heads": n_heads,
            "num_key_value_heads": self._whole(arch, "attention.head_count_kv", n_heads),
            # The values' width is the one that W_V and W_O have.
            "head_dim": self._whole(
                arch, "attention.value_length", self._whole(arch, "attention.key_length", default)
            ),
            "vocab_size": self._vocabulary_size(arch),
            "tie_word_embeddings": "output.weight" not in self._entries,
        }
        if self._optional(arch, "expert_count"):
            config["model_type"] = "mixtral" if arch == "llama" else config["model_type"]
            config["num_local_experts"] = self._optional(arch, "expert_count")
        for name, key in _OPTIONAL.items():
            value = self._optional(arch, key)
            if value is not None:
                config[name] = value
        if arch == "gpt2":
            config |= {"n_embd": d_model, "n_layer": config["num_hidden_layers"], "n_head": n_heads}
            config["layer_norm_epsilon"] = config.get("layer_norm_eps", 1e-5)
        return config

    def _optional(self, arch: str, key: str) -> Any:
        value = self.fields.get(f"{arch}.{key}")
        return value if isinstance(value, (int, float)) else None

    def _whole(self, arch: str, key: str, default: int | None = None) -> int:
        value = self.fields.get(f"{arch}.{key}", default)
        if isinstance(value, np.ndarray) and value.size:
            if (value != value[0]).any():
                raise ArchitectureError(
                    f"{self._where}: '{arch}.{key}' differs from layer to layer, which is not "
                    "supported"
                )
            value = int(value[0])
        if type(value) is not int or value < 0:
            raise FormatError(
                f"{self._where}: metadata '{arch}.{key}' is missing or not a whole number"
            )
        return value

    def _vocabulary_size(self, arch: str) -> int | None:
        tokens = self.fields.get("tokenizer.ggml.tokens")
        if "token_embd.weight" in self._entries:
            return self._entries["token_embd.weight"].info.shape[0]
        if isinstance(tokens, _Strings):
            return tokens.count
        size = self._optional(arch, "vocab_size")
        return int(size) if size is not None else None

    def tokens(self) -> Sequence[str] | None:
        """Text of every token id, or None when the file has no vocabulary.

        Byte-level tokens are decoded to text (bytes that are no whole character show as U+FFFD),
        the metaspace of SentencePiece becomes a space; control and user-defined tokens stay as
        they are.
        """
        strings = self.fields.get("tokenizer.ggml.tokens")
        if not isinstance(strings, _Strings):
            return None
        size = file_size(self.path)
        try:
            with self.path.open("rb", buffering=1 << 20) as file:
                file.seek(strings.offset)
                header = _Header(file, size, self._where)
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


_OPTIONAL = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
}
