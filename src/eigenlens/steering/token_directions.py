"""Directions of tokens: ids of texts, the rows of the output head, gradients of a masked one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.planner import GAIN_NAMES
from eigenlens.circuit.readout import Readout
from eigenlens.errors import (
    ArchitectureError,
    OptionError,
    nearest,
)
from eigenlens.inert import inert
from eigenlens.live.batches import make_batches
from eigenlens.live.hooks import hooked, on_leave
from eigenlens.live.tokenizer import Tokenizer
from eigenlens.steering.directions import Direction, names_of, unit
from eigenlens.steering.opening import Subject
from eigenlens.steering.stage import last_states
from eigenlens.steering.texts import check_text
from eigenlens.tensors.store import TensorStore


def token_ids(
    texts: Sequence[str | int],
    encode: Callable[[str], Sequence[int]],
    names: Callable[[int], str],
    size: int | None,
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
        Ids lie below it; None where that is not known yet.

    Raises
    ------
    OptionError
        A text is no token, or several: the message shows them.
    """
    found = []
    for text in texts:
        if isinstance(text, int):
            if text < 0 or (size is not None and text >= size):
                allowed = "not negative" if size is None else f"0 to {size - 1}"
                raise OptionError(f"token id {text}: ids are {allowed}")
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


def check_tokens(
    tokens: Sequence[str | int], tokenizer: Tokenizer | None, checkpoint: Checkpoint
) -> None:
    """Refuse texts that are no single token, from the tokenizer alone: no weight is read.

    Raises
    ------
    OptionError, SourceError
        See `token_ids` and `from_vocabulary`.
    """
    if tokenizer is None or tokenizer.bare is None:
        from_vocabulary(checkpoint, tokens)
    else:
        names = names_of(tokenizer, checkpoint)
        token_ids(tokens, tokenizer.bare, names, None)  # the model knows how many it has


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
    size = len(words) or int(checkpoint.config.get("vocab_size", 0)) or None
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
        hooks = hooked([on_leave(session.body, swap)])
        options = {"use_cache": False} if session.accepts("use_cache") else {}
        with hooks, session.running(), torch.enable_grad():
            logits = session.model(**{**options, **batch.inputs}).logits
            mask = torch.as_tensor(batch.mask, device=logits.device)
            wanted = logits[mask][:, list(ids)].sum()
            found = None
            if leaf and wanted.requires_grad:  # the model's own gradients stay what they are
                (found,) = torch.autograd.grad(wanted, leaf[-1], allow_unused=True)
        if found is None:
            raise ArchitectureError(
                f"{session.label}: its head does not depend on what its body returns: the "
                "direction of a token cannot be found; give a vector file"
            )
        total += found[mask].cpu().double().sum(dim=0).numpy()
    return Direction(
        unit(total, d, "the mean gradient of the logit"),
        _token_label(ids, names),
        "token",
        "mean gradient of the head's logit",
        tuple(ids),
    )
