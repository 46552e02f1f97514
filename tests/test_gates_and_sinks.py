"""Layers with a gate or a sink: F of the linear part is verified, and a wrong F is not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from eigenlens.circuit.architectures import ARCHITECTURES
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.rows import SINKS, UNGATED
from eigenlens.live.verify import verify
from families import TOLERANCE
from zoo import build

GATED = ("qwen3_next", "laguna")
SUNK = ("gpt_oss", "granite_swa")


@cache
def model_of(model_type: str) -> Any:
    return build(model_type)


def worst(rows: list[Any]) -> float:
    return max(max(r.error_one or 0.0, r.error_four, r.error_heads or 0.0) for r in rows)


def without_notes(model_type: str) -> Any:
    """The row as if nobody knew of the gate or sink."""
    row = ARCHITECTURES[model_type]
    stacks = tuple(
        replace(s, notes=tuple(n for n in s.notes if n not in (UNGATED, SINKS))) for s in row.stacks
    )
    return replace(row, stacks=stacks)


def changed(checkpoint: Checkpoint, change: Any) -> Checkpoint:
    class Broken(Checkpoint):
        def circuits(self, stack: Any = None, layers: Any = None) -> Any:
            return [change(c) for c in checkpoint.circuits(stack, layers)]

    fields = {f: getattr(checkpoint, f) for f in ("source_label", "config", "source", "stacks")}
    return Broken(**fields)


@pytest.mark.parametrize("model_type", [*GATED, *SUNK])
def test_the_linear_part_agrees_and_is_labelled(model_type: str) -> None:
    model = model_of(model_type)
    checkpoint = open_checkpoint(model)
    rows = verify(checkpoint, model)
    assert worst(rows) <= TOLERANCE
    word = "held at 1" if model_type in GATED else "sink"
    assert all(word in row.note and row.error_heads is not None for row in rows)
    assert all(p.is_gated == (model_type in GATED) for p in checkpoint.plans)
    assert all(p.has_sinks == (model_type in SUNK) for p in checkpoint.plans)


@pytest.mark.parametrize("model_type", [*GATED, *SUNK])
def test_where_nobody_knows_of_it_the_identity_fails(model_type: str) -> None:
    model = model_of(model_type)
    rows = verify(open_checkpoint(model, without_notes(model_type)), model)
    assert all(row.error_four > 0.01 and not row.ok for row in rows)


@pytest.mark.parametrize("model_type", [*GATED, *SUNK])
@pytest.mark.parametrize("fault", ["scaled", "heads", "bias"])
def test_a_wrong_circuit_is_seen_through_gates_and_sinks(model_type: str, fault: str) -> None:
    def change(c: Any) -> Any:
        if fault == "scaled":
            return replace(c, W_V=c.W_V * (1 + 1e-6))
        if fault == "bias":
            return replace(c, b_V=np.full(c.W_V.shape[0], 1e-6) + (0 if c.b_V is None else c.b_V))
        return replace(c, W_O=np.roll(c.W_O, c.head_dim, axis=1))

    model = model_of(model_type)
    rows = verify(changed(open_checkpoint(model), change), model)
    assert worst(rows) > TOLERANCE


def test_a_bias_that_is_added_after_the_product_belongs_to_the_output() -> None:
    """Falcon multiplies first and adds the bias in a step of its own."""
    model = build("falcon", given={"bias": True})
    checkpoint = open_checkpoint(model)
    assert checkpoint.plans[0].output_bias is not None
    assert worst(verify(checkpoint, model)) <= TOLERANCE
    wrong = changed(checkpoint, lambda c: replace(c, b_O=c.b_O + 1e-6))
    assert worst(verify(wrong, model)) > TOLERANCE
