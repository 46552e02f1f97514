"""``org/name@first..last``: the branches and tags of a hub model between two numbered ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from eigenlens.errors import OptionError, SourceError, nearest
from eigenlens.inert import inert
from eigenlens.tensors.hub import HubModel, parse_hub_id

_NUMBER = re.compile(r"(\d+)")


def is_range(text: str) -> bool:
    """Whether a MODEL is meant as a range of revisions."""
    name, at, revisions = text.partition("@")
    return bool(at) and ".." in revisions and parse_hub_id(name) is not None


def hub_range(text: str) -> list[str]:
    """The MODEL of every revision of a range, by ascending number; asks the hub for its refs.

    Parameters
    ----------
    text
        ``org/name@first..last``. See `between` for what a range is.

    Raises
    ------
    OptionError
        The two names are no range, or one that is ambiguous.
    SourceError
        The hub cannot be asked, or has no such revision.
    """
    name, _, revisions = text.partition("@")
    first, _, last = revisions.partition("..")
    if not first or not last or ".." in last:
        raise OptionError(
            f"{inert(text)}: is no range of revisions; write org/name@first..last, such as "
            f"{inert(name)}@step1000..step5000"
        )
    position = counting(text, first, last)
    found = between(inert(name), position, first, last, HubModel(name).revisions())
    return [f"{name}@{revision}" for revision in found]


def between(
    label: str, position: int, first: str, last: str, refs: Sequence[tuple[str, str]]
) -> list[str]:
    """Names of the branches and tags between two of them.

    A range counts by one number: the first in which the two names differ. What lies in it are the
    refs whose name is theirs but for that number, first <= number <= last. Numbers that stand
    behind it may differ too, as in ``step1000-tokens4B..step2000-tokens8B``.

    Parameters
    ----------
    label
        The model, for messages.
    position
        From `counting`: where the number stands that counts.
    first, last
        The two names; both have to be there.
    refs
        Name and commit of every branch and tag.

    Raises
    ------
    SourceError
        One of the two is not there.
    OptionError
        Two refs have the same number: other names, or a branch and a tag of one name that point to
        different commits.
    """
    names = {name for name, _ in refs}
    for end in (first, last):
        if end not in names:
            raise SourceError(
                f"{label}: the model has no branch or tag '{inert(end)}'"
                f"{nearest(inert(end), map(inert, names))}; both ends of a range must exist"
            )
    begin = _pieces(first)
    low, high = (int(_pieces(end)[position]) for end in (first, last))
    found: dict[int, tuple[str, str]] = {}
    for name, commit in refs:
        pieces = _pieces(name)
        if pieces[0::2] != begin[0::2] or pieces[:position] != begin[:position]:
            continue
        number = int(pieces[position])
        if not low <= number <= high:
            continue
        if found.setdefault(number, (name, commit)) != (name, commit):
            raise OptionError(
                f"{label}: {inert(first)}..{inert(last)} is ambiguous: two different revisions, "
                f"'{inert(found[number][0])}' and '{inert(name)}', have the number {number}; list "
                "the ones that are meant in a file"
            )
    return [found[number][0] for number in sorted(found)]


def _pieces(name: str) -> list[str]:
    """``step10-a`` as ``["step", "10", "-a"]``: texts at even positions, numbers at odd ones."""
    return _NUMBER.split(name)


def counting(text: str, first: str, last: str) -> int:
    """Where, among the pieces of both names, the number stands in which they differ first.

    Raises
    ------
    OptionError
        The names differ in more than numbers, in nothing, or go down.
    """
    a, b = _pieces(first), _pieces(last)
    if a[0::2] != b[0::2] or len(a) == 1:
        raise OptionError(
            f"{inert(text)}: '{inert(first)}' and '{inert(last)}' are no range: they must be the "
            "same but for a number, as step1000..step5000; list the revisions in a file instead"
        )
    position = next((i for i in range(1, len(a), 2) if int(a[i]) != int(b[i])), None)
    if position is None:
        raise OptionError(
            f"{inert(text)}: both ends have the same number; give two different ones, or one "
            "revision"
        )
    if int(a[position]) > int(b[position]):
        raise OptionError(
            f"{inert(text)}: the range goes down from {a[position]} to {b[position]}; write "
            f"{inert(last)}..{inert(first)}"
        )
    return position
