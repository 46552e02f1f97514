"""How text encoders name V and O: BERT's names, for one line of a table each.

What several model types share goes in here, what one deviates in stands in its line; keywords are
those of the pattern or fields of `Stack` (see `bases`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eigenlens.circuit.architectures.bases import (
    cross,
    one,
)
from eigenlens.circuit.facts import Switch, flag
from eigenlens.circuit.rows import Architecture, Readout


def bert(
    *prefixes: str,
    readout: Readout | None = None,
    at: str = "encoder.layer.{layer}.",
    name: str = "encoder",
    attention: str = "attention",
    value: str = "self.value",
    output: str = "output.dense",
    after: str = "output.LayerNorm",
    norm_inside: str | None = None,
    value_bias_name: str | None = None,
    **stack: Any,
) -> Architecture:
    """BERT's names: `attention.self.value`, `attention.output.dense`; post-norm, biases.

    `norm_inside`: the norm stands before the values, inside `attention` (`LayerNorm`), and
    `after` is left out unless a `placement` rule decides.
    `with_cross` adds the stack that `add_cross_attention` in the config makes.
    """
    return one(
        name,
        value,
        output,
        norm_inside,
        after if norm_inside is None or "placement" in stack else None,
        at=f"{at}{attention}." if attention else at,
        prefixes=("", *prefixes),
        value_bias_name=value_bias_name,
        readout=readout or BERT_READOUT,
        **{"causal": flag("is_decoder", False), **stack},
    )


def with_cross(row: Architecture, **stack: Any) -> Architecture:
    """A BERT that may be a decoder with cross attention, `crossattention` beside `attention`."""
    exists = Switch("is_decoder", False, flag("add_cross_attention", False), False)
    beside = cross(row, {".attention.": ".crossattention."}, exists=exists, **stack)
    return replace(row, stacks=(*row.stacks, beside))


BERT_READOUT = Readout(
    ("embeddings.word_embeddings",),
    unembedding=("cls.predictions.decoder",),
    head_dense="cls.predictions.transform.dense",
    head_norm="cls.predictions.transform.LayerNorm",
)
# Of pre-norm encoders whose head is more than a norm: the embedding alone.
WORDS = Readout(("embeddings.word_embeddings",), unembedding=())
ROBERTA_READOUT = Readout(
    ("embeddings.word_embeddings",),
    unembedding=("lm_head.decoder",),
    head_dense="lm_head.dense",
    head_norm="lm_head.layer_norm",
    activation="=gelu",
)
