"""Vision encoders: one line a model type (`"vit": vit("vit.")`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    each,
    named,
    several,
)
from eigenlens.circuit.architectures.decoder_patterns import gpt2
from eigenlens.circuit.architectures.sense_patterns import (
    clip_stack,
    vit,
)
from eigenlens.circuit.architectures.vision_patterns import (
    QKV_BIAS,
    attended,
    blocks,
    detr,
    dino,
    one_less,
    swin,
    timm,
    with_bias,
)
from eigenlens.circuit.architectures.vision_towers import VISION_TOWERS
from eigenlens.circuit.circuit import Placement
from eigenlens.circuit.facts import Cases, Switch, flag
from eigenlens.circuit.rows import Architecture, Naming, Tower
from eigenlens.circuit.stages import Stages

LAYER_SCALE = flag("layer_scale_init_value", True)
_VIDEOMAE = "encoder.layer.{layer}.attention.attention."
# Files before 2023 hold VideoMAE's biases beside the projections.
_VIDEOMAE_OLD = Naming(
    f"{_VIDEOMAE}value",
    "encoder.layer.{layer}.attention.output.dense",
    "encoder.layer.{layer}.layernorm_before",
    prefixes=("", "videomae."),
    value_bias=f"{_VIDEOMAE}v_bias",
)
_VIDEOMAE_ROW = vit("videomae.", new=None, value_bias=flag("qv_bias", True))
_PIXIO = vit("pixio.")
_PIXIO_NAMINGS = (
    replace(_PIXIO.stacks[0].namings[0], norm_before="encoder.layer.{layer}.norm1"),
    _PIXIO.stacks[0].namings[1],
)
_TIMESFORMER = blocks(
    "encoder.layer.{layer}.",
    "timesformer.",
    value="attention.attention.qkv",
    output="attention.output.dense",
    before="layernorm_before",
    value_bias=QKV_BIAS,
)
_TEMPORAL = blocks(
    "encoder.layer.{layer}.",
    "timesformer.",
    value="temporal_attention.attention.qkv",
    output="temporal_attention.output.dense",
    before="temporal_layernorm",
    name="temporal",
    value_bias=QKV_BIAS,
    exists=Cases("attention_type", {"divided_space_time": True}, False),
    notes=("a further matrix (temporal_dense) follows W_O; F is without it",),
)
# D-FINE, RT-DETR and their kin: a small encoder over the coarsest map, a decoder whose cross
# attention samples points of the image instead of a softmax over its tokens.
DEFORMABLE = "its cross attention samples a few points of the image: no softmax over tokens, no F"
_HYBRID = detr(prefixes=("", "model."), notes=(DEFORMABLE,))
_HYBRID_ENCODER = {
    "d_model": ("encoder_hidden_dim",),
    "n_layers": ("encoder_layers",),
    "n_heads": ("encoder_attention_heads",),
}


def _hybrid() -> Architecture:
    """Encoder layers in `aifi`, a decoder without a cross stack."""
    encoder, decoder = _HYBRID.stacks[0], _HYBRID.stacks[1]
    at, norm = "layers.{layer}.self_attn", "layers.{layer}.self_attn_layer_norm"
    namings = tuple(
        Naming(
            f"{where}.0.{at}.v_proj",
            f"{where}.0.{at}.{out}",
            f"{where}.0.{norm}",
            f"{where}.0.{norm}",
            ("", "model."),
        )
        for where, out in (("encoder.aifi", "o_proj"), ("encoder.encoder", "out_proj"))
    )
    first = replace(
        encoder,
        namings=namings,
        keys=_HYBRID_ENCODER,
        placement=Switch("normalize_before", False, "pre", "post"),
        notes=(),
    )
    return replace(_HYBRID, stacks=(first, decoder))


_RF_DETR_OLD = Naming(
    "decoder.layers.{layer}.self_attn.in_proj_weight",
    "decoder.layers.{layer}.self_attn.out_proj",
    norm_after="decoder.layers.{layer}.norm1",
    prefixes=("transformer.",),
    layout="stacked",
)


_PIXELS = (Tower("vision", ("backbone_config",), ("pixel_level_module.encoder.",)),)


def _mask2former() -> Architecture:
    """A backbone, and a decoder that looks before it mixes; pixels between are sampled."""
    at = "transformer_module.decoder.layers.{layer}."
    placement: Switch[Placement] = Switch("pre_norm", False, "pre", "post")
    both: dict[str, Any] = {
        "name": "decoder",
        "placement": placement,
        "slots": one_less,
        "keys": {"d_model": ("hidden_dim",), "n_layers": ("decoder_layers",)},
    }
    mixes = blocks(
        at,
        value="self_attn.v_proj",
        output="self_attn.out_proj",
        before="self_attn_layer_norm",
        after="self_attn_layer_norm",
        fused=False,
        notes=("the encoder of its pixels samples points of the image: no softmax, no F",),
        **both,
    )
    looks = blocks(
        at,
        value="cross_attn.in_proj_weight",
        output="cross_attn.out_proj",
        before=None,
        after="cross_attn_layer_norm",
        kind="cross",
        **both,
    )
    return replace(several(mixes, looks), readout=None, towers=_PIXELS)


def _dab() -> Architecture:
    """DAB-DETR: the decoder's projections stand beside its attention modules."""
    encoder = detr(output="out_proj", old=None).stacks[0]
    parts = [
        blocks(
            f"decoder.layers.{{layer}}.{part}.",
            "model.",
            value=f"{part}_value_proj",
            output=f"{part}.output_proj",
            before=None,
            after=f"{part}_layer_norm",
            name="decoder",
            kind=kind,
            fused=False,
            keys={"n_layers": ("decoder_layers",), "n_heads": ("decoder_attention_heads",)},
        )
        for part, kind in (("self_attn", "self"), ("cross_attn", "cross"))
    ]
    keys = {**encoder.keys, "d_model": ("hidden_size",)}
    return several(Architecture((replace(encoder, keys=keys),)), *parts)


VISION_ENCODERS: Mapping[str, Architecture] = {
    **VISION_TOWERS,
    # -- ViT's names
    "vit": vit("vit."),
    "deit": vit("deit."),
    "ijepa": vit("ijepa."),
    "pixio": replace(_PIXIO, stacks=(replace(_PIXIO.stacks[0], namings=_PIXIO_NAMINGS),)),
    "vivit": vit("vivit."),
    **each(vit("vit."), "vit_mae", "vit_msn"),
    "beit": vit("beit.", scale="lambda_1", layer_scale=LAYER_SCALE, value_bias=True),
    "data2vec-vision": vit(
        "data2vec_vision.", new=None, scale="lambda_1", layer_scale=LAYER_SCALE, value_bias=True
    ),
    "dpt": vit("dpt.", new=None),
    "yolos": vit("vit.", new=None),
    "videomae": replace(
        _VIDEOMAE_ROW,
        stacks=tuple(replace(s, namings=(*s.namings, _VIDEOMAE_OLD)) for s in _VIDEOMAE_ROW.stacks),
    ),
    "vilt": named(vit("vilt.", new=None), "encoder"),
    "mobilevit": vit(
        "mobilevit.",
        at="encoder.layer.{stage}.transformer.layer.{block}.",
        new=None,
        slots=Stages(depths="=[2, 4, 3]", first=2),
    ),
    # -- DINO's
    "dinov2": dino("dinov2."),
    "dinov2_with_registers": dino("dinov2_with_registers."),
    "dinov3_vit": dino(
        "model.",
        at="layer.{layer}.",
        old=False,
        value_bias=flag("value_bias", True),
        output_bias=flag("proj_bias", True),
    ),
    "radio": dino(
        old=False,
        also=(timm("radio_model.model.blocks.{layer}.", "layer_scale1.lambda1"),),
    ),
    "eomt": blocks(
        "layers.{layer}.",
        value="attention.v_proj",
        output="attention.out_proj",
        fused=False,
        scale="layer_scale1.lambda1",
    ),
    "sapiens2": dino(
        "model.",
        at="layer.{layer}.",
        old=False,
        norm_kind="rmsnorm",
        value_bias=flag("value_bias", True),
        output_bias=flag("proj_bias", True),
        keys={"n_kv_heads": ("num_key_value_heads_per_layer",)},
        per_layer=("n_kv_heads",),
        also=(
            Naming(
                "blocks.{layer}.attn.wv",
                "blocks.{layer}.attn.proj",
                "blocks.{layer}.ln1",
                scale="blocks.{layer}.attn.gamma.weight",
            ),
        ),
    ),
    "imagegpt": gpt2(norm_kind="rmsnorm"),
    # -- timm's
    "mgp-str": blocks("encoder.blocks.{layer}.", "mgp_str.", value_bias=QKV_BIAS),
    "vitdet": blocks(
        "encoder.layer.{layer}.",
        value="attention.qkv",
        output="attention.proj",
        value_bias=QKV_BIAS,
    ),
    "seggpt": blocks(
        "encoder.layers.{layer}.",
        "model.",
        value="attention.qkv",
        output="attention.proj",
        before="layernorm_before",
        value_bias=QKV_BIAS,
    ),
    "vjepa2": several(
        blocks(
            "encoder.layer.{layer}.",
            value="attention.value",
            output="attention.proj",
            fused=False,
            value_bias=QKV_BIAS,
        ),
        blocks(
            "predictor.layer.{layer}.",
            value="attention.value",
            output="attention.proj",
            fused=False,
            name="predictor",
            value_bias=QKV_BIAS,
            keys={
                "d_model": ("pred_hidden_size",),
                "n_layers": ("pred_num_hidden_layers",),
                "n_heads": ("pred_num_attention_heads",),
            },
        ),
    ),
    "timesformer": several(_TIMESFORMER, _TEMPORAL),
    # -- stages of different widths
    "swin": swin("swin.", new=True),
    **each(swin("swin."), "donut-swin", "maskformer-swin"),
    "swinv2": swin("swinv2.", on_output=True),
    "swin2sr": swin(
        "swin2sr.",
        at="encoder.stages.{stage}.layers.{block}.",
        on_output=True,
        slots=Stages(width="embed_dim", heads="num_heads", growth=1),
    ),
    "hiera": blocks(
        "encoder.stages.{stage}.layers.{block}.",
        "hiera.",
        before="layernorm_before",
        slots=Stages(
            width="embed_dim", heads="num_heads", growth="embed_dim_multiplier", widens=True
        ),
    ),
    "sam2_hiera_det_model": blocks(
        before="layer_norm1",
        slots=Stages(
            depths="blocks_per_stage",
            width="embed_dim_per_stage",
            heads="num_attention_heads_per_stage",
            widens=True,
        ),
    ),
    # -- detectors
    "detr": detr(),
    "conditional_detr": detr(earlier={"self": "sa_v_proj", "cross": "ca_v_proj"}),
    "table-transformer": detr(output="out_proj", old=None, before=True),
    **each(_hybrid(), "rt_detr", "rt_detr_v2", "d_fine"),
    "mask2former": _mask2former(),
    "maskformer": replace(
        _HYBRID,
        stacks=tuple(
            replace(s, config_path=("decoder_config",), notes=())
            for s in detr(prefixes=("transformer_module.",)).stacks[1:]
        ),
        towers=_PIXELS,
    ),
    "deformable_detr": replace(_HYBRID, stacks=_HYBRID.stacks[1:2]),
    "dab-detr": _dab(),
    **each(
        replace(
            _HYBRID,
            stacks=(
                replace(
                    _HYBRID.stacks[1],
                    namings=(*_HYBRID.stacks[1].namings, _RF_DETR_OLD),
                    keys={
                        "d_model": ("d_model",),
                        "n_layers": ("decoder_layers",),
                        "n_heads": ("decoder_self_attention_heads",),
                    },
                    **with_bias(flag("attention_bias", True)),
                ),
            ),
            towers=(Tower("vision", ("backbone_config",), ("backbone.",)),),
        ),
        "lw_detr",
        "rf_detr",
    ),
    "sam3_vit_model": attended("layers.{layer}.", before="layer_norm1"),
    # -- CLIP's
    **each(
        clip_stack("vision"),
        "clip_vision_model",
        "chinese_clip_vision_model",
        "mlcd",
        "mlcd_vision_model",
        "siglip_vision_model",
        "siglip2_vision_model",
    ),
}
