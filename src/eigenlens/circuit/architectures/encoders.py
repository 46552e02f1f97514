"""Text encoders: one line a model type (`"bert": bert("bert.")`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    ATTENTION_BIAS,
    cross,
    each,
    named,
    one,
    several,
)
from eigenlens.circuit.architectures.patterns import (
    BERT_READOUT,
    ROBERTA_READOUT,
    WORDS,
    bart_stack,
    bert,
    llama,
    llama_readout,
    with_cross,
)
from eigenlens.circuit.rows import (
    SINKS,
    Architecture,
    Cases,
    Factor,
    Readout,
    Rule,
    Switch,
    albert_groups,
    flag,
)
from eigenlens.circuit.slots import cycles, funnel_blocks, two_ways

GLOBAL_VALUES = "tokens with global attention use value_global; F is of the local values"
TALKING_HEADS = "heads are mixed after softmax (talking_head): rows of A sum to no 1"
ROTARY_VALUES = "its values are rotated by position (rotary_value): F depends on the distance"
QUANTISED = "activations are rounded inside attention (quant_mode): not linear in the values"
GROUPED_OUTPUT = "its output projection is a grouped convolution (post_attention_groups)"
REVERSIBLE = "reversible residual: F reads one stream and adds to the other"
NO_NORM = "the sum is scaled and shifted by coordinate, not normalised (no_norm)"
WIDE_VALUES = "its values read the wide stream, its output is added to the narrow one"
NO_RESIDUAL = "no residual around it (use_query_residual)"

_ALBERT = "encoder.albert_layer_groups.{group}.albert_layers.{inner}.attention."
_DISTILBERT = "transformer.layer.{layer}."
_LM_HEAD = Readout(("embeddings.word_embeddings",), unembedding=("lm_head.decoder",))
_LIFTED = replace(BERT_READOUT, embedding_map=("embeddings_project",))
_BOTTLENECK: Rule[tuple[str, ...]] = Switch(
    "use_bottleneck", True, ("intra_bottleneck_size",), ("hidden_size",)
)


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
        f"{at}attention.v_head",
        f"{at}attention.post_proj",
        after=f"{at}attention.layer_norm",
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
        f"{at}attention.self.value",
        f"{at}attention.output.dense",
        f"{at}attention.self.{norm}",
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


def _lxmert() -> Architecture:
    """Language and vision stacks, and layers that look both ways with one set of weights."""
    x = "encoder.x_layers.{layer}."

    def part(name: str, at: str, n_layers: str, **more: Any) -> Architecture:
        keys = {"n_layers": (n_layers,)}
        return bert("lxmert.", name=name, at=at, keys=keys, causal=False, **more)

    return several(
        part("encoder", "encoder.layer.{layer}.", "l_layers"),
        part("vision", "encoder.r_layers.{layer}.", "r_layers"),
        part(
            "x",
            x,
            "x_layers",
            attention="visual_attention",
            value="att.value",
            kind="cross",
            slots=two_ways,
        ),
        part("x.language", x, "x_layers", attention="lang_self_att"),
        part("x.vision", x, "x_layers", attention="visn_self_att"),
    )


def _beside(row: Architecture, swaps: Mapping[str, str], **stack: Any) -> Architecture:
    """A second self stack next to the first: the same names with parts exchanged."""
    first = row.stacks[0]
    more = cross(row, swaps, kind=first.kind, causal=first.causal, **stack)
    return replace(row, stacks=(*row.stacks, more))


ENCODERS: Mapping[str, Architecture] = {
    # -- BERT's names
    "bert": with_cross(bert("bert.")),
    "big_bird": with_cross(
        bert("bert.", value_bias=flag("use_bias", True)), value_bias=flag("use_bias", True)
    ),
    "bros": bert("bros."),
    "dpr": bert(
        "question_encoder.bert_model.", "ctx_encoder.bert_model.", "span_predictor.encoder."
    ),
    "ernie": with_cross(bert("ernie.")),
    "layoutlm": bert("layoutlm.", causal=False),
    "layoutlmv3": bert("layoutlmv3.", causal=False, readout=WORDS),
    "markuplm": bert("markuplm.", causal=False),
    "roc_bert": with_cross(bert("roc_bert.")),
    "splinter": bert("splinter.", causal=False, readout=WORDS),
    "tapas": with_cross(bert("tapas.")),
    "visual_bert": bert("visual_bert.", causal=False),
    "rembert": with_cross(
        bert(
            "rembert.",
            readout=Readout(
                ("embeddings.word_embeddings",),
                embedding_map=("encoder.embedding_hidden_mapping_in",),
                unembedding=("cls.predictions.decoder",),
                head_dense="cls.predictions.dense",
                head_norm="cls.predictions.LayerNorm",
            ),
        )
    ),
    "roformer": with_cross(
        bert(
            "roformer.",
            readout=_LIFTED,
            refused=Switch("rotary_value", False, ROTARY_VALUES, None),
        )
    ),
    "bert-generation": with_cross(bert("bert.", readout=_LM_HEAD)),
    "canine": several(
        bert("canine.", causal=False, readout=WORDS),
        *(
            bert(
                "canine.",
                at=f"{name}.layer.{{layer}}.",
                name=name,
                causal=False,
                keys={"n_layers": ("=1",)},
            )
            for name in ("initial_char_encoder", "final_char_encoder")
        ),
    ),
    "mobilebert": bert(
        "mobilebert.",
        causal=False,
        normed=Cases("normalization_type", {"layer_norm": True}, False),
        keys={
            "d_model": _BOTTLENECK,
            "d_in": Switch("use_bottleneck_attention", False, _BOTTLENECK, ("hidden_size",)),
        },
        notes=(
            Cases("normalization_type", {"layer_norm": None}, NO_NORM),
            Switch("use_bottleneck_attention", False, None, WIDE_VALUES),
        ),
        readout=WORDS,
    ),
    "lxmert": _lxmert(),
    # -- RoBERTa's
    **each(
        with_cross(bert("roberta.", "xlm_roberta.", readout=ROBERTA_READOUT)),
        "roberta",
        "xlm-roberta",
        "camembert",
    ),
    "data2vec-text": with_cross(bert("data2vec_text.", readout=ROBERTA_READOUT)),
    "ibert": bert(
        "ibert.",
        causal=False,
        readout=ROBERTA_READOUT,
        refused=Switch("quant_mode", False, QUANTISED, None),
    ),
    "luke": bert("luke.", causal=False, readout=ROBERTA_READOUT),
    "longformer": bert(
        "longformer.", causal=False, readout=ROBERTA_READOUT, notes=(GLOBAL_VALUES,)
    ),
    "lilt": _beside(
        bert("lilt.", causal=False, readout=WORDS),
        {"self.value": "self.layout_value", ".output.": ".layout_output."},
        name="layout",
        keys={"d_model": ("hidden_size//channel_shrink_ratio",)},
    ),
    "xmod": with_cross(
        bert(
            "roberta.",
            readout=ROBERTA_READOUT,
            norm_inside="output.LayerNorm",
            placement=Switch("pre_norm", False, "pre", "post"),
        )
    ),
    "mpnet": bert(
        "mpnet.",
        value="attn.v",
        output="attn.o",
        after="LayerNorm",
        causal=False,
        readout=ROBERTA_READOUT,
    ),
    # -- the norm inside the attention module, before the values
    "esm": with_cross(bert("esm.", norm_inside="LayerNorm", readout=ROBERTA_READOUT)),
    "megatron-bert": with_cross(bert("bert.", norm_inside="ln")),
    "roberta-prelayernorm": with_cross(
        bert("roberta_prelayernorm.", norm_inside="LayerNorm", readout=WORDS)
    ),
    "xlm-roberta-xl": with_cross(
        bert("roberta.", norm_inside="self_attn_layer_norm", readout=WORDS)
    ),
    # -- fused, or named otherwise
    "deberta": bert(
        "deberta.",
        value="self.in_proj",
        value_bias_name="self.v_bias",
        layout="per_head",
        causal=False,
        refused=Switch("talking_head", False, TALKING_HEADS, None),
    ),
    "deberta-v2": bert("deberta.", value="self.value_proj", causal=False),
    "electra": with_cross(
        bert(
            "electra.",
            readout=Readout(
                ("embeddings.word_embeddings",),
                embedding_map=("embeddings_project",),
                unembedding=("generator_lm_head",),
                head_dense="generator_predictions.dense",
                head_norm="generator_predictions.LayerNorm",
                activation="=gelu",
            ),
        )
    ),
    "albert": one(
        "encoder",
        f"{_ALBERT}value",
        f"{_ALBERT}dense",
        after=f"{_ALBERT}LayerNorm",
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
        f"{_DISTILBERT}attention.v_lin",
        f"{_DISTILBERT}attention.out_lin",
        after=f"{_DISTILBERT}sa_layer_norm",
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
