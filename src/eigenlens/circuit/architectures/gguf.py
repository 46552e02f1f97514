"""llama.cpp's architectures: the same names for all, so a row says only what differs.

A row is chosen by the architecture that the file names, not by the model type. In GGUF a fused
`attn_qkv` is always `[q; k; v]` one after the other (the converter sorts what GPT-NeoX, BLOOM and
Falcon interleave), every matrix is (out, in), Gemma's 1 + w and Nemotron's are already added, and
biases are there or not. Query and key rows of some are permuted, values and outputs are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    NORM_ON_OUTPUT,
    each,
)
from eigenlens.circuit.facts import Switch, flag
from eigenlens.circuit.rows import SINKS, Architecture, Naming, Readout, Stack
from eigenlens.errors import ArchitectureError
from eigenlens.inert import inert

READOUT = Readout(("token_embd",), unembedding=("output",), final_norm=("output_norm",))


def gguf(
    before: str | None = "attn_norm",
    after: str | None = None,
    *,
    name: str = "decoder",
    readout: Readout = READOUT,
    **stack: Any,
) -> Architecture:
    """Names of llama.cpp; RMS norms before the values unless the keywords say otherwise."""
    namings = tuple(
        Naming(
            f"blk.{{layer}}.{value}",
            "blk.{layer}.attn_output",
            norm_before=before and f"blk.{{layer}}.{before}",
            norm_after=after and f"blk.{{layer}}.{after}",
            gain_offset=0.0,
            bias_if_present=True,
        )
        for value in ("attn_v", "attn_qkv")
    )
    fields: dict[str, Any] = {
        "layout": Switch("gguf_fused", False, "stacked", "separate"),
        "norm_kind": "rmsnorm",
        "norm_bias": flag("gguf_norm_bias", True),
        "placement": "pre" if after is None else "sandwich",
        "keys": {
            "d_model": ("hidden_size",),
            "n_layers": ("num_hidden_layers",),
            "n_heads": ("num_attention_heads",),
            "n_kv_heads": ("num_key_value_heads",),
            "head_dim": ("head_dim",),
            "qk_dim": ("gguf_key_length",),
        },
        "per_layer": ("n_heads", "n_kv_heads"),
    }
    return Architecture((Stack(name, namings, **{**fields, **stack}),), readout=readout)


_LIKE_LLAMA = (
    "llama llama4 qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe gemma phi3 "
    "baichuan refact internlm2 xverse olmoe openelm arctic deepseek chatglm glm4moe exaone "
    "bailingmoe bailingmoe2 dots1 arcee ernie4_5 ernie4_5-moe hunyuan-dense hunyuan-moe smollm3 "
    "seed_oss apertus smallthinker grovemoe minimax-m2 mistral3 maincoder pangu-embedded"
)
_LIKE_GPT2 = "gpt2 starcoder starcoder2 bloom mpt dbrx orion codeshell jais nemotron"
_BERTS = "bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3"
_LAYERNORM: dict[str, Any] = {"norm_kind": "layernorm"}
_PARALLEL: dict[str, Any] = {**_LAYERNORM, "placement": "parallel"}
_EITHER: dict[str, Any] = {
    **_LAYERNORM,
    "placement": Switch("use_parallel_residual", True, "parallel", "pre"),
}
_SCALED = gguf(output_scale="residual_multiplier")
_BERT = gguf(
    None,
    "attn_output_norm",
    name="encoder",
    placement="post",
    causal=False,
    readout=Readout(("token_embd",), unembedding=("output",)),
    **_LAYERNORM,
)


def _t5(name: str, where: str, attention: str, count: str, **stack: Any) -> Stack:
    """One of T5's stacks; in cross attention the norm is on the query, not before the values."""
    at = f"{where}.blk.{{layer}}."
    row = gguf(name=name, **stack).stacks[0]
    naming = replace(
        row.namings[0],
        value=f"{at}{attention}_v",
        output=f"{at}{attention}_o",
        norm_before=None if "kind" in stack else f"{at}{attention}_norm",
    )
    return replace(row, namings=(naming,), keys={**row.keys, "n_layers": (count,)})


_T5 = Architecture(
    (
        _t5("encoder", "enc", "attn", "num_hidden_layers", causal=False),
        _t5("decoder", "dec", "attn", "num_decoder_layers"),
        _t5("decoder", "dec", "cross_attn", "num_decoder_layers", kind="cross", causal=False),
    ),
    readout=Readout(("token_embd",)),
)

GGUF: Mapping[str, Architecture] = {
    # -- one RMS norm before the values
    **each(gguf(), *_LIKE_LLAMA.split()),
    **each(_SCALED, "granite", "granitemoe", "minicpm"),
    "gpt-oss": gguf(notes=(SINKS,)),
    # -- the same, and tokens see both ways
    **each(gguf(causal=False), "llama-embed", "dream", "llada", "llada-moe", "rnd1"),
    "eurobert": gguf(name="encoder", causal=False),
    # -- a norm on the attention output, besides or alone
    **each(gguf(after="post_attention_norm"), "gemma2", "gemma3", "glm4"),
    "gemma-embedding": gguf(after="post_attention_norm", causal=False),
    **each(gguf(None, "post_attention_norm", notes=(NORM_ON_OUTPUT,)), "olmo2", "exaone4"),
    # -- LayerNorm
    **each(gguf(**_LAYERNORM), *_LIKE_GPT2.split()),
    "olmo": gguf(norm_affine=False, **_LAYERNORM),
    **each(gguf(**_PARALLEL), "phi2", "command-r", "cohere2", "falcon"),
    "falcon/attn_norm_2": gguf("attn_norm_2", **_PARALLEL),
    **each(gguf(**_EITHER), "gptneox", "stablelm"),
    # -- encoders that norm the sum
    **each(_BERT, *_BERTS.split()),
    # -- an encoder, and a decoder that looks at it
    "t5": _T5,
    "t5encoder": replace(_T5, stacks=_T5.stacks[:1]),
}


def gguf_row(config: Mapping[str, Any]) -> Architecture:
    """The row for a config that was made of a GGUF file's metadata.

    Raises
    ------
    ArchitectureError
        If the architecture has none.
    """
    name = config.get("gguf_architecture")
    if not isinstance(name, str) or name not in GGUF:
        raise ArchitectureError(
            f"GGUF architecture '{inert(str(name))}' is not read; known: {', '.join(GGUF)}"
        )
    return GGUF[name]
