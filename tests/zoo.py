"""Tiny random models of every model type: one config shrinker, a short table of corrections."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Iterator
from typing import Any

import zoo_pictures
import zoo_sound

D = 32
FFN = 40
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 24
VOCAB = 64
POSITIONS = 64
IMAGE = 32

# Ids that must differ between each other and agree between a composite and its parts.
TOKENS = {"pad": 0, "bos": 1, "eos": 2, "unk": 3, "mask": 4, "image": 5, "video": 6, "audio": 7}

Rule = Any
KEEP = re.compile(
    r"rate$|theta|temperature|_base$|factor|bucket|frequency|^rope|_min$|_loss|_cost|coefficient"
    r"|ignore|alpha|stride|_ratio|_eps|eps$|multiplier|scale|period|offset|num_frames|^seed|hop_"
    r"|kernel|dilation|padding|_depth_|norm_|in_index|vision_feature|interval|topk_group|n_group"
    r"|sampling|iters|floor|groups$|fbank|threshold|max_distance|num_channels|_std$|per_second"
    r"|groups|reduction|num_stages|logits|length_scale|bandwidth|bins$|num_labels|expand"
)
RULES: list[tuple[str, Rule]] = [
    (r"^layers_block_type|^layer_types|_layer_types$", None),
    (r"attention_window", 4),
    (r"^num_patches$", 64),
    (r"num_encoder_blocks|num_stages", None),
    (r"num_pos_feats", 16),
    (r"coordinate_size", 6),
    (r"^shape_size", 4),
    (r"upsample_groups", D),
    (r"rotary_dim", 4),
    (r"num_query_pool|num_channels", lambda v: min(v, 3)),
    (r"chunk_right_context|chunk_left_context|right_chunk|left_chunk", lambda v: min(v, 4)),
    (r"num_kv_shared_layers|num_nextn_predict|num_mtp_layers|first_k_dense", lambda v: min(v, 1)),
    (r"kv_heads|key_value_heads|multi_query_group_num|n_head_kv", KV_HEADS),
    (r"linear_num_key_heads", 2),
    (r"linear_num_value_heads|linear_num_heads", 4),
    (r"index_n_heads", 2),
    (r"index_head_dim", 16),
    (r"index_topk", 8),
    (r"mamba_n_heads|mamba_num_heads|mamba_n_groups", lambda v: min(v, 4)),
    (r"mamba_d_head|mamba_head_dim", 16),
    (r"mamba_d_ssm", 64),
    (r"(^|_)heads$|n_head$|_heads_|nhead", HEADS),
    (r"qk_rope_head_dim", 8),
    (r"qk_nope_head_dim", 12),
    (r"v_head_dim", 20),
    (r"swa_v_head_dim", 20),
    (r"swa_head_dim", 16),
    (r"kv_lora_rank|lora_rank|_rank$", 16),
    (r"head_dim|kv_channels|dim_head|d_head$|attention_head_size|d_kv$|head_features", HEAD_DIM),
    (r"state_size|d_state|conv_dim$", 8),
    (r"num_key_value_groups", None),
    (r"num_experts_per_tok|moe_topk|moe_k$|top_k|num_selected|n_activated", lambda v: min(v, 2)),
    (r"^n_group|topk_group", 1),
    (r"num_.*experts$|n_.*experts$|num_experts|moe_num_experts", lambda v: min(v, 4)),
    (r"shared_experts$", lambda v: min(v, 1)),
    (r"(intermediate|inner|ffn|feed_?forward|mlp|linear_units|ff)_?(size|dim|hidden_size)?$", FFN),
    (r"intermediate_size|ffn_hidden|d_ff$|dff$|dim_ff|d_inner|mlp_hidden|ffn_dim", FFN),
    (r"num_hidden_layers|^n_layers?$|^num_layers$|^layers$|^depth$|num_.*layers$|_layers$", 2),
    (r"_depth$|resampler_depth|^num_blocks|_blocks$|num_res_blocks", lambda v: min(v, 2)),
    (r"vocab_size|num_embeddings$|codebook_size", VOCAB),
    (r"full_attention_interval|sliding_window_pattern|attn_layer_period|cross_frequency", 2),
    (r"attn_layer_offset|expert_layer_offset", 1),
    (r"(max_|num_|n_).*(position|positions|embeddings|ctx)|context_length|seq_len", POSITIONS),
    (r"image_size|input_size$|img_size", IMAGE),
    (r"^patch_size$|_patch_size$", lambda v: 8 if v > 8 else v),
    (r"sliding_window$|attention_chunk_size|window_size$", lambda v: min(v, 4) if v > 0 else v),
    (r"chunk_size|chunk_length", lambda v: min(v, 16)),
    (r"num_mel_bins|n_mels|feature_size|feat_per_channel|mel_dim|n_mel|feat_size", 16),
    (r"num_queries|query_num|num_query|num_latents|query_tokens|num_denoising", 6),
]
TOKEN_FIELD = re.compile(r"(.*?)_?(token_id|token_index|_id|token_ids|_idx|_index)$")


def _token(name: str) -> int:
    """A small id, the same wherever the name occurs."""
    stem = re.sub(r"_(token_id|token_index|token|index|id)$", "", name)
    if stem in TOKENS:
        return TOKENS[stem]
    return 8 + sum(ord(c) * (i + 1) for i, c in enumerate(stem)) % (VOCAB - 10)


def _list(name: str, values: tuple[Any, ...]) -> Any:
    """Lists of sizes keep their ratios, lists of depths their stages."""
    if not values or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return values
    if re.search(
        r"depths|num_blocks|(?<!proj_)layers$|^depth$|focal_levels|block_repeats|block_sizes", name
    ):
        return tuple(min(v, 2 if i == 0 else 1) for i, v in enumerate(values))
    if re.search(r"heads", name):
        return tuple(max(1, 2 * v // max(min(values), 1)) for v in values)
    if re.search(r"out_indices|indexes|indices|extract_layers|feature_layer|hook_ids", name):
        return tuple(min(i, 1) if v >= 0 else v for i, v in enumerate(values))
    if re.search(r"token", name):
        return tuple(8 + i for i, _ in enumerate(values))
    if re.search(r"image_size|img_size|input_size", name):
        return tuple(IMAGE for _ in values)
    if re.search(r"patch_size$", name):
        return tuple(min(v, 8) for v in values)
    if len(set(values)) == 1 and values[0] >= 32 and not KEEP.search(name):
        return tuple(D for _ in values)
    if min(values) >= 8 and max(values) >= 32 and not KEEP.search(name):
        return tuple(16 * min(max(1, round(v / min(values))), 8) for v in values)
    return values


def shrink_value(name: str, value: Any) -> Any:
    """The tiny value of one field; the value itself if nothing needs to change."""
    if isinstance(value, bool) or value is None or isinstance(value, str | float):
        return value
    if isinstance(value, tuple | list):
        return type(value)(_list(name, tuple(value)))
    if not isinstance(value, int):
        return value
    if re.search(r"(token_id|token_index|eos_id|bos_id|_pad_id|_token)$", name) or (
        name.endswith(("_id", "_index", "_offset")) and value > 16
    ):
        return _token(name) if value >= 0 else value
    for pattern, rule in RULES:
        if re.search(pattern, name):
            if rule is None or value == 0:
                return value
            return rule(value) if callable(rule) else rule
    if KEEP.search(name):
        return value
    return D if value >= 32 else value


# Fields that default to None and are free all the same.
FREE = ("num_key_value_heads", "head_dim")
SWIN = {"embed_dim": 16, "window_size": 2, "patch_size": 2}
ENCODER_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": FFN,
}
LOOKS_BACK = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}
FIXES: dict[str, dict[str, Any]] = {
    "swin": SWIN,
    "donut-swin": SWIN,
    "maskformer-swin": SWIN,
    "swinv2": SWIN,
    "esm": {"vocab_size": VOCAB, "pad_token_id": 0, "mask_token_id": 4},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},
    "helium": {"head_dim": 8},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 1e3}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (8, 8)},
    "sam2_hiera_det_model": {
        "hidden_size": 16,
        "image_size": [256, 256],
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [2, 2, 4, 4],
        "blocks_per_stage": [1, 2, 2, 1],
        "window_size_per_stage": [8, 8, 8, 8],
        "window_positional_embedding_background_size": [8, 8],
        "global_attention_blocks": [4],
    },
    "sam2_vision_model": {
        "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": [[64, 64], [32, 32], [16, 16]],
    },
    "janus_vqgan": {"base_channels": 32, "channel_multiplier": (1, 1), "num_res_blocks": 1},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "chameleon_vqgan": {"base_channels": 32, "channel_multiplier": (1, 1), "num_res_blocks": 1},
    "emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 6}},
    "emu3_vqgan": {"base_channels": 32, "channel_multiplier": (1, 1), "num_res_blocks": 1},
    "lw_detr": {"projector_scale_factors": [1.0]},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "bros": {"hidden_size": 64},
    "xmod": {"default_language": "en_XX"},
    "efficientnet": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 64},
    "align_vision_model": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 320},
    "sam2_prompt_encoder": {"image_size": 256},
    "sam2_video_prompt_encoder": {"image_size": 256},
    "lilt": {"hidden_size": 48},
    "granite4_vision": {"deepstack_layer_map": [], "spatial_target_layers": []},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 24,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "ngram_vocab_size_base": 64,
        "make_ngram_vocab_size_divisible_by": 1,
        "split_ngram_parts": 2,
    },
    "hy_v4_vl_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    },
    "deimv2": {"encoder_in_channels": (64, 128, 128)},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "moonshine_streaming": {"num_key_value_heads": HEADS, "num_attention_heads": HEADS},
    "rt_detr": {"encoder_in_channels": (32, 64, 128)},
    "rt_detr_v2": {"encoder_in_channels": (32, 64, 128)},
    "hgnet_v2": {
        "stem_channels": (3, 16, 16),
        "stage_in_channels": (16, 32, 64, 128),
        "stage_mid_channels": (16, 16, 32, 32),
        "stage_out_channels": (32, 64, 128, 128),
        "hidden_sizes": (32, 64, 128, 128),
    },
    "glm5_next_text": {"index_kpool": 4},
    "dia": {"delay_pattern": [0, 1, 2]},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "lw_detr_vit": {"image_size": 64, "patch_size": 8, "num_windows": 4},
    "cohere_compass_text": {
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": FFN},
    "levit": {"patch_size": 16, "image_size": 64},
    "seggpt": {
        "num_hidden_layers": 4,
        "intermediate_hidden_state_indices": (1, 3),
        "merge_index": 0,
        "image_size": (64, 32),
        "pretrain_image_size": 32,
    },
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "efficientloftr": {"out_features": [16, 16, 32], "stage_num_blocks": [1, 1, 1, 1]},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "mask2former": {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32},
    "maskformer": {"fpn_feature_size": 32, "mask_feature_size": 32},
    "oneformer": {"conv_dim": 32, "mask_dim": 32},
    "qwen2_5_vl_vision": {"window_size": 32},
    "qwen2_5_omni_vision_encoder": {"window_size": 32},
    "bridgetower": {"hidden_size": 64},
    "upernet": {
        "default": {
            "backbone_config": {
                "model_type": "swin",
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            }
        }
    },
    "vitmatte": {
        "convstream_hidden_sizes": [8, 8, 8],
        "fusion_hidden_sizes": [8, 8, 8, 8],
    },
    "groupvit_vision_model": {"num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 0]},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1]},
    "molmo2_vision": {"num_position_embeddings": 16},
    "pix2struct_text_model": {"initializer_range": 0.02, "d_kv": D // HEADS},
    "bridgetower_text_model": {"hidden_size": 64},
    "bridgetower_vision_model": {"hidden_size": 64},
    "encoder-decoder": {"default": {"encoder": {"model_type": "bert"}, "decoder": LOOKS_BACK}},
    "vision-encoder-decoder": {
        "default": {"encoder": {"model_type": "vit"}, "decoder": LOOKS_BACK}
    },
    "speech-encoder-decoder": {
        "default": {"encoder": {"model_type": "wav2vec2"}, "decoder": LOOKS_BACK}
    },
    "rag": {
        "default": {
            "question_encoder": {"model_type": "dpr", **ENCODER_SIZES},
            "generator": {
                "model_type": "bart",
                "vocab_size": VOCAB,
                "d_model": D,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": HEADS,
                "decoder_attention_heads": HEADS,
                "encoder_ffn_dim": FFN,
                "decoder_ffn_dim": FFN,
                "max_position_embeddings": POSITIONS,
                "pad_token_id": 0,
            },
        }
    },
    **{
        name: {
            "default": {
                "text_encoder": {"model_type": "t5"},
                "audio_encoder": {"model_type": "encodec"},
                "decoder": {},
            }
        }
        for name in ("musicgen", "musicgen_melody")
    },
    "llama4_vision_model": {"intermediate_size": 4 * D},
    "d_fine": {"encoder_in_channels": (64, 128, 128)},
    "exaone4_5_vision": {"window_size": 32},
    "mobilevitv2": {"image_size": 64},
    "mobilevit": {"image_size": 64, "neck_hidden_sizes": (8, 8, 16, 16, 16, 16, 32)},
    "nystromformer": {"segment_means_seq_len": 8, "num_landmarks": 8},
    "hiera": {"embed_dim": 16, "image_size": (64, 64)},
    "focalnet": {"embed_dim": 8},
    "encodec": {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [2, 2]},
    "dac": {
        "encoder_hidden_size": 4,
        "decoder_hidden_size": 32,
        "downsampling_ratios": [2, 2],
        "upsampling_ratios": [2, 2],
        "hidden_size": 16,
    },
    "mimi": {"num_filters": 4},
    "autoformer": {
        "input_size": 1,
        "prediction_length": 8,
        "context_length": 16,
        "lags_sequence": [1, 2],
    },
    "clap_audio_model": {"spec_size": 128, "num_mel_bins": 64, "hidden_size": 256},
    "qwen3_omni_moe_audio_encoder": {"n_window": 50, "n_window_infer": 400, "num_mel_bins": 64},
    "qwen3_asr_encoder": {
        "n_window": 50,
        "n_window_infer": 800,
        "num_mel_bins": 64,
        "max_position_embeddings": 13,
    },
    "mobilebert": {"intra_bottleneck_size": 16},
    "nemotron_asr_streaming_encoder": {"sliding_window": 4, "default_num_lookahead_tokens": 0},
    "informer": {
        "sampling_factor": 1,
        "input_size": 1,
        "prediction_length": 8,
        "context_length": 16,
        "lags_sequence": [1, 2],
    },
    "time_series_transformer": {
        "input_size": 1,
        "prediction_length": 8,
        "context_length": 16,
        "lags_sequence": [1, 2],
    },
    "bit": {"num_groups": 2},
    "canine": {"num_hash_buckets": 64},
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "recurrent_gemma": {"num_hidden_layers": 2, "block_types": ["recurrent", "attention"]},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "num_mem_blocks": 2,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid"],
    },
    "unlimited_ocr_text": {"num_key_value_heads": 4},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": FFN},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    },
}


def _get(config: Any, name: str) -> Any:
    """A value of the config, None where it has none or one a layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # per-layer attributes refuse to be read as one
        return None


# Backbones that need a library of their own are replaced by one that does not.
CONVOLUTIONAL = ("conditional_detr", "dab-detr", "deformable_detr", "detr", "table-transformer",
                 "omdet-turbo", "tvp")  # fmt: skip


def _default(cls: type) -> Any:
    if cls.model_type in CONVOLUTIONAL:
        from transformers import ResNetConfig

        return cls(backbone_config=ResNetConfig(out_features=["stage2", "stage3", "stage4"]))
    return cls(**copy.deepcopy(FIXES.get(cls.model_type, {}).get("default", {})))


def _kinds(config: Any, n: int) -> dict[str, set[str]]:
    """The sets of values in the lists that hold one entry a layer."""
    return {
        k: {str(x) for x in v}
        for k, v in vars(config).items()
        if isinstance(v, list | tuple)
        and len(v) == n
        and n > 1
        and "token" not in k
        and all(isinstance(x, str | bool | int) for x in v)
    }


DEPTH = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
)


def _trim(values: Any, n: int) -> Any:
    """The first `n` entries, with every kind of the whole list among them."""
    kinds = list(dict.fromkeys(values))
    head = list(values[:n])
    missing = [k for k in kinds if k not in head]
    return type(values)((head[: n - len(missing)] if missing else head) + missing)


def shrink(cls: type, like: Any = None, *, drop: tuple[str, ...] = (), **given: Any) -> Any:
    """A tiny config of the class; `like` holds values that a composite gives its part."""
    base = _default(cls)
    like = base if like is None else like
    fixes = {k: v for k, v in FIXES.get(cls.model_type, {}).items() if k != "default"}
    fixes = copy.deepcopy(fixes | (FIXES["rag"]["default"] if cls.model_type == "rag" else {}))
    parts = getattr(cls, "sub_configs", {})
    values: dict[str, Any] = {}
    names = {f.name for f in dataclasses.fields(cls)}
    for field in dataclasses.fields(cls):
        name = field.name
        if name in parts or name in drop or not field.init:
            continue
        value = field.default
        if value is dataclasses.MISSING:
            value = (
                None if field.default_factory is dataclasses.MISSING else field.default_factory()
            )
        live = _get(like, name)
        derived = value is None and isinstance(live, list | tuple)
        if live is not None and live != _get(base, name) and not derived:
            value = live
        if value is None and name in FREE and "qk_rope_head_dim" not in names:
            value = 1
        small = shrink_value(name, value)
        if "out_indices" in name and names & {"depths", "stage_out_channels", "layer_type"}:
            small = value
        if name == "num_key_value_heads" and "kv_lora_rank" in names:
            small = HEADS if value else value
        if name == "head_dim" and "qk_rope_head_dim" in names and value:
            rope = next(f.default for f in dataclasses.fields(cls) if f.name == "qk_rope_head_dim")
            small = 8 if value == rope else 20
        if small != value or value != field.default:
            values[name] = small
    for key in parts:
        part = _get(like, key)
        if hasattr(part, "model_type") and dataclasses.is_dataclass(part):
            values[key] = shrink(type(part), part, drop=drop)
    values |= fixes | given
    config = _deep_enough(cls, base, values, fixes)
    wanted = _get(like, "out_features")
    if wanted and like is not base and set(wanted) <= set(_get(config, "stage_names") or ()):
        config.set_output_features_output_indices(out_features=list(wanted), out_indices=None)
    return config


def _deep_enough(cls: type, base: Any, values: dict[str, Any], fixes: dict[str, Any]) -> Any:
    """As few layers as show every kind of layer."""
    depth = next((k for k in DEPTH if isinstance(_get(base, k), int)), None)
    total = _get(base, depth) if depth else 0
    lists = [
        k
        for k, v in values.items()
        if isinstance(v, list | tuple)
        and depth
        and len(v) == total
        and total > 4
        and k not in fixes
        and re.search(r"type|pattern|layers|windows", k)
    ]
    full = _kinds(base, total)
    error: Exception | None = None
    best = None
    for n in (2, 3, 4, 6) if depth and depth in values and depth not in fixes else (0,):
        tried = dict(values)
        if n:
            tried |= {k: n for k in DEPTH if k in tried and k not in fixes}
            tried |= {k: _trim(values[k], n) for k in lists}
        try:
            config = cls(**tried)
        except Exception as e:  # any config may refuse any depth
            error = e
            continue
        best = best or config
        if not n:
            break
        kinds = _kinds(config, n)
        if all(len(v) <= len(kinds.get(k, v)) for k, v in full.items() if len(v) <= 4):
            best = config
            break
    if best is None:
        assert error is not None
        raise error
    return _finish(best)


def _finish(config: Any) -> Any:
    """Fields that only exist once the config is made."""
    rope = _get(config, "rope_parameters")
    if (
        isinstance(rope, dict)
        and "rope_theta" in rope
        and _speaks_of(type(config), "mrope_section")
    ):
        rope.setdefault("mrope_section", [1, 1, 1])
    head = _get(config, "head_dim") or D // HEADS
    for scope in [rope, *(rope.values() if isinstance(rope, dict) else [])]:
        if isinstance(scope, dict) and "mrope_section" in scope:
            half = int(head * scope.get("partial_rotary_factor", 1.0)) // 2
            if sum(scope["mrope_section"]) == half:
                continue
            scope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    return config


# Model types that are not built, or do not run as a whole, by reason.
REASONS: dict[str, str] = {
    "needs timm": (
        "edgetam edgetam_video edgetam_vision_model fast_vlm gemma3n gemma3n_vision "
        "pe_audio_video pe_audio_video_encoder pe_video pe_video_encoder perception_lm "
        "timm_backbone timm_wrapper"
    ),
    "needs natten": ("dinat"),
    "needs detectron2": ("layoutlmv2"),
    "needs torchaudio": ("higgs_audio_v2_tokenizer"),
    "no generic inputs fit the whole, its towers run": (
        "align bark blip-2 clap clvp d_fine deimv2 fastspeech2_conformer_with_hifigan groupvit "
        "instructblip instructblipvideo kosmos-2 llama4 omdet-turbo oneformer pi0 "
        "pp_doclayout_v3 pp_doclayout_v4 pp_ocrv6_small_det sam3_tracker sam3_tracker_video "
        "sam3_video step3p7 voxtral_realtime xcodec"
    ),
    "values of the config depend on each other": (
        "apertus1p5 cvt depth_pro dots3_note efficientloftr fun_asr_nano granite4_vision "
        "musicgen musicgen_melody tvp"
    ),
    "sizes that no field of the config sets": ("deepseek_ocr2 dots3_note_text pp_ocrv5_mobile_rec"),
    "convolutions only, not shrunk": (
        "dinov3_convnext efficientnet mobilenet_v1 pp_ocrv6_medium_det textnet univnet uvdoc"
    ),
    "audio codec, its convolutions are not shrunk": (
        "encodec mimi_decoder mimi_encoder neucodec pocket_tts_audio_tokenizer_decoder "
        "vibevoice vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder "
        "vibevoice_acoustic_tokenizer_encoder vibevoice_asr wavtokenizer wavtokenizer_encoder "
        "xcodec2"
    ),
    "no generic inputs fit": (
        "fun_asr_nano_encoder gemma4_audio gemma4_vision granite_speech5_ctc "
        "granite_speech5_encoder idefics inkling2_vision lightglue minicpm_ocr_vision "
        "minicpmv4_7_vision muse_glimmer_assistant muse_glimmer_vision muse_spark_vision "
        "qwen3_asr_encoder sam2 sam2_hiera_det_model sam2_video sam2_vision_model tapas"
    ),
    "has no forward": ("glm_image_vqmodel"),
}
REFUSED = {name: reason for reason, names in REASONS.items() for name in names.split()}


def model_types() -> list[str]:
    """Every model type with a base model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [t for t in CONFIG_MAPPING_NAMES if t in MODEL_MAPPING_NAMES]


HEAD_MAPPINGS = (
    "MASKED_LM", "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "CTC",
    "SPEECH_SEQ_2_SEQ", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION",
)  # fmt: skip


@functools.cache
def _modeling(cls: type) -> Any:
    package, name = cls.__module__.rsplit(".", 1)
    try:
        return importlib.import_module(f"{package}.{name.replace('configuration_', 'modeling_')}")
    except ImportError:
        return None


def _speaks_of(cls: type, word: str) -> bool:
    module = _modeling(cls)
    return module is not None and word in inspect.getsource(module)


@functools.cache
def _part_classes(cls: type) -> Any:
    """The model class of a config that no auto class knows."""
    from transformers import PreTrainedModel

    module = _modeling(cls)
    if module is None:
        return []
    package = importlib.import_module(module.__package__)
    others = [m.name for m in pkgutil.iter_modules(package.__path__)]
    beside = [m for m in others if m.startswith("modeling_") and not module.__name__.endswith(m)]
    modules = [module, *(importlib.import_module(f"{package.__name__}.{m}") for m in beside)]
    found = [
        c
        for module in modules
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, PreTrainedModel)
        and c.__module__ == module.__name__
        and getattr(c, "config_class", None) is cls
        and not c.__name__.endswith("PreTrainedModel")
    ]
    found.sort(key=lambda c: ("For" in c.__name__, not c.__name__.endswith("Model")))
    return found


# Composites whose base class in the auto mappings is one of their parts.
WHOLE = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}


def model_class(config: Any, *, head: bool = False) -> Any:
    """The class to build: with the language-model head if asked and there is one."""
    import transformers
    from transformers.models.auto import modeling_auto

    if config.model_type in WHOLE:
        return getattr(transformers, WHOLE[config.model_type])
    names = [f"MODEL_FOR_{m}_MAPPING" for m in HEAD_MAPPINGS] if head else []
    others = [n for n in dir(modeling_auto) if re.fullmatch(r"MODEL_FOR_\w+_MAPPING", n)]
    for name in [*names, "MODEL_MAPPING", "MODEL_FOR_BACKBONE_MAPPING", *others]:
        try:
            found = getattr(modeling_auto, name).get(type(config), None)
        except ValueError:  # the class is listed but not exported
            continue
        if found is not None:
            return found[0] if isinstance(found, tuple | list) else found
    classes = _part_classes(type(config))
    if not classes:
        raise LookupError(f"no model class for {type(config).__name__}")
    return classes[0]


VARIANTS: tuple[tuple[str, ...], ...] = (
    (),
    ("head_dim",),
    ("num_key_value_heads",),
    ("head_dim", "num_key_value_heads"),
)
# Which of VARIANTS a type needs, where its code does not allow all freedoms of its config.
VARIANT: dict[str, int] = {
    "cosmos3_edge": 1,
    "cosmos3_edge_text": 1,
    "esmc": 3,
    "granite_speech5_ctc": 2,
    "granite_speech5_encoder": 2,
    "nemotron3_5_transcribe_asr_audio": 2,
    "nemotron3_5_transcribe_audio": 2,
    "nemotron3_5_transcribe_word_timestamp": 2,
    "nemotron3_diarization": 2,
    "nemotron3_diarization_audio": 2,
    "neomme": 1,
}


def config_of(model_type: str, variant: int | None = None, **given: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    drop = VARIANTS[VARIANT.get(model_type, 0) if variant is None else variant]
    return shrink(cls, drop=drop, **given)


def build(
    model_type: str,
    *,
    seed: int = 0,
    head: bool = False,
    variant: int | None = None,
    given: dict[str, Any] | None = None,
) -> Any:
    """The tiny model in float64, eager, every parameter normal of std .2 (norm gains around 1).

    `given` holds values of the config that win over the shrunk ones.
    """
    import torch

    torch.manual_seed(seed)
    config = config_of(model_type, variant, **(given or {}))
    for part in _configs(config):
        part._attn_implementation = "eager"
        part._experts_implementation = "eager"
    cls = model_class(config, head=head)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        model = cls._from_config(config, attn_implementation="eager").double().eval()
    total = sum(p.numel() for p in model.parameters())
    if total > 3_000_000:
        raise ValueError(f"{model_type}: {total} parameters is not tiny")
    randomise(model)
    return model


def _configs(config: Any) -> list[Any]:
    out = [config]
    for key in getattr(config, "sub_configs", {}):
        part = getattr(config, key, None)
        if part is not None and hasattr(part, "to_dict"):
            out += _configs(part)
    return out


def randomise(model: Any) -> None:
    import torch

    with torch.no_grad():
        for module_name, module in model.named_modules():
            kind = type(module).__name__.lower()
            norm = "norm" in kind or "ln" in module_name.rsplit(".", 1)[-1].lower()
            for name, p in module.named_parameters(recurse=False):
                if not p.is_floating_point():
                    continue
                p.normal_(0, 0.2)
                if norm and name in ("weight", "gamma", "gain", "scale"):
                    p.add_(1.0)


def tokens(config: Any, n: int) -> Any:
    """Ids that are no special token."""
    import torch

    special = {v for part in _configs(config) for k, v in vars(part).items()
               if isinstance(v, int) and re.search(r"_id$|_index$|token", k)}  # fmt: skip
    special |= set(TOKENS.values())
    limit = min((_get(part, "vocab_size") or VOCAB) for part in _configs(config)
                if isinstance((_get(part, "vocab_size") or VOCAB), int))  # fmt: skip
    free = [i for i in range(3, limit) if i not in special] or list(range(limit))
    return torch.tensor([[free[(7 * i + 3) % len(free)] for i in range(n)]])


def _size(config: Any, *names: str, default: Any = None) -> Any:
    for part in _configs(config):
        for name in names:
            value = _get(part, name)
            if value is not None:
                return value
    return default


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[-2], value[-1])


MEL = (
    "feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "feature_size",
    "n_mels", "input_feat_size", "input_dim", "mel_dim", "n_mel_bins",
)  # fmt: skip


def _features(config: Any, noise: Any) -> Any:
    """Mel features: frames by channels, or channels by frames where the model convolves them."""
    mel = _size(config, *MEL, default=16)
    if _speaks_of(type(config), "expects the mel input features"):
        frames = 2 * _size(config, "max_source_positions", "max_position_embeddings", default=20)
        return noise(1, mel, frames)
    return noise(1, 40, mel)


def _channels(config: Any) -> int:
    value = _size(config, "num_channels", "in_channels", "in_chans", "channels", default=3)
    return value if isinstance(value, int) else 3


def _video_frames(config: Any) -> int:
    return int(_size(config, "num_frames", "frames_per_clip", "max_num_frames", default=4))


def _patches(config: Any, noise: Any, rows: int) -> Any:
    """Flattened patches, one a row."""
    side = int(_pair(_size(config, "patch_size", "spatial_patch_size", default=8))[0])
    steps = _size(config, "temporal_patch_size", default=1)
    if _size(config, "temporal_patch_size", "patch_temporal") is None:
        steps = _size(config, "video_temporal_patch_size", default=1)
    return noise(rows, _channels(config) * steps * side * side)


def _long(model: Any, n: int) -> dict[str, Any]:
    """At least 16 tokens, of models that shorten the sequence on the way."""
    import torch

    ids = tokens(model.config, max(n, 16))
    # CANINE multiplies the mask with the least float64, which is infinite in float32.
    return {"input_ids": ids, "attention_mask": torch.ones(ids.shape, dtype=torch.float64)}


def _embedded(model: Any, n: int) -> dict[str, Any]:
    """States in place of ids, of a model that takes nothing else."""
    import torch

    states = torch.randn(1, n, model.config.hidden_size, dtype=torch.float64)
    return {"inputs_embeds": states, "use_cache": False}


def _timed(model: Any, n: int) -> dict[str, Any]:
    """Ids, and the embedding of the delay that the norms of the text model follow."""
    import torch

    t_cond = torch.randn(1, 1, model.config.hidden_size, dtype=torch.float64)
    return {"input_ids": tokens(model.config, n), "t_cond": t_cond, "use_cache": False}


def _codebooks(model: Any, n: int) -> dict[str, Any]:
    """Ids of text and of every codebook of sound."""
    import torch

    more = torch.randint(1, 30, (1, n, model.config.num_codebooks))
    ids = torch.cat([tokens(model.config, n)[..., None], more], -1)
    return {"input_ids": ids, "use_cache": False}


def _patched(model: Any, n: int) -> dict[str, Any]:
    """What a part of BLT takes: ids or states of bytes, and the patches that they belong to."""
    import torch

    config, encoder = model.config, model.config.model_type == "blt_local_encoder"
    wide = getattr(config, "hidden_size_global", None) or config.hidden_size
    patches = torch.randn(1, 2, wide, dtype=torch.float64)
    patch_ids = torch.arange(n)[None] * 2 // n
    if encoder:
        return {"input_ids": tokens(config, n), "num_patches": 2, "patch_ids": patch_ids}
    states = torch.randn(1, n, config.hidden_size, dtype=torch.float64)
    return {"inputs_embeds": states, "patch_embeds": patches}


class _NoCache:
    """What FlauBERT's pre-norm layers index, though their model makes no such thing."""

    def get_seq_length(self) -> int:
        return 0

    def __getitem__(self, layer: int) -> None:
        return None


def _sliced(model: Any, n: int) -> dict[str, Any]:
    """Ids, and a cache that can be indexed where the layers do so."""
    ids = {"input_ids": tokens(model.config, n)}
    return {**ids, "cache": _NoCache()} if model.config.pre_norm else ids


def _attending(model: Any, n: int) -> dict[str, Any]:
    """Ids, boxes where there are any, and states to look at where the config has such a width."""
    import torch

    config = model.config
    found = {"input_ids": tokens(config, n)}
    if config.model_type == "bros":
        found["bbox"] = torch.arange(4, dtype=torch.float64).expand(1, n, 4) / 8
    if getattr(config, "add_cross_attention", True):
        width = _size(config, "cross_attention_hidden_size", "hidden_size")
        found["encoder_hidden_states"] = torch.randn(1, n, width, dtype=torch.float64)
    return found


INPUTS: dict[str, Any] = {
    **dict.fromkeys(("bros", "trocr"), _attending),
    "flaubert": _sliced,
    **dict.fromkeys(("blt_local_encoder", "blt_local_decoder"), _patched),
    **dict.fromkeys(("funnel", "canine"), _long),
    **zoo_sound.INPUTS,
    **zoo_pictures.INPUTS,
    "qwen3_omni_moe_talker_code_predictor": _embedded,
    "qwen3_omni_moe_talker_text": _embedded,
    "voxtral_realtime_text": _timed,
    "kyutai_speech_to_text": _codebooks,
}
GRID = ("grid_thw", "image_grid_thw", "grid_hws", "image_grid_hws", "grid_hw")


def _provide(name: str, config: Any, n: int, ids: Any, noise: Any, grid: bool) -> list[Any]:
    """The possible values of one argument of `forward`, the likeliest first."""
    import torch

    size = _pair(_size(config, "image_size", "img_size", "input_image_size", default=IMAGE))
    channels, width = _channels(config), _size(config, "hidden_size", "d_model", default=D)
    mel = _size(config, *MEL, default=16)
    if name in ("input_ids", "qformer_input_ids", "input_tokens"):
        return [ids]
    if name == "decoder_input_ids":
        return [ids.flip(1)]
    if name in ("attention_mask", "decoder_attention_mask", "qformer_attention_mask"):
        return [torch.ones_like(ids)]
    if name in ("pixel_values", "image_pixel_values", "pixel_values_images"):
        image, video = noise(1, channels, *size), noise(1, _video_frames(config), channels, *size)
        rows = [_patches(config, noise, 16), _patches(config, noise, 16)[None]]
        rows.append(rows[0].reshape(16, channels, -1, *[_pair(_size(config, "patch_size"))[0]] * 2)
                    if isinstance(_size(config, "patch_size"), int) else rows[0])  # fmt: skip
        rows.append(rows[2][:, :, 0] if rows[2].dim() == 5 else rows[0])
        return [*rows, image] if grid else [image, noise(1, channels, 128, 128), video, *rows,
                                           noise(1, 2, channels, *size)]  # fmt: skip
    if name in ("prompt_pixel_values", "prompt_masks"):
        return [noise(1, channels, size[0] // 2, size[1])]
    if name in ("pixel_values_videos", "pixel_values_for_video"):
        return [noise(1, _video_frames(config), channels, *size)]
    if name in GRID:
        last2 = torch.tensor([[4, 4]])
        return [last2] if "thw" not in name else [torch.tensor([[1, 4, 4]])]
    if name == "merge_sizes":
        return [torch.tensor([_size(config, "spatial_merge_size", default=1)])]
    if name in ("input_features", "audio_mel", "spectrogram", "input_features_audio"):
        frames = 2 * _size(config, "max_source_positions", default=20)
        side = _size(config, "spec_size", "max_length", default=32)
        found = [noise(1, 40, mel), noise(1, mel, frames), noise(1, mel, 40), noise(1, 1, 32, 16),
                 noise(1, 1, side, side), noise(1, 80, 16), noise(mel, 40),
                 noise(1, 40, 4 * mel), noise(1, 40, 2 * mel)]  # fmt: skip
        return found[1:2] + found if _speaks_of(type(config), "expects the mel") else found
    if name in ("input_features_mask", "audio_mel_mask", "feature_attention_mask"):
        frames = 2 * _size(config, "max_source_positions", default=20)
        return [torch.ones(1, 40, dtype=torch.bool), torch.ones(1, frames, dtype=torch.long)]
    if name in ("decoder_input_values",):
        return [noise(1, n, width)]
    if name in ("input_values", "audio_values", "waveform"):
        if "SpeechT5" in type(config).__name__:
            return [noise(1, n, width)]
        return [noise(1, 1920), noise(1, 1, 1920), noise(1, 40, mel), noise(1, 7680),
                noise(1, _size(config, "max_length", default=32), mel)]  # fmt: skip
    if name in ("bbox", "boxes", "input_boxes"):
        return [
            torch.arange(4).expand(1, n, 4) + 1,
            noise(1, n, 8),
            torch.tensor([[[1.0, 2.0, 9.0, 8.0]]]).double(),
        ]
    if name == "past_values":
        length = _size(config, "context_length", default=POSITIONS)
        inputs_ = _size(config, "num_input_channels", "input_size", default=1)
        return [noise(1, length, inputs_ if isinstance(inputs_, int) else 1), noise(1, length),
                noise(1, 18)]  # fmt: skip
    if name == "past_values_padding":
        return [torch.zeros(1, _size(config, "context_length", default=POSITIONS))]
    if name == "freq":
        return [torch.zeros(1, 1, dtype=torch.long)]
    if name == "inputs":
        return [noise(1, n, width)]
    if name in ("past_time_features", "future_time_features"):
        length = 18 if name.startswith("past") else _size(config, "prediction_length", default=8)
        return [noise(1, length, _size(config, "num_time_features", default=0))]
    if name in ("past_observed_mask", "future_values"):
        length = 18 if name.startswith("past") else _size(config, "prediction_length", default=8)
        return [torch.ones(1, length)]
    if name in ("states", "actions", "rewards", "returns_to_go"):
        width = {"states": config.state_dim, "actions": config.act_dim}.get(name, 1)
        return [noise(1, n, width)]
    if name == "timesteps":
        return [torch.arange(n)[None]]
    if name == "pixel_position_ids":
        return [torch.tensor([[[i % 4, i // 4] for i in range(16)]])]
    if name == "image_embeds_position_mask":
        return [torch.tensor([[False] * n])]
    if name in ("use_cache", "return_loss"):
        return [False]
    if name == "visual_feats":
        return [noise(1, 3, _size(config, "visual_feat_dim", default=D))]
    if name == "visual_pos":
        return [noise(1, 3, 4)]
    if name == "spatial_shapes":
        return [torch.tensor([[4, 4]])]
    if name in ("pixel_attention_mask", "pixel_mask"):
        return [torch.ones(1, 16, dtype=torch.long), torch.ones(1, *size, dtype=torch.long)]
    if name in ("query_embeds", "encoder_outputs", "encoder_hidden_states", "context_hidden_states",
                "hidden_states", "inputs_embeds", "noise_embeds", "action_embeds",
                "image_hidden_states", "vision_hidden_states"):  # fmt: skip
        rows = _patches(config, noise, 16)
        return [rows, noise(1, n, width), noise(16, width)] if grid else [noise(1, n, width), rows]
    return []


SKIP = {"labels", "position_ids", "past_key_values", "head_mask", "kwargs", "args"}


def candidates(model: Any, n: int = 8) -> list[dict[str, Any]]:
    """Sets of arguments to try, from the fewest."""
    import itertools

    import torch

    config = model.config
    parameters = {
        k: p for k, p in inspect.signature(model.forward).parameters.items()
        if k not in SKIP and p.kind is not p.VAR_KEYWORD
    }  # fmt: skip
    ids = tokens(config, n)
    grid = any(g in parameters for g in GRID) and "input_ids" not in parameters
    required = [k for k, p in parameters.items() if p.default is p.empty]
    main = model.main_input_name
    mains = [k for k in (main, "input_ids", "pixel_values", "input_features", "input_values",
                         "pixel_values_videos", "inputs_embeds", "hidden_states", "past_values")
             if k in parameters][:1]  # fmt: skip
    ids_too = [k for k in ("input_ids", "attention_mask", "decoder_input_ids") if k in parameters]
    pixels = [k for k in ("pixel_values", "input_features", "pixel_values_videos", "spatial_shapes",
                          "pixel_attention_mask") if k in parameters]  # fmt: skip
    more = [k for k in ("bbox", "qformer_input_ids", "visual_feats", "visual_pos",
                        "input_features_mask", "decoder_input_values",
                        "image_hidden_states", "future_values",
                        "future_time_features", "states", "actions", "rewards", "returns_to_go",
                        "timesteps", "image_embeds_position_mask", *GRID)
            if k in parameters]  # fmt: skip
    ids_first = ["input_ids", "decoder_input_ids"]
    sets = [
        [*mains, *required, *(k for k in ids_too if mains == ["input_ids"] or k in required
                              or (k == "decoder_input_ids"))],
        [*mains, *required],
        [*required, *ids_too],
        [*required, *ids_too, *more],
        [*required, *ids_too, *pixels],
        [*mains, *required, *more],
        [*required, *ids_too, *pixels, *more],
        [*required, *pixels, *more],
        [*mains, "encoder_hidden_states", *required],
        [*mains, *required, *(k for k in ids_first if k in parameters)],
    ]  # fmt: skip
    out = []
    for names in sets:
        names = list(dict.fromkeys([*names, *(["use_cache"] if "use_cache" in parameters else [])]))
        names = [k for k in names if k in parameters]
        found = []
        for name in names:
            generator = torch.Generator().manual_seed(len(name))

            def noise(*shape: int, generator: Any = generator) -> Any:
                return torch.randn(*shape, generator=generator, dtype=torch.float64)

            found.append(_provide(name, config, n, ids, noise, grid))
        if any(not f for f in found):
            names, found = zip(
                *[(k, f) for k, f in zip(names, found, strict=True) if f] or [((), ())], strict=True
            )
        for values in itertools.islice(itertools.product(*found), 10):
            out.append(dict(zip(names, values, strict=True)))
    return out


def inputs(model: Any, n: int = 8) -> dict[str, Any]:
    """Generic inputs that the model takes; `n` tokens where there are tokens."""
    import torch

    own = INPUTS.get(model.config.model_type)
    if own is not None:
        return own(model, n)
    error: Exception | None = None
    for feed in candidates(model, n):
        try:
            with torch.no_grad():
                model(**feed)
        except Exception as e:  # any model may refuse any input
            error = error or e
            continue
        return feed
    raise error if error is not None else LookupError("no inputs")


@contextlib.contextmanager
def double() -> Iterator[None]:
    """New tensors are float64 as well, as are softmax and norms that ask for float32."""
    import torch
    from torch.overrides import TorchFunctionMode

    narrow = (torch.float32, torch.float16, torch.bfloat16)

    class Keep(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            name = getattr(func, "__name__", "")
            wide = bool(args) and getattr(args[0], "dtype", None) == torch.float64
            if wide and name == "float":
                return args[0]
            if wide and name in ("softmax", "to", "type"):
                args = [
                    torch.float64 if isinstance(a, torch.dtype) and a in narrow else a for a in args
                ]
            if kwargs.get("dtype") in narrow:
                kwargs["dtype"] = torch.float64
            return func(*args, **kwargs)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Keep():
            yield
    finally:
        torch.set_default_dtype(before)
