"""How sentences go on, before and after: the likeliest next tokens, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from eigenlens.live.batches import ids_in, max_positions, pad_id
from eigenlens.live.load import line, need_transformers, quiet
from eigenlens.live.session import Session

N_PROMPTS = 3
STARTS = range(4, 10)
"""How many tokens of a text are given, special ones at its begin left out."""
LENGTH = 10


@dataclass(frozen=True)
class Continuation:
    """One start of a sentence, and what each version of the model says next.

    Attributes
    ----------
    prompt
        The start.
    texts
        What follows, by version: ``before``, ``after``, ``activation``.
    distinct
        By version the share of the text's tokens that are distinct from each other: 1 where none
        comes twice, 0.1 where one of ten is all there is. A version that says nothing has none.
    """

    prompt: str
    texts: dict[str, str] = field(default_factory=dict)
    distinct: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"prompt": self.prompt, **self.texts, "distinct": dict(self.distinct)}


@dataclass(frozen=True)
class Said:
    """What one version of the model says next: the text, and the ids of its tokens."""

    text: str
    ids: tuple[int, ...]

    @property
    def distinct(self) -> float | None:
        """Share of the tokens that are distinct; None without a token."""
        return len(set(self.ids)) / len(self.ids) if self.ids else None


def starts_of(
    prompts: Sequence[Sequence[int]],
    special: frozenset[int],
    decode: Callable[[Sequence[int]], str] | None = None,
    likely: Mapping[tuple[int, int], float] | None = None,
) -> list[list[int]]:
    """The first tokens of some prompts, all of one length, so that nothing is padded.

    Parameters
    ----------
    prompts
        Token ids.
    special
        Ids that stand for no text.
    decode
        To end between two words.
    likely
        How probable the wanted tokens are after each place (prompt, place): the last start is then
        the one where they are likeliest, and the length one at which they are.
    """
    found: dict[int, list[tuple[float, list[int]]]] = {n: [] for n in STARTS}
    for number, ids in enumerate(prompts):
        opening = 0
        while opening < len(ids) and ids[opening] in special:
            opening += 1
        for n in STARTS:
            start = list(ids[: opening + n])
            text, more = start[opening:], list(ids[opening : opening + n + 1])
            if len(more) <= n or special & set(more):
                continue
            if decode is None or decode(more)[len(decode(text)) :].startswith(" "):
                share = (likely or {}).get((number, opening + n - 1), 0.0)
                found[n].append((share, start))
    enough = [n for n in STARTS if len(found[n]) >= N_PROMPTS] or list(STARTS)
    best = max(enough, key=lambda n: max((share for share, _ in found[n]), default=-1.0))
    chosen = found[best]
    if not chosen:
        return []
    _, last = max(chosen, key=lambda pair: pair[0])
    same = [start for _, start in chosen if len(start) == len(last)]
    if likely is None:
        return same[:N_PROMPTS]
    usual = [start for start in same if start != last]
    return [*usual[: N_PROMPTS - 1], last]


def continued(
    session: Session, starts: Sequence[Sequence[int]], push: AbstractContextManager[Any]
) -> tuple[list[Said] | None, str]:
    """Greedy continuations of some starts in a model as `push` makes it, and why there are none."""
    tokenizer = session.tokenizer
    generate = getattr(session.model, "generate", None)
    limit = max_positions(session)
    if tokenizer is None or tokenizer.decode is None or not starts:
        return None, "there is no tokenizer to write texts with, or no prompt is long enough"
    n = LENGTH if limit is None else min(LENGTH, limit - len(starts[0]))
    if not callable(generate) or n < 1:
        return None, "the model cannot go on with a text"
    torch, transformers = need_transformers()
    ids = torch.as_tensor([list(row) for row in starts], device=session.device)
    try:
        with push, session.running(), quiet(transformers):
            made = generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=n,
                do_sample=False,
                pad_token_id=pad_id(session),
            )
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        return None, f"generating failed: {line(error)[:120]}"
    out, ends = [], _ends(session.model)
    for row in made[:, ids.shape[1] :].tolist():
        # Behind its end a text is filled up with pads, which may be a token like any other.
        text = list(takewhile(lambda token: token not in ends, row))
        while text and text[-1] in tokenizer.special:
            text.pop()
        out.append(Said(tokenizer.decode(text), tuple(text)))
    return out, ""


def _ends(model: Any) -> frozenset[int]:
    """Tokens behind which the model's `generate` writes no more."""
    own = ids_in(getattr(model, "generation_config", None), "eos_token_id")
    return own or ids_in(model.config, "eos_token_id")
