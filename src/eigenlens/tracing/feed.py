"""What is fed to the model: texts, token ids or random tokens, by option or by what fits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eigenlens.errors import OptionError
from eigenlens.live.batches import (
    Batch,
    Batches,
    make_batches,
    max_positions,
    named_ids,
    random_pixels,
)
from eigenlens.live.batches import vocabulary_size as size_of
from eigenlens.live.session import Session
from eigenlens.prompts import (
    check_file,
    prompt_set,
    random_token_ids,
    read_prompts,
    read_token_ids,
    split_smiles,
    splitter,
)
from eigenlens.tracing.options import TraceOptions

DEFAULT_PROMPTS = 64
DEFAULT_LENGTH = 16


@dataclass(frozen=True)
class Prompts:
    """Which prompts to use; at most one of the four, none for what fits the model.

    Attributes
    ----------
    texts
        Texts themselves.
    file
        Texts of a file, one a line or .jsonl.
    token_ids
        Ids of a file, one JSON list a line; or the lists themselves.
    random
        Number of prompts of `length` random tokens.
    length
        Tokens of a random prompt.
    """

    texts: Sequence[str] | None = None
    file: str | Path | None = None
    token_ids: str | Path | Sequence[Sequence[int]] | None = None
    random: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        given = [
            name
            for name, value in (
                ("--text", self.texts),
                ("--prompts", self.file),
                ("--token-ids", self.token_ids),
                ("--random-tokens", self.random),
            )
            if value is not None
        ]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} were given: take one source of prompts")
        if self.length is not None and self.random is None:
            raise OptionError("--length is that of random prompts: give --random-tokens as well")
        if not (self.file is None or isinstance(self.file, (str, Path))):
            raise OptionError(
                f"prompts is a {type(self.file).__name__}: it names a file; give the prompts "
                "themselves as texts"
            )
        for value in (self.file, self.token_ids):
            if isinstance(value, (str, Path)):
                check_file(value)  # before a model is loaded


@dataclass(frozen=True)
class Feed:
    """Token ids of every prompt, and where they come from.

    Attributes
    ----------
    ids
        One sequence a prompt; empty for a model that sees images.
    source
        For the record: `default`, `smiles`, `text`, `file`, `token ids`, `random tokens`, `pixels`.
    warnings
        What a reader should know of them.
    n_prompts
        Their number.
    """

    ids: tuple[tuple[int, ...], ...]
    source: str
    n_prompts: int
    warnings: tuple[str, ...] = ()


def read_feed(session: Session, prompts: Prompts, seed: int = 0) -> Feed:
    """Token ids of the prompts asked for.

    Parameters
    ----------
    session
        The model.
    prompts
        What was asked.
    seed
        Of random tokens.

    Raises
    ------
    FormatError
        A file is missing, empty or not readable.
    OptionError
        No prompt, or more than 20 % unknown tokens.
    SourceError
        Text was given and the model has no tokenizer.
    """
    if session.vision:
        return _pixels(prompts)
    if prompts.token_ids is not None:
        ids = prompts.token_ids
        if isinstance(ids, (str, Path)):
            ids = read_token_ids(ids, size_of(session))
        return _feed(ids, "token ids")
    if prompts.random is not None:
        return _random(session, prompts.random, prompts.length, seed)
    if prompts.file is not None:
        return _feed(session.encode(read_prompts(prompts.file)), "file")
    if prompts.texts is not None:
        return _feed(session.encode(list(prompts.texts)), "text")
    if session.tokenizer is None:
        why = next((w for w in session.warnings if "token" in w), "there is no tokenizer")
        found = _random(session, DEFAULT_PROMPTS, None, seed)
        note = (
            f"{why}; {found.n_prompts} prompts of {len(found.ids[0])} random tokens are used, "
            "which are not what the model was trained on"
        )
        return Feed(found.ids, found.source, found.n_prompts, (note,))
    name = "smiles" if splitter(session.label) is split_smiles else "default"
    return _feed(session.encode(prompt_set(name)), name)


def batches_of(
    session: Session, feed: Feed, options: TraceOptions
) -> tuple[Feed, Batches | list[Batch]]:
    """The prompts as they are fed, with warnings, and batches to iterate over as often as wanted.

    Prompts that are too long are cut, and of those that are then alike one is kept: the same tokens
    are no further evidence.

    Raises
    ------
    OptionError
        A prompt is empty or too long, or has ids that the model does not know.
    """
    if session.vision:
        return feed, list(random_pixels(session, feed.n_prompts, options.seed, options.batch_size))
    size, too_long = options.batch_size, options.too_long
    made = make_batches(session, feed.ids, batch_size=size, truncation=too_long)
    once = tuple(dict.fromkeys(made.prompts))
    warnings = [*feed.warnings, *made.warnings]
    if len(once) < len(made.prompts):
        warnings.append(
            f"{len(made.prompts) - len(once)} of {len(made.prompts)} prompts repeat another one "
            "and are left out: the same tokens are no further evidence"
        )
    fed = Feed(once, feed.source, len(once), tuple(warnings))
    return fed, replace(made, prompts=once)


def _feed(ids: Sequence[Sequence[int]], source: str) -> Feed:
    return Feed(tuple(tuple(row) for row in ids), source, len(ids))


def _random(session: Session, n: int, length: int | None, seed: int) -> Feed:
    if length is None:
        length = min(DEFAULT_LENGTH, max_positions(session) or DEFAULT_LENGTH)
    size = size_of(session)
    avoid = [i for i in named_ids(session) if i < size]
    return _feed(random_token_ids(n, length, size, seed=seed, avoid=avoid), "random tokens")


def _pixels(prompts: Prompts) -> Feed:
    if prompts.texts is not None or prompts.file is not None or prompts.token_ids is not None:
        raise OptionError("this model sees images, not tokens: leave prompts out")
    n = prompts.random or DEFAULT_PROMPTS
    if n < 1:
        raise OptionError(f"{n} images: at least 1 is needed")
    note = f"this model sees images: {n} images of random pixels are used"
    return Feed((), "pixels", n, (note,))
