"""Text decoders with Llama's names whose every layer has plain softmax attention.

`"mistral": llama(bias=False)` says: Llama's names, no biases. Sizes come from the config by the
usual keys (`rows.KEYS`), what config.json leaves out from `defaults.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    GRANITE_SCALE,
    clamped,
    each,
    of,
    one,
)
from eigenlens.circuit.architectures.decoder_patterns import gemma, llama
from eigenlens.circuit.facts import Switch, flag
from eigenlens.circuit.rows import Architecture, Readout

SCALED_RESIDUAL = "the residual stream is multiplied with a learned vector before the sum"
TWO_NORMS = "audio tokens pass a norm of their own (audio_input_layernorm) before the values"
QKV_BIAS: dict[str, Any] = {"value_bias": True, "output_bias": False}
GLM_BIAS: dict[str, Any] = {"output_bias": False}
NO_RMS: dict[str, Any] = {"norm_kind": "layernorm"}
# Cohere's norm is centred and has no bias; attention and MLP read the same norm.
COHERE: dict[str, Any] = {"norm_kind": "layernorm", "norm_bias": False, "placement": "parallel"}
USE_BIAS = flag("use_bias", False)
AFTER_SELF = "post_self_attn_layernorm"

MOSHI = llama(value="v_proj.linear", output="o_proj.linear", bias=False, gguf=False)
# One table of embeddings holds text and the codebooks of sound one after the other.
KYUTAI = replace(MOSHI, readout=None)

LLAMA_DECODERS: Mapping[str, Architecture] = {
    # -- Llama's own: biases by `attention_bias`
    **each(
        llama(),
        "llama",
        "arcee",
        "aria_text",
        "cosmos3_edge_text",
        "csm_depth_decoder_model",
        "deepseek_ocr2_text",
        "dots1",
        "emu3_text_model",
        "exaone",
        "gradium_phonon_tts",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "hunyuan_vl_text",
        "hy_v3",
        "internlm3",
        "iquestcoder",
        "llama4_text",
        "mellum",
        "qwen3",
        "qwen3_moe",
        "qwen3_omni_moe_text",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
        "smollm3",
        "unlimited_ocr_text",
    ),
    "qwen3_omni_moe_talker_code_predictor": replace(llama(), readout=None),
    "qwen3_omni_moe_talker_text": llama(
        readout=Readout(
            ("codec_embedding",), unembedding=("codec_head",), tied=False, final_norm=("norm",)
        )
    ),
    "doge": llama(notes=(SCALED_RESIDUAL,)),
    "higgs_audio_v2": llama(notes=(TWO_NORMS,)),
    **each(llama(before="attention_layernorm"), "apertus", "apertus1p5_text"),
    # -- no biases at all
    **each(
        llama(bias=False),
        "mistral",
        "mixtral",
        "cwm",
        "exaone_moe",
        "minimax_m2",
        "ministral",
        "ministral3",
        "voxtral_realtime_text",
    ),
    # -- biases by another key, or on the values alone
    **each(llama(bias=USE_BIAS), "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text"),
    "paddleocr_vl_text": llama(bias=USE_BIAS),
    **each(
        llama(**QKV_BIAS),
        "qwen2",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "qwen2_5_omni_text",
        "qwen2_5_omni_talker",
    ),
    "qwen2_moe": llama(value_bias=flag("qkv_bias", True), output_bias=False),
    "seed_oss": llama(output_bias=flag("attention_out_bias", False)),
    **each(
        llama(**GLM_BIAS), "glm", "glm4_moe", "glm4v_moe_text", "helium", "sarvam_moe", "solar_open"
    ),
    # -- a scale on the output
    **each(
        llama(output_scale=GRANITE_SCALE),
        "granite",
        "granitemoe",
        "granitemoeshared",
        "granite4_vision_text",
        "granite_docling_text",
    ),
    "hyperclovax": llama(
        after="post_norm1",
        placement=Switch("use_post_norm", True, "sandwich", "pre"),
        output_scale=GRANITE_SCALE,
    ),
    # -- a norm on the output as well, or there alone
    **each(llama(after=AFTER_SELF, **GLM_BIAS), "glm4", "glm_image_text"),
    "glm4v_text": llama(after=AFTER_SELF, **QKV_BIAS),
    **each(llama(after=AFTER_SELF, bias=False), "glm_ocr_text", "kolibri1"),
    **each(llama(before=None, after="post_attention_layernorm"), "olmo2", "olmo3", "flex_olmo"),
    "exaone4": llama(before=None, after="post_attention_layernorm", bias=False),
    "molmo2_text": one(
        "decoder",
        "layers.{layer}.self_attn.v_proj",
        "layers.{layer}.self_attn.o_proj",
        Switch("norm_after", False, None, "layers.{layer}.input_layernorm"),
        "layers.{layer}.input_layernorm",
        prefixes=("", "model."),
        plain=False,
        placement=Switch("norm_after", False, "sandwich", "pre"),
        norm_kind="rmsnorm",
        value_bias=flag("attention_bias", False),
        output_bias=False,
        readout=Readout(("embed_tokens",), final_norm=("norm",)),
    ),
    # -- gains of 1 + w
    "gemma": gemma(),
    **each(gemma(after="post_attention_layernorm"), "gemma2", "gemma3_text"),
    "vaultgemma": gemma(),
    "minimax_m3_vl_text": llama(bias=False, gain_offset=1.0),
    "nemotron": llama(gain_offset=1.0, **NO_RMS),
    # -- layer norms, parallel blocks, norms without a gain
    **each(llama(**COHERE), "cohere", "cohere2", "cohere_compass_text"),
    "cohere2_moe": llama(
        **{**COHERE, "norm_kind": Switch("rms_norm_eps", False, "rmsnorm", "layernorm")}
    ),
    **each(llama(**NO_RMS), "jais2", "phimoe"),
    "starcoder2": llama(bias=flag("use_bias", True), **NO_RMS),
    "stablelm": llama(
        value_bias=flag("use_qkv_bias", False),
        output_bias=False,
        placement=Switch("use_parallel_residual", False, "parallel", "pre"),
        **NO_RMS,
    ),
    "phi": llama(
        bias=True,
        output="dense",
        placement="parallel",
        final_norm="final_layernorm",
        gguf=False,
        **NO_RMS,
    ),
    "nanochat": llama(norm_affine=False),
    "olmo": llama(norm_affine=False, notes=(clamped(),), **NO_RMS),
    "olmoe": llama(notes=(clamped(),)),
    # -- fused, or wrapped in a module more
    "phi3": llama(fused=True, bias=False),
    "kyutai_speech_to_text": KYUTAI,
    "moshi": of(MOSHI, outside=("depth_decoder.", "audio_encoder.")),
    "phi4_multimodal": of(llama(fused=True, bias=False), outside=("embed_tokens_extend.",)),
}
