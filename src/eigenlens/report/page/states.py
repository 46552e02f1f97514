"""States of a few prompts at every depth, for the sphere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eigenlens.errors import OptionError, SourceError
from eigenlens.live.batches import make_batches
from eigenlens.live.capture import capture
from eigenlens.live.session import Session
from eigenlens.report.panels.sphere import States
from eigenlens.spectra.result import LayerSpectrum, Spectrum
from eigenlens.tracing.feed import Feed

N_PROMPTS = 6
MOST_TOKENS = 32
"""Prompts on the sphere, and tokens of each: more would hide one another."""


def capture_states(session: Session, feed: Feed, spectrum: Spectrum) -> States:
    """The first prompts of a feed, from the first layer's input to the last block's output.

    Raises
    ------
    OptionError
        The model sees images, which have no tokens to name.
    EigenlensError
        As `eigenlens.live.capture.capture`.
    """
    if session.vision:
        raise OptionError("this model sees images: its states belong to no token that has a name")
    ids = [tuple(prompt[:MOST_TOKENS]) for prompt in feed.ids[:N_PROMPTS]]
    batch = make_batches(session, ids).together()
    captured = next(capture(session, [batch], check=False))
    shape = batch.mask.shape
    calls = [
        call
        for call in captured.calls
        if call.place.plan.kind == "self" and tuple(call.before.shape[:2]) == shape
    ]
    if not calls:
        raise OptionError("no layer's states are those of the prompt's tokens")
    stack = calls[0].place.plan.stack
    calls = [call for call in calls if call.place.plan.stack == stack]
    arrays = [batch.flat(calls[0].before), *(batch.flat(call.block) for call in calls)]
    by_step = len({call.place.plan.layer for call in calls}) < len(calls)
    labels = [str(call.step if by_step else call.place.plan.layer) for call in calls]
    owners = [int(i) for i in batch.owners()]
    positions = [p for row in batch.mask for p in range(int(row.sum()))]
    texts = _texts(session)
    tokens = [
        _token(texts, ids[owner][position])
        for owner, position in zip(owners, positions, strict=True)
    ]
    leader = _leader(spectrum, stack, calls[-1].place.plan.layer)
    return States(
        labels=("start", *labels),
        prompts=tuple(_line([_token(texts, i) for i in prompt]) for prompt in ids),
        owners=tuple(owners),
        positions=tuple(positions),
        tokens=tuple(tokens),
        special=tuple(bool(s) for s in batch.special[batch.mask]),
        states=np.stack(arrays).astype(np.float64),
        plane=_plane(leader, arrays[0].shape[1]),
        plane_of=_words(leader),
        unit="step" if by_step else "layer",
    )


def _texts(session: Session) -> Sequence[str]:
    source = session.checkpoint.source
    if source is None:
        return ()
    try:
        return source.tokens()
    except SourceError:
        return ()


def _token(texts: Sequence[str], i: int) -> str:
    return texts[i] if 0 <= i < len(texts) else f"#{i}"


def _line(tokens: Sequence[str]) -> str:
    """The prompt as its tokens say it, cut where it is long."""
    spaced = any(t.startswith(" ") for t in tokens[1:])
    if spaced:
        text = "".join(tokens)
    elif any(t.startswith("##") for t in tokens):
        text = " ".join(tokens).replace(" ##", "")
    else:
        text = " ".join(tokens) if max(map(len, tokens)) > 2 else "".join(tokens)
    text = text.strip()
    return text if len(text) <= 60 else text[:57] + "..."


def _leader(spectrum: Spectrum, stack: str, layer: int) -> LayerSpectrum | None:
    own = [x for x in spectrum.layers if x.stack == stack and x.kind == "self"]
    return next((x for x in own if x.layer == layer), own[-1] if own else None)


def _plane(leader: LayerSpectrum | None, d: int) -> Any:
    """Basis of the target; none where the kernel leads, or nothing has a spectrum."""
    if leader is None or leader.target == "kernel":
        return np.zeros((d, 0))
    return np.asarray(leader.target_vectors, dtype=np.float64)


def _words(leader: LayerSpectrum | None) -> str:
    if leader is None or leader.target == "kernel":
        return "no direction leads, so all three axes show most of the tokens"
    where = f"of layer {leader.layer}"
    if leader.target == "plane":
        return f"e1 and e2 span the principal plane {where}"
    if leader.target == "v1":
        return f"e1 is the leading direction {where}"
    return f"e1 and e2 lie in the tied leading directions {where}"
