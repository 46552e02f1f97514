"""What is planned of a model: the tensors of each layer's circuit, the layers without one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from eigenlens.circuit.circuit import Kind, NormKind, Placement
from eigenlens.circuit.layouts import Geometry, Layout, Orientation
from eigenlens.circuit.rows import SINKS, UNGATED, Naming, Readout, Stack
from eigenlens.errors import OptionError
from eigenlens.inert import inert


@dataclass(frozen=True)
class NormPlan:
    """Where a norm's gain and bias are; `gain` None means that it has no elementwise gain."""

    kind: NormKind
    module: str
    gain: str | None
    bias: str | None
    offset: float


@dataclass(frozen=True)
class LayerPlan:
    """Which tensors make one layer's circuit, and how they are laid out.

    Attributes
    ----------
    stack, layer, kind
        Where the layer sits; `layer` is its real 0-based index (ALBERT: of the stored layer).
    calls
        Which attention calls of a forward pass use it; `steps` is their number.
    value, output
        Names of the (possibly fused) value projection's and the output projection's weights.
    value_bias, output_bias
        Names of their biases, or None.
    norm_in, norm_out, placement
        The norms around the layer.
    layout, orientation, geometry
        How the value projection is fused, how the output projection is stored, the sizes.
    causal
        Whether a token sees only what stands before it.
    output_scale
        Factor on the attention output before the residual sum.
    scale
        Name of a tensor that the attention output is multiplied with besides, or None.
    value_scale
        Factor on the values; part of F.
    bias_alone
        Whether the value bias is stored without the other parts of a fused projection.
    notes
        What must be said beside F.
    """

    stack: str
    layer: int
    kind: Kind
    calls: tuple[int, ...]
    value: str
    output: str
    value_bias: str | None
    output_bias: str | None
    norm_in: NormPlan | None
    norm_out: NormPlan | None
    placement: Placement
    layout: Layout
    orientation: Orientation
    geometry: Geometry
    causal: bool
    output_scale: float = 1.0
    scale: str | None = None
    value_scale: float = 1.0
    bias_alone: bool = False
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How often a forward pass calls this layer's weights."""
        return len(self.calls)

    @property
    def is_gated(self) -> bool:
        """Whether a gate stands before the output projection."""
        return UNGATED in self.notes

    @property
    def has_sinks(self) -> bool:
        """Whether a sink takes a share of attention, so that rows of A sum to less than 1."""
        return SINKS in self.notes

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of every tensor that the circuit is made of, norms included."""
        norms = [n for p in (self.norm_in, self.norm_out) if p for n in (p.gain, p.bias)]
        names = [self.value, self.output, self.value_bias, self.output_bias, self.scale, *norms]
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True)
class Skipped:
    """A layer without a circuit, and why.

    `layer` is -1 where that holds for all layers of the stack and kind; `kind` is None where it
    holds for a tower as a whole, whatever attention it has.
    """

    stack: str
    layer: int
    reason: str
    kind: Kind | None = "self"


@dataclass(frozen=True)
class StackPlan:
    """The layers of one stack, and the prefix that its names have in these files."""

    stack: Stack
    naming: Naming
    prefix: str
    geometry: Geometry
    config: Mapping[str, Any]
    layers: tuple[LayerPlan, ...]
    skipped: tuple[Skipped, ...] = ()
    readout: Readout | None = None


def layer_numbers(layers: Any, there: Collection[int], label: str) -> list[int]:
    """The layers that were asked for, in that order.

    Raises
    ------
    OptionError
        They are no whole numbers (a text, say), or the model has no such layer.
    """
    if isinstance(layers, (str, bytes)) or not isinstance(layers, Iterable):
        raise OptionError(f"layers is {inert(repr(layers))[:80]}: give numbers, such as [0, 9]")
    wanted = []
    for given in layers:
        try:
            layer = index(given)
        except TypeError:
            raise OptionError(
                f"layers holds {inert(repr(given))[:80]}: give numbers, such as [0, 9]"
            ) from None
        if layer not in there:
            raise OptionError(
                f"{label} has no layer {layer}: layers are {min(there)} to {max(there)}"
            )
        wanted.append(layer)
    return wanted
