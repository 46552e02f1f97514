"""Image and text encoders that composite models are made of, each by its own model type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    ATTENTION_BIAS,
    each,
    named,
    several,
    towers,
)
from eigenlens.circuit.architectures.encoder_patterns import bert
from eigenlens.circuit.architectures.sense_patterns import (
    clip_stack,
    in_proj,
    vit,
)
from eigenlens.circuit.architectures.seq2seq_patterns import bart_stack
from eigenlens.circuit.architectures.vision_patterns import (
    DEPTH,
    QKV_BIAS,
    attended,
    beside,
    blocks,
    crossed,
    dino,
    either,
    pix2struct,
    qformer,
    timm,
    with_bias,
)
from eigenlens.circuit.circuit import NormKind
from eigenlens.circuit.facts import Cases, flag
from eigenlens.circuit.rows import Architecture, Naming, Tower
from eigenlens.circuit.stages import Stages

RMS: dict[str, Any] = {"norm_kind": "rmsnorm"}
BY_TYPE: Cases[NormKind] = Cases("norm_type", {"rms_norm": "rmsnorm"}, "layernorm")
BIASED = flag("attention_bias", True)
_AIMV2 = blocks(
    "encoder.layers.{layer}.",
    value="attention.v_proj",
    output="attention.out_proj",
    before="rms_norm1",
    fused=False,
    **with_bias(flag("qkv_bias", False)),
    **RMS,
)
_SAM = blocks("layers.{layer}.", "vision_encoder.", before="layer_norm1", value_bias=QKV_BIAS)
_BLIP = blocks(
    "encoder.layers.{layer}.",
    value="self_attn.qkv",
    output="self_attn.projection",
    before="layer_norm1",
    value_bias=QKV_BIAS,
)
_TIPS = clip_stack("text", causal=False)
_TIPS_OLD = Naming(
    "transformer.resblocks.{layer}.attn.in_proj_weight",
    "transformer.resblocks.{layer}.attn.out_proj",
    "transformer.resblocks.{layer}.ln_1",
    layout="stacked",
)
_APART = blocks("layers.{layer}.", value="attn.v_proj", fused=False)
TANH_GATE = "its output is multiplied with the tanh of a learned number; F is without it"
_PRISM: dict[str, Any] = {"gain_offset": 1.0, "value_bias": QKV_BIAS}
_NAMED: dict[str, Any] = {"value": "self_attn.v_proj", "output": "self_attn.o_proj", "fused": False}
_INTERN: dict[str, Any] = {
    "output": "attention.projection_layer",
    "scale": "lambda_1",
    "norm_kind": BY_TYPE,
}

VISION_TOWERS: Mapping[str, Architecture] = {
    # -- CLIP's names, images
    **each(
        clip_stack("vision"),
        "clipseg_vision_model",
        "git_vision_model",
        "cosmos3_edge_vision",
        "granite_docling_vision",
        "minicpm_ocr_vision",
        "minicpmv4_6_vision",
        "minicpmv4_7_vision",
        "idefics2_vision",
        "idefics3_vision",
        "kosmos_2_vision_model",
        "metaclip_2_vision_model",
        "owlvit_vision_model",
        "owlv2_vision_model",
        "paddleocr_vl_vision",
        "phi4_multimodal_vision",
        "smolvlm_vision",
        "video_llama_3_vision",
    ),
    "molmo2_vision": either(
        blocks("layers.{layer}.", before="layer_norm1", plain=False, **_NAMED, **with_bias(BIASED)),
        blocks(
            "transformer.resblocks.{layer}.",
            value="attention.wv",
            output="attention.wo",
            before="attention_norm",
        ),
    ),
    "step3p5_vision": beside(
        blocks(
            "layers.{layer}.",
            before="layernorm_before",
            scale="lambda_1",
            **{**_NAMED, "output": "self_attn.out_proj"},
        ),
        replace(_TIPS_OLD, scale="transformer.resblocks.{layer}.ls_1.gamma"),
    ),
    **each(_APART, "muse_glimmer_vision", "muse_spark_vision"),
    "kimi_k25_vision": beside(
        _APART,
        Naming(
            "encoder.blocks.{layer}.wqkv",
            "encoder.blocks.{layer}.wo",
            "encoder.blocks.{layer}.norm0",
            layout="stacked",
        ),
    ),
    "mllama_vision_model": several(
        blocks(
            "transformer.layers.{layer}.", before="input_layernorm", **_NAMED, **with_bias(False)
        ),
        blocks(
            "global_transformer.layers.{layer}.",
            before="input_layernorm",
            name="global",
            keys={"n_layers": ("num_global_layers",)},
            notes=(TANH_GATE,),
            **_NAMED,
            **with_bias(False),
        ),
    ),
    "vitpose_backbone": vit(new=None),
    "idefics2_perceiver": blocks(
        "layers.{layer}.",
        before=None,
        name="resampler",
        kind="cross",
        keys={
            "n_layers": ("resampler_depth",),
            "n_heads": ("resampler_n_heads",),
            "head_dim": ("resampler_head_dim",),
        },
        plain=False,
        notes=("images and latents enter through a norm of their own each",),
        **_NAMED,
        **with_bias(False),
    ),
    "florence_vision": blocks(
        "blocks.{stage}.{block}.spatial_block.",
        value="window_attn.qkv",
        output="window_attn.proj",
        slots=Stages(width="embed_dim", heads="num_heads"),
        value_bias=QKV_BIAS,
        notes=("its other attention is over channels, not over tokens: no F",),
    ),
    "lfm3_vl_vision": blocks(
        "layers.{layer}.",
        before="operator_norm",
        plain=False,
        others={"layers.{layer}.conv.": "a short convolution: no attention"},
        **{**_NAMED, "output": "self_attn.out_proj"},
        **RMS,
        **with_bias(False),
    ),
    "groupvit_vision_model": clip_stack(
        "vision",
        at="encoder.stages.{stage}.layers.{block}.",
        slots=Stages(width="hidden_size", growth=1),
        notes=("tokens are merged between its stages by another attention",),
    ),
    "xclip_vision_model": several(
        clip_stack("vision"),
        blocks(
            "encoder.layers.{layer}.",
            value="message_attn.v_proj",
            output="message_attn.out_proj",
            before="message_ln",
            name="message",
            fused=False,
        ),
    ),
    "bridgetower_vision_model": in_proj(
        "vision",
        "transformer.resblocks.{layer}.attn.",
        "transformer.resblocks.{layer}.ln_1",
        prefixes=("", "visual."),
        causal=False,
        keys={"n_heads": ("hidden_size//=64",)},
    ),
    "bridgetower_text_model": bert(causal=False),
    **each(
        towers(Tower("vision", ("backbone_config",), ("backbone.",))),
        "sam2_vision_model",
        "sam3_vision_model",
    ),
    "pix2struct_vision_model": blocks(
        "encoder.layer.{layer}.",
        value="attention.value",
        output="attention.output",
        before="pre_attention_layer_norm",
        fused=False,
        keys={"head_dim": ("d_kv",)},
        **RMS,
        **with_bias(False),
    ),
    "pix2struct_text_model": several(
        pix2struct("self_attention"),
        pix2struct("encoder_decoder_attention", kind="cross", causal=False),
    ),
    "videoprism_vision_model": several(
        attended("spatial_layers.{layer}.", keys={"n_layers": ("num_spatial_layers",)}, **_PRISM),
        attended(
            "temporal_layers.{layer}.",
            name="temporal",
            keys={"n_layers": ("num_temporal_layers",)},
            **_PRISM,
        ),
    ),
    "videoprism_text_model": attended("layers.{layer}.", name="text", causal=True, **_PRISM),
    # -- CLIP's names, text
    **each(
        clip_stack("text"),
        "clip_text_model",
        "clipseg_text_model",
        "groupvit_text_model",
        "metaclip_2_text_model",
        "owlvit_text_model",
        "owlv2_text_model",
        "xclip_text_model",
    ),
    **each(
        clip_stack("text", causal=False),
        "siglip_text_model",
        "siglip2_text_model",
    ),
    "tipsv2_text_model": beside(_TIPS, _TIPS_OLD),
    # -- BERT's names
    **each(bert(causal=False), "align_text_model", "chinese_clip_text_model"),
    "altclip_vision_model": either(
        clip_stack("vision"),
        bart_stack("vision", at="encoder.layer.{layer}.", norm="layer_norm1", before=True),
    ),
    "altclip_text_model": either(bert("roberta."), bert("roberta.", at="encoder.layers.{layer}.")),
    # -- ViT's and DINO's names
    **each(vit(new=None), "flava_image_model", "flava_text_model", "flava_multimodal_model"),
    "lw_detr_vit": either(
        attended("encoder.layer.{layer}.", scale="gamma_1", value_bias=QKV_BIAS),
        attended(
            "encoder.layer.{layer}.",
            scale="gamma_1",
            value="attention.attention.value",
            output="attention.output",
        ),
    ),
    "tipsv2_vision_model": dino(old=False, also=(timm("blocks.{layer}.", "ls1.gamma"),)),
    "rf_detr_dinov2": dino(),
    # -- AIM's
    **each(_AIMV2, "aimv2_vision_model", "ovis2_vision"),
    "aimv2_text_model": named(
        replace(_AIMV2, stacks=(replace(_AIMV2.stacks[0], causal=True),)), "text"
    ),
    "pixtral": either(
        attended("transformer.layers.{layer}.", before="attention_norm", **RMS, **with_bias(False)),
        attended(
            "transformer.layers.{layer}.",
            value="attention.wv",
            output="attention.wo",
            before="attention_norm",
        ),
    ),
    # -- Segment Anything's
    **each(_SAM, "sam_vision_model", "sam_hq_vision_model", "got_ocr2_vision"),
    # -- BLIP's
    "blip_vision_model": replace(_BLIP, stacks=(replace(_BLIP.stacks[0], value_bias=True),)),
    **each(
        _BLIP, "blip_2_vision_model", "instructblip_vision_model", "instructblipvideo_vision_model"
    ),
    **each(qformer(), "blip_2_qformer", "instructblip_qformer", "instructblipvideo_qformer"),
    "blip_text_model": crossed(bert(causal=flag("is_decoder", True)), flag("is_decoder", True)),
    # -- InternViT's
    "internvl_vision": attended("encoder.layer.{layer}.", value_bias=ATTENTION_BIAS, **_INTERN),
    "janus_vision_model": blocks(
        "encoder.layers.{layer}.",
        value="self_attn.v_proj",
        output="self_attn.projection_layer",
        before="layer_norm1",
        fused=False,
        value_bias=BIASED,
    ),
    "qianfan_ocr_vision": beside(
        attended("layers.{layer}.", value_bias=BIASED, **_INTERN),
        timm("encoder.layers.{layer}.", "ls1"),
    ),
    # -- timm's
    "qwen2_vl_vision": blocks(keys={"d_model": ("embed_dim",), **DEPTH}),
    "qwen2_5_vl_vision": blocks(**RMS),
    **each(
        blocks(),
        "cohere_compass_vision",
        "ernie4_5_vl_moe_vision",
        "qwen3_5_vision",
        "qwen3_5_moe_vision",
        "qwen3_omni_moe_vision_encoder",
        "qwen3_vl_vision",
        "qwen3_vl_moe_vision",
        "qwen4_exp_vision",
    ),
    "qwen2_5_omni_vision_encoder": blocks(value="attn.v", fused=False, **RMS),
    "exaone4_5_vision": blocks(**RMS, keys={"n_kv_heads": ("num_key_value_heads",)}),
    **each(
        blocks(**RMS, value_bias=ATTENTION_BIAS, output_bias=False),
        "glm4v_vision",
        "glm4v_moe_vision",
    ),
    **each(blocks(**RMS, **with_bias(BIASED)), "glm_ocr_vision", "glm5_next_vision"),
    "glm_image_vision": blocks(**with_bias(BIASED)),
    # -- Llama's
    "llama4_vision_model": blocks("layers.{layer}.", before="input_layernorm", **_NAMED),
    **each(
        blocks("layers.{layer}.", before="layer_norm1", **_NAMED),
        "hunyuan_vl_vision",
        "hy_v4_vl_vision",
    ),
    "minimax_m3_vl_vision": blocks(
        "layers.{layer}.", before="layer_norm1", **{**_NAMED, "output": "self_attn.out_proj"}
    ),
    "kosmos_2_5_vision_model": blocks(
        "layer.{layer}.",
        value="attention.value",
        output="attention.output",
        before="pre_attention_layer_norm",
        fused=False,
        plain=False,
        **RMS,
        **with_bias(False),
    ),
}
