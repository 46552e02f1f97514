"""Tiny random models, one a row: a model type, its config, and which auto class builds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = {**SIZES, "intermediate_size": 24, "vocab_size": 40, "max_position_embeddings": 32}
GROUPED = {**ENCODER, "num_key_value_heads": 2}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_positions": 32}


@dataclass(frozen=True)
class Family:
    """A tiny model: `name` for test ids, model type, config values, auto class with the head."""

    name: str
    model_type: str
    options: dict[str, Any] = field(default_factory=dict)
    head: str | None = "AutoModelForCausalLM"

    def config(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(self.model_type, **self.options)

    def build(self, *, head: bool, seed: int = 0) -> Any:
        """The model in float64 with every parameter normal of std .2 (norm gains around 1)."""
        import torch
        import transformers

        torch.manual_seed(seed)
        auto = getattr(transformers, self.head if head and self.head else "AutoModel")
        model = auto.from_config(self.config(), attn_implementation="eager").double().eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.normal_(0, 0.2)
                if "norm" in name.lower() or "ln_" in name:
                    p.add_(1.0 if name.endswith("weight") else 0.0)
        return model


def mlm(name: str, model_type: str, **options: Any) -> Family:
    base = ENCODER | SPECIAL
    return Family(name, model_type, {**base, **options}, "AutoModelForMaskedLM")


def clm(name: str, model_type: str, base: dict[str, Any], **options: Any) -> Family:
    return Family(name, model_type, {**base, **SPECIAL, **options})


DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "vocab_size": 40}
NEO = {"hidden_size": 16, "num_layers": 4, "num_heads": 4, "vocab_size": 40, "window_size": 2}
OPT = {**ENCODER, "ffn_dim": 24}

FAMILIES = [
    mlm("albert", "albert", embedding_size=8, hidden_act="linear"),
    mlm(
        "albert-groups",
        "albert",
        embedding_size=8,
        num_hidden_layers=5,
        num_hidden_groups=2,
        inner_group_num=2,
    ),
    mlm("bert", "bert"),
    mlm("bert-deep", "bert", num_hidden_layers=11),
    mlm("roberta", "roberta"),
    mlm("xlm-roberta", "xlm-roberta"),
    Family("distilbert", "distilbert", DISTILBERT | {"pad_token_id": 0}, "AutoModelForMaskedLM"),
    mlm("electra", "electra", embedding_size=8),
    clm("gpt2", "gpt2", GPT),
    clm(
        "gpt_neo",
        "gpt_neo",
        NEO,
        max_position_embeddings=32,
        attention_types=[[["global", "local"], 2]],
    ),
    clm("gpt_neox", "gpt_neox", ENCODER),
    clm("gpt_neox-serial", "gpt_neox", ENCODER, use_parallel_residual=False),
    clm("gpt_neox-no-bias", "gpt_neox", ENCODER, attention_bias=False),
    clm("gptj", "gptj", GPT, rotary_dim=4),
    clm("opt", "opt", OPT, word_embed_proj_dim=8),
    clm("opt-post", "opt", OPT, word_embed_proj_dim=8, do_layer_norm_before=False),
    clm("opt-plain", "opt", OPT, enable_bias=False, layer_norm_elementwise_affine=False),
    clm("llama", "llama", GROUPED, head_dim=6, attention_bias=True),
    clm("llama-no-bias", "llama", ENCODER),
    clm("mistral", "mistral", GROUPED, head_dim=6, sliding_window=3),
    clm("qwen2", "qwen2", GROUPED, head_dim=6),
    clm("qwen3", "qwen3", GROUPED, head_dim=6),
    clm("gemma", "gemma", GROUPED, head_dim=6),
    clm("gemma2", "gemma2", GROUPED, head_dim=6, query_pre_attn_scalar=6, sliding_window=3),
    clm("phi", "phi", GROUPED, head_dim=8),
    clm("phi3", "phi3", GROUPED, head_dim=6, sliding_window=3),
    Family(
        "vit",
        "vit",
        {**SIZES, "intermediate_size": 24, "image_size": 8, "patch_size": 4},
        None,
    ),
    Family(
        "vit-no-bias",
        "vit",
        {**SIZES, "intermediate_size": 24, "image_size": 8, "patch_size": 4, "qkv_bias": False},
        "AutoModelForImageClassification",
    ),
]
BY_NAME = {family.name: family for family in FAMILIES}
