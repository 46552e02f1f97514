"""The fixed tokens that a watch looks at: given ids, or random ones."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eigenlens.errors import OptionError
from eigenlens.live.batches import vocabulary_size
from eigenlens.live.session import Session

RANDOM_PROMPTS, RANDOM_LENGTH = 8, 32


def probe_ids(probe: Any) -> list[list[int]]:
    """Token ids of every prompt, from whatever they were given as.

    Parameters
    ----------
    probe
        A list of lists of ids, a matrix of ids (array or tensor), one list of ids, or a batch as
        a tokenizer makes it: a mapping with `input_ids` and perhaps `attention_mask`, whose pads
        are left out.

    Raises
    ------
    OptionError
        It is none of these, or empty.
    """
    mask = None
    if isinstance(probe, Mapping):
        if "input_ids" not in probe:
            raise OptionError("the probe is a mapping without input_ids: give token ids")
        mask, probe = probe.get("attention_mask"), probe["input_ids"]
    rows = _plain(probe)
    if not isinstance(rows, list) or not rows:
        raise OptionError("the probe has no tokens: give token ids, a few prompts of real text")
    if not isinstance(rows[0], list):
        rows = [rows]
    if mask is not None:
        rows = _unpadded(rows, _plain(mask))
    try:
        ids = [[operator.index(t) for t in row] for row in rows]
    except TypeError as error:
        raise OptionError(
            "the probe must be token ids: numbers, one list a prompt (tokenize text first)"
        ) from error
    if not any(len(row) > 1 for row in ids):
        raise OptionError("every prompt of the probe has one token: collapse needs at least two")
    return [row for row in ids if row]


def random_probe(session: Session, seed: int = 0) -> list[list[int]]:
    """8 prompts of 32 random tokens: enough for spectra's company, real text is better."""
    rng = np.random.default_rng(seed)
    shape = (RANDOM_PROMPTS, RANDOM_LENGTH)
    found: list[list[int]] = rng.integers(vocabulary_size(session), size=shape).tolist()
    return found


def _unpadded(rows: list[Any], mask: Any) -> list[Any]:
    """The tokens for which the mask is not zero."""
    try:
        kept = mask if isinstance(mask[0], list) else [mask]
        return [
            [t for t, k in zip(r, m, strict=True) if k] for r, m in zip(rows, kept, strict=True)
        ]
    except (TypeError, ValueError, LookupError):
        raise OptionError("the attention_mask of the probe has not the shape of its ids") from None


def _plain(x: Any) -> Any:
    if hasattr(x, "tolist"):
        return x.tolist()
    if isinstance(x, Sequence) and not isinstance(x, (str, bytes)):
        return [row.tolist() if hasattr(row, "tolist") else _plain(row) for row in x]
    return x
