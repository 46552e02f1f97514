"""Unit directions for an edit: tokens, contrasts of texts, another layer's v1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.planner import GAIN_NAMES
from eigenlens.circuit.readout import Readout
from eigenlens.errors import (
    ArchitectureError,
    EigenlensError,
    NumericsError,
    OptionError,
    nearest,
)
from eigenlens.inert import inert
from eigenlens.live.batches import make_batches
from eigenlens.live.session import hooked
from eigenlens.live.tokenizer import Tokenizer
from eigenlens.spectra.analyse import analyse
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.steering.opening import Subject, layer_index
from eigenlens.steering.resume import forward
from eigenlens.steering.stage import Stage, last_states
from eigenlens.steering.texts import check_text
from eigenlens.tensors.store import TensorStore

Vector = Float[np.ndarray, "d"]

_SHOWN = 5


@dataclass(frozen=True)
class Direction:
    """A unit vector of the residual stream, and what it is.

    Attributes
    ----------
    vector
        (d,), |vector| = 1.
    label
        For display: ``token ' Paris'``.
    kind
        ``token``, ``contrast``, ``file`` or ``layer``.
    through
        How it was made of its source, in a few words.
    targets
        Ids of the tokens that are wanted; empty where it is no token's.
    warnings
        What must be told with it.
    """

    vector: Vector = field(repr=False)
    label: str
    kind: str
    through: str
    targets: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()


def unit(vector: Any, d: int, what: str) -> Vector:
    """A vector as a unit vector in float64.

    Raises
    ------
    OptionError
        It is no array of real numbers, has another shape than (d,), or is zero.
    NumericsError
        It is not finite.
    """
    try:
        found = np.asarray(vector)
        if found.ndim == 2 and 1 in found.shape:
            found = found.reshape(-1)
        # The kind of bfloat16 is V, as of raw bytes and of records, which are no numbers.
        real = found.dtype.kind in "fiuV" and found.dtype.type is not np.void
        wide = found.astype(np.float64) if real else None
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"{what} is no array of numbers ({inert(str(error))[:80]}): a direction is one real "
            f"vector of {d} numbers, saved as float32 or float64"
        ) from error
    if found.ndim != 1 or wide is None:
        raise OptionError(
            f"{what} has shape {found.shape} and dtype {found.dtype}: a direction is one real "
            f"vector of {d} numbers"
        )
    if len(found) != d:
        raise OptionError(
            f"{what} has {len(found)} numbers, the residual stream of this model has {d}: it "
            "belongs to another model"
        )
    if not np.isfinite(wide).all():
        bad = int(np.count_nonzero(~np.isfinite(wide)))
        raise NumericsError(f"{what} holds NaN or infinity ({bad} of {d} numbers)")
    largest = float(np.abs(wide).max())
    if largest == 0:
        raise OptionError(f"{what} is zero: it has no direction")
    wide = wide / largest  # squares of very large numbers would overflow
    return np.asarray(wide / np.linalg.norm(wide))


# -- tokens --------------------------------------------------------------------------------------


def token_ids(
    texts: Sequence[str | int],
    encode: Callable[[str], Sequence[int]],
    names: Callable[[int], str],
    size: int,
) -> tuple[int, ...]:
    """The id of every text that is one token; numbers are ids themselves.

    Parameters
    ----------
    texts
        Exactly as the vocabulary has them: a word within a sentence usually begins with a space.
    encode
        Ids of a text, no special tokens around.
    names
        Text of an id, for messages.
    size
        Ids lie below it.

    Raises
    ------
    OptionError
        A text is no token, or several: the message shows them.
    """
    found = []
    for text in texts:
        if isinstance(text, int):
            if not 0 <= text < size:
                raise OptionError(f"token id {text}: ids are 0 to {size - 1}")
            found.append(text)
            continue
        name = _short(text)
        check_text(text)
        ids = list(encode(text))
        if len(ids) == 1:
            found.append(int(ids[0]))
            continue
        if not ids:
            raise OptionError(f"the text '{name}' has no tokens: give one token")
        pieces = " + ".join(f"'{inert(names(int(i)))}'" for i in ids[:8])
        pieces += " + ..." if len(ids) > 8 else ""
        other = text[1:] if text.startswith(" ") else f" {text}"
        hint = ""
        if other and len(list(encode(other))) == 1:
            hint = (
                f"; '{_short(other)}' is one, {'without' if text[:1] == ' ' else 'with'} the space"
            )
        raise OptionError(
            f"'{name}' is {len(ids)} tokens of this model, {pieces}: a direction is that "
            f"of one token{hint or '; give one of them'}"
        )
    return tuple(dict.fromkeys(found))


def _short(text: str) -> str:
    """A text for a message: what somebody typed may be of any length."""
    shown = inert(text[:60])
    return f"{shown}..." if len(text) > 60 else shown


def from_vocabulary(checkpoint: Checkpoint, texts: Sequence[str | int]) -> tuple[int, ...]:
    """Ids of tokens by their texts alone, without a tokenizer.

    Raises
    ------
    OptionError
        A text is no token of the vocabulary.
    SourceError
        There is no vocabulary.
    """
    if checkpoint.source is None:
        raise OptionError("plain arrays come without a vocabulary: give a vector file")
    words: Sequence[str] = ()
    if any(isinstance(text, str) for text in texts):
        words = checkpoint.source.tokens()
    ids: dict[str, int] = {}
    for i, word in enumerate(words):
        ids.setdefault(word, i)
    for text in texts:
        if isinstance(text, str) and text not in ids:
            raise OptionError(
                f"'{_short(text)}' is no single token of this model"
                f"{nearest(text[:60], list(ids))}: a word within a sentence usually begins with a "
                "space, as ' Paris'"
            )
    size = len(words) or int(checkpoint.config.get("vocab_size", 0)) or 1 << 31
    return token_ids(texts, lambda text: [ids[text]], lambda i: words[i], size)


def token_vector(readout: Readout, token: int) -> Float[np.ndarray, "d"]:
    """The state along which a token's logit grows fastest: ``P diag(g) W_U[token]``.

    The adjoint of `Readout.write_logits`: the unembedding's row back through the linear part of the
    final norm (its gain g, for a layernorm also the centring P), or of a masked-language head's
    transform where that is linear. Where the files have neither, the token's embedding.
    """
    roles = readout.roles
    raw = roles["mode"] == "raw"
    name = roles["embedding"] if raw else roles["unembedding"]
    row = np.asarray(readout.store.read(name, slice(token, token + 1)), dtype=np.float64)[0]
    if raw:
        lift = roles.get("lift")
        return row if lift is None else np.asarray(_wide(readout.store, lift) @ row)
    if "down" in roles:
        row = _wide(readout.store, roles["down"]).T @ row
    if roles["mode"] == "head":
        # `write_logits` goes dense, norm, decoder; the adjoint takes them the other way.
        known = readout.store.names()
        gains = [f"{readout.row.head_norm}.{end}" for end in GAIN_NAMES]
        gain = next((name for name in gains if name in known), None)
        if gain is not None:
            row = np.asarray(readout.store.read(gain), dtype=np.float64) * row
            row = row - row.mean()
        return np.asarray(_wide(readout.store, f"{readout.row.head_dense}.weight").T @ row)
    norm = readout.final_norm
    if norm is None:
        return np.asarray(row)
    scaled = np.asarray(norm.gain, dtype=np.float64) * row
    return np.asarray(scaled - scaled.mean() if norm.kind == "layernorm" else scaled)


def _wide(store: TensorStore, name: str) -> Float[np.ndarray, "a b"]:
    return np.asarray(store.read(name), dtype=np.float64)


def of_tokens(
    readout: Readout, ids: Sequence[int], names: Callable[[int], str], d: int
) -> Direction:
    """The common direction of tokens: the mean of their unit directions, by the weights alone.

    Raises
    ------
    OptionError
        An id has no row in the matrix, or the directions cancel.
    """
    found = []
    for token in ids:
        rows = readout.store.info(
            readout.roles["embedding" if readout.roles["mode"] == "raw" else "unembedding"]
        ).shape[0]
        if token >= rows:
            raise OptionError(f"token id {token}: the matrix of this model has {rows} rows")
        found.append(unit(token_vector(readout, token), d, f"the direction of token {token}"))
    return Direction(
        unit(np.sum(found, axis=0), d, "the mean of the tokens' directions"),
        _token_label(ids, names),
        "token",
        readout.write_note,
        tuple(ids),
    )


def _token_label(ids: Sequence[int], names: Callable[[int], str]) -> str:
    shown_ = ", ".join(f"'{inert(names(i))}'" for i in ids[:3])
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"token{'s' * (len(ids) > 1)} {shown_}{more}"


def of_masked_tokens(
    subject: Subject,
    prompts: Sequence[Sequence[int]],
    ids: Sequence[int],
    names: Callable[[int], str],
    d: int,
) -> Direction:
    """The same for a masked-language head, whose transform is not linear: a mean gradient.

    The gradient of the tokens' logits with respect to the last hidden state, averaged over the
    calibration text.
    """
    session, torch = subject.session, subject.session.torch
    total = np.zeros(d)
    for batch in make_batches(session, prompts):
        leaf: list[Any] = []

        def swap(module: Any, args: Any, result: Any, leaf: list[Any] = leaf) -> Any:
            x = last_states(session, result).detach().requires_grad_()
            leaf.append(x)
            if isinstance(result, tuple):
                return (x, *result[1:])
            result.last_hidden_state = x
            return result

        # Masked-language heads call the body as a whole.
        hooks = hooked([session.body.register_forward_hook(swap)])
        options = {"use_cache": False} if session.accepts("use_cache") else {}
        with hooks, session.running(), torch.enable_grad():
            logits = session.model(**{**options, **batch.inputs}).logits
            mask = torch.as_tensor(batch.mask, device=logits.device)
            logits[mask][:, list(ids)].sum().backward()
        if not leaf or leaf[-1].grad is None:
            raise ArchitectureError(
                f"{session.label}: its head does not depend on what its body returns: the "
                "direction of a token cannot be found; give a vector file"
            )
        total += leaf[-1].grad[mask].double().sum(dim=0).cpu().numpy()
        session.model.zero_grad(set_to_none=True)
    return Direction(
        unit(total, d, "the mean gradient of the logit"),
        _token_label(ids, names),
        "token",
        "mean gradient of the head's logit",
        tuple(ids),
    )


# -- texts ---------------------------------------------------------------------------------------


def of_contrast(
    stage: Stage,
    positive: Sequence[Sequence[int]],
    negative: Sequence[Sequence[int]],
    names: tuple[str, str],
) -> Direction:
    """Mean state of one set of texts less that of another, at the output of the stage's block.

    Over all tokens but the first of each prompt (of a prompt with one token, that one).

    Raises
    ------
    OptionError
        The two means are equal.
    """
    d = stage.place.plan.geometry.d_model
    means = [_mean_state(stage, prompts) for prompts in (positive, negative)]
    a, b = (inert(Path(name).name)[:30] for name in names)
    return Direction(
        unit(means[0] - means[1], d, "the difference of the two texts' mean states"),
        f"contrast {a} - {b}",
        "contrast",
        f"mean difference after {stage.place.label}",
    )


def _mean_state(stage: Stage, prompts: Sequence[Sequence[int]]) -> Vector:
    session = stage.session
    found = []
    for batch in make_batches(session, prompts):
        seen: list[Any] = []

        def keep(module: Any, args: Any, result: Any, seen: list[Any] = seen) -> None:
            seen.append(result if session.torch.is_tensor(result) else result[0])

        with hooked([stage.place.block.register_forward_hook(keep)]):
            forward(session, batch.inputs, batch.advice)
        order = np.cumsum(batch.mask, axis=1)
        alone = batch.mask.sum(axis=1, keepdims=True) == 1
        found.append(batch.flat(seen[-1], batch.mask & ((order > 1) | alone)))
    return np.asarray(np.concatenate(found).astype(np.float64).mean(axis=0))


# -- another layer -------------------------------------------------------------------------------


def of_layer(checkpoint: Checkpoint, stack: str, layer: int, d: int) -> Direction:
    """The leading right eigenvector of another layer's F.

    The sign of an eigenvector is a convention: its largest entry is positive. Of a complex pair the
    real part of the eigenvector, which lies in the plane that the pair turns in, is taken, with a
    warning.

    Raises
    ------
    OptionError
        No such layer, or its kernel leads.
    """
    known = [p.layer for p in checkpoint.plans if p.stack == stack and p.kind == "self"]
    known = known or [c.layer for c in checkpoint.arrays]
    at = known[layer_index(known, layer, checkpoint.source_label)]
    circuits = checkpoint.circuits(stack=stack, layers=[at])
    found = analyse(next(c for c in circuits if c.kind == "self"), SpectrumOptions(k=2))
    if found.target == "kernel":
        raise OptionError(f"{found.name}: its kernel leads, so that it has no leading direction")
    vector: Complex[np.ndarray, "d"] = found.right_vectors[:, 0]
    warnings = []
    if found.target == "plane":
        warnings.append(
            f"{found.name} is led by a complex pair, so by a plane: the direction is the real part "
            "of its eigenvector, one direction of that plane"
        )
    elif found.target == "span":
        warnings.append(f"{found.name}: its leaders are tied, so that its direction is uncertain")
    return Direction(
        unit(vector.real, d, f"the eigenvector of {found.name}"),
        f"v1 of {found.name}",
        "layer",
        "leading right eigenvector, its largest entry positive",
        (),
        tuple(warnings),
    )


# -- what it says --------------------------------------------------------------------------------


def says(checkpoint: Checkpoint, vector: Vector) -> tuple[str, ...]:
    """The tokens that a direction stands for most, through the unembedding; empty if not known.

    A masked-language head that is not linear has no such reading.
    """
    try:
        readout = checkpoint.readout
        if readout.roles.get("mode", "raw") == "raw":
            return ()
        scores = readout.write_logits(vector)
        texts = checkpoint.source.tokens() if checkpoint.source is not None else ()
    except EigenlensError:  # no vocabulary, or no matrix that reads the stream
        return ()
    scores = scores[: len(texts)]
    order = np.argsort(-scores, kind="stable")[:_SHOWN]
    return tuple(texts[int(i)] for i in order)


def names_of(tokenizer: Tokenizer | None, checkpoint: Checkpoint) -> Callable[[int], str]:
    """Text of a token id, for display."""

    def name(i: int) -> str:
        if tokenizer is not None and tokenizer.decode is not None:
            return tokenizer.decode([i])
        try:
            texts = checkpoint.source.tokens() if checkpoint.source is not None else ()
        except EigenlensError:  # no vocabulary
            return f"id {i}"
        return texts[i] if i < len(texts) else f"id {i}"

    return name
