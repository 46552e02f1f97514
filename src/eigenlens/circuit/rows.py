"""What a row of the architectures table is made of: stacks, namings, config rules, readout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from eigenlens.circuit.circuit import Kind, NormKind, Placement
from eigenlens.circuit.layouts import Geometry, Orientation

T = TypeVar("T")


@dataclass(frozen=True)
class Switch(Generic[T]):
    """A fact that the config decides: `yes` where its key is truthy, else `no`."""

    key: str
    default: bool
    yes: T
    no: T


Rule: TypeAlias = T | Switch[T]


def flag(key: str, default: bool) -> Switch[bool]:
    """A boolean config key with its default."""
    return Switch(key, default, True, False)


def decide(rule: Rule[T], config: Mapping[str, Any]) -> T:
    """What a rule says under a config; a key that is present decides, None counts as false."""
    if isinstance(rule, Switch):
        chosen: T = rule.yes if config.get(rule.key, rule.default) else rule.no
        return chosen
    return rule


@dataclass(frozen=True)
class Slot:
    """One stored layer: the fields of its names, and which attention calls of a pass use it."""

    layer: int
    fields: Mapping[str, int]
    calls: tuple[int, ...]


Slots = Callable[[Geometry, Mapping[str, Any]], list[Slot]]


def one_each(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """Every layer has weights of its own and is called once."""
    return [Slot(i, {"layer": i}, (i,)) for i in range(g.n_layers)]


def albert_groups(g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
    """ALBERT: call i runs all inner layers of group int(i / (n_layers / n_groups)).

    The division is in floats, as the model does it, so that uneven groups agree with it.
    """
    groups = int(config.get("num_hidden_groups", 1))
    inner = int(config.get("inner_group_num", 1))
    calls: dict[tuple[int, int], list[int]] = {}
    for i in range(g.n_layers):
        group = int(i / (g.n_layers / groups))
        for k in range(inner):
            calls.setdefault((group, k), []).append(i * inner + k)
    return [
        Slot(group * inner + k, {"group": group, "inner": k}, tuple(at))
        for (group, k), at in sorted(calls.items())
    ]


@dataclass(frozen=True)
class Naming:
    """One naming scheme for a stack's modules; `.weight` and `.bias` follow each name.

    Attributes
    ----------
    value, output
        The value projection (or the fused one that holds it) and the output projection.
    norm_before, norm_after
        The norm that feeds the values, and the one on the attention output or residual sum. The
        row's placement says which are in use.
    prefixes
        What usually stands before the names; these win where several are found.
    gain_offset
        Overrides the stack's: GGUF files already hold Gemma's 1 + w.
    bias_if_present
        For files whose config does not say whether there are biases (GGUF).
    """

    value: str
    output: str
    norm_before: str | None = None
    norm_after: str | None = None
    prefixes: tuple[str, ...] = ("",)
    gain_offset: float | None = None
    bias_if_present: bool = False


@dataclass(frozen=True)
class Stack:
    """One stack of attention layers of a model.

    Attributes
    ----------
    name, kind
        `encoder`, `decoder`, `vision`, ...; `self` or `cross`.
    namings
        Naming schemes; exactly one must match the names in the file.
    layout, output_orientation
        A key of `LAYOUTS`, and how the output projection is stored.
    placement, norm_kind, gain_offset, norm_affine
        Where norms sit, their kind, what is added to their stored gain, whether they have one.
    value_bias, output_bias
        Whether the projections have biases.
    causal
        Whether a token sees only what stands before it.
    slots
        Which weights serve which call.
    output_scale
        Config key of a factor on the attention output before the residual sum, or None.
    config_path, keys, defaults
        Sub-config of a composite model, config-key aliases and config-class defaults that differ
        from the architecture's.
    """

    name: str
    namings: tuple[Naming, ...]
    kind: Kind = "self"
    layout: str = "separate"
    output_orientation: Orientation = "linear"
    placement: Rule[Placement] = "pre"
    norm_kind: NormKind = "layernorm"
    gain_offset: float = 0.0
    norm_affine: Rule[bool] = True
    value_bias: Rule[bool] = True
    output_bias: Rule[bool] = True
    causal: Rule[bool] = True
    slots: Slots = one_each
    output_scale: str | None = None
    config_path: tuple[str, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Readout:
    """Where tokens enter and leave the residual stream; names without the stack's prefix.

    Attributes
    ----------
    embedding, embedding_map
        The token embedding (vocab, e), and the module (d, e) that lifts it to the stream, if any.
    unembedding, unembedding_map
        Output heads (vocab, e), full names, first found wins; the module (e, d) before it, if any.
    tied
        Whether the output head is the embedding where the file holds no head of its own.
    final_norm, has_final_norm
        The norm before the head (pre-norm models), and whether this config has it.
    head_dense, head_norm, activation
        A masked-language head's transform: dense layer, norm, and the config key of the activation
        between (or the activation itself, prefixed with "=").
    """

    embedding: tuple[str, ...]
    embedding_map: tuple[str, ...] = ()
    unembedding: tuple[str, ...] = ("lm_head",)
    unembedding_map: tuple[str, ...] = ()
    tied: Rule[bool] = flag("tie_word_embeddings", True)  # noqa: RUF009 - a frozen value
    final_norm: tuple[str, ...] = ()
    has_final_norm: Rule[bool] = True
    head_dense: str | None = None
    head_norm: str | None = None
    activation: str = "hidden_act"


# Sizes, and the config keys that may state them. A row overrides the ones its model reads
# differently; an empty tuple means that the model reads no such key and the usual rule holds.
KEYS: Mapping[str, tuple[str, ...]] = {
    "d_model": ("hidden_size", "n_embd", "dim", "d_model"),
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "n_kv_heads": ("num_key_value_heads", "n_head_kv", "num_kv_heads"),
    "head_dim": ("head_dim",),
}
PLAIN_HEADS: Mapping[str, tuple[str, ...]] = {"n_kv_heads": (), "head_dim": ()}


@dataclass(frozen=True)
class Architecture:
    """Everything eigenlens knows of a model type.

    Attributes
    ----------
    stacks
        Its attention stacks.
    defaults
        What its config class assumes for a size that config.json does not state.
    keys
        Config keys of the sizes, over those of `KEYS`.
    readout
        Where tokens enter and leave, or None (a vision model).
    """

    stacks: tuple[Stack, ...]
    defaults: Mapping[str, int]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    readout: Readout | None = None
