"""Open any kind of model source as a `Checkpoint`: its plans, and its circuits one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import frexp
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import check_finite, is_float, upcast
from eigenlens.circuit.adapters import merge_adapters
from eigenlens.circuit.circuit import Norm, OVCircuit
from eigenlens.circuit.layouts import Geometry, read_output
from eigenlens.circuit.plans import LayerPlan, NormPlan, Skipped, StackPlan
from eigenlens.circuit.readout import Readout
from eigenlens.circuit.resolve import find_architecture, plan_model
from eigenlens.circuit.rows import Architecture
from eigenlens.circuit.rules import read_rules
from eigenlens.errors import FormatError, OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.tensors.remote import prefetch
from eigenlens.tensors.source import Source, resolve
from eigenlens.tensors.store import ArrayStore, TensorStore

if TYPE_CHECKING:
    _CircuitSequence = Sequence[OVCircuit]
else:  # a checker that samples items of a Sequence[OVCircuit] at run time would read weights
    _CircuitSequence = Sequence


_SHOWN = 4  # names of circuits in one line


class Circuits(_CircuitSequence):
    """Circuits that are read when indexed or iterated; none is kept, so memory is one layer's."""

    def __init__(self, items: Sequence[LayerPlan | OVCircuit], store: TensorStore | None) -> None:
        self._items = items
        self._store = store

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> Sequence[LayerPlan | OVCircuit]:
        """The plans, or circuits that were given directly; nothing is read."""
        return self._items

    @property
    def names(self) -> list[str]:
        """`decoder.3`, or `decoder.cross.3` for cross attention; nothing is read."""
        cross = {"self": "", "cross": "cross."}
        return [f"{item.stack}.{cross[item.kind]}{item.layer}" for item in self._items]

    def __repr__(self) -> str:
        """Which circuits, in one line; nothing is read."""
        names = [inert(name) for name in self.names]
        shown = names if len(names) <= _SHOWN else [*names[: _SHOWN - 1], "...", names[-1]]
        return f"<eigenlens Circuits, {len(names)}, read when taken: {', '.join(shown)}>"

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


@dataclass(frozen=True, repr=False)
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
    rules
        The architecture that was given with the source, in place of the table's row.
    """

    source_label: str
    config: Mapping[str, Any]
    source: Source | None = None
    stacks: tuple[StackPlan, ...] = ()
    arrays: tuple[OVCircuit, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    rules: Architecture | None = None

    def __repr__(self) -> str:
        """What it is and which layers it has, in one line."""
        g = self.geometry
        stacks = {item.stack: 0 for item in self.arrays or self.plans}
        for item in self.arrays or self.plans:
            stacks[item.stack] += 1
        parts = [f"{inert(name)} {count}" for name, count in stacks.items()]
        kind = f"{inert(self.model_type)}, " if self.model_type else ""
        layers = f"layers: {', '.join(parts)}"
        return f"<eigenlens Checkpoint {inert(self.source_label)}: {kind}d {g.d_model}, {layers}>"

    @property
    def model_type(self) -> str | None:
        """The config's model_type; None for plain arrays."""
        return self.config.get("model_type")

    @property
    def architecture(self) -> Architecture | None:
        """The row of the architectures table; None for plain arrays."""
        if self.rules is not None:
            return self.rules
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
        stack = next((s for s in self.stacks if s.readout is not None), None)
        if stack is None or stack.readout is None or self.source is None:
            name = self.model_type or "a model given as plain arrays"
            raise OptionError(
                f"{name} has no token embedding: leave out what needs tokens (--decode, copying "
                "scores)"
            )
        return Readout(stack.readout, stack, self.source.store)


def open_checkpoint(
    source: Any, architecture: Architecture | str | Path | None = None
) -> Checkpoint:
    """Open a model as its circuits; names and shapes are checked, weights are read later.

    Parameters
    ----------
    source
        A path, hub id or `sample:NAME`; a `Source`; `(state_dict, config)`; a live
        `PreTrainedModel`; `(W_V, W_O)` arrays (one head); an `OVCircuit` or a sequence of them; or
        a `Checkpoint`, which is returned as it is.
    architecture
        How the model's tensors are named and laid out, in place of the table's row for its
        model_type: a file of rules (see `eigenlens.circuit.rules`), or an `Architecture`.

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
    if isinstance(architecture, (str, Path)):
        architecture = read_rules(architecture)
    if isinstance(source, OVCircuit):
        return Checkpoint("arrays", {}, arrays=(source,))
    if isinstance(source, (str, Path)):
        return _open(resolve(source), architecture)
    if isinstance(source, Source):
        return _open(source, architecture)
    if hasattr(source, "state_dict") and hasattr(source, "config"):
        model = merge_adapters(source)
        label = f"{type(source).__name__} (live)"
        return _open_arrays(model.state_dict(), model.config, label, architecture)
    if isinstance(source, Sequence) and source:
        if all(isinstance(item, OVCircuit) for item in source):
            return Checkpoint("arrays", {}, arrays=tuple(source))
        if len(source) == 2 and isinstance(source[0], Mapping):
            return _open_arrays(source[0], source[1], "state dict", architecture)
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


def _open_arrays(
    state: Mapping[str, Any], config: Any, label: str, rules: Architecture | None
) -> Checkpoint:
    to_dict = getattr(config, "to_dict", None)
    found = to_dict() if callable(to_dict) else config
    if not isinstance(found, Mapping):
        raise FormatError(
            f"{label}: the config is a {type(config).__name__}, expected a mapping or a "
            "transformers config"
        )

    def tokens() -> Sequence[str]:
        raise SourceError(f"{label} has no vocabulary: open the model's folder to see tokens")

    source = Source(label, dict(found), ArrayStore(state, label), None, "arrays", tokens)
    return _open(source, rules)


def _open(source: Source, rules: Architecture | None = None) -> Checkpoint:
    stacks, skipped = plan_model(source.config, source.store, rules)
    return Checkpoint(
        source.label,
        source.config,
        source,
        tuple(stack for stack in stacks if stack.layers),
        skipped=tuple(skipped),
        rules=rules,
    )


def read_circuit(plan: LayerPlan, store: TensorStore) -> OVCircuit:
    """Read one layer's circuit; of a fused projection only the value rows where they are a run.

    Raises
    ------
    NumericsError
        If a tensor holds NaN or infinity, naming it.
    """
    g, rows = plan.geometry, plan.layout.rows(plan.geometry)
    prefetch(store, [(name, rows if name == plan.value else None) for name in plan.tensors])
    if rows is None:
        W_V = plan.layout.read(g, _matrix(_finite(plan.value, store)))
    else:
        W_V = _matrix(store.read(plan.value, rows))
        check_finite(inert(plan.value), W_V)
    W_O = read_output(plan.orientation, _matrix(_finite(plan.output, store)))
    b_V = None if plan.value_bias is None else _finite(plan.value_bias, store)
    if b_V is not None and not plan.bias_alone:
        b_V = plan.layout.read_bias(g, b_V)
    if plan.value_scale != 1.0:
        # A power of two leaves every float32 as exact as it was; any other product rounds.
        exact = abs(frexp(plan.value_scale)[0]) == 0.5
        W_V = upcast(W_V, _wide(W_V) if exact else "float64") * plan.value_scale
        if b_V is not None:
            b_V = upcast(b_V, _wide(b_V) if exact else "float64") * plan.value_scale
    scale: float | Float[np.ndarray, "d"] = plan.output_scale
    if plan.scale is not None:
        scale = plan.output_scale * upcast(_finite(plan.scale, store)).reshape(-1)
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
        b_V=b_V,
        b_O=None if plan.output_bias is None else _finite(plan.output_bias, store),
        output_scale=scale,
        placement=plan.placement,
        norm_in=read_norm(plan.norm_in, g.width_in, store),
        norm_out=read_norm(plan.norm_out, g.d_model, store),
        rectangular=g.width_in != g.d_model,
    )


def read_norm(plan: NormPlan | None, d: int, store: TensorStore) -> Norm | None:
    """Read a norm with its effective gain: offset + w in float64; 1 if it has none."""
    if plan is None:
        return None
    if plan.gain is None:
        return Norm(plan.kind, np.ones(d), None, plan.module)
    gain = _finite(plan.gain, store)
    if plan.offset:
        gain = upcast(gain, "float64") + plan.offset
    bias = None if plan.bias is None else _finite(plan.bias, store)
    return Norm(plan.kind, gain.reshape(-1), None if bias is None else bias.reshape(-1), plan.gain)


def _matrix(stored: Float[np.ndarray, "a *b"]) -> Float[np.ndarray, "a c"]:
    """A weight as a matrix; a convolution of width 1, or one with its heads apart, is one."""
    return stored.reshape(len(stored), -1)


def _wide(array: Float[np.ndarray, "..."]) -> str:
    return "float64" if array.dtype.itemsize > 4 else "float32"


def _finite(name: str, store: TensorStore) -> Float[np.ndarray, "..."]:
    array = store.read(name)
    check_finite(inert(name), array)
    return array
