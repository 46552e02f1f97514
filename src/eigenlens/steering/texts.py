"""Two sets of texts: one that the probe is fitted to, and another that the edit is judged on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from eigenlens.errors import OptionError
from eigenlens.inert import inert
from eigenlens.live.session import Session
from eigenlens.prompts import check_file, read_prompts
from eigenlens.shown.words import count_text
from eigenlens.tracing.feed import Feed, Prompts, read_feed

Texts = str | Path | Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class Sets:
    """Token ids to calibrate on and to evaluate on; no prompt is in both.

    Attributes
    ----------
    calibration, evaluation
        One sequence of ids a prompt.
    sources
        Where the two come from, for the record.
    warnings
        What a reader should know of them.
    """

    calibration: tuple[tuple[int, ...], ...]
    evaluation: tuple[tuple[int, ...], ...]
    sources: tuple[str, str]
    warnings: tuple[str, ...] = ()


def read_sets(
    session: Session, calibrate: Texts | None, evaluate: Texts | None, *, seed: int = 0
) -> Sets:
    """The two sets: files or texts that are given, else the halves of the package's prompts.

    Of the package's 64 sentences every other one is calibrated on and the rest evaluated on, so
    that both halves hold all kinds. A model without a tokenizer gets random tokens.

    Raises
    ------
    OptionError
        Both sets are the same prompts, or the model does not read tokens.
    FormatError, SourceError
        See `eigenlens.tracing.feed.read_feed`.
    """
    if session.vision:
        raise OptionError(f"{session.label} sees images: steering reads and writes tokens")
    usual = None
    if calibrate is None or evaluate is None:
        usual = _usual(session, seed)
    found: list[tuple[tuple[tuple[int, ...], ...], str]] = []
    for half, given in enumerate((calibrate, evaluate)):
        if given is None and usual is not None:
            found.append((usual.ids[half::2], f"{usual.source}, every other prompt"))
        else:
            feed = read_feed(session, _prompts(given))
            found.append((feed.ids, feed.source))
    (a, from_a), (b, from_b) = found
    warnings = list(usual.warnings if usual is not None else ())
    shared = set(a) & set(b)
    if shared and not set(b) - shared:
        raise OptionError(
            "the evaluation text is the calibration text: an edit is judged on text that its probe "
            "has not seen; give another file with --evaluate"
        )
    if shared:
        b = tuple(ids for ids in b if ids not in shared)
        verb = "is" if len(shared) == 1 else "are"
        warnings.append(
            f"{count_text(len(shared), 'prompt')} that {verb} calibrated on {verb} not evaluated on"
        )
    return Sets(a, b, (from_a, from_b), tuple(warnings))


def check_sources(*given: Any) -> None:
    """Refuse files of texts that are not there, before a model is loaded; None is none.

    Raises
    ------
    FormatError
        See `eigenlens.prompts.check_file`.
    """
    for source in given:
        if isinstance(source, (str, Path)):
            check_file(source)


def _prompts(given: Any) -> Prompts:
    """Raises OptionError for what is no file, no list of texts and no list of lists of ids."""
    if isinstance(given, (str, Path)):
        return Prompts(file=given)
    found: list[Any] = list(given) if _lists(given) else [None]
    if all(isinstance(text, str) for text in found):
        for text in found:
            check_text(text)
        return Prompts(texts=found)
    try:
        return Prompts(token_ids=[[index(i) for i in ids] for ids in found])
    except TypeError as error:
        raise OptionError(
            "calibration and evaluation text is a file, a list of texts, or a list of lists of "
            f"token ids; found {inert(repr(given))[:80]}"
        ) from error


def _lists(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (bytes, Mapping))


def check_text(text: str) -> None:
    """Check that a text can be encoded: arguments that are no UTF-8 arrive as lone surrogates.

    Raises
    ------
    OptionError
        It cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"the text '{inert(text[:60])}' is no Unicode text: give it in UTF-8"
        ) from error


def _usual(session: Session, seed: int) -> Feed:
    return read_feed(session, Prompts(), seed)


def encode_file(session: Session, path: str | Path | Sequence[str]) -> list[list[int]]:
    """Token ids of the prompts of a file, or of texts."""
    texts = read_prompts(path) if isinstance(path, (str, Path)) else list(path)
    for text in texts:
        check_text(text)
    return session.encode(texts)
