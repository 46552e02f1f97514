"""Where each model type keeps its attention: one row of data a model type.

A new architecture is one new row in `ARCHITECTURES`. A row holds the stacks of the model (names of
the tensors under each naming scheme, layout, norms, biases), the config keys with the defaults that
the model's config class fills in, and where the vocabulary enters and leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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


def _sizes(d: int, layers: int, heads: int, kv: int = 0, head_dim: int = 0) -> dict[str, int]:
    sizes = {"d_model": d, "n_layers": layers, "n_heads": heads}
    return sizes | ({"n_kv_heads": kv} if kv else {}) | ({"head_dim": head_dim} if head_dim else {})


def _bert_names(prefixes: tuple[str, ...]) -> tuple[Naming, ...]:
    at = "encoder.layer.{layer}.attention."
    return (
        Naming(
            f"{at}self.value",
            f"{at}output.dense",
            norm_after=f"{at}output.LayerNorm",
            prefixes=("", *prefixes),
        ),
    )


_BERT_STACK = Stack(
    "encoder",
    _bert_names(("bert.",)),
    placement="post",
    causal=flag("is_decoder", False),
)
_BERT = Architecture(
    (_BERT_STACK,),
    _sizes(768, 12, 12),
    PLAIN_HEADS,
    Readout(
        ("embeddings.word_embeddings",),
        unembedding=("cls.predictions.decoder",),
        head_dense="cls.predictions.transform.dense",
        head_norm="cls.predictions.transform.LayerNorm",
    ),
)
_ROBERTA = replace(
    _BERT,
    stacks=(replace(_BERT_STACK, namings=_bert_names(("roberta.", "xlm_roberta."))),),
    readout=Readout(
        ("embeddings.word_embeddings",),
        unembedding=("lm_head.decoder",),
        head_dense="lm_head.dense",
        head_norm="lm_head.layer_norm",
        activation="=gelu",
    ),
)
_ELECTRA = replace(
    _BERT,
    stacks=(replace(_BERT_STACK, namings=_bert_names(("electra.",))),),
    defaults=_sizes(256, 12, 4),
    readout=Readout(
        ("embeddings.word_embeddings",),
        embedding_map=("embeddings_project",),
        unembedding=("generator_lm_head",),
        head_dense="generator_predictions.dense",
        head_norm="generator_predictions.LayerNorm",
        activation="=gelu",
    ),
)
_ALBERT_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.{inner}.attention."
_ALBERT = Architecture(
    (
        Stack(
            "encoder",
            (
                Naming(
                    f"{_ALBERT_LAYER}value",
                    f"{_ALBERT_LAYER}dense",
                    norm_after=f"{_ALBERT_LAYER}LayerNorm",
                    prefixes=("", "albert."),
                ),
            ),
            placement="post",
            causal=False,
            slots=albert_groups,
        ),
    ),
    _sizes(4096, 12, 64),
    PLAIN_HEADS,
    Readout(
        ("embeddings.word_embeddings",),
        embedding_map=("encoder.embedding_hidden_mapping_in",),
        unembedding=("predictions.decoder",),
        head_dense="predictions.dense",
        head_norm="predictions.LayerNorm",
    ),
)
_DISTILBERT_LAYER = "transformer.layer.{layer}."
_DISTILBERT = Architecture(
    (
        Stack(
            "encoder",
            (
                Naming(
                    f"{_DISTILBERT_LAYER}attention.v_lin",
                    f"{_DISTILBERT_LAYER}attention.out_lin",
                    norm_after=f"{_DISTILBERT_LAYER}sa_layer_norm",
                    prefixes=("", "distilbert."),
                ),
            ),
            placement="post",
            causal=False,
        ),
    ),
    _sizes(768, 6, 12),
    PLAIN_HEADS,
    Readout(
        ("embeddings.word_embeddings",),
        unembedding=("vocab_projector",),
        head_dense="vocab_transform",
        head_norm="vocab_layer_norm",
        activation="activation",
    ),
)

_WTE = Readout(("wte",), final_norm=("ln_f",))
_GPT2 = Architecture(
    (
        Stack(
            "decoder",
            (
                Naming(
                    "h.{layer}.attn.c_attn",
                    "h.{layer}.attn.c_proj",
                    norm_before="h.{layer}.ln_1",
                    prefixes=("", "transformer."),
                ),
            ),
            layout="stacked_conv1d",
            output_orientation="conv1d",
        ),
    ),
    _sizes(768, 12, 12),
    PLAIN_HEADS,
    _WTE,
)
_GPT_NEO = Architecture(
    (
        Stack(
            "decoder",
            (
                Naming(
                    "h.{layer}.attn.attention.v_proj",
                    "h.{layer}.attn.attention.out_proj",
                    norm_before="h.{layer}.ln_1",
                    prefixes=("", "transformer."),
                ),
            ),
            value_bias=False,
        ),
    ),
    _sizes(2048, 24, 16),
    PLAIN_HEADS,
    _WTE,
)
_GPTJ = Architecture(
    (
        Stack(
            "decoder",
            (
                Naming(
                    "h.{layer}.attn.v_proj",
                    "h.{layer}.attn.out_proj",
                    norm_before="h.{layer}.ln_1",
                    prefixes=("", "transformer."),
                ),
            ),
            placement="parallel",
            value_bias=False,
            output_bias=False,
        ),
    ),
    _sizes(4096, 28, 16),
    PLAIN_HEADS,
    replace(_WTE, tied=flag("tie_word_embeddings", False)),
)
_GPT_NEOX = Architecture(
    (
        Stack(
            "decoder",
            (
                Naming(
                    "layers.{layer}.attention.query_key_value",
                    "layers.{layer}.attention.dense",
                    norm_before="layers.{layer}.input_layernorm",
                    prefixes=("", "gpt_neox."),
                ),
            ),
            layout="per_head",
            placement=Switch("use_parallel_residual", True, "parallel", "pre"),
            value_bias=flag("attention_bias", True),
            output_bias=flag("attention_bias", True),
        ),
    ),
    _sizes(6144, 44, 64),
    PLAIN_HEADS,
    Readout(
        ("embed_in",),
        unembedding=("lm_head", "embed_out"),
        tied=flag("tie_word_embeddings", False),
        final_norm=("final_layer_norm",),
    ),
)
_OPT_LAYER = "layers.{layer}."
_OPT = Architecture(
    (
        Stack(
            "decoder",
            (
                Naming(
                    f"{_OPT_LAYER}self_attn.v_proj",
                    f"{_OPT_LAYER}self_attn.out_proj",
                    norm_before=f"{_OPT_LAYER}self_attn_layer_norm",
                    norm_after=f"{_OPT_LAYER}self_attn_layer_norm",
                    prefixes=("decoder.", "model.decoder."),
                ),
            ),
            placement=Switch("do_layer_norm_before", True, "pre", "post"),
            norm_affine=flag("layer_norm_elementwise_affine", True),
            value_bias=flag("enable_bias", True),
            output_bias=flag("enable_bias", True),
        ),
    ),
    _sizes(768, 12, 12),
    PLAIN_HEADS,
    Readout(
        ("embed_tokens",),
        embedding_map=("project_in",),
        unembedding_map=("project_out",),
        final_norm=("final_layer_norm",),
        has_final_norm=Switch("_remove_final_layer_norm", False, False, True),
    ),
)


def _llama_names(*, sandwich: bool = False, fused: bool = False) -> tuple[Naming, ...]:
    at = "layers.{layer}."
    return (
        Naming(
            f"{at}self_attn.{'qkv_proj' if fused else 'v_proj'}",
            f"{at}self_attn.o_proj",
            norm_before=f"{at}input_layernorm",
            norm_after=f"{at}post_attention_layernorm" if sandwich else None,
            prefixes=("", "model."),
        ),
        Naming(
            f"blk.{{layer}}.{'attn_qkv' if fused else 'attn_v'}",
            "blk.{layer}.attn_output",
            norm_before="blk.{layer}.attn_norm",
            norm_after="blk.{layer}.post_attention_norm" if sandwich else None,
            gain_offset=0.0,
            bias_if_present=True,
        ),
    )


_LLAMA_STACK = Stack(
    "decoder",
    _llama_names(),
    norm_kind="rmsnorm",
    value_bias=flag("attention_bias", False),
    output_bias=flag("attention_bias", False),
)
_LLAMA = Architecture(
    (_LLAMA_STACK,),
    _sizes(4096, 32, 32),
    readout=Readout(
        ("embed_tokens", "token_embd"),
        unembedding=("lm_head", "output"),
        tied=flag("tie_word_embeddings", False),
        final_norm=("norm", "output_norm"),
    ),
)
_GEMMA_READOUT = Readout(
    ("embed_tokens", "token_embd"),
    unembedding=("lm_head", "output"),
    final_norm=("norm", "output_norm"),
)
_GEMMA_STACK = replace(
    _LLAMA_STACK,
    gain_offset=1.0,
    causal=Switch("use_bidirectional_attention", False, False, True),
)
_GEMMA = Architecture((_GEMMA_STACK,), _sizes(3072, 28, 16, 16, 256), readout=_GEMMA_READOUT)
_GEMMA2 = Architecture(
    (replace(_GEMMA_STACK, namings=_llama_names(sandwich=True), placement="sandwich"),),
    _sizes(2304, 26, 8, 4, 256),
    readout=_GEMMA_READOUT,
)
_PHI = Architecture(
    (
        Stack(
            "decoder",
            (
                Naming(
                    "layers.{layer}.self_attn.v_proj",
                    "layers.{layer}.self_attn.dense",
                    norm_before="layers.{layer}.input_layernorm",
                    prefixes=("", "model."),
                ),
            ),
            placement="parallel",
        ),
    ),
    _sizes(2048, 24, 32),
    readout=Readout(
        ("embed_tokens",),
        tied=flag("tie_word_embeddings", False),
        final_norm=("final_layernorm",),
    ),
)
_PHI3 = replace(
    _LLAMA,
    stacks=(
        replace(
            _LLAMA_STACK,
            namings=_llama_names(fused=True),
            layout="stacked",
            value_bias=False,
            output_bias=False,
        ),
    ),
    defaults=_sizes(3072, 32, 32),
)
_VIT_OLD, _VIT_NEW = "encoder.layer.{layer}.", "layers.{layer}."
_VIT = Architecture(
    (
        Stack(
            "vision",
            (
                Naming(
                    f"{_VIT_OLD}attention.attention.value",
                    f"{_VIT_OLD}attention.output.dense",
                    norm_before=f"{_VIT_OLD}layernorm_before",
                    prefixes=("", "vit."),
                ),
                Naming(
                    f"{_VIT_NEW}attention.v_proj",
                    f"{_VIT_NEW}attention.o_proj",
                    norm_before=f"{_VIT_NEW}layernorm_before",
                    prefixes=("", "vit."),
                ),
            ),
            value_bias=flag("qkv_bias", True),
            causal=False,
        ),
    ),
    _sizes(768, 12, 12),
    PLAIN_HEADS,
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "albert": _ALBERT,
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": _DISTILBERT,
    "electra": _ELECTRA,
    "gpt2": _GPT2,
    "gpt_neo": _GPT_NEO,
    "gpt_neox": _GPT_NEOX,
    "gptj": _GPTJ,
    "opt": _OPT,
    "llama": _LLAMA,
    "mistral": replace(
        _LLAMA,
        stacks=(replace(_LLAMA_STACK, value_bias=False, output_bias=False),),
        defaults=_sizes(4096, 32, 32, 8),
    ),
    "qwen2": replace(
        _LLAMA,
        stacks=(replace(_LLAMA_STACK, value_bias=True, output_bias=False),),
        defaults=_sizes(4096, 32, 32, 32),
    ),
    "qwen3": replace(_LLAMA, defaults=_sizes(4096, 32, 32, 32, 128)),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "phi": _PHI,
    "phi3": _PHI3,
    "vit": _VIT,
}
