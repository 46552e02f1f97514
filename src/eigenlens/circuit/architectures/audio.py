"""Sound encoders: one line a model type (`"wav2vec2": wav2vec2("wav2vec2.")`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eigenlens.circuit.architectures.bases import (
    ATTENTION_BIAS,
    audio_tower,
    each,
    named,
    one,
    several,
    text_tower,
    towers,
)
from eigenlens.circuit.architectures.decoder_patterns import llama
from eigenlens.circuit.architectures.encoder_patterns import bert
from eigenlens.circuit.architectures.sense_patterns import (
    conformer,
    vit,
    wav2vec2,
)
from eigenlens.circuit.architectures.seq2seq_patterns import bart_stack
from eigenlens.circuit.facts import flag
from eigenlens.circuit.rows import Architecture, Tower
from eigenlens.circuit.stages import Stages

CLAMPED = "what it reads and writes is clamped to gradient_clipping; F holds within"

# The one encoder of a speech recogniser, whose own section says which it is.
_ENCODER = towers(audio_tower("encoder_config", within=()))
_MEL: dict[str, Any] = {"at": "layers.{layer}.", "before": True, "causal": False}


def _sound(**options: Any) -> Architecture:
    """Llama's names in an encoder."""
    return named(llama(**{"causal": False, "gguf": False, **options}), "audio")


def _parakeet(**options: Any) -> Architecture:
    """A conformer with Llama's names."""
    fields: dict[str, Any] = {"norm_kind": "layernorm", "before": "norm_self_att", "plain": True}
    return _sound(**{**fields, **options})


def _codec(name: str) -> Architecture:
    """The transformer in one half of a sound codec; LayerScale on its output."""
    return one(
        name,
        "self_attn.v_proj",
        "self_attn.o_proj",
        "input_layernorm",
        at=f"{name}.{name}_transformer.layers.{{layer}}.",
        scale="self_attn_layer_scale.scale",
        plain=False,
        value_bias=ATTENTION_BIAS,
        output_bias=ATTENTION_BIAS,
    )


AUDIO_ENCODERS: Mapping[str, Architecture] = {
    # -- wav2vec 2.0's names
    "wav2vec2": wav2vec2("wav2vec2."),
    "hubert": wav2vec2("hubert."),
    "wavlm": wav2vec2("wavlm."),
    "unispeech": wav2vec2("unispeech."),
    "unispeech-sat": wav2vec2("unispeech_sat."),
    "sew": wav2vec2("sew.", placement="post"),
    "data2vec-audio": wav2vec2("data2vec_audio.", placement="post"),
    "omniasr_audio": wav2vec2("model.", "audio_tower.", at="layers.{layer}.", placement="pre"),
    "sew-d": bert(
        "sew_d.",
        at="encoder.encoder.layer.{layer}.",
        name="audio",
        value="self.value_proj",
        causal=False,
    ),
    # -- conformers
    "wav2vec2-conformer": conformer("audio", "encoder.layers.{layer}."),
    "wav2vec2-bert": conformer("audio", "encoder.layers.{layer}."),
    **each(_parakeet(), "parakeet_encoder", "nemotron_asr_streaming_encoder"),
    "lasr_encoder": _parakeet(norm_bias=False),
    "granite_speech5_encoder": _parakeet(
        plain=False, value_bias=False, output_bias=True, keys={"n_kv_heads": ()}
    ),
    "granite_speech_encoder": one(
        "audio",
        "layers.{layer}.attn.to_kv",
        "layers.{layer}.attn.to_out",
        "layers.{layer}.attn.pre_norm",
        layout="kv_stacked",
        value_bias=False,
        causal=False,
        keys={
            "d_model": ("hidden_dim",),
            "n_layers": ("num_layers",),
            "n_heads": ("num_heads",),
            "head_dim": ("dim_head",),
        },
    ),
    "phi4_multimodal_audio": one(
        "audio",
        "encoders.{layer}.self_attn.v_proj",
        "encoders.{layer}.self_attn.o_proj",
        "encoders.{layer}.layer_norm_att",
        causal=False,
        keys={"n_layers": ("num_blocks",)},
    ),
    "gemma3n_audio": one(
        "audio",
        "conformer.{layer}.attention.attn.v_proj",
        "conformer.{layer}.attention.post",
        "conformer.{layer}.attention.pre_attn_norm",
        "conformer.{layer}.attention.post_norm",
        norm_kind="rmsnorm",
        value_bias=False,
        output_bias=False,
        causal=False,
        keys={
            "n_layers": ("conf_num_hidden_layers",),
            "n_heads": ("conf_num_attention_heads",),
        },
        notes=(CLAMPED,),
    ),
    **each(
        _ENCODER,
        "parakeet_ctc",
        "parakeet_rnnt",
        "parakeet_tdt",
        "nemotron_asr_streaming",
        "lasr_ctc",
        "granite_speech5_ctc",
    ),
    # -- Whisper's encoder
    **each(
        bart_stack("audio", **_MEL),
        "audioflamingo3_encoder",
        "voxtral_encoder",
        "moss_transcribe_diarize_audio",
    ),
    **each(
        bart_stack(
            "audio",
            **_MEL,
            keys={
                "d_model": ("d_model",),
                "n_layers": ("encoder_layers",),
                "n_heads": ("encoder_attention_heads",),
            },
        ),
        "qwen2_audio_encoder",
        "qwen2_5_omni_audio_encoder",
        "qwen3_asr_encoder",
        "qwen3_omni_moe_audio_encoder",
    ),
    # -- Llama's names
    "glmasr_encoder": _sound(norm_kind="layernorm", bias=True),
    "voxtral_realtime_encoder": _sound(bias=True, before="self_attn_layer_norm", causal=True),
    "dots3_note_audio_encoder": _sound(bias=flag("attention_bias", True)),
    "pe_audio_encoder": _sound(),
    **each(
        _sound(before="layer_norm1", norm_kind="layernorm", value_bias=False, output_bias=True),
        "nemotron3_diarization_audio",
        "nemotron3_5_transcribe_asr_audio",
    ),
    "nemotron3_5_transcribe_audio": towers(
        Tower("audio", ("asr_config",), within=("asr_encoder.",)),
        Tower("speakers", ("diarization_config", "audio_config"), within=("diarization_model.",)),
    ),
    "nemotron3_diarization": towers(audio_tower()),
    **each(several(_codec("encoder"), _codec("decoder")), "mimi", "pocket_tts_audio_tokenizer"),
    # -- spectrograms as images
    "audio-spectrogram-transformer": named(vit("audio_spectrogram_transformer."), "audio"),
    "clap_audio_model": one(
        "audio",
        "layers.{stage}.blocks.{block}.attention.self.value",
        "layers.{stage}.blocks.{block}.attention.output.dense",
        "layers.{stage}.blocks.{block}.layernorm_before",
        prefixes=("audio_encoder.",),
        value_bias=flag("qkv_bias", True),
        causal=False,
        slots=Stages(width="patch_embeds_hidden_size"),
    ),
    "clap_text_model": bert(name="text", causal=False),
    "clap": towers(
        text_tower(within=("text_model.",), model_type="clap_text_model"),
        audio_tower(model_type="clap_audio_model"),
    ),
    "omniasr_ctc": towers(audio_tower()),
    "xcodec": towers(audio_tower("semantic_model_config", within=("semantic_model.",))),
}
