"""GGUF metadata under the names that transformers' configs use.

`MODEL_TYPES` says which architectures of llama.cpp are read, `NO_F` which are known and not read,
with the reason. How each keeps its attention is in `circuit.architectures.gguf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from eigenlens.errors import ArchitectureError, FormatError, nearest
from eigenlens.inert import inert
from eigenlens.tensors.gguf_header import Strings
from eigenlens.tensors.store import TensorInfo

_SAME_NAME = (
    "llama llama4 qwen qwen2 qwen3 gemma gemma2 gemma3 phi3 gpt2 baichuan refact internlm2 xverse "
    "olmo olmo2 olmoe openelm arctic deepseek chatglm glm4 exaone exaone4 granite granitemoe "
    "minicpm dots1 arcee ernie4_5 smollm3 seed_oss apertus smallthinker grovemoe mistral3 "
    "maincoder dream llada rnd1 eurobert bert bloom mpt dbrx falcon stablelm starcoder2 orion "
    "codeshell jais nemotron cohere2 t5"
)
# Architecture in GGUF -> model_type of transformers where it has another name. Mistral is stored as
# "llama", which is the same for attention values.
MODEL_TYPES: Mapping[str, str] = {
    **{name: name for name in _SAME_NAME.split()},
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl",
    "qwen3moe": "qwen3_moe",
    "qwen3vl": "qwen3_vl",
    "qwen3vlmoe": "qwen3_vl_moe",
    "gemma-embedding": "gemma3_text",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "bailingmoe": "bailing_moe",
    "bailingmoe2": "bailing_moe_v2",
    "ernie4_5-moe": "ernie4_5_moe",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "minimax-m2": "minimax_m2",
    "pangu-embedded": "pangu_embedded",
    "llama-embed": "llama",
    "llada-moe": "llada_moe",
    "nomic-bert": "nomic_bert",
    "nomic-bert-moe": "nomic_bert",
    "jina-bert-v2": "jina_bert_v2",
    "jina-bert-v3": "jina_bert_v3",
    "phi2": "phi",
    "t5encoder": "t5",
    "gptneox": "gpt_neox",
    "starcoder": "gpt_bigcode",
    "command-r": "cohere",
}

_NO_SOFTMAX = "it has no softmax attention"
_HYBRID = "its stack mixes attention with layers of another kind"
_LATENT = "its values come from a normed latent (MLA), so they are not linear in the stream"
_GATED = "its attention output is gated before the output projection"
_VALUE_NORM = "its values are normed"
NO_F: Mapping[str, str] = {
    **dict.fromkeys(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), _NO_SOFTMAX),
    **dict.fromkeys(("jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe"), _HYBRID),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe", "kimi-linear", "deci"), _HYBRID),
    **dict.fromkeys(("deepseek2", "deepseek2-ocr", "glm-dsa", "minicpm3", "plm"), _LATENT),
    "mistral4": _LATENT,
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe", "afmoe", "step35"), _GATED),
    **dict.fromkeys(("gemma3n", "gemma4"), _VALUE_NORM),
    "bitnet": "a norm stands between its attention and the output projection",
    "plamo": "its output projection is stored with the heads in another order",
    "phimoe": "llama.cpp and transformers take different norms for it",
    "modern-bert": "its first layer has no norm",
    "clip": "it is a projector of images, not a language model",
    "wavtokenizer-dec": "it is a vocoder",
}

_FACTS: Mapping[str, str] = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "residual_multiplier": "residual_scale",
    "use_parallel_residual": "use_parallel_residual",
    "num_local_experts": "expert_count",
}


def gguf_config(
    fields: Mapping[str, Any], infos: Mapping[str, TensorInfo], where: str
) -> dict[str, Any]:
    """A config with ``"gguf": True`` and ``"gguf_architecture"``, the key of its row.

    Parameters
    ----------
    fields
        The file's metadata.
    infos
        Its tensors.
    where
        The file, for messages.

    Raises
    ------
    ArchitectureError
        The architecture is not one of `MODEL_TYPES`, or this model of it has no F.
    FormatError
        A size is missing or makes no sense.
    """
    return _Metadata(fields, infos, where).config()


class _Metadata:
    def __init__(
        self, fields: Mapping[str, Any], infos: Mapping[str, TensorInfo], where: str
    ) -> None:
        self.fields, self.infos, self.where = fields, infos, where
        found = fields.get("general.architecture")
        self.arch = found if isinstance(found, str) else str(found)

    def config(self) -> dict[str, Any]:
        self._check_architecture()
        d_model, layers = self._whole("embedding_length"), self._whole("block_count")
        n_heads = self._whole("attention.head_count")
        first = n_heads[0] if isinstance(n_heads, list) else n_heads
        key = self._whole("attention.key_length", d_model // first if first else 0)
        experts = self._fact("expert_count")
        mixtral = self.arch == "llama" and experts
        config: dict[str, Any] = {
            "model_type": "mixtral" if mixtral else MODEL_TYPES[self.arch],
            "gguf": True,
            "gguf_architecture": self.arch,
            "hidden_size": d_model,
            "num_hidden_layers": layers,
            "num_decoder_layers": self._whole("decoder_block_count", layers),
            "num_attention_heads": n_heads,
            "num_key_value_heads": self._whole("attention.head_count_kv", n_heads),
            # The values' width is the one that W_V and W_O have.
            "head_dim": self._whole("attention.value_length", key),
            "gguf_key_length": key,
            "gguf_fused": "blk.0.attn_qkv.weight" in self.infos,
            "gguf_norm_bias": any(
                f"blk.0.{norm}.bias" in self.infos for norm in ("attn_norm", "attn_output_norm")
            ),
            "vocab_size": self._vocabulary_size(),
            "tie_word_embeddings": "output.weight" not in self.infos,
        }
        # Falcon 40B norms what goes to attention and what goes to the MLP each by its own.
        if self.arch == "falcon" and "blk.0.attn_norm_2.weight" in self.infos:
            config["gguf_architecture"] = "falcon/attn_norm_2"
        for name, fact in _FACTS.items():
            value = self._fact(fact)
            if value is not None:
                config[name] = value
        return config

    def _check_architecture(self) -> None:
        arch = self.arch
        reason = NO_F.get(arch)
        if arch not in MODEL_TYPES and reason is None:
            raise ArchitectureError(
                f"{self.where}: GGUF architecture '{inert(arch)}' is not read"
                f"{inert(nearest(arch, MODEL_TYPES))}; known: {', '.join(MODEL_TYPES)}"
            )
        if (self._fact("attention.clamp_kqv") or 0) > 0:
            reason = "its values are clamped, so they are not linear in the stream"
        if arch == "jina-bert-v2" and "blk.0.attn_norm_2.weight" in self.infos:
            reason = "two norms follow its attention"
        if arch == "minicpm" and self._fact("residual_scale") is None:
            reason = "the file does not state minicpm.residual_scale; convert the model again"
        if reason is not None:
            raise ArchitectureError(
                f"{self.where}: GGUF architecture '{arch}' has no F that can be read: {reason}"
            )

    def _fact(self, key: str) -> Any:
        value = self.fields.get(f"{self.arch}.{key}")
        return value if isinstance(value, (int, float)) else None

    def _whole(self, key: str, default: Any = None) -> Any:
        """A whole number, or a list with one for each layer where they differ."""
        name = f"{self.arch}.{key}"
        value = self.fields.get(name, default)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
            numbers = [int(n) for n in value]
            value = numbers[0] if len(set(numbers)) == 1 else numbers
        listed = isinstance(value, list) and key.startswith("attention.head_count")
        if not all(type(n) is int and n >= 0 for n in (value if listed else [value])):
            raise FormatError(
                f"{self.where}: metadata '{inert(name)}' is missing or not a whole number; get the "
                "file again"
            )
        return value

    def _vocabulary_size(self) -> int | None:
        tokens = self.fields.get("tokenizer.ggml.tokens")
        embedding = self.infos.get("token_embd.weight")
        if embedding is not None and embedding.shape:
            return embedding.shape[0]
        if isinstance(tokens, Strings):
            return tokens.count
        size = self._fact("vocab_size")
        return int(size) if size is not None else None
