"""Windows of tokens, what is to be predicted in them, and the loss of a model there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from training.recipes import LENGTH
from training.tokens import CLS, MASK, SEP

HIDDEN, HIDDEN_TRAIN = 0.15, 0.3  # share of masked tokens, when measured and in training


@dataclass(frozen=True)
class Batch:
    """Windows, the ``picked`` positions, what to predict there, and its true left neighbour."""

    inputs: torch.Tensor
    picked: torch.Tensor
    targets: torch.Tensor
    left: torch.Tensor


def cut(
    stream: torch.Tensor,
    starts: torch.Tensor,
    ids: dict[str, int],
    hidden: float,
    random: torch.Generator,
) -> Batch:
    """Cut windows out of a stream of tokens and choose what is to be predicted.

    With ``hidden`` at 0 the next token everywhere; else the windows are ``[CLS] ... [SEP]`` and
    this share of the tokens is replaced by ``[MASK]``, to be guessed from both sides.
    """
    inner = LENGTH - 2 if hidden else LENGTH
    rows = stream[starts[:, None] + torch.arange(inner + 1)]
    left, right = rows[:, :-1], rows[:, 1:]
    if not hidden:
        return Batch(left, torch.ones_like(left, dtype=torch.bool), right.flatten(), left.flatten())
    picked = torch.rand(right.shape, generator=random) < hidden
    shown = torch.where(picked, ids[MASK], right)
    frame = (len(starts), 1)
    inputs = torch.cat([torch.full(frame, ids[CLS]), shown, torch.full(frame, ids[SEP])], 1)
    off = torch.zeros(frame, dtype=torch.bool)
    return Batch(inputs, torch.cat([off, picked, off], 1), right[picked], left[picked])


def model_loss(model: Any, batch: Batch, causal: bool = False) -> torch.Tensor:
    """Mean cross entropy at the picked positions; the head runs on these alone.

    ``causal`` makes a bidirectional model look back only.
    """
    rows, width = batch.inputs.shape
    mask = torch.ones(width, width, dtype=torch.bool).tril().expand(rows, 1, -1, -1)
    options = {"attention_mask": mask} if causal else {}
    hidden = model.base_model(input_ids=batch.inputs, **options)[0][batch.picked]
    head = getattr(model, "lm_head", None) or getattr(model, "cls", None) or model.predictions
    return cross_entropy(head(hidden), batch.targets)


def held_out_batches(stream: torch.Tensor, ids: dict[str, int], masked: bool) -> Iterator[Batch]:
    """Cut the held-out stream into windows side by side, with a fixed choice of masks."""
    random = torch.Generator().manual_seed(0)
    width = LENGTH - 2 if masked else LENGTH
    for starts in torch.arange(0, len(stream) - width, width).split(32):
        yield cut(stream, starts, ids, HIDDEN if masked else 0.0, random)


@torch.no_grad()
def held_out_loss(model: Any, batches: list[Batch]) -> float:
    """Mean loss over all predicted tokens of some batches."""
    model.eval()
    total = sum(model_loss(model, batch).item() * len(batch.targets) for batch in batches)
    model.train()
    return total / sum(len(batch.targets) for batch in batches)
