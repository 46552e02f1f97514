"""A store gives the tensors of a checkpoint one at a time, whatever files they lie in.

Opening a store reads headers at most. `read` copies what is asked for and keeps nothing, so the
memory in use is that of one tensor, and a file that changes later cannot hurt arrays already read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from eigenlens.errors import ArchitectureError, FormatError, nearest
from eigenlens.inert import inert
from eigenlens.tensors.dtypes import DTYPES, TORCH_DTYPES, dtype_name
from eigenlens.tensors.files import row_range, shown

Array = np.ndarray[Any, np.dtype[Any]]
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class TensorInfo:
    """What a header says about one tensor.

    Parameters
    ----------
    name
        Raw name as stored (make it inert before it is shown).
    dtype
        Stored type: a safetensors name (``"F32"``, ``"BF16"``, ...) or a GGUF type (``"Q4_1"``).
    shape
        Axis lengths in numpy (row-major) order.
    where
        Name of the file that holds it.
    identity
        What tells the file's content apart from any other (`eigenlens.tensors.files.identity`);
        None for what is in memory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    where: str
    identity: str | None = field(default=None, compare=False)


@runtime_checkable
class TensorStore(Protocol):
    """Named tensors that are read one at a time."""

    def names(self) -> frozenset[str]:
        """Every tensor name."""

    def info(self, name: str) -> TensorInfo:
        """Type and shape without reading the data; an unknown name raises ArchitectureError."""

    def read(self, name: str, rows: slice | None = None) -> Array:
        """The tensor, or the `rows` of its axis 0, as a copy in the stored dtype.

        GGUF tensors are dequantised to float32. Only the bytes of the rows are read where the
        format allows it.
        """


@runtime_checkable
class ReadsRuns(Protocol):
    """A store that can tell of which tensors a run of rows costs no more than its own bytes."""

    def reads_runs(self, name: str) -> bool:
        """Whether that is so for a tensor."""


def reads_runs(store: TensorStore, name: str) -> bool:
    """Whether a run of a tensor's rows costs no more to read than its own bytes."""
    return isinstance(store, ReadsRuns) and store.reads_runs(name)


def missing(name: str, known: Iterable[str], where: str) -> ArchitectureError:
    """The error for a tensor that a store does not hold, with the nearest names that it does."""
    hint = inert(nearest(name, known))
    return ArchitectureError(
        f"no tensor '{inert(name)}' in {inert(where)}{hint}; check the model type"
    )


class Named(Generic[Entry]):
    """Mixin of a store over one file: names, and what its header says of each."""

    path: Path
    _entries: dict[str, Entry]

    def names(self) -> frozenset[str]:
        """Every tensor name, as the file spells them."""
        return frozenset(self._entries)

    def _find(self, name: str) -> Entry:
        if name not in self._entries:
            raise missing(name, self._entries, self.path.name)
        return self._entries[name]


class ArrayStore:
    """A store over arrays that are in memory already: a state dict or a mapping of numpy arrays.

    Torch tensors are recognised by their methods, so torch is never imported here; bfloat16 and
    float8 travel as raw bits and come out as `ml_dtypes` arrays. What `read` gives is a copy.

    Parameters
    ----------
    arrays
        Name to numpy array or torch tensor (any device, views and parameters included).
    where
        What to call the collection in messages.
    """

    def __init__(self, arrays: Mapping[str, Any], where: str = "arrays") -> None:
        self._arrays = dict(arrays)
        self._where = where
        for name, array in self._arrays.items():
            if not isinstance(name, str):
                raise FormatError(
                    f"{where}: tensor names must be text, found {type(name).__name__}"
                )
            if not hasattr(array, "shape") or not hasattr(array, "dtype"):
                raise FormatError(
                    f"{where}: '{inert(name)}' is a {type(array).__name__}, not an array or a "
                    "tensor"
                )

    def names(self) -> frozenset[str]:
        """Every name of the mapping."""
        return frozenset(self._arrays)

    def _find(self, name: str) -> Any:
        if name not in self._arrays:
            raise missing(name, self._arrays, self._where)
        return self._arrays[name]

    def info(self, name: str) -> TensorInfo:
        """Type and shape of one array."""
        array = self._find(name)
        kind = str(array.dtype)
        if kind.startswith("torch."):
            dtype = TORCH_DTYPES.get(kind.removeprefix("torch."), kind)
        else:
            dtype = dtype_name(np.dtype(array.dtype))
        return TensorInfo(name, dtype, tuple(int(n) for n in array.shape), self._where)

    def read(self, name: str, rows: slice | None = None) -> Array:
        """One array, or rows of it, as a copy."""
        array = self._find(name)
        info = self.info(name)
        if rows is not None:
            array = array[slice(*row_range(rows, info.shape, f"tensor '{inert(name)}'"))]
        if not str(array.dtype).startswith("torch."):
            copy = np.array(array, order="C")
            if copy.dtype.hasobject:
                raise FormatError(
                    f"{self._where}: '{inert(name)}' holds Python objects, not numbers"
                )
            return copy
        if array.device.type == "meta":
            raise FormatError(
                f"{self._where}: '{inert(name)}' is on the meta device and has no data; load it"
            )
        if info.dtype not in DTYPES:
            raise FormatError(
                f"{self._where}: '{inert(name)}' has the type {info.dtype}, which is not read"
            )
        array = array.detach().cpu().contiguous()
        if info.dtype in ("BF16", "F8_E4M3", "F8_E5M2"):
            # numpy() refuses these types; a tensor exists, so torch is loaded and lends its
            # integer types.
            torch = sys.modules["torch"]
            array = array.view(torch.int16 if info.dtype == "BF16" else torch.uint8)
        return np.array(array.numpy()).view(DTYPES[info.dtype])


class ShardedStore:
    """A checkpoint in several files, with an index that says which file holds each tensor.

    The index is the authority: a tensor that its shard does not hold is an error, and tensors that
    only a shard knows of are not shown. A shard is opened when the first of its tensors is asked
    for.

    Parameters
    ----------
    index
        Path of the index, for messages.
    weight_map
        Tensor name to shard name.
    open_shard
        Opens a shard by the name that the index gives it.
    """

    def __init__(
        self, index: Path, weight_map: Mapping[str, str], open_shard: Callable[[str], TensorStore]
    ) -> None:
        self._index = index
        self._map = dict(weight_map)
        self._open = open_shard
        self._shards: dict[str, TensorStore] = {}

    def names(self) -> frozenset[str]:
        """Every name of the index."""
        return frozenset(self._map)

    def _shard(self, name: str) -> TensorStore:
        if name not in self._map:
            raise missing(name, self._map, self._index.name)
        file = self._map[name]
        if file not in self._shards:
            self._shards[file] = self._open(file)
        shard = self._shards[file]
        if name not in shard.names():
            raise FormatError(
                f"{shown(self._index)}: places tensor '{inert(name)}' in {inert(file)}, which "
                "does not hold it; the shards and the index are of different versions, get both "
                "again"
            )
        return shard

    def shard(self, name: str) -> TensorStore:
        """The shard that holds a tensor; opens its header."""
        return self._shard(name)

    def info(self, name: str) -> TensorInfo:
        """Type and shape; opens the header of the tensor's shard."""
        return self._shard(name).info(name)

    def reads_runs(self, name: str) -> bool:
        """As its shard says."""
        return reads_runs(self._shard(name), name)

    def read(self, name: str, rows: slice | None = None) -> Array:
        """One tensor, or rows of it, from its shard."""
        return self._shard(name).read(name, rows)
