"""Where a run of a live model begins: token ids of the prompts, and the states made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.dynamics.matrices import given_starts, random_starts
from eigenlens.errors import OptionError
from eigenlens.live.batches import (
    make_batches,
    max_positions,
    named_ids,
    random_pixels,
    vocabulary_size,
)
from eigenlens.live.capture import capture
from eigenlens.live.replay import Variant
from eigenlens.live.session import Session
from eigenlens.live.states import AttentionCall
from eigenlens.prompts import random_token_ids

States = Float[np.ndarray, "s n d"]
Ids = Sequence[Sequence[int]]

_BATCH = 16


def prompt_ids(
    session: Session,
    texts: Sequence[str] | None,
    token_ids: Ids | None,
    starts: int | None,
    n_tokens: int,
    seed: int,
) -> tuple[list[list[int]] | None, list[str]]:
    """Token ids of every start, all of one length; None for a model that sees images."""
    if session.vision:
        if texts is not None or token_ids is not None:
            raise OptionError(f"{session.label} sees images, not tokens: leave the prompts out")
        return None, []
    if texts is None and token_ids is None:
        limit = max_positions(session)
        if limit is not None and n_tokens > limit:
            raise OptionError(f"{n_tokens} tokens: {session.label} has {limit} positions")
        size = vocabulary_size(session)
        avoid = named_ids(session)
        return random_token_ids(starts or 1, n_tokens, size, seed=seed, avoid=avoid), []
    if texts is not None:
        ids = session.encode(texts)
    else:
        ids = [[int(i) for i in prompt] for prompt in token_ids or ()]
    if starts is not None and starts > len(ids):
        there = "there is 1 prompt" if len(ids) == 1 else f"there are {len(ids)} prompts"
        raise OptionError(f"starts is {starts}, but {there}; ask for fewer, or give more prompts")
    ids = ids[:starts]
    shortest = min((len(prompt) for prompt in ids), default=0)
    cut = sum(len(prompt) > shortest for prompt in ids)
    verb, tokens = "is" if cut == 1 else "are", f"{shortest} token{'s' * (shortest != 1)}"
    warning = f"{cut} of {len(ids)} prompts {verb} cut to the {tokens} of the shortest"
    return [prompt[:shortest] for prompt in ids], [warning] if cut else []


def starts_of(
    session: Session,
    reference: AttentionCall,
    ids: list[list[int]] | None,
    variant: Variant,
    starts: int | None,
    states: Any,
    random_states: bool,
    seed: int,
) -> tuple[States, str]:
    """The starts in float64 and where they come from."""
    n, d = (int(k) for k in reference.before.shape[1:])
    if random_states:
        lengths = reference.before.cpu().double().norm(dim=-1).mean()
        radius = variant.length(d) if variant.norm == "l2" else float(lengths)
        return random_starts(starts or 1, n, d, radius, seed), "random states"
    if states is not None:
        x = session.torch.as_tensor(given_starts(states, d))
        return np.asarray(variant.start(x).numpy()), "states"
    batches = (
        random_pixels(session, starts or 1, seed, _BATCH)
        if ids is None
        else make_batches(session, ids, batch_size=_BATCH)
    )
    found = []
    for captured in capture(session, batches, check=False):
        first = next(c for c in captured.calls if c.place.plan.kind == "self")
        found.append(variant.start(first.before.cpu().double()).numpy())
    return np.concatenate(found), "images" if ids is None else "embeddings"
