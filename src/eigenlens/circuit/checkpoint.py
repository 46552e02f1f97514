"""Open any kind of model source as a `Checkpoint`: its plans, and its circuits one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import check_finite, is_float, upcast
from eigenlens.circuit.circuit import Norm, OVCircuit
from eigenlens.circuit.layouts import Geometry, read_output
from eigenlens.circuit.readout import Readout
from eigenlens.circuit.resolve import LayerPlan, NormPlan, StackPlan, find_architecture, plan_model
from eigenlens.circuit.rows import Architecture
from eigenlens.errors import FormatError, OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.tensors.source import Source, resolve
from eigenlens.tensors.store import ArrayStore, TensorStore

if TYPE_CHECKING:
    _CircuitSequence = Sequence[OVCircuit]
else:  # a checker that samples items of a Sequence[OVCircuit] at run time would read weights
    _CircuitSequence = Sequence


@dataclass(frozen=True)
class Skipped:
    """A layer without a circuit, and why."""

    stack: str
    layer: int
    reason: str


class Circuits(_CircuitSequence):
    """Circuits that are read when indexed or iterated; none is kept, so memory is one layer's."""

    def __init__(self, items: Sequence[LayerPlan | OVCircuit], store: TensorStore | None) -> None:
        self._items = items
        self._store = store

    def __len__(self) -> int:
        return len(self._items)

    @property
    def names(self) -> list[str]:
        """`decoder.3`, or `decoder.cross.3` for cross attention; nothing is read."""
        cross = {"self": "", "cross": "cross."}
        return [f"{item.stack}.{cross[item.kind]}{item.layer}" for item in self._items]

    @overload
    def __getitem__(self, index: int) -> OVCircuit: ...
    @overload
    def __getitem__(self, index: slice) -> Circuits: ...
    def __getitem__(self, index: int | slice) -> OVCircuit | Circuits:
        """Read one circuit, or narrow the sequence without reading."""
        if isinstance(index, slice):
            return Circuits(self._items[index], self._store)
        item = self._items[index]
        if isinstance(item, OVCircuit) or self._store is None:
            return item  # type: ignore[return-value]  # without a store, items are circuits
        return read_circuit(item, self._store)


@dataclass(frozen=True)
class Checkpoint:
    """A model as its attention circuits.

    Attributes
    ----------
    source_label
        What the user said, for display.
    config
        The model's config; empty for plain arrays.
    source
        Where it comes from; None for plain arrays and circuits.
    stacks
        The plans, stack by stack.
    arrays
        Circuits that were given directly.
    skipped
        Layers without a circuit.
    """

    source_label: str
    config: Mapping[str, Any]
    source: Source | None = None
    stacks: tuple[StackPlan, ...] = ()
    arrays: tuple[OVCircuit, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def model_type(self) -> str | None:
        """The config's model_type; None for plain arrays."""
        return self.config.get("model_type")

    @property
    def architecture(self) -> Architecture | None:
        """The row of the architectures table; None for plain arrays."""
        return find_architecture(self.config)[1] if self.source else None

    @property
    def plans(self) -> list[LayerPlan]:
        """The layers' plans in natural order; empty for plain arrays."""
        return [plan for stack in self.stacks for plan in stack.layers]

    @property
    def geometry(self) -> Geometry:
        """Sizes of the first stack (for arrays: of the first circuit)."""
        if self.stacks:
            return self.stacks[0].geometry
        c = self.arrays[0]
        return Geometry(c.d_model, len(self.arrays), c.n_heads, c.n_kv_heads, c.head_dim)

    def circuits(self, stack: str | None = None, layers: Iterable[int] | None = None) -> Circuits:
        """The circuits of a stack and of some layers, read lazily, one at a time.

        Parameters
        ----------
        stack
            Only this stack; None for all.
        layers
            Real 0-based indices, in the order wanted; None for all.

        Raises
        ------
        OptionError
            If there is no such stack or layer; the message gives the range.
        """
        items: Sequence[LayerPlan | OVCircuit] = self.arrays or self.plans
        if stack is not None:
            known = sorted({item.stack for item in items})
            items = [item for item in items if item.stack == stack]
            if not items:
                raise OptionError(
                    f"{self.source_label} has no stack '{inert(stack)}': it has {', '.join(known)}"
                )
        if layers is not None:
            there = sorted({item.layer for item in items})
            wanted = list(layers)
            for layer in wanted:
                if layer not in there:
                    raise OptionError(
                        f"{self.source_label} has no layer {layer}: layers are "
                        f"{there[0]} to {there[-1]}"
                    )
            items = [item for layer in wanted for item in items if item.layer == layer]
        return Circuits(items, self.source.store if self.source else None)

    @cached_property
    def readout(self) -> Readout:
        """Where tokens enter and leave the residual stream.

        Raises
        ------
        OptionError
            If the model has no token embedding.
        """
        row = self.architecture.readout if self.architecture else None
        if row is None or self.source is None:
            name = self.model_type or "a model given as plain arrays"
            raise OptionError(
                f"{name} has no token embedding: leave out what needs tokens (--decode, copying "
                "scores)"
            )
        return Readout(row, self.stacks[0], self.source.store)


def open_checkpoint(source: Any) -> Checkpoint:
    """Open a model as its circuits; names and shapes are checked, weights are read later.

    Parameters
    ----------
    source
        A path, hub id or `sample:NAME`; a `Source`; `(state_dict, config)`; a live
        `PreTrainedModel`; `(W_V, W_O)` arrays (one head); an `OVCircuit` or a sequence of them; or
        a `Checkpoint`, which is returned as it is.

    Raises
    ------
    SourceError
        If it is none of these.
    ArchitectureError, FormatError, ShapeError
        If the config and the weights are not what they must be.

    Examples
    --------
    >>> import numpy as np
    >>> ckpt = open_checkpoint((np.eye(2), np.diag([2.0, 3.0])))
    >>> ckpt.circuits()[0].dense().tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    if isinstance(source, Checkpoint):
        return source
    if isinstance(source, OVCircuit):
        return Checkpoint("arrays", {}, arrays=(source,))
    if isinstance(source, (str, Path)):
        return _open(resolve(source))
    if isinstance(source, Source):
        return _open(source)
    if hasattr(source, "state_dict") and hasattr(source, "config"):
        label = f"{type(source).__name__} (live)"
        return _open_arrays(source.state_dict(), source.config, label)
    if isinstance(source, Sequence) and source:
        if all(isinstance(item, OVCircuit) for item in source):
            return Checkpoint("arrays", {}, arrays=tuple(source))
        if len(source) == 2 and isinstance(source[0], Mapping):
            return _open_arrays(source[0], source[1], "state dict")
        if len(source) == 2:
            W_V, W_O = (np.asarray(item) for item in source)
            W_V, W_O = (a if is_float(a) else a.astype(np.float64) for a in (W_V, W_O))
            head_dim = W_V.shape[0] if W_V.ndim else 0
            circuit = OVCircuit(W_V, W_O, n_heads=1, n_kv_heads=1, head_dim=head_dim)
            return Checkpoint("arrays", {}, arrays=(circuit,))
    raise SourceError(
        f"cannot open a {type(source).__name__} as a model: give a path, hub id or sample:NAME, a "
        "live model, (state_dict, config), (W_V, W_O), or OVCircuits"
    )


def _open_arrays(state: Mapping[str, Any], config: Any, label: str) -> Checkpoint:
    to_dict = getattr(config, "to_dict", None)
    found = to_dict() if callable(to_dict) else config
    if not isinstance(found, Mapping):
        raise FormatError(
            f"{label}: the config is a {type(config).__name__}, expected a mapping or a "
            "transformers config"
        )

    def tokens() -> Sequence[str]:
        raise SourceError(f"{label} has no vocabulary: open the model's folder to see tokens")

    return _open(Source(label, dict(found), ArrayStore(state, label), None, "arrays", tokens))


def _open(source: Source) -> Checkpoint:
    stacks = plan_model(source.config, source.store)
    return Checkpoint(source.label, source.config, source, tuple(stacks))


def read_circuit(plan: LayerPlan, store: TensorStore) -> OVCircuit:
    """Read one layer's circuit; of a fused projection only the value rows where they are a run.

    Raises
    ------
    NumericsError
        If a tensor holds NaN or infinity, naming it.
    """
    g, rows = plan.geometry, plan.layout.rows(plan.geometry)
    if rows is None:
        W_V = plan.layout.read(g, store.read(plan.value))
    else:
        W_V = store.read(plan.value, rows)
    check_finite(inert(plan.value), W_V)
    W_O = read_output(plan.orientation, _finite(plan.output, store))
    b_V = plan.value_bias and plan.layout.read_bias(g, _finite(plan.value_bias, store))
    b_O = plan.output_bias and _finite(plan.output_bias, store)
    return OVCircuit(
        W_V,
        W_O,
        n_heads=g.n_heads,
        n_kv_heads=g.n_kv_heads,
        head_dim=g.head_dim,
        stack=plan.stack,
        layer=plan.layer,
        kind=plan.kind,
        steps=plan.steps,
        b_V=None if isinstance(b_V, str) else b_V,
        b_O=None if isinstance(b_O, str) else b_O,
        output_scale=plan.output_scale,
        placement=plan.placement,
        norm_in=read_norm(plan.norm_in, g.d_model, store),
        norm_out=read_norm(plan.norm_out, g.d_model, store),
    )


def read_norm(plan: NormPlan | None, d: int, store: TensorStore) -> Norm | None:
    """Read a norm with its effective gain: offset + w in float32 or wider; 1 if it has none."""
    if plan is None:
        return None
    if plan.gain is None:
        return Norm(plan.kind, np.ones(d), None, plan.module)
    gain = _finite(plan.gain, store)
    if plan.offset:
        gain = upcast(gain, "float64" if gain.dtype.itemsize > 4 else "float32") + plan.offset
    bias = None if plan.bias is None else _finite(plan.bias, store)
    return Norm(plan.kind, gain, bias, plan.gain)


def _finite(name: str, store: TensorStore) -> Float[np.ndarray, "..."]:
    array = store.read(name)
    check_finite(inert(name), array)
    return array
