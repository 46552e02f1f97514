"""The wrapper: stored parts are grouped to the weights that they make, and read as those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from eigenlens.errors import FormatError
from eigenlens.inert import inert
from eigenlens.tensors.files import row_range
from eigenlens.tensors.remote import Want, prefetch
from eigenlens.tensors.store import Array, TensorInfo, TensorStore, missing, reads_runs

REMEDY = "use the unquantised checkpoint, or a GGUF of it"


@dataclass(frozen=True)
class Parts:
    """The stored tensors of one weight, by role.

    Attributes
    ----------
    store
        Where they lie.
    name
        The weight's plain name.
    stored
        Role to stored name; ``"codes"`` is always there.
    """

    store: TensorStore
    name: str
    stored: Mapping[str, str]

    def __contains__(self, role: object) -> bool:
        return role in self.stored

    def _at(self, role: str) -> str:
        if role not in self.stored:
            raise self.bad(f"its part '{role}' is not in these files")
        return self.stored[role]

    def info(self, role: str) -> TensorInfo:
        """Stored type and shape of a part."""
        return self.store.info(self._at(role))

    @property
    def identity(self) -> str | None:
        """Of the files that hold the parts, together; None if one of them has none."""
        found = {self.info(role).identity for role in self.stored}
        known = sorted(name for name in found if name is not None)
        return " + ".join(known) if len(known) == len(found) else None

    def read(self, role: str, rows: slice | None = None) -> Array:
        """A part as stored."""
        return self.store.read(self._at(role), rows)

    def floats(self, role: str) -> Array:
        """A part that must be floating point, as float32."""
        if not self.info(role).dtype.startswith(("F", "BF")):
            raise self.bad(f"its '{role}' is stored as {self.info(role).dtype}, expected floats")
        with np.errstate(all="ignore"):
            return self.read(role).astype(np.float32)

    def expect(self, role: str, dtypes: Sequence[str], *shapes: tuple[int, ...]) -> TensorInfo:
        """Check a part's type, and its shape unless none is given; FormatError names both."""
        info = self.info(role)
        if info.dtype not in dtypes:
            raise self.bad(
                f"its '{role}' is stored as {info.dtype}, expected {' or '.join(dtypes)}"
            )
        if shapes and info.shape not in shapes:
            raise self.bad(
                f"its '{role}' has shape {info.shape}, expected {' or '.join(map(str, shapes))}"
            )
        return info

    def bad(self, what: str) -> FormatError:
        """The error for parts that do not fit each other or the config."""
        where = self.store.info(self.stored["codes"]).where
        return FormatError(
            f"{inert(where)}: quantised tensor '{inert(self.name)}': {what}; the quantization "
            f"config does not belong to these files, or {REMEDY}"
        )


class Codec(Protocol):
    """One way of storing a weight as several tensors.

    Attributes
    ----------
    marks
        Endings of stored names that tell such a weight; what stands before is its base.
    roles
        Role to ending; the name is base + ending. ``"codes"`` must be there.
    plain
        Ending of the weight's plain name.
    """

    @property
    def marks(self) -> Sequence[str]:
        """Endings that tell such a weight."""

    @property
    def roles(self) -> Mapping[str, str]:
        """Role to ending."""

    @property
    def plain(self) -> str:
        """Ending of the plain name."""

    def describe(self, parts: Parts) -> tuple[str, tuple[int, ...]]:
        """Name of the scheme (as `TensorInfo.dtype`) and shape of the weight; checks the parts."""

    def decode(self, parts: Parts, rows: slice) -> Array:
        """Rows start to stop of the weight, float32."""


@dataclass(frozen=True)
class _Weight:
    codec: Codec
    parts: Parts


class QuantisedStore:
    """A store that shows each quantised weight under its plain name, as float32.

    Nothing is read when it is opened. The parts (codes, scales, zero points, ...) are hidden;
    tensors that are not quantised pass through untouched. One weight is decoded at a time, in
    pieces, so that the memory in use is its float32 size plus its stored parts.

    Parameters
    ----------
    store
        The files as they are.
    codecs
        The scheme's ways of storing; the first that a name's parts fit is used.
    hidden
        What follows a module's name in further names, which only the quantised kernels need.
    transposed
        Modules whose weights are plain as (in, out), where codes are kept as (out, in).
    """

    def __init__(
        self,
        store: TensorStore,
        codecs: Iterable[Codec],
        hidden: Sequence[str] = (),
        transposed: Sequence[str] = (),
    ) -> None:
        self.stored = store
        self._transposed = tuple(f".{module}.weight" for module in transposed)
        self._weights: dict[str, _Weight] = {}
        self._infos: dict[str, TensorInfo] = {}
        names = store.names()
        used: set[str] = set()
        for codec in codecs:
            for base in sorted(_bases(names, codec)):
                found = {
                    role: f"{base}{ending}"
                    for role, ending in codec.roles.items()
                    if f"{base}{ending}" in names
                }
                plain = f"{base}{codec.plain}"
                if "codes" not in found or plain in self._weights:
                    continue
                self._weights[plain] = _Weight(codec, Parts(store, plain, found))
                used |= set(found.values())
                module = plain.removesuffix(".weight")
                used |= {f"{module}{ending}" for ending in hidden}
        self._names = (names - used) | set(self._weights)

    def names(self) -> frozenset[str]:
        """Plain names: the weights, and every tensor that is not part of one."""
        return self._names

    def info(self, name: str) -> TensorInfo:
        """The scheme as dtype (``"GPTQ4"``) and the logical shape.

        Raises
        ------
        FormatError
            The parts do not fit each other or the config.
        """
        if name not in self._names:
            raise missing(name, self._names, "these files")
        weight = self._weights.get(name)
        if weight is None:
            return self._plain(name)
        if name not in self._infos:
            dtype, shape = weight.codec.describe(weight.parts)
            shape = shape[::-1] if self._turned(name) else shape
            where = weight.parts.info("codes").where
            self._infos[name] = TensorInfo(name, dtype, shape, where, weight.parts.identity)
        return self._infos[name]

    def _plain(self, name: str) -> TensorInfo:
        info = self.stored.info(name)
        if info.dtype.startswith("F8_"):
            raise FormatError(
                f"{inert(info.where)}: tensor '{inert(name)}' is stored as {info.dtype} and no "
                f"scale that the quantization config speaks of goes with it; {REMEDY}"
            )
        return info

    def read(self, name: str, rows: slice | None = None) -> Array:
        """One weight, or rows of it, dequantised to float32; other tensors as stored."""
        info = self.info(name)
        weight = self._weights.get(name)
        if weight is None:
            return self.stored.read(name, rows)
        first, last = row_range(rows, info.shape, f"tensor '{inert(name)}'")
        if not self._turned(name):
            return weight.codec.decode(weight.parts, slice(first, last))
        whole = weight.codec.decode(weight.parts, slice(0, info.shape[1]))
        return np.ascontiguousarray(whole[:, first:last].T)

    def reads_runs(self, name: str) -> bool:
        """As the files below say of a plain tensor; a weight is dequantised as a whole."""
        return name not in self._weights and reads_runs(self.stored, name)

    def prefetch(self, wants: Iterable[Want]) -> None:
        """Tell the files below what will be read: every part of these weights."""
        below: list[Want] = []
        for name, rows in wants:
            weight = self._weights.get(name)
            if weight is None:
                below.append((name, rows))
            else:
                below += [(part, None) for part in weight.parts.stored.values()]
        prefetch(self.stored, below)

    def _turned(self, name: str) -> bool:
        return f".{name}".endswith(self._transposed) if self._transposed else False


def _bases(names: frozenset[str], codec: Codec) -> set[str]:
    return {
        name.removesuffix(mark) for mark in codec.marks for name in names if name.endswith(mark)
    }
