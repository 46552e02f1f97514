"""Text decoders whose layers are of several kinds, or whose attention has gates or sinks.

Layers without softmax attention are skipped with a reason (`others`: a name that only such a layer
has). Gates and sinks are said by `UNGATED` and `SINKS` among the notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    GRANITE_SCALE,
    RESIDUAL_INSIDE,
    cross,
    each,
    named,
    of,
    one,
    several,
    towers,
)
from eigenlens.circuit.architectures.decoder_patterns import llama, llama_readout
from eigenlens.circuit.facts import Switch
from eigenlens.circuit.rows import SINKS, UNGATED, Architecture, Factor, Listed, Readout, Tower
from eigenlens.circuit.slots import cycles, shared_blocks, twice_in_windows

MAMBA = "a Mamba layer: no softmax attention"
DELTA = "linear attention (gated delta rule): no softmax attention"
LIGHTNING = "linear attention (lightning attention): no softmax attention"
CONVOLUTION = "a short convolution: no attention"
RECURRENCE = "a gated linear recurrence: no attention"
FEED_FORWARD = "a feed-forward layer: no attention"
BESIDE_MAMBA = "a Mamba branch stands beside attention and reads the same norm"
DEPTH_SCALED = "the sum is scaled by depth: sqrt((i - 1)/i) residual + sqrt(1/i) output"
HYPER = "hyper-connections: several residual streams are mixed before and after the block"
READS_BOTH = (
    "reads the stream beside the embeddings (F is d x 2 d); a linear map stands between the block "
    "and the stream"
)
TANH_GATE = "the output is multiplied with the tanh of a learned number before the sum"
TWICE = "the block adds the residual once more"
CROSS_LAYER = "a cross-attention layer"
SELF_LAYER = "a self-attention layer"

AT = "layers.{layer}."
DELTA_LAYERS = {f"{AT}linear_attn.": DELTA}
MAMBA_LAYERS = {f"{AT}mamba.": MAMBA}
SHARED: dict[str, Any] = {
    "bias": False,
    "keys": {"d_in": ("attention_hidden_size",), "head_dim": ("attention_head_dim",)},
    "gguf": False,
    "final_norm": "final_layernorm",
    "notes": (READS_BOTH,),
}

_BYTES = Readout(("embed_tokens",), unembedding=(), tied=False)
_BLT = llama(bias=False, gguf=False, keys={"head_dim": ()})
# The norm of the states that are read stands inside the module, as does the residual.
_BLT_CROSS = one(
    "decoder",
    "cross_attn_layers.{layer}.v_proj",
    "cross_attn_layers.{layer}.o_proj",
    "cross_attn_layers.{layer}.k_norm",
    kind="cross",
    causal=False,
    plain=False,
    norm_kind="rmsnorm",
    value_bias=False,
    output_bias=False,
    keys={
        "head_dim": (),
        "n_layers": Switch("cross_attn_all_layers", False, ("num_hidden_layers",), ("=1",)),
    },
    notes=(RESIDUAL_INSIDE, TWICE),
)
_MLLAMA = llama(bias=False, others={f"{AT}cross_attn.": CROSS_LAYER}, gguf=False)

HYBRID_DECODERS: Mapping[str, Architecture] = {
    # -- beside Mamba layers
    "bamba": llama(others=MAMBA_LAYERS, final_norm="final_layernorm"),
    "jamba": llama(bias=False, others=MAMBA_LAYERS, final_norm="final_layernorm"),
    "granitemoehybrid": llama(others=MAMBA_LAYERS, output_scale=GRANITE_SCALE),
    "falcon_h1": llama(
        final_norm="final_layernorm",
        output_scale=(Factor("attention_in_multiplier"), Factor("attention_out_multiplier")),
        notes=(BESIDE_MAMBA,),
    ),
    "nemotron_h": llama(
        attention="mixer",
        before="norm",
        bias=False,
        gguf=False,
        prefixes=("", "model.", "backbone."),
        keys={
            "n_layers": Switch(
                "layers_block_type", False, ("#layers_block_type",), ("num_hidden_layers",)
            )
        },
        others={
            f"{AT}mixer.A_log": MAMBA,
            f"{AT}mixer.up_proj.": FEED_FORWARD,
            f"{AT}mixer.experts.": FEED_FORWARD,
        },
        readout=Readout(("embeddings",), final_norm=("norm_f",)),
    ),
    "zamba": llama(
        attention="shared_transf.self_attn",
        before="shared_transf.input_layernorm",
        slots=shared_blocks("=1"),
        **SHARED,
    ),
    "zamba2": llama(
        attention="shared_transformer.self_attn",
        before="shared_transformer.input_layernorm",
        slots=shared_blocks("num_mem_blocks"),
        refused=Switch(
            "use_shared_attention_adapter",
            False,
            "low-rank adapters change the shared values from layer to layer",
            None,
        ),
        **SHARED,
    ),
    # -- beside linear attention, convolutions and recurrences
    "minimax": llama(
        bias=False,
        before=None,
        after="post_attention_layernorm",
        placement="post",
        output_scale=(Factor("full_attn_beta_factor"), Factor("full_attn_alpha_factor", -1.0)),
        others={f"{AT}self_attn.qkv_proj.": LIGHTNING},
        notes=(),
    ),
    "olmo_hybrid": llama(before=None, after="post_attention_layernorm", others=DELTA_LAYERS),
    "lara_mini": llama(others=DELTA_LAYERS),
    **each(
        llama(
            output="out_proj",
            before="operator_norm",
            bias=False,
            gguf=False,
            final_norm="embedding_norm",
            others={f"{AT}conv.": CONVOLUTION},
        ),
        "lfm2",
        "lfm2_moe",
    ),
    "lfm3": llama(
        before="operator_norm",
        after="post_operator_norm",
        placement=Switch("use_sandwich_norm", True, "sandwich", "pre"),
        gguf=False,
        final_norm="embedding_norm",
        others={f"{AT}conv.": CONVOLUTION},
        notes=(Switch("use_attention_gate", True, UNGATED, None),),
    ),
    "recurrent_gemma": llama(
        attention="temporal_block",
        before="temporal_pre_norm",
        gain_offset=1.0,
        output_bias=True,
        gguf=False,
        final_norm="final_norm",
        others={f"{AT}temporal_block.linear_y.": RECURRENCE},
    ),
    # -- gates before the output projection
    **each(
        llama(gain_offset=1.0, others=DELTA_LAYERS, notes=(UNGATED,)),
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
    ),
    "qwen4_exp_text": llama(before=None, others=DELTA_LAYERS, notes=(UNGATED, HYPER)),
    "afmoe": llama(after="post_attention_layernorm", notes=(UNGATED,)),
    "beam": llama(after="post_attention_layernorm", notes=(UNGATED, DEPTH_SCALED)),
    "muse_glimmer_text": llama(after="post_attention_layernorm", gain_offset=1.0, notes=(UNGATED,)),
    "laguna": llama(
        keys={
            "n_heads": Switch(
                "num_attention_heads_per_layer",
                False,
                ("num_attention_heads_per_layer",),
                ("num_attention_heads",),
            )
        },
        per_layer=("n_heads",),
        notes=(UNGATED,),
    ),
    "hrm_text": several(
        *(
            named(
                llama(
                    at=f"{name}_module.layers.{{layer}}.",
                    gguf=False,
                    norm_affine=False,
                    keys={"n_layers": ("num_layers_per_stack",), "n_kv_heads": ()},
                    slots=cycles(*passes),
                    notes=(UNGATED,),
                    final_norm=f"{name}_module.final_norm",
                ),
                name,
            )
            for name, passes in (("L", ("H_cycles", "L_cycles")), ("H", ("H_cycles",)))
        ),
    ),
    # -- sinks
    "gpt_oss": llama(notes=(SINKS,)),
    "flint": llama(notes=(SINKS,)),
    **each(llama(output_scale=GRANITE_SCALE, notes=(SINKS,)), "granite_swa", "granitemoe_swa"),
    "mimo_v2_flash": llama(
        output_bias=False,
        keys={"head_dim": ("v_head_dim",), "qk_dim": ("head_dim",)},
        value_scale="attention_value_scale",
        slots=twice_in_windows,
        layer_notes=Listed("layer_types", {"sliding_attention": SINKS}),
    ),
    # -- models of several decoders
    "csm": replace(
        of(llama(gguf=False), outside=("depth_decoder.", "codec_model.")),
        readout=None,
        towers=(
            Tower("depth", ("depth_decoder_config",), ("depth_decoder.",)),
            Tower("codec", ("codec_config",), ("codec_model.",)),
        ),
    ),
    "blt_patcher": _BLT,
    "blt_global_transformer": replace(_BLT, readout=None),
    "blt_local_encoder": several(_BLT, _BLT_CROSS, readout=_BYTES),
    "blt_local_decoder": replace(several(_BLT, _BLT_CROSS), readout=None),
    "blt": towers(
        Tower("encoder", ("encoder_config",), ("local_encoder.",), readout=True),
        Tower("decoder", ("decoder_config",), ("local_decoder.",)),
        Tower("global", ("global_config",), ("global_transformer.",)),
        Tower("patcher", ("patcher_config",), ("patcher.",)),
    ),
    # -- cross-attention layers between the others
    "mllama_text_model": several(
        _MLLAMA,
        Architecture(
            (
                cross(
                    _MLLAMA,
                    {".self_attn.": ".cross_attn."},
                    others={f"{AT}self_attn.": SELF_LAYER},
                    notes=(TANH_GATE,),
                ),
            )
        ),
        readout=llama_readout(),
    ),
}
