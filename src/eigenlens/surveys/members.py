"""Which checkpoints a survey is of: a list, a pattern of folders, a range of revisions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from eigenlens.errors import OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.surveys.revisions import hub_range, is_range
from eigenlens.tensors.hub import parse_hub_id

LIST_LIMIT = 10_000_000
"""Bytes of a list; a larger file is no list but a weight file given by mistake."""

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_STEP = re.compile(r"(?<![a-z])(?:global_?)?(?:step|checkpoint|ckpt|iter|iteration)[-_]?(\d{1,15})")
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Member:
    """One checkpoint of a survey.

    Attributes
    ----------
    name
        As the user named it, made inert: what the results are kept and shown under.
    model
        What is opened: a local path made absolute, since workers may run elsewhere.
    series
        What it is a revision of: the hub id, or the folder around numbered checkpoints.
    train_step
        The number of the training step that its name states, else None.
    """

    name: str
    model: str
    series: str
    train_step: int | None


@dataclass(frozen=True)
class Members:
    """The checkpoints of a survey, each once, and what a reader should know of the list."""

    found: tuple[Member, ...]
    warnings: tuple[str, ...] = ()


def read_members(source: str | Path | Sequence[str | Path]) -> Members:
    """The checkpoints that `source` names.

    Parameters
    ----------
    source
        A text file of MODEL lines (empty lines and what follows ``#`` at the start of a line or
        after a space do not count); a pattern of folders and weight files such as
        ``runs/checkpoint-*``; ``org/name@first..last``
        (see `eigenlens.surveys.revisions.hub_range`); one MODEL; or a sequence of any of these but
        the file. Lines of a file may be patterns and ranges too. Relative paths start at the
        working folder, as on the command line.

    Raises
    ------
    SourceError
        The list cannot be read or names nothing, a pattern matches nothing, or a range is not
        there.
    OptionError
        A range is not one.
    """
    warnings: list[str] = []
    if isinstance(source, (str, Path)):
        text = str(source)
        path = _existing(text)
        if path is None and not _could_be(text):
            raise SourceError(
                f"{inert(text)[:200]}: no such list, folder or file; give a text file of MODEL "
                "lines, a pattern, a range org/name@first..last, or one MODEL"
            )
        lines = _lines(path) if path is not None and _is_list(path) else [(text, "")]
    else:
        lines = [(str(item), "") for item in source]
    found: dict[str, Member] = {}
    for text, where in lines:
        for member in _expand(text, where, warnings):
            if member.name in found:
                warnings.append(f"{member.name} is named more than once; it is surveyed once")
            found.setdefault(member.name, member)
    if not found:
        raise SourceError(
            f"{inert(str(source))}: names no checkpoint; write one MODEL a line: a folder, a file, "
            "org/name[@rev] or sample:NAME"
        )
    return Members(tuple(found.values()), tuple(dict.fromkeys(warnings)))


def member(name: str) -> Member:
    """The member of one MODEL text, which need not exist."""
    path = _existing(name)
    label = inert(name)
    series, step = training(label)
    return Member(label, name if path is None else str(path.absolute()), series, step)


def training(label: str) -> tuple[str, int | None]:
    """Series and training step that a name states.

    The step is the number after the last ``step``, ``checkpoint``, ``ckpt`` or ``iter`` of the
    revision or, of a path, of its last part that has one.
    """
    hub, at, revision = label.partition("@")
    if at and parse_hub_id(hub) is not None:
        found = _STEP.findall(revision.lower())
        return hub, int(found[-1]) if found else None
    parts = label.replace("\\", "/").rstrip("/").split("/")
    for i in range(len(parts) - 1, -1, -1):
        found = _STEP.findall(parts[i].lower())
        if found:
            return "/".join(parts[:i]) or label, int(found[-1])
    return label, None


def _existing(text: str) -> Path | None:
    """The path that `text` is, if there is something; never a sample or an empty name."""
    if not text or "\0" in text or text.startswith("sample:"):
        return None
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):
        return None


def _could_be(text: str) -> bool:
    """Whether a text that is no path may still name checkpoints."""
    known = text.startswith("sample:") or parse_hub_id(text) is not None
    return known or is_range(text) or has_magic(text)


def _is_list(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() not in _WEIGHTS


def _lines(path: Path) -> list[tuple[str, str]]:
    """The MODEL lines of a list, each with where it stands, for messages."""
    shown = inert(str(path))
    try:
        if path.stat().st_size > LIST_LIMIT:
            raise SourceError(
                f"{shown}: is too large for a list of models ({path.stat().st_size} bytes); a "
                f"weight file ends in {', '.join(_WEIGHTS)}"
            )
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SourceError(f"{shown}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{shown}: is not a text file in UTF-8 (byte {error.start}); a list has one MODEL a "
            "line"
        ) from None
    stripped = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [(line, f"{shown} line {i}: ") for i, line in enumerate(stripped, 1) if line]


def _expand(text: str, where: str, warnings: list[str]) -> Iterable[Member]:
    """One line as its members."""
    path = _existing(text)
    if path is not None:
        if (
            path.is_dir()
            and not (path / "config.json").exists()
            and any(path.glob("*/config.json"))
        ):
            raise SourceError(
                f"{where}{inert(text)}: is a folder of models, not a model; write "
                f"'{inert(text.rstrip('/'))}/*' for all of them"
            )
        if where and _is_list(path):
            raise SourceError(f"{where}{inert(text)} is no model: a list cannot name another list")
        return [member(text)]
    if is_range(text):
        try:
            return [member(name) for name in hub_range(text)]
        except (OptionError, SourceError) as error:
            raise type(error)(f"{where}{error}") from error
    if has_magic(text) and not text.startswith("sample:"):
        return _matches(text, where, warnings)
    return [member(text)]


def _matches(pattern: str, where: str, warnings: list[str]) -> list[Member]:
    """Model folders and weight files that a pattern matches, 2 before 10."""
    there = sorted(glob(str(Path(pattern).expanduser()), recursive=True), key=_natural)
    found, folders = [], 0
    for name in there:
        path = Path(name)
        if path.is_dir():
            if (path / "config.json").exists():
                found.append(name)
            else:
                folders += 1
        elif path.suffix.lower() in (".safetensors", ".gguf"):
            found.append(name)
    if not found:
        what = "matches nothing" if not there else "matches no folder with a config.json"
        raise SourceError(f"{where}{inert(pattern)}: {what}, and no .safetensors or .gguf file")
    if folders:
        noun = "folder has" if folders == 1 else "folders have"
        warnings.append(f"{inert(pattern)}: {folders} {noun} no config.json and left out")
    once = _once(found)
    if len(once) < len(found):
        warnings.append(
            f"{inert(pattern)}: {len(found) - len(once)} of {len(found)} lead to one of the others "
            "through a symbolic link and left out"
        )
    return [member(name) for name in once]


def _once(names: list[str]) -> list[str]:
    """Each place once, by its shortest name: links may lead there again, in a circle for ever.

    Links to single weight files count: a cache of the hub keeps two revisions of equal weights as
    two links to one file.
    """
    shortest: dict[str, str] = {}
    for name in names:
        path = Path(name)
        place = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
        known = shortest.get(str(place))
        if known is None or len(path.parts) < len(Path(known).parts):
            shortest[str(place)] = name
    kept = set(shortest.values())
    return [name for name in names if name in kept]


def _natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key under which numbers count as numbers."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in _DIGITS.split(text) if p]
