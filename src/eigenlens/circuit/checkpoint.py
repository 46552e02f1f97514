"""Open any kind of model source as a `Checkpoint`: its plans, and its circuits one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from eigenlens.arrays import is_float
from eigenlens.circuit.adapters import merge_adapters
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.layouts import Geometry
from eigenlens.circuit.plans import LayerPlan, Skipped, StackPlan, layer_numbers
from eigenlens.circuit.reading import Seen, read_circuit, read_grouped
from eigenlens.circuit.readout import Readout
from eigenlens.circuit.resolve import find_architecture, plan_model
from eigenlens.circuit.rows import Architecture
from eigenlens.circuit.rules import read_rules, without_lead
from eigenlens.errors import FormatError, OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.shown.names import full_name
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
        return [full_name(item.stack, item.kind, item.layer) for item in self._items]

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

    def grouped(self, index: int, dtype: str, seen: Seen | None = None) -> OVCircuit:
        """The F of one circuit in `dtype`, the query heads of each group added up as they are read.

        For a layer that `eigenlens.circuit.reading.comes_in_runs`; see `read_grouped` there.

        Raises
        ------
        OptionError
            The circuit was given directly: there is nothing to read.
        """
        item = self._items[index]
        if isinstance(item, OVCircuit) or self._store is None:
            raise OptionError(f"{self.names[index]} is in memory: take it by its index")
        return read_grouped(item, self._store, dtype, seen)


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
            wanted = layer_numbers(layers, {item.layer for item in items}, self.source_label)
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
        state, lead = model.state_dict(), getattr(model, "base_model_prefix", "")
        if architecture is not None and not any(name.startswith(f"{lead}.") for name in state):
            architecture = without_lead(architecture, lead)
        return _open_arrays(state, model.config, label, architecture)
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
