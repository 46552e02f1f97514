"""Text encoders with names of their own: ALBERT, XLM, Funnel, Perceiver, ModernBERT and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    ATTENTION_BIAS,
    each,
    named,
    one,
    several,
)
from eigenlens.circuit.architectures.decoder_patterns import llama, llama_readout
from eigenlens.circuit.architectures.encoder_patterns import (
    BERT_READOUT,
    ROBERTA_READOUT,
    bert,
)
from eigenlens.circuit.architectures.seq2seq_patterns import bart_stack
from eigenlens.circuit.facts import Cases, Rule, Switch, flag
from eigenlens.circuit.rows import SINKS, Architecture, Factor, Readout
from eigenlens.circuit.slots import albert_groups, cycles, funnel_blocks

GROUPED_OUTPUT = "its output projection is a grouped convolution (post_attention_groups)"
REVERSIBLE = "reversible residual: F reads one stream and adds to the other"
NO_RESIDUAL = "no residual around it (use_query_residual)"


def _xlm(**stack: Any) -> Architecture:
    """XLM's names: modules of one kind in a list, `attentions.N`, `layer_norm1.N`."""
    return one(
        "encoder",
        "attentions.{layer}.v_lin",
        "attentions.{layer}.out_lin",
        "layer_norm1.{layer}",
        "layer_norm1.{layer}",
        prefixes=("", "transformer."),
        keys={"d_model": ("emb_dim",), "n_layers": ("n_layers",), "n_heads": ("n_heads",)},
        readout=Readout(("embeddings",), unembedding=("pred_layer.proj",)),
        **{"causal": flag("causal", False), "placement": "post", **stack},
    )


def _funnel(name: str, at: str, n_layers: str, **stack: Any) -> Architecture:
    """One of Funnel's stacks; `block_sizes` says how deep the encoder is."""
    return one(
        name,
        "v_head",
        "post_proj",
        after="layer_norm",
        at=f"{at}attention.",
        prefixes=("", "funnel."),
        causal=False,
        keys={
            "d_model": ("d_model",),
            "n_layers": (n_layers,),
            "n_heads": ("n_head",),
            "head_dim": ("d_head",),
        },
        readout=Readout(("embeddings.word_embeddings",)),
        **stack,
    )


def _perceiver(
    at: str, heads: str, width: Rule[tuple[str, ...]], norm: str, n_layers: str, **stack: Any
) -> Architecture:
    """One of Perceiver's stacks; its values are `v_channels` wide, else `qk_channels`."""
    head_dim: Rule[tuple[str, ...]] = Switch(
        "v_channels",
        False,
        (f"v_channels//{heads}",),
        Switch("qk_channels", False, (f"qk_channels//{heads}",), width),
    )
    return one(
        "encoder",
        "self.value",
        "output.dense",
        f"self.{norm}",
        at=f"{at}attention.",
        prefixes=("", "perceiver."),
        causal=False,
        keys={
            "d_model": ("d_latents",),
            "d_in": ("d_model",) if "kind" in stack else (),
            "n_layers": (n_layers,),
            "n_heads": (heads,),
            "head_dim": head_dim,
        },
        **stack,
    )


OTHER_ENCODERS: Mapping[str, Architecture] = {
    "albert": one(
        "encoder",
        "value",
        "dense",
        after="LayerNorm",
        at="encoder.albert_layer_groups.{group}.albert_layers.{inner}.attention.",
        prefixes=("", "albert."),
        causal=False,
        slots=albert_groups,
        readout=Readout(
            ("embeddings.word_embeddings",),
            embedding_map=("encoder.embedding_hidden_mapping_in",),
            unembedding=("predictions.decoder",),
            head_dense="predictions.dense",
            head_norm="predictions.LayerNorm",
        ),
    ),
    "distilbert": one(
        "encoder",
        "attention.v_lin",
        "attention.out_lin",
        after="sa_layer_norm",
        at="transformer.layer.{layer}.",
        prefixes=("", "distilbert."),
        causal=False,
        readout=Readout(
            ("embeddings.word_embeddings",),
            unembedding=("vocab_projector",),
            head_dense="vocab_transform",
            head_norm="vocab_layer_norm",
            activation="activation",
        ),
    ),
    "squeezebert": bert(
        "transformer.",
        at="encoder.layers.{layer}.",
        attention="",
        value="attention.value",
        output="post_attention.conv1d",
        after="post_attention.layernorm",
        causal=False,
        keys={"groups": ("v_groups",)},
        refused=Cases("post_attention_groups", {1: None}, GROUPED_OUTPUT),
    ),
    "xlm": _xlm(),
    "flaubert": _xlm(placement=Switch("pre_norm", False, "pre", "post")),
    "xlnet": one(
        "encoder",
        "=layer.{layer}.rel_attn.v",
        "=layer.{layer}.rel_attn.o",
        after="layer.{layer}.rel_attn.layer_norm",
        prefixes=("", "transformer."),
        layout="separate_conv1d",
        value_bias=False,
        output_bias=False,
        causal=False,
        readout=Readout(("word_embedding",), unembedding=("lm_loss",)),
    ),
    "funnel": several(
        _funnel("encoder", "encoder.blocks.{block}.{inner}.", "+block_sizes", slots=funnel_blocks),
        _funnel("decoder", "decoder.layers.{layer}.", "num_decoder_layers"),
    ),
    "perceiver": several(
        _perceiver(
            "encoder.self_attends.{layer}.",
            "num_self_attention_heads",
            ("d_latents//num_self_attention_heads",),
            "layernorm1",
            "num_self_attends_per_block",
            slots=cycles("num_blocks"),
        ),
        _perceiver(
            "encoder.cross_attention.",
            "num_cross_attention_heads",
            Cases(
                "cross_attention_shape_for_attention",
                {"q": ("d_latents//num_cross_attention_heads",)},
                ("d_model//num_cross_attention_heads",),
            ),
            "layernorm2",
            "=1",
            kind="cross",
            notes=(Switch("use_query_residual", True, None, NO_RESIDUAL),),
        ),
    ),
    "reformer": one(
        "encoder",
        "encoder.layers.{layer}.attention.self_attention.value",
        "encoder.layers.{layer}.attention.output.dense",
        "encoder.layers.{layer}.attention.layer_norm",
        prefixes=("", "reformer."),
        value_bias=False,
        output_bias=False,
        causal=flag("is_decoder", False),
        keys={"head_dim": ("attention_head_size",)},
        notes=(REVERSIBLE,),
        readout=Readout(("embeddings.word_embeddings",), unembedding=("lm_head.decoder",)),
    ),
    # -- Llama's names, tokens see both ways
    **each(
        named(llama(causal=False, gguf=False), "encoder"),
        "eurobert",
        "ultrabert",
    ),
    "openai_privacy_filter": named(llama(causal=False, gguf=False, notes=(SINKS,)), "encoder"),
    "esmc": named(
        llama(
            causal=False,
            gguf=False,
            norm_kind="layernorm",
            output_scale=(Factor("num_hidden_layers", -0.5), Factor("=36", 0.5)),
            readout=replace(llama_readout(), unembedding=()),
        ),
        "encoder",
    ),
    "nomic_bert": bart_stack(
        "encoder",
        output="o_proj",
        norm="post_attention_layernorm",
        prefixes=("", "nomic_bert."),
        plain=False,
        value_bias=False,
        output_bias=False,
        causal=False,
        keys={"n_kv_heads": ()},
        readout=BERT_READOUT,
    ),
    "jina_embeddings_v3": bart_stack(
        "encoder",
        output="o_proj",
        norm="post_attention_layernorm",
        prefixes=("", "roberta."),
        causal=False,
        readout=ROBERTA_READOUT,
    ),
    "modernbert": one(
        "encoder",
        "layers.{layer}.attn.Wqkv",
        "layers.{layer}.attn.Wo",
        "layers.{layer}.attn_norm",
        prefixes=("", "model."),
        layout="stacked",
        norm_bias=flag("norm_bias", False),
        value_bias=ATTENTION_BIAS,
        output_bias=ATTENTION_BIAS,
        causal=False,
        bare=(0,),
        readout=Readout(("embeddings.tok_embeddings",), unembedding=(), final_norm=("final_norm",)),
    ),
}
