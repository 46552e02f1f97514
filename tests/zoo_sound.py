"""Inputs of models of sound and series that take lengths, masks or shapes of their own."""

from __future__ import annotations

from typing import Any

FRAMES = 64


def _noise(*shape: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _lengths(model: Any, n: int) -> dict[str, Any]:
    """Mel features of one sound, and its length (Qwen-Omni)."""
    import torch

    lens = torch.tensor([FRAMES])
    features = _noise(model.config.num_mel_bins, FRAMES)
    names = model.forward.__code__.co_varnames
    more = {"aftercnn_lens": torch.tensor([FRAMES // 2])} if "aftercnn_lens" in names else {}
    return {"input_features": features, "feature_lens": lens, **more}


def _windows(model: Any, n: int) -> dict[str, Any]:
    """Mel features of whole windows, and a mask (Qwen3-ASR)."""
    import torch

    frames = 2 * model.config.n_window
    return {
        "input_features": _noise(1, model.config.num_mel_bins, frames),
        "input_features_mask": torch.ones(1, frames, dtype=torch.long),
    }


def _unmasked(model: Any, n: int) -> dict[str, Any]:
    """Mel features where a mask must be named, though it may be None (Phi-4)."""
    return {"hidden_states": _noise(1, FRAMES, model.config.input_size), "mask": None}


def _unpadded(model: Any, n: int) -> dict[str, Any]:
    """Mel features, and a mask that is true where there is padding (Gemma 3n)."""
    import torch

    features = _noise(1, FRAMES, model.config.input_feat_size)
    return {"audio_mel": features, "audio_mel_mask": torch.zeros(1, FRAMES, dtype=torch.bool)}


def _stacked(model: Any, n: int) -> dict[str, Any]:
    """Frames of mel features stacked to the width that the first layer takes (Granite Speech)."""
    encoder = getattr(model, "encoder", model)
    return {"input_features": _noise(1, FRAMES, encoder.input_linear.in_features)}


def _chunks(model: Any, n: int) -> dict[str, Any]:
    """Mel features of one chunk, and the samples it is made of (dots.note)."""
    import torch

    config = model.config
    return {
        "input_features": _noise(1, config.feature_size, FRAMES),
        "chunk_sample_lengths": torch.tensor([FRAMES * config.hop_length]),
    }


def _spectrogram(model: Any, n: int) -> dict[str, Any]:
    """A spectrogram that is folded into a square image (CLAP)."""
    config = getattr(model.config, "audio_config", model.config)
    side, mels = config.spec_size, config.num_mel_bins
    found = {"input_features": _noise(1, 1, side * side // mels, mels)}
    if config is not model.config:
        import torch

        found["input_ids"] = torch.arange(n)[None] + 8
    return found


def _codes(model: Any, n: int) -> dict[str, Any]:
    """Ids of every codebook, and states of a text (MusicGen)."""
    import torch

    config = model.config
    ids = torch.arange(config.num_codebooks * n).reshape(config.num_codebooks, n) % 30
    return {"input_ids": ids, "encoder_hidden_states": _noise(1, n, config.hidden_size)}


INPUTS: dict[str, Any] = {
    "musicgen_decoder": _codes,
    "musicgen_melody_decoder": _codes,
    "qwen2_5_omni_audio_encoder": _lengths,
    "qwen3_omni_moe_audio_encoder": _lengths,
    "qwen3_asr_encoder": _windows,
    "phi4_multimodal_audio": _unmasked,
    "clap_audio_model": _spectrogram,
    "clap": _spectrogram,
    "dots3_note_audio_encoder": _chunks,
    "granite_speech5_encoder": _stacked,
    "granite_speech5_ctc": _stacked,
    "gemma3n_audio": _unpadded,
}
