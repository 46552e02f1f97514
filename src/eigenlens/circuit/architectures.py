"""Where each model type keeps its attention: one row of data a model type.

A new architecture is one new row in `ARCHITECTURES`. A row holds the stacks of the model (names of
the tensors under each naming scheme, layout, norms, biases), the config keys with the defaults that
the model's config class fills in, and where the vocabulary enters and leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from eigenlens.circuit.rows import (
    PLAIN_HEADS,
    Architecture,
    Naming,
    Readout,
    Stack,
    Switch,
    albert_groups,
    flag,
)


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
