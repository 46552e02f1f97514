"""What is to be trained, and the state of a training, kept in a file that can be resumed."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from training.corpus import Corpus
from training.losses import HIDDEN_TRAIN, Batch, cut
from training.recipes import LENGTH, Recipe
from training.tokens import encode, special_ids, train_tokenizer


@dataclass(frozen=True)
class Task:
    """One model to train: what is asked, and the text as token ids.

    Attributes
    ----------
    name, recipe, seed, steps
        Which model; seed and steps replace those of the recipe.
    tokenizer, ids
        Trained on the training text; ids of its special tokens.
    train, held_out
        Token ids.
    sha256
        Hash of the corpus.
    """

    name: str
    recipe: Recipe
    seed: int
    steps: int
    tokenizer: Any
    ids: dict[str, int]
    train: torch.Tensor
    held_out: torch.Tensor
    sha256: str

    def stage(self, step: int) -> tuple[int, bool]:
        """Layers in use at a step, and whether the model looks back only."""
        for until, depth, causal in self.recipe.stages:
            if step < until * self.steps:
                return depth, causal
        return self.recipe.depth, False

    def batch(self, step: int, causal: bool) -> Batch:
        """The windows of a step: they depend on seed and step alone."""
        hidden = HIDDEN_TRAIN if self.recipe.masked and not causal else 0.0
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        room = len(self.train) - LENGTH - 1
        starts = torch.randint(room, (self.recipe.batch,), generator=random)
        return cut(self.train, starts, self.ids, hidden, random)


def prepare(name: str, recipe: Recipe, args: argparse.Namespace, corpus: Corpus) -> Task:
    """Tokenizer and token ids for one model."""
    tokenizer = train_tokenizer(corpus.train, recipe.masked)
    train, held_out = (
        torch.from_numpy(encode(tokenizer, text)) for text in (corpus.train, corpus.held_out)
    )
    seed = recipe.seed if args.seed is None else args.seed
    steps, ids = args.steps or recipe.steps, special_ids(tokenizer)
    return Task(name, recipe, seed, steps, tokenizer, ids, train, held_out, corpus.sha256)


@dataclass
class Run:
    """What a training carries from step to step, kept in a file that is always whole."""

    model: Any
    optimizer: torch.optim.Optimizer
    path: Path
    identity: dict[str, Any]
    step: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)

    def save(self) -> None:
        """Write the state beside the old one, then put it in its place."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        state = {
            "identity": self.identity,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": (self.step, self.seconds, self.curve),
        }
        torch.save(state, part)
        os.replace(part, self.path)

    def load(self) -> None:
        """Continue from the last `save`, if it is of the same training."""
        state = torch.load(self.path, weights_only=True)
        if state["identity"] != self.identity:
            raise SystemExit(
                f"{self.path} is of another run (seed, steps, text or tokenizer): drop --resume"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.curve = state["progress"]
