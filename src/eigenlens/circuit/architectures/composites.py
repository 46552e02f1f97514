"""Models of several towers: each tower is described by the row of its section's model_type.

`"llava": towers(vision_tower(), text_tower())` says: `vision_config` and `text_config` each name
a model type that has a row of its own; tensors of the vision tower stand under `vision_tower.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    LANGUAGE,
    audio_tower,
    cross,
    each,
    several,
    text_tower,
    towers,
    vision_tower,
)
from eigenlens.circuit.architectures.decoder_patterns import llama
from eigenlens.circuit.architectures.encoder_patterns import bert
from eigenlens.circuit.architectures.sense_patterns import (
    clip_stack,
)
from eigenlens.circuit.architectures.vision_patterns import QKV_BIAS, attended, blocks
from eigenlens.circuit.architectures.vision_towers import TANH_GATE
from eigenlens.circuit.circuit import Placement
from eigenlens.circuit.facts import Switch, flag
from eigenlens.circuit.rows import Architecture, Stack, Tower

_TEXT = text_tower(within=("text_model.", "text_encoder."))
_LANGUAGE = text_tower(within=LANGUAGE)
_PAIR = towers(_TEXT, vision_tower(within=("vision_model.", "vision_encoder.")))
_SEES = towers(vision_tower(), text_tower())
_HEARS = towers(audio_tower(), text_tower())
_QFORMER = Tower("qformer", ("qformer_config",), ("qformer.",))
# Qwen-VL's first configs state the language model's sizes at the top.
_FLAT = towers(vision_tower(), replace(text_tower(), flat=True))
_ANY = towers(
    Tower("encoder", ("encoder",), ("encoder.",)),
    Tower("decoder", ("decoder",), ("decoder.",), readout=True),
)
_OMNI = towers(audio_tower(), vision_tower(), text_tower())


def xclip() -> Architecture:
    """Text and frames, a small encoder over frames, prompts that look at the video."""
    frames = clip_stack(
        "mit",
        within=("mit.",),
        config_path=("vision_config",),
        keys={
            "d_model": ("mit_hidden_size",),
            "n_layers": ("mit_num_hidden_layers",),
            "n_heads": ("mit_num_attention_heads",),
        },
    )
    prompts = blocks(
        "prompts_generator.decoder.{layer}.",
        value="cross_attn.v_proj",
        output="cross_attn.proj",
        before=None,
        name="prompts",
        fused=False,
        kind="cross",
        value_bias=False,
        keys={
            "d_model": ("projection_dim",),
            "n_layers": ("prompt_layers",),
            "n_heads": ("prompt_num_attention_heads",),
        },
    )
    return replace(_PAIR, stacks=several(frames, prompts).stacks)


def sam3() -> Architecture:
    """An image and a text encoder, a DETR that looks at both."""
    seen: dict[str, Any] = {"kind": "cross", "causal": False}
    stacks: list[Stack] = []
    for side, attention, before, after, more in (
        ("encoder", "self_attn", "layer_norm1", None, {}),
        ("encoder", "cross_attn", None, None, seen),
        ("decoder", "self_attn", None, "self_attn_layer_norm", {}),
        ("decoder", "text_cross_attn", None, "text_cross_attn_layer_norm", seen),
        ("decoder", "vision_cross_attn", None, "vision_cross_attn_layer_norm", seen),
    ):
        row = blocks(
            f"detr_{side}.layers.{{layer}}.",
            value=f"{attention}.v_proj",
            output=f"{attention}.o_proj",
            before=before,
            after=after,
            name=f"{side}_text" if attention.startswith("text") else side,
            fused=False,
            config_path=(f"detr_{side}_config",),
            keys={"n_layers": ("num_layers",)},
            **more,
        )
        stacks += several(row).stacks
    return replace(towers(vision_tower(within=("vision_encoder.",)), _TEXT), stacks=tuple(stacks))


def idefics() -> Architecture:
    """LLaMA with gated layers between that look at the image."""
    text = llama(bias=False, plain=True, gguf=False)
    at = "gated_cross_attn_layers.{layer}."
    looks = blocks(
        at,
        value="cross_attn.v_proj",
        output="cross_attn.o_proj",
        before=None,
        name="decoder",
        fused=False,
        kind="cross",
        value_bias=False,
        output_bias=False,
        keys={
            "d_in": ("vision_config.embed_dim",),
            "n_layers": ("num_hidden_layers//cross_layer_interval",),
        },
        notes=(TANH_GATE,),
    )
    vision = clip_stack(
        "vision",
        within=("vision_model.",),
        config_path=("vision_config",),
        keys={"d_model": ("embed_dim",)},
    )
    return several(text, looks, vision)


def chameleon() -> Architecture:
    """LLaMA; with `swin_norm` the norm stands on the output instead."""
    row = llama(gguf=False)
    first = row.stacks[0]
    norm = "layers.{layer}.input_layernorm"
    naming = replace(
        first.namings[0],
        norm_before=Switch("swin_norm", False, None, norm),
        norm_after=norm,
    )
    placement: Switch[Placement] = Switch("swin_norm", False, "sandwich", "pre")
    return replace(row, stacks=(replace(first, namings=(naming,), placement=placement),))


def bark() -> Architecture:
    """Three GPTs, the last of which sees both ways."""
    rows = [
        blocks(
            f"{name}.layers.{{layer}}.",
            value="attn.att_proj",
            output="attn.out_proj",
            before="layernorm_1",
            name=name.split("_")[0],
            causal=causal,
            config_path=(f"{name}_config",),
            norm_bias=flag("bias", True) if causal else True,
            value_bias=flag("bias", True),
            output_bias=flag("bias", True),
        )
        for name, causal in (
            ("semantic", True),
            ("coarse_acoustics", True),
            ("fine_acoustics", False),
        )
    ]
    return several(*rows)


def bridgetower() -> Architecture:
    """Two encoders whose layers are joined by layers that look at the other side."""
    stacks: list[Stack] = []
    for side in ("text", "image"):
        row = bert(at=f"cross_modal_{side}_layers.{{layer}}.", name=f"joint_{side}", causal=False)
        beside = cross(row, {".attention.": ".crossattention."})
        stacks += several(replace(row, stacks=(*row.stacks, beside))).stacks
    return Architecture(
        tuple(stacks),
        towers=(
            text_tower(within=("text_model.",)),
            vision_tower(within=("vision_model.",)),
        ),
    )


COMPOSITES: Mapping[str, Architecture] = {
    # -- two encoders beside each other
    **each(
        _PAIR,
        "aimv2",
        "altclip",
        "blip",
        "chinese_clip",
        "clip",
        "clipseg",
        "metaclip_2",
        "owlv2",
        "owlvit",
        "siglip",
        "siglip2",
        "tipsv2",
        "vision-text-dual-encoder",
    ),
    "groupvit": _PAIR,
    "xclip": xclip(),
    "videoprism": replace(
        towers(_TEXT, vision_tower(within=("vision_model.",))),
        stacks=attended(
            "auxiliary_layers.{layer}.",
            name="auxiliary",
            gain_offset=1.0,
            value_bias=QKV_BIAS,
            config_path=("vision_config",),
            keys={"n_layers": ("num_auxiliary_layers",)},
        ).stacks,
    ),
    "bridgetower": bridgetower(),
    "kosmos-2": towers(
        vision_tower(within=("vision_model.",)), text_tower(within=("text_model.",))
    ),
    "chameleon": chameleon(),
    "idefics": idefics(),
    "sam3": sam3(),
    "bark": bark(),
    "qwen2_5_omni": towers(
        Tower("thinker", ("thinker_config",), ("thinker.",), readout=True),
        Tower("talker", ("talker_config",), ("talker.",)),
    ),
    **each(
        towers(
            Tower("audio", ("encoder_config",), ("encoder.",)),
            Tower("qformer", ("projector_config",), ("projector.qformer.",)),
            _LANGUAGE,
        ),
        "granite_speech",
        "granite_speech_plus",
    ),
    "align": towers(_TEXT),
    "flava": towers(
        _TEXT,
        vision_tower("image_config", within=("image_model.",)),
        Tower("multimodal", ("multimodal_config",), ("multimodal_model.",)),
    ),
    # -- an image encoder and a language model
    **each(
        _SEES,
        "aria",
        "aya_vision",
        "cohere2_vision",
        "cohere_compass",
        "cosmos3_edge",
        "deepseek_vl",
        "ernie4_5_vl_moe",
        "cosmos3_omni",
        "exaone4_5",
        "florence2",
        "gemma3",
        "glm46v",
        "glm4v",
        "glm4v_moe",
        "glm_image",
        "glm_ocr",
        "glmga",
        "got_ocr2",
        "granite_docling",
        "hunyuan_vl",
        "hy_v4_vl",
        "hyperclovax_vision_v2",
        "kimi_k25",
        "kosmos-2.5",
        "lfm3_vl",
        "minicpm_ocr",
        "minicpmv4_6",
        "minicpmv4_7",
        "mistral_large4",
        "mllama",
        "molmo2",
        "muse_glimmer",
        "muse_spark",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen4_exp",
        "step3p7",
        "glm5_next",
        "idefics3",
        "internvl",
        "janus",
        "lfm2_vl",
        "llama4",
        "llava",
        "llava_next",
        "llava_next_video",
        "llava_onevision",
        "minimax_m3_vl",
        "mistral3",
        "modernvbert",
        "ovis2",
        "paddleocr_vl",
        "paligemma",
        "qianfan_ocr",
        "qwen3_vl",
        "qwen3_vl_moe",
        "shieldgemma2",
        "smolvlm",
        "ultravbert",
        "video_llama_3",
        "vipllava",
    ),
    **each(_FLAT, "qwen2_vl", "qwen2_5_vl"),
    "lighton_ocr": towers(vision_tower(within=("vision_encoder.",)), text_tower()),
    "idefics2": towers(
        vision_tower(),
        Tower("resampler", ("perceiver_config",), ("perceiver_resampler.",)),
        _LANGUAGE,
    ),
    "deepseek_vl_hybrid": towers(
        Tower("vision", ("vision_config",), (".vision_model.",)),
        Tower("high_res_vision", ("high_res_vision_config",), ("high_res_vision_model.",)),
        _LANGUAGE,
    ),
    "video_llava": towers(
        vision_tower(within=("image_tower.",)),
        Tower("video", ("vision_config",), ("video_tower.",)),
        _LANGUAGE,
    ),
    **each(
        towers(vision_tower(), _QFORMER, _LANGUAGE),
        "blip-2",
        "instructblip",
        "instructblipvideo",
    ),
    "pix2struct": towers(
        vision_tower(within=("encoder.",)), Tower("text", ("text_config",), ("decoder.",))
    ),
    # -- an image encoder, and what is asked of its image
    **each(
        towers(Tower("vision", ("vision_config",), ("vision_encoder.", "image_encoder."))),
        "sam",
        "sam2",
        "sam_hq",
        "sam3_tracker",
    ),
    **each(
        towers(Tower("vision", ("backbone_config",), ("backbone.",), readout=False)),
        "depth_anything",
        "prompt_depth_anything",
        "upernet",
        "vitmatte",
        "vitpose",
        "zoedepth",
    ),
    # -- any two models
    "encoder-decoder": _ANY,
    "vision-encoder-decoder": _ANY,
    "speech-encoder-decoder": _ANY,
    "rag": towers(
        Tower("question_encoder", ("question_encoder",), ("question_encoder.",)),
        Tower("generator", ("generator",), ("generator.",), readout=True),
    ),
    **each(
        towers(
            Tower("text", ("text_encoder",), ("text_encoder.",)),
            Tower("decoder", ("decoder",), ("decoder.",)),
        ),
        "musicgen",
        "musicgen_melody",
    ),
    **each(
        towers(Tower("vlm", ("vlm_config",), ("vlm.",))), "colmodernvbert", "colpali", "colqwen2"
    ),
    "fuyu": towers(_LANGUAGE),
    "emu3": towers(text_tower(within=("text_model.", "language_model."))),
    "git": replace(
        bert("git."),
        towers=(vision_tower(within=("image_encoder.",)),),
    ),
    # -- sound and a language model
    **each(
        _HEARS,
        "audioflamingo3",
        "glmasr",
        "moss_transcribe_diarize",
        "musicflamingo",
        "omniasr",
        "qwen2_audio",
        "qwen3_asr",
        "voxtral",
    ),
    **each(_OMNI, "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"),
}
