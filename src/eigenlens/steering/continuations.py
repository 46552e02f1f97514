"""How sentences go on, before and after: the likeliest next tokens, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from eigenlens.live.batches import max_positions, pad_id
from eigenlens.live.load import line, need_transformers, quiet
from eigenlens.live.session import Session

N_PROMPTS = 3
STARTS = range(5, 10)
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
    """

    prompt: str
    texts: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, str]:
        """The JSON form."""
        return {"prompt": self.prompt, **self.texts}


def starts_of(
    prompts: Sequence[Sequence[int]],
    special: frozenset[int],
    decode: Callable[[Sequence[int]], str] | None = None,
) -> list[list[int]]:
    """The first tokens of some prompts, all of one length, so that nothing is padded.

    With `decode`, a length at which most of them end between two words.
    """
    texts = []
    for ids in prompts:
        text = [i for i in ids if i not in special]
        if len(text) > STARTS.stop:
            texts.append(([*(i for i in ids[:1] if i in special)], text))
    opening = len(texts[0][0]) if texts else 0
    texts = [(o, text) for o, text in texts if len(o) == opening]
    whole: dict[int, list[list[int]]] = {}
    for n in STARTS:
        whole[n] = [
            [*o, *text[:n]]
            for o, text in texts
            if decode is None or decode(text[: n + 1])[len(decode(text[:n])) :].startswith(" ")
        ]
    best = max(reversed(STARTS), key=lambda n: min(len(whole[n]), N_PROMPTS))
    return whole[best][:N_PROMPTS]


def continued(
    session: Session, starts: Sequence[Sequence[int]], push: AbstractContextManager[Any]
) -> tuple[list[str] | None, str]:
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
    out = []
    for row in made[:, ids.shape[1] :].tolist():
        text = list(row)
        while text and text[-1] in tokenizer.special:
            text.pop()
        out.append(tokenizer.decode(text))
    return out, ""
