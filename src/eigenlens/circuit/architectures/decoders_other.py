"""Text decoders with the names of GPT-2, GPT-NeoX, fairseq or of their own."""

from __future__ import annotations

from collections.abc import Mapping

from eigenlens.circuit.architectures.bases import (
    RESIDUAL_INSIDE,
    clamped,
    one,
)
from eigenlens.circuit.architectures.decoder_patterns import gpt2, gpt_neo, neox
from eigenlens.circuit.architectures.seq2seq_patterns import bart_stack, opt
from eigenlens.circuit.facts import Cases, Rule, Switch, flag
from eigenlens.circuit.rows import Architecture, Readout

NEOX_READOUT = Readout(
    ("embed_in",),
    unembedding=("lm_head", "embed_out"),
    tied=flag("tie_word_embeddings", False),
    final_norm=("final_layer_norm",),
)
GPTJ_READOUT = Readout(("wte",), final_norm=("ln_f",), tied=flag("tie_word_embeddings", False))
FALCON_NORM, FALCON_TWO = "h.{layer}.input_layernorm", "h.{layer}.ln_attn"
FALCON_PARALLEL: Rule[str | None] = Cases(
    "num_ln_in_parallel_attn",
    {1: FALCON_NORM, 2: FALCON_TWO},
    Switch("new_decoder_architecture", False, FALCON_TWO, FALCON_NORM),
)
FALCON_READOUT = Readout(("word_embeddings",), final_norm=("ln_f",))
FAIRSEQ_READOUT = Readout(
    ("embed_tokens",), unembedding=("lm_head", "output_projection"), final_norm=("layer_norm",)
)
LAST_BIAS = "the last layer adds a bias of its own (attention.dense_bias), which b leaves out"

OTHER_DECODERS: Mapping[str, Architecture] = {
    # -- GPT-2's names
    "gpt2": gpt2(),
    "gpt-sw3": gpt2(),
    "openai-gpt": gpt2(
        before=None, after="ln_1", readout=Readout(("tokens_embed",), has_final_norm=False)
    ),
    "gpt_bigcode": gpt2(
        layout=Switch("multi_query", True, "stacked", "per_head"),
        output_orientation="linear",
        keys={"n_kv_heads": Switch("multi_query", True, ("=1",), ())},
    ),
    "gpt_neo": gpt_neo(attention="attn.attention", value_bias=False),
    "gptj": gpt_neo(
        placement="parallel", value_bias=False, output_bias=False, readout=GPTJ_READOUT
    ),
    "codegen": gpt2(
        value="qkv_proj",
        output="out_proj",
        layout="blocks_of_four",
        output_orientation="linear",
        placement="parallel",
        value_bias=False,
        output_bias=False,
        readout=GPTJ_READOUT,
    ),
    "ctrl": gpt_neo(
        attention="multi_head_attention",
        value="Wv",
        output="dense",
        before="layernorm1",
        readout=Readout(("w",), final_norm=("layernorm",)),
    ),
    # -- GPT-NeoX's names
    "gpt_neox": neox(
        placement=Switch("use_parallel_residual", True, "parallel", "pre"),
        value_bias=flag("attention_bias", True),
        output_bias=flag("attention_bias", True),
        readout=NEOX_READOUT,
    ),
    "gpt_neox_japanese": neox(
        prefixes=("", "gpt_neox_japanese."),
        value_bias=False,
        output_bias=False,
        readout=NEOX_READOUT,
        notes=(LAST_BIAS,),
    ),
    "persimmon": neox(
        attention="self_attn",
        prefixes=("", "model."),
        readout=Readout(("embed_tokens",), final_norm=("final_layernorm",)),
    ),
    "bloom": neox(
        at="h.{layer}.",
        attention="self_attention",
        prefixes=("", "transformer."),
        readout=FALCON_READOUT,
        notes=(RESIDUAL_INSIDE,),
    ),
    "falcon": neox(
        at="h.{layer}.",
        attention="self_attention",
        prefixes=("", "transformer."),
        readout=FALCON_READOUT,
        layout=Switch(
            "new_decoder_architecture",
            False,
            "per_group",
            Switch("multi_query", True, "stacked", "per_head"),
        ),
        keys={
            "n_kv_heads": Switch(
                "new_decoder_architecture",
                False,
                ("num_kv_heads",),
                Switch("multi_query", True, ("=1",), ()),
            )
        },
        before=Switch("parallel_attn", True, FALCON_PARALLEL, FALCON_NORM),
        placement=Switch("parallel_attn", True, "parallel", "pre"),
        value_bias=flag("bias", False),
        output_bias=flag("bias", False),
    ),
    # -- names of their own
    "mpt": one(
        "decoder",
        "blocks.{layer}.attn.Wqkv",
        "blocks.{layer}.attn.out_proj",
        "blocks.{layer}.norm_1",
        prefixes=("", "transformer."),
        layout="stacked",
        norm_bias=False,
        value_bias=False,
        output_bias=False,
        readout=Readout(("wte",), final_norm=("norm_f",)),
        notes=(RESIDUAL_INSIDE, clamped("attn_config.clip_qkv")),
    ),
    "dbrx": one(
        "decoder",
        "blocks.{layer}.norm_attn_norm.attn.Wqkv",
        "blocks.{layer}.norm_attn_norm.attn.out_proj",
        "blocks.{layer}.norm_attn_norm.norm_1",
        prefixes=("", "transformer."),
        layout="stacked",
        norm_bias=False,
        value_bias=False,
        output_bias=False,
        keys={"n_kv_heads": ("attn_config.kv_n_heads",)},
        readout=Readout(("wte",), final_norm=("norm_f",)),
        notes=(RESIDUAL_INSIDE, clamped("attn_config.clip_qkv")),
    ),
    "cpmant": one(
        "decoder",
        "encoder.layers.{layer}.self_att.self_attention.project_v",
        "encoder.layers.{layer}.self_att.self_attention.attention_out",
        "encoder.layers.{layer}.self_att.layernorm_before_attention",
        prefixes=("", "cpmant."),
        norm_kind="rmsnorm",
        value_bias=False,
        output_bias=False,
        keys={"head_dim": ("dim_head",)},
        readout=Readout(("input_embedding",), final_norm=("encoder.output_layernorm",)),
    ),
    "modernbert-decoder": one(
        "decoder",
        "layers.{layer}.attn.v_proj",
        "layers.{layer}.attn.Wo",
        "layers.{layer}.attn_norm",
        prefixes=("", "model."),
        bare=(0,),
        norm_bias=flag("norm_bias", False),
        value_bias=flag("attention_bias", False),
        output_bias=flag("attention_bias", False),
        readout=Readout(
            ("embeddings.tok_embeddings",),
            unembedding=("decoder",),
            head_dense="lm_head.dense",
            head_norm="lm_head.norm",
            activation="classifier_activation",
            final_norm=("final_norm",),
        ),
    ),
    # -- fairseq's names
    "opt": opt(),
    "biogpt": bart_stack(
        "decoder",
        norm="self_attn_layer_norm",
        before=True,
        prefixes=("", "biogpt."),
        readout=FAIRSEQ_READOUT,
    ),
    "kosmos_2_5_text_model": bart_stack(
        "decoder",
        before=True,
        keys={
            "d_model": ("embed_dim",),
            "n_layers": ("layers",),
            "n_heads": ("attention_heads",),
        },
        readout=FAIRSEQ_READOUT,
    ),
    "xglm": bart_stack("decoder", before=True, readout=FAIRSEQ_READOUT),
}
