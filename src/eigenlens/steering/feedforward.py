"""Where each model type keeps the output matrix of its feed-forward part: a declared table.

A row says how the attention's output projection ends and what stands in its place for the
feed-forward part of the same layer. It is never guessed: many matrices have the shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eigenlens.circuit.layouts import Orientation
from eigenlens.errors import OptionError
from eigenlens.inert import inert

# Parts of names that only a mixture of experts has.
_EXPERTS = ("experts.", "expert.", "shared_mlp.", "block_sparse_moe.", ".router.", "gate_inp")


@dataclass(frozen=True)
class Ending:
    """How the two output matrices of a layer end.

    Attributes
    ----------
    attention, ffn
        Modules, without `.weight`, relative to the layer.
    orientation
        How the feed-forward one is stored.
    stack
        Only in this stack (T5's decoder has its feed-forward part elsewhere than its encoder).
    """

    attention: str
    ffn: str
    orientation: Orientation = "linear"
    stack: str | None = None


def _each(ending: Ending, *model_types: str) -> dict[str, tuple[Ending, ...]]:
    return dict.fromkeys(model_types, (ending,))


_BERT = Ending("attention.output.dense", "output.dense")
_FAIRSEQ = Ending("self_attn.out_proj", "fc2")
_VIT = (_BERT, Ending("attention.o_proj", "mlp.fc2"))
_T5 = (
    Ending("layer.0.SelfAttention.o", "layer.1.DenseReluDense.wo", stack="encoder"),
    Ending("layer.0.SelfAttention.o", "layer.2.DenseReluDense.wo", stack="decoder"),
)
_GPT2 = Ending("attn.c_proj", "mlp.c_proj", "conv1d")
_NEOX = Ending("attention.dense", "mlp.dense_4h_to_h")
_FALCON = Ending("self_attention.dense", "mlp.dense_4h_to_h")
_GPTJ = Ending("attn.out_proj", "mlp.fc_out")
_LLAMA = Ending("self_attn.o_proj", "mlp.down_proj")
_MODERN = Ending("attn.Wo", "mlp.Wo")

FEED_FORWARD: Mapping[str, tuple[Ending, ...]] = {
    **_each(
        _LLAMA,
        "apertus",
        "arcee",
        "cohere",
        "cohere2",
        "cwm",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "glm4_moe",
        "granite",
        "helium",
        "hunyuan_v1_dense",
        "internlm3",
        "jais2",
        "llama",
        "ministral",
        "ministral3",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "qwen3",
        "qwen3_moe",
        "qwen3_vl_text",
        "seed_oss",
        "smollm3",
        "stablelm",
        "vaultgemma",
    ),
    **_each(Ending("self_attn.o_proj", "mlp.fc2"), "nanochat"),
    **_each(Ending("self_attn.o_proj", "mlp.c_proj"), "starcoder2"),
    **_each(Ending("self_attn.dense", "mlp.fc2"), "phi"),
    **_each(_GPT2, "gpt2", "gpt-sw3", "openai-gpt"),
    **_each(Ending("attn.c_proj", "mlp.c_proj"), "gpt_bigcode"),
    **_each(Ending("attn.attention.out_proj", "mlp.c_proj"), "gpt_neo"),
    **_each(_GPTJ, "gptj", "codegen"),
    **_each(_NEOX, "gpt_neox"),
    **_each(_FALCON, "falcon", "bloom"),
    **_each(Ending("self_attn.dense", "mlp.dense_4h_to_h"), "persimmon"),
    **_each(Ending("attn.out_proj", "ffn.down_proj"), "mpt"),
    **_each(_FAIRSEQ, "opt", "biogpt", "xglm", "bart", "mbart", "pegasus", "marian", "m2m_100"),
    **_each(_BERT, "bert", "roberta", "xlm-roberta", "camembert", "electra", "esm", "deberta-v2"),
    **_each(Ending("attention.out_lin", "ffn.lin2"), "distilbert"),
    **_each(Ending("attention.dense", "ffn_output"), "albert"),
    **_each(Ending("attention.attn.o", "output.dense"), "mpnet"),
    **_each(_MODERN, "modernbert", "modernbert-decoder"),
    **dict.fromkeys(("vit", "deit"), _VIT),
    **dict.fromkeys(("t5",), _T5),
}
"""Endings by model type."""

GGUF_ENDING = Ending("attn_output", "ffn_down")
"""The same for llama.cpp's names, whatever the model type."""


def feed_forward(
    model_type: str | None,
    stack: str,
    kind: str,
    output: str,
    names: Iterable[str],
    *,
    gguf: bool = False,
) -> tuple[str, Orientation]:
    """Name and orientation of the feed-forward part's output matrix in the layer of a projection.

    Parameters
    ----------
    model_type
        Of the stack: in a composite model, of its part.
    stack, kind
        Which stack; a cross layer has no feed-forward part of its own.
    output
        Name of the attention's output projection (its weight).
    names
        All names in the files.
    gguf
        Whether the names are llama.cpp's.

    Raises
    ------
    OptionError
        The table has no row for the type, or the layer has experts.
    """
    here = f"model_type '{inert(str(model_type))}'"
    if kind != "self":
        raise OptionError(
            f"{here}: cross attention has no feed-forward part of its own; take the layer of the "
            "self attention, or --site attention"
        )
    rows = (GGUF_ENDING,) if gguf else FEED_FORWARD.get(str(model_type), ())
    for row in rows:
        end = f"{row.attention}.weight"
        if not f".{output}".endswith(f".{end}") or row.stack not in (None, stack):
            continue
        block = output.removesuffix(end)
        found = f"{block}{row.ffn}.weight"
        inside = sorted(name for name in names if name.startswith(block))
        experts = next((n for n in inside if any(part in n for part in _EXPERTS)), None)
        if experts is not None:
            raise OptionError(
                f"{here}: the feed-forward part beside '{inert(output)}' is a mixture of experts "
                f"('{inert(experts)}'): it has no single output matrix; use --site attention"
            )
        if found in inside:
            return found, row.orientation
        raise OptionError(
            f"{here}: no tensor '{inert(found)}' in the files, where the output matrix of the "
            "feed-forward part is expected; use --site attention"
        )
    raise OptionError(
        f"{here}: where its feed-forward part has its output matrix is not declared "
        f"(beside '{inert(output)}'), and it is not guessed; use --site attention"
    )
