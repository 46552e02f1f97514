"""What a finished model is measured by: held-out loss, counting baselines, leading eigenvalue."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

from training.corpus import Corpus
from training.losses import held_out_batches, held_out_loss
from training.tokens import VOCAB, encode, special_ids


def baselines(train: np.ndarray, left: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Mean loss of two count models of the training tokens, in nats.

    Parameters
    ----------
    train
        Token ids to count.
    left, targets
        Tokens to predict and, for the bigram, the token before each.

    Returns
    -------
    dict
        ``unigram`` (add one) and ``bigram`` (interpolated Kneser-Ney, its discount estimated from
        the training tokens too).
    """
    unigram = np.bincount(train, minlength=VOCAB) + 1.0
    pairs = np.bincount(train[:-1] * VOCAB + train[1:], minlength=VOCAB**2).reshape(VOCAB, VOCAB)
    once, twice = (pairs == 1).sum(), (pairs == 2).sum()
    discount = once / (once + 2 * twice)
    seen = pairs.sum(1)
    backoff = np.where(seen > 0, discount * (pairs > 0).sum(1) / np.maximum(seen, 1), 1.0)
    spread = (pairs > 0).sum(0) + 1.0  # in how many contexts a token occurs
    bigram = np.maximum(pairs[left, targets] - discount, 0) / np.maximum(seen, 1)[left]
    bigram += backoff[left] * (spread / spread.sum())[targets]
    return {
        "unigram": float(-np.log(unigram / unigram.sum())[targets].mean()),
        "bigram": float(-np.log(bigram).mean()),
    }


@lru_cache(maxsize=2)
def token_ids(tokenizer: str, text: str) -> np.ndarray:
    """Encode a long text once for models that share a tokenizer, given as its JSON."""
    return encode(tokenizers.Tokenizer.from_str(tokenizer), text)


def measure(folder: Path, corpus: Corpus) -> dict[str, float]:
    """Held-out loss of a finished model beside its baselines, with the tokens predicted."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = config["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    stream = torch.from_numpy(encode(tokenizer, corpus.held_out))
    batches = list(held_out_batches(stream, special_ids(tokenizer), name.endswith("MaskedLM")))
    left, targets = (
        torch.cat([getattr(batch, key) for batch in batches]).numpy() for key in ("left", "targets")
    )
    counted = baselines(token_ids(tokenizer.to_str(), corpus.train), left, targets)
    return {"held_out": held_out_loss(model, batches), **counted, "predicted": len(targets)}


def residual_leader(model: Any) -> dict[str, Any] | None:
    """Leading eigenvalue, by ``|1 + lambda|``, of an ALBERT's F = W_O W_V at float16 rounding."""
    if model.config.model_type != "albert":
        return None
    attention = model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention
    W_O, W_V = (part.weight.detach().half().double() for part in (attention.dense, attention.value))
    values = torch.linalg.eigvals(W_O @ W_V).numpy()
    values = values[values.imag >= 0]  # a conjugate pair counts once
    lead, second = values[np.argsort(-abs(1 + values))][:2]
    return {
        "real": float(lead.real),
        "imag": float(lead.imag),
        "multiplier": float(abs(1 + lead)),
        "gap": float(1 - abs(1 + second) / abs(1 + lead)),
    }
