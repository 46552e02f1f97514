"""Model types without an F, and why: shown to who asks for one of them."""

from __future__ import annotations

from collections.abc import Mapping

MLA = "its values pass a norm on a latent before they are expanded (MLA): not linear in the values"
VALUE_NORM = "a norm acts on the values: not linear in the values"
INNER_NORM = "a norm or activation stands between attention and W_O: not linear in the values"
MIXED = "its values are mixed or reduced over tokens before attention"
CONVOLVED = "a short convolution mixes its values over tokens before attention"
DELAYED = "half of its values are those of the token before"
BY_POSITION = "each position of a frame has a W_V and a W_O of its own: there is no one F a layer"
ROUTED = "experts are routed inside attention: which W_V and W_O a token sees depends on it"
ROTATED = "its values are rotated by position: F depends on the distance of two tokens"
HASHED = (
    "weights of hashes, not softmax, whose result is normalised (YOSO): off by 0.7 where measured"
)
COARSE = "softmax over blocks at a low resolution, in a kernel for CUDA alone (MRA)"
MEMORY = "a convolution over the values is added to the attention output (FSMN)"
CLAMPED = "its projections clamp what they read and write (use_clipped_linears)"
DELAYS = "it weighs delays of the series, not tokens (autocorrelation); none at one token"
CONVOLUTIONS = "it is made of convolutions: no attention"
ADDITIVE = "one context for all tokens multiplies what each makes: no attention between tokens"
NO_SOFTMAX = "it has no softmax attention"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "deepseek_v2",
            "deepseek_v3",
            "axk1",
            "axk2",
            "bailing_hybrid",
            "deepseek_v32",
            "dots3_note_text",
            "glm4_moe_lite",
            "glm5_next_text",
            "glm_moe_dsa",
            "hy_v4",
            "hy_v4_vl_text",
            "kimi_linear",
            "longcat_flash",
            "minicpm3",
            "mistral_large4_text",
            "sarvam_mla",
            "youtu",
        ),
        MLA,
    ),
    **dict.fromkeys(
        (
            "deepseek_v4",
            "diffusion_gemma_text",
            "embedding_gemma2_text",
            "gemma3n",
            "gemma3n_text",
            "gemma4",
            "gemma4_assistant",
            "gemma4_text",
            "gemma4_unified_assistant",
            "gemma4_unified_text",
            "inkling2_loop_text",
            "inkling2_text",
        ),
        VALUE_NORM,
    ),
    **dict.fromkeys(
        (
            "bitnet",
            "diffllama",
            "dory",
            "levit",
            "kosmos_2_text_model",
            "muse_spark_text",
        ),
        INNER_NORM,
    ),
    "inkling_text": CONVOLVED,
    "zaya": DELAYED,
    "moshi_depth": BY_POSITION,
    **dict.fromkeys(("segformer", "glpn", "pvt", "pvt_v2", "convbert", "nystromformer"), MIXED),
    "swiftformer": ADDITIVE,
    "mobilevitv2": ADDITIVE,
    "jetmoe": ROUTED,
    **dict.fromkeys(("clvp", "clvp_encoder"), ROTATED),
    "yoso": HASHED,
    "mra": COARSE,
    **dict.fromkeys(("fun_asr_nano", "fun_asr_nano_encoder"), MEMORY),
    "gemma4_audio": CLAMPED,
    "autoformer": DELAYS,
    **dict.fromkeys(
        (
            "bit",
            "convnext",
            "convnextv2",
            "dinov3_convnext",
            "efficientnet",
            "focalnet",
            "hgnet_v2",
            "mobilenet_v1",
            "mobilenet_v2",
            "poolformer",
            "regnet",
            "resnet",
            "superpoint",
            "textnet",
            "encodec",
            "dac",
            "univnet",
            "vibevoice_acoustic_tokenizer",
            "muse_spark_audio",
            "speecht5_hifigan",
        ),
        CONVOLUTIONS,
    ),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "fnet"), NO_SOFTMAX),
}
