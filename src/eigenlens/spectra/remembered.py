"""Spectra of layers out of the cache: what makes two questions the same, and whether to trust it.

A result is kept under the identity of the files that hold the layer's tensors, what the table and
the config say of the layer, the options, and the version. Layers in memory have no identity and are
computed anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.cache import Cache
from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.layouts import Layout
from eigenlens.circuit.plans import LayerPlan
from eigenlens.spectra.heads import vocabulary_roles
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.result import LayerSpectrum
from eigenlens.spectra.stored import pack, unpack

FORMAT = 4
"""Raised whenever a change of code changes what is computed or kept."""

_ROWS = 4096  # of a vocabulary that are hashed at once
_AFTERWARDS = ("decode",)  # options that act on a finished spectrum


@dataclass
class Remembered:
    """The kept layers of one checkpoint under one set of options.

    Attributes
    ----------
    cache
        Where they are.
    checkpoint, options
        The question.
    verify
        Compare the content of the tensors, which are read for it, before a kept result is used.
    """

    cache: Cache
    checkpoint: Checkpoint
    options: SpectrumOptions
    verify: bool = False

    def find(
        self, item: LayerPlan | OVCircuit, read: Callable[[], OVCircuit]
    ) -> LayerSpectrum | None:
        """The kept spectrum of a layer, or None.

        Parameters
        ----------
        item
            The layer's plan; a circuit in memory is never found.
        read
            Reads the layer, for its content to be compared where that was asked for.
        """
        key = self.key(item)
        entry = None if key is None else self.cache.get(key)
        if entry is None:
            return None
        if self.verify and entry.record.get("content") != self._content(read()):
            return None
        try:
            return unpack(entry.record["layer"], entry.arrays)
        except (KeyError, TypeError, ValueError):
            return None  # of another make: to be computed again

    def keep(
        self,
        item: LayerPlan | OVCircuit,
        circuit: OVCircuit,
        layer: LayerSpectrum,
        seen: Content | None = None,
    ) -> None:
        """Keep a layer's spectrum, with the hash of the tensors that it was computed from.

        `seen` has looked at the stored factors already, where `circuit` no longer has them.
        """
        key = self.key(item)
        if key is not None:
            record, arrays = pack(layer)
            content = self._content(circuit, seen)
            self.cache.put(key, {"layer": record, "content": content}, arrays)

    def _content(self, circuit: OVCircuit, seen: Content | None = None) -> list[str]:
        """Hashes of what the result comes from: the layer, and the vocabulary if it is used."""
        of_layer = (seen or factors_of(circuit)).closed(circuit)
        return [of_layer, *([self._vocabulary] if self.options.per_head else [])]

    @cached_property
    def _vocabulary(self) -> str:
        digest = hashlib.sha256()
        _, names = vocabulary_roles(self.checkpoint)
        source = self.checkpoint.source
        for name in names if source is not None else ():
            store = source.store  # type: ignore[union-attr]
            rows = store.info(name).shape[0]
            for start in range(0, rows, _ROWS):
                block = store.read(name, slice(start, min(start + _ROWS, rows)))
                digest.update(np.ascontiguousarray(block).view(np.uint8).data)
        return digest.hexdigest()

    def key(self, item: LayerPlan | OVCircuit) -> dict[str, Any] | None:
        """What the result depends on; None for what has no identity."""
        from eigenlens import __version__

        source = self.checkpoint.source
        if source is None or isinstance(item, OVCircuit):
            return None
        names = list(item.tensors)
        roles: dict[str, str] = {}
        if self.options.per_head:
            roles, vocabulary = vocabulary_roles(self.checkpoint)
            names += vocabulary
        identities = {name: source.store.info(name).identity for name in names}
        if None in identities.values():
            return None
        options = {
            name: getattr(self.options, name)
            for name in self.options.__dataclass_fields__
            if name not in _AFTERWARDS
        }
        return {
            "what": "spectrum",
            "format": FORMAT,
            "version": __version__,
            "numpy": np.__version__,
            "plan": plain(item),
            "tensors": identities,
            "vocabulary": roles,
            "options": options,
        }


def plain(value: Any) -> Any:
    """A plan as JSON values; a layout is known by its name.

    Raises
    ------
    TypeError
        Something in it has no plain form: a fault of the code.
    """
    if isinstance(value, Layout):
        return value.name
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of a key")


class Content:
    """SHA-256 of the weights, biases, norms and scale of a circuit, the two factors as stored."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def begin(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """An array begins."""
        self._digest.update(f"{dtype} {shape}".encode())

    def add(self, rows: Float[np.ndarray, "..."]) -> None:
        """Its next rows."""
        self._digest.update(np.ascontiguousarray(rows).view(np.uint8).data)

    def whole(self, array: Float[np.ndarray, "..."]) -> None:
        """All of an array."""
        self.begin(array.dtype, array.shape)
        self.add(array)

    def closed(self, circuit: OVCircuit) -> str:
        """The hash, with what goes with the factors; nothing can be added after it."""
        norms = [a for n in (circuit.norm_in, circuit.norm_out) if n for a in (n.gain, n.bias)]
        scale = np.asarray(circuit.output_scale, dtype=np.float64)
        for array in (circuit.b_V, circuit.b_O, scale, *norms):
            if array is None:
                self._digest.update(b"none")
            else:
                self.whole(array)
        return self._digest.hexdigest()


def factors_of(circuit: OVCircuit) -> Content:
    """The hash so far of a circuit whose factors are in memory as they were stored."""
    found = Content()
    found.whole(circuit.W_V)
    found.whole(circuit.W_O)
    return found
