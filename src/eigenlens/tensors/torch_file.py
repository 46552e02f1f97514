"""torch's own weight files (.bin, .pt, .pth), read without torch and without running their code.

Two formats. Zip (torch >= 1.6): members ``NAME/data.pkl`` and ``NAME/data/KEY``, stored
uncompressed, one a storage. Legacy: five pickles in a row (magic number, version, system, the
object, the list of storage keys), then per key an int64 count and the raw numbers. In both the
object pickle describes tensors as (storage, offset, size, stride); the numbers are read when a
tensor is asked for, only the span it covers.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.tensors.dtypes import DTYPES, TORCH_DTYPES, from_bytes
from eigenlens.tensors.files import file_size, identity, read_bytes, row_range, shown, unreadable
from eigenlens.tensors.pickle_machine import Global, Machine, Opaque
from eigenlens.tensors.store import Array, Named, TensorInfo

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_PICKLE_LIMIT = 256 * 1024 * 1024
# An expanded tensor (stride 0) may have more elements than its storage, but not without bound.
_EXPANDED_LIMIT = 1 << 24
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")

_STORAGES: dict[str, str] = {
    f"torch.{name}Storage": dtype
    for name, dtype in {
        "Double": "F64",
        "Float": "F32",
        "Half": "F16",
        "BFloat16": "BF16",
        "Long": "I64",
        "Int": "I32",
        "Short": "I16",
        "Char": "I8",
        "Byte": "U8",
        "Bool": "BOOL",
    }.items()
}
# Untyped storages count bytes; the tensor brings its dtype (rebuild_tensor_v3).
_STORAGES |= {"torch.storage.UntypedStorage": "U8", "torch.UntypedStorage": "U8"}
_TORCH_TYPES = {f"torch.{name}": dtype for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True, eq=False)
class _Storage:
    key: str
    dtype: str
    nbytes: int


@dataclass(frozen=True, eq=False)
class _Tensor:
    storage: _Storage
    dtype: str
    offset: int  # elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r:.40} where a whole number >= 0 must be")
    return value


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> _Tensor:
    return _rebuild_typed(storage, offset, size, stride, storage.dtype, rest)


def _rebuild_v3(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
) -> _Tensor:
    return _rebuild_typed(
        storage, offset, size, stride, _TORCH_TYPES[dtype.name], (grad, hooks, *rest)
    )


def _rebuild_typed(
    storage: Any, offset: Any, size: Any, stride: Any, dtype: str, rest: tuple[Any, ...]
) -> _Tensor:
    if not isinstance(storage, _Storage) or len(rest) > 4:
        raise TypeError("a tensor without a storage")
    shape, strides = tuple(map(_count, size)), tuple(map(_count, stride))
    if len(shape) != len(strides) or len(shape) > 64:
        raise ValueError("size and stride of a tensor differ in length")
    return _Tensor(storage, dtype, _count(offset), shape, strides)


def _parameter(data: Any, *rest: Any) -> _Tensor:
    if not isinstance(data, _Tensor) or len(rest) > 3:
        raise TypeError("a parameter without a tensor")
    return data


def _size(items: Any) -> tuple[int, ...]:
    return tuple(map(_count, items))


_CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.Size": _size,
    "torch.device": lambda *_: Opaque("device"),
}
_CONSTANTS = frozenset(_STORAGES) | frozenset(_TORCH_TYPES)


class TorchFile(Named[_Tensor]):
    """A store over one torch weight file.

    A file whose only tensors lie under one of the keys ``state_dict``, ``model_state_dict``,
    ``model`` or ``module`` is unwrapped; other entries that are not tensors (a step counter) are
    left out.

    Raises
    ------
    FormatError
        Damaged or truncated, refers to anything but tensor rebuilding (no code is run), numbers
        that leave a storage or the file, or no tensors inside. The message names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._where = shown(self.path)
        self._storages: dict[str, _Storage] = {}
        self._offsets: dict[str, int] = {}  # storage key -> byte offset in the file
        self._file_size = file_size(self.path)
        self._identity = identity(self.path)
        self._machine = Machine(_CALLS, _CONSTANTS, self._persistent)
        try:
            with self.path.open("rb") as file:
                head = file.read(4)
            content = self._open_zip() if head == b"PK\x03\x04" else self._open_legacy()
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._entries = self._select(content)

    def _bad(self, what: str) -> FormatError:
        return FormatError(f"{self._where}: {what}; get the file again")

    def _persistent(self, ident: Any) -> _Storage:
        if not isinstance(ident, tuple) or len(ident) not in (5, 6) or ident[0] != "storage":
            raise ValueError("unknown persistent id")
        kind, key, count = ident[1], ident[2], _count(ident[4])
        if len(ident) == 6 and ident[5] is not None:
            raise FormatError(
                f"{self._where}: storage views (written by torch before 0.4) are not read; load "
                "it with torch and save it as safetensors"
            )
        if not isinstance(kind, Global) or kind.name not in _STORAGES or not isinstance(key, str):
            raise ValueError("unknown kind of storage")
        dtype = _STORAGES[kind.name]
        storage = _Storage(key, dtype, count * DTYPES[dtype].itemsize)
        if storage.nbytes > self._file_size:
            raise self._bad(
                f"storage '{inert(key)}' says {storage.nbytes} bytes, more than the file has"
            )
        known = self._storages.setdefault(key, storage)
        if (known.dtype, known.nbytes) != (storage.dtype, storage.nbytes):
            raise self._bad(f"storage '{inert(key)}' is described in two ways")
        return known

    def _open_zip(self) -> Any:
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = {m.filename: m for m in archive.infolist()}
                pickles = [n for n in members if n.count("/") == 1 and n.endswith("/data.pkl")]
                if len(pickles) != 1:
                    raise self._bad(
                        "is a zip file without one data.pkl, so not a torch weight file"
                    )
                root = pickles[0].removesuffix("data.pkl")
                if members[pickles[0]].file_size > _PICKLE_LIMIT:
                    raise self._bad(f"data.pkl has {members[pickles[0]].file_size} bytes, too many")
                order = members.get(f"{root}byteorder")
                if order is not None and self._member(order).tobytes() != b"little":
                    raise self._bad("is big-endian, which is not read")
                text = self._member(members[pickles[0]]).tobytes()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise self._bad(
                f"is a damaged or truncated zip file ({inert(str(error))[:80]})"
            ) from error
        content = self._machine.load(BytesIO(text), self._where)
        for key, storage in self._storages.items():
            member = members.get(f"{root}data/{key}")
            if member is None:
                raise self._bad(f"storage '{inert(key)}' is missing from the zip file")
            start, length = self._extent(member)
            if length != storage.nbytes:
                raise self._bad(
                    f"storage '{inert(key)}' has {length} bytes, {storage.nbytes} are described"
                )
            self._offsets[key] = start
        return content

    def _extent(self, member: zipfile.ZipInfo) -> tuple[int, int]:
        """(offset, length) of a member's data; the local header repeats name and extra field."""
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise self._bad(
                f"'{inert(member.filename)}' is compressed or encrypted, which torch never does"
            )
        header = read_bytes(self.path, member.header_offset, 30, "a zip header").tobytes()
        name, extra = struct.unpack("<HH", header[26:30])
        start = member.header_offset + 30 + name + extra
        if header[:4] != b"PK\x03\x04" or start + member.file_size > self._file_size:
            raise self._bad(f"'{inert(member.filename)}' leaves the file; it is truncated")
        return start, member.file_size

    def _member(self, member: zipfile.ZipInfo) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return read_bytes(self.path, *self._extent(member), f"'{inert(member.filename)}'")

    def _open_legacy(self) -> Any:
        with self.path.open("rb") as file:
            if file.read(1) != b"\x80":
                raise self._bad("is neither a torch zip file nor a torch pickle")
            file.seek(0)
            load = self._machine.load
            if load(file, self._where) != _MAGIC or load(file, self._where) != _PROTOCOL:
                raise self._bad("does not begin like a torch weight file")
            system = load(file, self._where)
            if not isinstance(system, dict) or system.get("little_endian") is not True:
                raise self._bad("was not written on a little-endian machine, which is not read")
            content = load(file, self._where)
            keys = load(file, self._where)
            position = file.tell()
            if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys):
                raise self._bad("has no list of storages")
            if len(set(keys)) != len(keys) or set(keys) != set(self._storages):
                raise self._bad("lists other storages than its tensors use")
            for key in keys:
                storage = self._storages[key]
                file.seek(position)
                head = file.read(8)
                count = int.from_bytes(head, "little", signed=True)
                if len(head) < 8 or position + 8 + storage.nbytes > self._file_size:
                    raise self._bad(f"ends inside storage '{inert(key)}'; it is truncated")
                if count * DTYPES[storage.dtype].itemsize != storage.nbytes:
                    raise self._bad(
                        f"storage '{inert(key)}' has {count} numbers, other than described"
                    )
                self._offsets[key] = position + 8
                position += 8 + storage.nbytes
        return content

    def _select(self, content: Any) -> dict[str, _Tensor]:
        if isinstance(content, dict) and not any(isinstance(v, _Tensor) for v in content.values()):
            inner = [content[k] for k in _WRAPPERS if isinstance(content.get(k), dict)]
            content = inner[0] if len(inner) == 1 else content
        if not isinstance(content, dict):
            raise self._bad(f"holds a {type(content).__name__}, not a state dict")
        tensors = {k: v for k, v in content.items() if isinstance(v, _Tensor)}
        if not tensors or not all(isinstance(k, str) for k in tensors):
            keys = ", ".join(inert(str(k))[:40] for k in list(content)[:8])
            raise FormatError(
                f"{self._where}: holds no state dict of named tensors (keys: {keys or 'none'}); "
                "save model.state_dict() alone"
            )
        for name, tensor in tensors.items():
            self._check(name, tensor)
        return tensors

    def _check(self, name: str, tensor: _Tensor) -> None:
        item = DTYPES[tensor.dtype].itemsize
        count = math.prod(tensor.shape)
        if count == 0:
            return
        if count > max(tensor.storage.nbytes // item, _EXPANDED_LIMIT):
            raise self._bad(
                f"tensor '{inert(name)}' has {count} elements, far more than its storage"
            )
        last = tensor.offset + sum(
            (n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True)
        )
        if (last + 1) * item > tensor.storage.nbytes:
            raise self._bad(
                f"tensor '{inert(name)}' reaches element {last} of a storage of "
                f"{tensor.storage.nbytes // item}"
            )

    def info(self, name: str) -> TensorInfo:
        """Type and shape as the pickle describes them."""
        tensor = self._find(name)
        return TensorInfo(name, tensor.dtype, tensor.shape, self.path.name, self._identity)

    def reads_runs(self, name: str) -> bool:
        """A run of rows is a run of bytes unless the tensor was stored as a view."""
        tensor = self._find(name)
        return tensor.strides[:1] == (math.prod(tensor.shape[1:]),)

    def read(self, name: str, rows: slice | None = None) -> Array:
        """One tensor, or rows of it, in C order; reads the span of the storage that it covers."""
        tensor = self._find(name)
        dtype, shape, offset = DTYPES[tensor.dtype], tensor.shape, tensor.offset
        what = f"tensor '{inert(name)}'"
        if rows is not None:
            first, last = row_range(rows, shape, f"{self._where}: {what}")
            offset, shape = offset + first * tensor.strides[0], (last - first, *shape[1:])
        if math.prod(shape) == 0:
            return np.empty(shape, dtype)
        span = 1 + sum((n - 1) * s for n, s in zip(shape, tensor.strides, strict=True))
        start = self._offsets[tensor.storage.key] + offset * dtype.itemsize
        flat = from_bytes(read_bytes(self.path, start, span * dtype.itemsize, what), dtype)
        # numpy holds shape and strides against the buffer, so a wrong pair raises instead of
        # reading outside.
        strides = tuple(s * dtype.itemsize for s in tensor.strides)
        view: Array = np.ndarray(shape, dtype, buffer=flat.view(np.uint8).data, strides=strides)
        return view if view.flags.c_contiguous else view.copy(order="C")
