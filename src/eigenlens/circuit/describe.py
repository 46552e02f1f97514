"""The `model` block that every result carries."""

from __future__ import annotations

from typing import Any

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.circuit import NormKind
from eigenlens.circuit.edits import edit_count
from eigenlens.circuit.facts import decide


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Source, model type, sizes, norm kind, placement and how many edits its folder holds.

    It is the block that the JSON of every command has. Sizes are those of the first stack; for
    plain arrays what is not known is None.
    """
    g = checkpoint.geometry
    stack = checkpoint.stacks[0] if checkpoint.stacks else None
    layer = stack.layers[0] if stack else None
    norm: str | None = None
    if stack is not None:
        kind: NormKind = decide(stack.stack.norm_kind, stack.config)
        norm = kind
    return {
        "source": checkpoint.source_label,
        "model_type": checkpoint.model_type,
        "d_model": g.d_model,
        "n_layers": g.n_layers,
        "n_heads": g.n_heads,
        "n_kv_heads": g.n_kv_heads,
        "head_dim": g.head_dim,
        "norm": norm,
        "placement": layer.placement if layer else checkpoint.arrays[0].placement,
        "edits": edit_count(checkpoint.source),
    }
