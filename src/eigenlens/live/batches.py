"""Prompts to padded batches that give every prompt the states it has alone.

Pads stand on the right unless asked, masked, with positions that count real tokens only. Any id can
be a pad (embeddings are never resized), and pads never count in what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from eigenlens.errors import OptionError
from eigenlens.live.packing import DEAR, PER_CALL, by_length, packed
from eigenlens.live.session import Session
from eigenlens.live.steadiness import scales_positions
from eigenlens.shown.words import count_text

Side = Literal["right", "left"]
Truncation = Literal["warn", "error"]
SIDES: tuple[str, ...] = ("right", "left")
TRUNCATIONS: tuple[str, ...] = ("warn", "error")
# Config keys for how many positions a model has.
_LIMITS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")


@dataclass(frozen=True)
class Batch:
    """Some prompts as one padded input.

    Attributes
    ----------
    inputs
        What the model is called with.
    mask
        True for real tokens, False for pads.
    special
        True for special tokens (begin, end, separator, mask).
    prompts
        Number of the prompt in each row.
    """

    inputs: Mapping[str, Any] = field(repr=False)
    mask: Bool[np.ndarray, "b n"] = field(repr=False)
    special: Bool[np.ndarray, "b n"] = field(repr=False)
    prompts: Int[np.ndarray, "b"]

    @property
    def advice(self) -> str:
        """`8 prompts of 64 tokens`, for messages."""
        return size_text(*self.mask.shape)

    def flat(
        self, states: Any, keep: Bool[np.ndarray, "b n"] | None = None
    ) -> Float[np.ndarray, "t d"]:
        """States (b, n, d) of the real tokens, prompt after prompt, as numpy in float32 or wider.

        `keep` narrows the mask, for instance to `mask & ~special`. States of another length than
        the text's (an image tower's) have no pads and are all given.
        """
        chosen = self.mask if keep is None else keep
        if chosen.shape != tuple(states.shape[:2]):
            chosen = np.ones(tuple(states.shape[:2]), dtype=bool)
        array = states.detach().cpu()
        wide = array if array.dtype.itemsize >= 4 else array.float()
        return np.asarray(wide.numpy()[chosen])

    def owners(self, keep: Bool[np.ndarray, "b n"] | None = None) -> Int[np.ndarray, "t"]:
        """Which prompt each row of `flat` belongs to."""
        chosen = self.mask if keep is None else keep
        return np.asarray(np.repeat(self.prompts, chosen.sum(axis=1)))


def size_text(prompts: int, tokens: int) -> str:
    """`8 prompts of 64 tokens`, for messages."""
    return f"{count_text(prompts, 'prompt')} of {count_text(tokens, 'token')}"


def first_prompts(batch: Batch, n: int) -> Batch:
    """The first prompts of a batch, as one of their own."""
    rows = len(batch.prompts)
    inputs = {
        name: x[:n] if getattr(x, "shape", ())[:1] == (rows,) else x
        for name, x in batch.inputs.items()
    }
    return Batch(inputs, batch.mask[:n], batch.special[:n], batch.prompts[:n])


@dataclass(frozen=True)
class Batches:
    """Batches of a set of prompts, made one at a time.

    Attributes
    ----------
    session
        The model that they are for.
    prompts
        Token ids of each prompt, cut to the model's positions.
    batch_size, side
        Most prompts of a batch, and where pads go.
    warnings
        Prompts that were cut.
    """

    session: Session = field(repr=False)
    prompts: tuple[tuple[int, ...], ...] = field(repr=False)
    batch_size: int = 8
    side: Side = "right"
    warnings: tuple[str, ...] = ()

    @cached_property
    def groups(self) -> list[list[int]]:
        """The prompts of each batch, longest first: memory runs out at once or never.

        As large as asked where that pads little. What a call costs beside its tokens is known of
        CPUs; on other devices a batch is as large as it may be. Where positions are scaled to the
        length of a batch, prompts of one length alone share one, so that pads change nothing.
        """
        per_call = PER_CALL if self.session.device.type == "cpu" else DEAR
        if scales_positions(self.session.model):
            per_call = 0
        return packed([len(p) for p in self.prompts], self.batch_size, per_call)

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Batch]:
        return map(self._batch, self.groups)

    def together(self) -> Batch:
        """All prompts as one batch, longest first."""
        return self._batch(by_length([len(p) for p in self.prompts]))

    def _batch(self, chosen: Sequence[int]) -> Batch:
        session = self.session
        longest = max(len(self.prompts[i]) for i in chosen)
        ids = np.full((len(chosen), longest), pad_id(session), dtype=np.int64)
        mask = np.zeros(ids.shape, dtype=bool)
        for row, i in enumerate(chosen):
            n = len(self.prompts[i])
            where = slice(0, n) if self.side == "right" else slice(longest - n, longest)
            ids[row, where], mask[row, where] = self.prompts[i], True
        special = mask & np.isin(ids, sorted(special_ids(session)))
        inputs = token_inputs(session, ids, mask, self.side)
        return Batch(inputs, mask, special, np.asarray(chosen, dtype=np.int64))


def make_batches(
    session: Session,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int = 8,
    side: Side = "right",
    truncation: Truncation = "warn",
) -> Batches:
    """Cut prompts to the model's positions and put them in batches.

    Parameters
    ----------
    session
        The model.
    prompts
        Token ids of each prompt.
    batch_size
        Most prompts of a batch; results do not depend on it. Fewer are put together where that
        saves more padding than another call of the model costs.
    side
        Where pads go. Positions count real tokens either way.
    truncation
        What happens to a prompt that is longer than the model's positions: its first tokens are
        used and a warning is kept, or it is an error.

    Raises
    ------
    OptionError
        If there is no prompt, an empty one, an id outside the vocabulary, a prompt that is too
        long (by option), or the model cannot be padded on the left.
    """
    reads = str(session.body.main_input_name)
    if reads != "input_ids":
        other = (
            "sees images, not tokens: use random pixels"
            if session.vision
            else (f"reads {reads}, not tokens: give its inputs as a batch of your own")
        )
        raise OptionError(f"{session.label} {other}")
    if batch_size < 1:
        raise OptionError(f"batch size {batch_size}: it must be at least 1")
    for name, value, known in (("side", side, SIDES), ("truncation", truncation, TRUNCATIONS)):
        if value not in known:
            raise OptionError(f"{name} {value!r} is unknown: allowed are {', '.join(known)}")
    if not prompts:
        raise OptionError("there is no prompt: give at least one")
    if side == "left" and not (session.accepts("position_ids") or _counts_itself(session)):
        raise OptionError(
            f"{session.label} takes no positions, so pads on its left would shift its tokens: pad "
            "on the right"
        )
    size, limit = vocabulary_size(session), max_positions(session)
    kept, cut = [], []
    for i, prompt in enumerate(prompts):
        ids = [int(t) for t in prompt]
        if not ids:
            raise OptionError(f"prompt {i} (counted from 0) is empty: leave it out")
        bad = [t for t in ids if not 0 <= t < size]
        if bad:
            raise OptionError(
                f"prompt {i} (counted from 0) has the token id {bad[0]}: ids are 0 to {size - 1}"
            )
        if limit is not None and len(ids) > limit:
            cut.append((i, len(ids)))
        kept.append(tuple(ids[:limit]))
    if cut and truncation == "error":
        i, n = cut[0]
        raise OptionError(
            f"prompt {i} (counted from 0) has {n} tokens, the model has {limit} positions: shorten "
            "it, or have it cut with a warning (too_long, --too-long warn)"
        )
    verb = "has" if len(cut) == 1 else "have"
    which = "prompt" if len(cut) == 1 else "the longest, prompt"
    worst, longest = max(cut, key=lambda c: c[1], default=(0, 0))
    warnings = [
        f"{len(cut)} of {count_text(len(kept), 'prompt')} {verb} more "
        f"tokens than the model has positions ({limit}): the rest is not used "
        f"({which} {worst}, counted from 0, has {longest})"
    ]
    return Batches(session, tuple(kept), batch_size, side, tuple(warnings if cut else ()))


def random_pixels(session: Session, n: int, seed: int = 0, batch_size: int = 8) -> Iterator[Batch]:
    """Batches of n images of normal noise, for vision models; every position counts.

    Raises
    ------
    OptionError
        If the model's config does not say how large an image is.
    """
    config, torch = session.body.config, session.torch
    size = getattr(config, "image_size", None)
    channels = getattr(config, "num_channels", 3)
    if size is None:
        raise OptionError(f"{session.label}: the config has no image_size: use a live forward pass")
    height, width = (size, size) if isinstance(size, int) else size
    rng = np.random.default_rng(seed)
    for start in range(0, n, batch_size):
        rows = np.arange(start, min(n, start + batch_size))
        pixels = rng.standard_normal((rows.size, channels, height, width))
        x = torch.as_tensor(pixels).to(device=session.device, dtype=session.dtype)
        empty = np.ones((rows.size, 0), dtype=bool)
        yield Batch({"pixel_values": x}, empty, empty, rows)


def token_inputs(
    session: Session, ids: Int[np.ndarray, "b n"], mask: Bool[np.ndarray, "b n"], side: Side
) -> dict[str, Any]:
    """What the model is called with: ids, attention mask, and positions where pads shift them.

    An encoder-decoder reads the same ids in its decoder, behind its start token.
    """
    torch, device = session.torch, session.device

    def tensor(array: Any) -> Any:
        return torch.as_tensor(np.ascontiguousarray(array), device=device)

    inputs = {"input_ids": tensor(ids), "attention_mask": tensor(mask.astype(np.int64))}
    if side == "left" and session.accepts("position_ids"):
        counted = np.maximum(mask.cumsum(axis=1) - 1, 0)
        inputs["position_ids"] = tensor(counted + first_position(session))
    if session.body.config.is_encoder_decoder:
        start = getattr(session.body.config, "decoder_start_token_id", None)
        shifted = ids if start is None else _shifted(ids, mask, int(start))
        inputs["decoder_input_ids"] = tensor(shifted)
        inputs["decoder_attention_mask"] = inputs["attention_mask"]
    return inputs


def _shifted(
    ids: Int[np.ndarray, "b n"], mask: Bool[np.ndarray, "b n"], start: int
) -> Int[np.ndarray, "b n"]:
    """The start token, then all ids but the last, within the real tokens of each row."""
    out = np.roll(ids, 1, axis=1)
    rows = np.arange(ids.shape[0])
    out[rows, mask.argmax(axis=1)] = start
    return out


def first_position(session: Session) -> int:
    """The position of a prompt's first token: RoBERTa's tables start behind their padding row."""
    torch = session.torch
    for name, module in session.body.named_modules():
        plain = type(module) is torch.nn.Embedding and "position" in name.rpartition(".")[2]
        if plain and module.padding_idx is not None:
            return int(module.padding_idx) + 1
    return 0


def max_positions(session: Session) -> int | None:
    """How many tokens a prompt can have; None where the model sets no limit."""
    config = session.body.config.get_text_config()
    found = [getattr(config, key, None) for key in _LIMITS]
    limits = [n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return min(limits) - first_position(session) if limits else None


def pad_id(session: Session) -> int:
    """The model's pad id, or 0: pads are masked, so any id serves."""
    pad = getattr(session.body.config.get_text_config(), "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < vocabulary_size(session) else 0


def special_ids(session: Session) -> frozenset[int]:
    """Ids that stand for no text: the tokenizer's, else those that the config names."""
    if session.tokenizer is not None:
        return session.tokenizer.special
    return named_ids(session)


def named_ids(session: Session) -> frozenset[int]:
    """Special ids that the config names: what random prompts leave out.

    The same with and without a tokenizer, so that one seed draws the same prompts.
    """
    config = session.body.config.get_text_config()
    names = ("bos", "eos", "sep", "cls", "pad")
    return frozenset().union(*(ids_in(config, f"{name}_token_id") for name in names))


def ids_in(settings: Any, key: str) -> frozenset[int]:
    """What a config says of a token: nothing, its id, or several."""
    value = getattr(settings, key, None)
    return frozenset(
        i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)
    )


def vocabulary_size(session: Session) -> int:
    """Number of rows of the token embedding; what the config says where the model does not.

    Raises
    ------
    OptionError
        If the model has no vocabulary.
    """
    try:
        rows = getattr(session.body.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # how transformers says that a model has no such embedding
        rows = None
    if rows is None:
        rows = getattr(session.body.config.get_text_config(), "vocab_size", None)
    if rows is None:
        raise OptionError(f"{session.label} has no vocabulary: it does not read tokens")
    return int(rows)


def _counts_itself(session: Session) -> bool:
    """Whether positions do not depend on where pads stand: none are learned in a table."""
    torch = session.torch
    return not any(
        isinstance(module, torch.nn.Embedding) and "position" in name.rpartition(".")[2]
        for name, module in session.body.named_modules()
    )
