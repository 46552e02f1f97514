"""What a row of the architectures table is made of: stacks, namings, config rules, readout.

Every field is data. A fact that depends on the config is a rule: `Switch` (a truthy key), `Cases`
(the value of a key), nested as needed. Names of config keys may be `a.b` (in a section), `/a.b`
(from the top of a composite config), `=4` (the number itself), `#a` (the length of a list), `+a`
(its sum) or `a//b` (one key's number by another's, rounded down).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eigenlens.circuit.circuit import Kind, NormKind, Placement
from eigenlens.circuit.facts import Rule, flag
from eigenlens.circuit.layouts import Orientation
from eigenlens.circuit.slots import Slots, one_each
from eigenlens.errors import FormatError
from eigenlens.inert import inert

# Said beside F; verification knows them: a gate is held at 1, a sink's share is taken into account.
UNGATED = "the attention output is gated before W_O: F is the ungated linear part"
SINKS = "attention sinks: rows of A sum to less than 1"


@dataclass(frozen=True)
class Naming:
    """One naming scheme for a stack's modules; `.weight` and `.bias` follow each name.

    A name that ends in `_weight` is a whole parameter (`in_proj_weight`, whose bias is
    `in_proj_bias`); so is one that starts with `=` (then without a bias).

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
    value_bias
        Whole name of a parameter that holds the values' bias alone, though the weight is fused
        (BEiT's v_bias).
    scale
        Whole name of a parameter that the attention output is multiplied with, one a coordinate
        (LayerScale).
    layout
        Overrides the stack's.
    """

    value: str
    output: str
    norm_before: Rule[str | None] = None
    norm_after: str | None = None
    prefixes: tuple[str, ...] = ("",)
    gain_offset: float | None = None
    bias_if_present: bool = False
    value_bias: str | None = None
    scale: str | None = None
    layout: Rule[str] | None = None


@dataclass(frozen=True)
class Factor:
    """A number from the config, raised to a power; part of a scale.

    `default` holds where the config does not state it; None: it must be stated.
    """

    key: str
    power: float = 1.0
    default: float | None = 1.0


@dataclass(frozen=True)
class Listed:
    """What a per-layer list of words in the config says: word -> text, other words nothing.

    `key` names the list (`layer_types`), or a text with one letter a layer.
    """

    key: str
    words: Mapping[str, str]
    otherwise: str | None = None

    def says(self, config: Mapping[str, Any], layer: int) -> str | None:
        """The text for one layer, or None.

        Raises
        ------
        FormatError
            If the list has no entry for the layer.
        """
        found = config.get(self.key)
        if found is None:
            return None
        if not isinstance(found, (list, tuple, str)) or layer >= len(found):
            raise FormatError(
                f"config key {self.key!r} is {inert(repr(found)[:80])}: expected an entry for each "
                f"layer, and layer {layer} has none"
            )
        return self.words.get(str(found[layer]), self.otherwise)


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
    placement, norm_kind, gain_offset, norm_affine, norm_bias
        Where norms sit (OLMo 2, a norm on the output alone: `sandwich` without `norm_before`),
        their kind, what is added to their stored gain, whether they have one, whether layernorms
        have a bias.
    value_bias, output_bias
        Whether the projections have biases.
    causal
        Whether a token sees only what stands before it.
    slots
        Which weights serve which call.
    output_scale
        Factor on the attention output before the residual sum: a config key, or several factors.
    layer_scale
        Whether the tensor that a naming's `scale` names is in use.
    value_scale
        The same for a factor on the values; part of F.
    config_path, keys, defaults
        Sub-config of a composite model, config-key aliases, and sizes where the config class's
        defaults (`defaults.json`) are not what the model assumes.
    per_layer
        Sizes for which the config may give a list, one number a layer.
    exists
        Whether a model of this config has the stack at all.
    refused
        Why the stack is not linear in its values, where the config makes it so; else None.
    normed
        Whether the norms are ones of `norm_kind`: else they are left out (a batch norm).
    bare
        Layers that stand without the norm before (ModernBERT's first reads normed embeddings).
    skip, others
        Which layers have no linear softmax attention, by a list in the config, and by a name that
        only such a layer has in the files (`layers.{layer}.mamba.` -> reason).
    notes, layer_notes
        What must be said beside F, for the stack and by layer.
    within, outside
        Parts of the prefix that must, or must not, stand before the names (`vision_tower.`).
    """

    name: str
    namings: tuple[Naming, ...]
    kind: Kind = "self"
    layout: Rule[str] = "separate"
    output_orientation: Orientation = "linear"
    placement: Rule[Placement] = "pre"
    norm_kind: Rule[NormKind] = "layernorm"
    gain_offset: float = 0.0
    norm_affine: Rule[bool] = True
    norm_bias: Rule[bool] = True
    value_bias: Rule[bool] = True
    output_bias: Rule[bool] = True
    causal: Rule[bool] = True
    slots: Slots = one_each
    output_scale: str | tuple[Factor, ...] | None = None
    layer_scale: Rule[bool] = True
    value_scale: str | tuple[Factor, ...] | None = None
    config_path: tuple[str, ...] = ()
    keys: Mapping[str, Rule[tuple[str, ...]]] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    per_layer: tuple[str, ...] = ()
    exists: Rule[bool] = True
    refused: Rule[str | None] = None
    normed: Rule[bool] = True
    bare: tuple[int, ...] = ()
    skip: Listed | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Rule[str | None], ...] = ()
    layer_notes: Listed | None = None
    within: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


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
# differently; an empty tuple means that the model reads no such key and the usual rule holds:
# n_kv_heads = n_heads, head_dim = d_model / n_heads, d_in = d_model, qk_dim = head_dim (the width
# of a query head, where a value head has another). The first key of each is the usual one.
KEYS: Mapping[str, tuple[str, ...]] = {
    "d_model": ("hidden_size", "n_embd", "dim", "d_model"),
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "n_kv_heads": ("num_key_value_heads", "n_head_kv", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "d_in": (),
    "qk_dim": (),
    "groups": (),
}
PLAIN_HEADS: Mapping[str, tuple[str, ...]] = {"n_kv_heads": (), "head_dim": ()}


@dataclass(frozen=True)
class Tower:
    """A part of a composite model that is a model of its own, named by a section of the config.

    Attributes
    ----------
    name
        Of its stack; a tower of several stacks gives `name.encoder`, `name.decoder`, ...
    path
        The section (`("text_config",)`); its `model_type` says which row describes it.
    within
        Parts of the prefix that its tensors have in the composite's files, first match counts.
    model_type
        Whose row to use where the section does not say.
    readout
        Whether the composite's tokens enter and leave here.
    flat
        Whether a config without the section states its keys at the top.
    """

    name: str
    path: tuple[str, ...]
    within: tuple[str, ...] = ()
    model_type: str | None = None
    readout: bool = False
    flat: bool = False


@dataclass(frozen=True)
class Architecture:
    """Everything eigenlens knows of a model type.

    Attributes
    ----------
    stacks
        Its attention stacks.
    keys
        Config keys of the sizes, over those of `KEYS`.
    readout
        Where tokens enter and leave the first stack, or None (a vision model).
    towers
        Parts that other rows describe.
    """

    stacks: tuple[Stack, ...] = ()
    keys: Mapping[str, Rule[tuple[str, ...]]] = field(default_factory=dict)
    readout: Readout | None = None
    towers: tuple[Tower, ...] = ()
