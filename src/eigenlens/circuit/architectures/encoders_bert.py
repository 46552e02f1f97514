"""Text encoders with BERT's names: one line a model type (`"bert": bert("bert.")`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    cross,
    each,
    several,
)
from eigenlens.circuit.architectures.encoder_patterns import (
    BERT_READOUT,
    ROBERTA_READOUT,
    WORDS,
    bert,
    with_cross,
)
from eigenlens.circuit.facts import Cases, Rule, Switch, flag
from eigenlens.circuit.rows import Architecture, Readout
from eigenlens.circuit.slots import two_ways

GLOBAL_VALUES = "tokens with global attention use value_global; F is of the local values"
TALKING_HEADS = "heads are mixed after softmax (talking_head): rows of A sum to no 1"
ROTARY_VALUES = "its values are rotated by position (rotary_value): F depends on the distance"
QUANTISED = "activations are rounded inside attention (quant_mode): not linear in the values"
NO_NORM = "the sum is scaled and shifted by coordinate, not normalised (no_norm)"
WIDE_VALUES = "its values read the wide stream, its output is added to the narrow one"

_LM_HEAD = Readout(("embeddings.word_embeddings",), unembedding=("lm_head.decoder",))
_LIFTED = replace(BERT_READOUT, embedding_map=("embeddings_project",))
_BOTTLENECK: Rule[tuple[str, ...]] = Switch(
    "use_bottleneck", True, ("intra_bottleneck_size",), ("hidden_size",)
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


BERT_ENCODERS: Mapping[str, Architecture] = {
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
}
