"""What is fed to a model: sets of the package, prompt and token-id files, SMILES, random tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eigenlens.errors import FormatError, OptionError, nearest
from eigenlens.inert import inert

_SIZE_LIMIT = 256 * 1024 * 1024


@dataclass(frozen=True)
class PromptSet:
    """One row of the table of prompt sets that come with the package.

    Attributes
    ----------
    name
        What users type.
    file
        Under ``data/prompts``, one prompt a line.
    kind
        ``text``, or ``smiles``: to be cut by `split_smiles`.
    what
        One line for a person.
    """

    name: str
    file: str
    kind: Literal["text", "smiles"]
    what: str


PROMPT_SETS: dict[str, PromptSet] = {
    row.name: row
    for row in (
        PromptSet("default", "default.txt", "text", "64 short English sentences of many kinds"),
        PromptSet("s8", "s8.txt", "text", "the eight sentences of the known answers"),
        PromptSet("smiles", "smiles.txt", "smiles", "32 molecules and reactions, SMILES"),
    )
}


def prompt_set(name: str = "default") -> list[str]:
    """The prompts of a set of the package.

    Raises
    ------
    OptionError
        The set is unknown.

    Examples
    --------
    >>> len(prompt_set())
    64
    """
    if name not in PROMPT_SETS:
        raise OptionError(
            f"prompt set '{inert(name)}' is unknown{nearest(name, PROMPT_SETS)}; the sets are "
            f"{', '.join(PROMPT_SETS)}"
        )
    return read_prompts(Path(__file__).parent / "data" / "prompts" / PROMPT_SETS[name].file)


# OpenSMILES: a bracket atom is [isotope symbol chirality hydrogens charge class]; outside brackets
# stand the organic subset, bonds, ring closures of one or two digits (three in parentheses),
# branches and dots; > separates the parts of a reaction. ~, any bond, is no SMILES but holds the
# fragments of one salt together in reaction data.
_SMILES = re.compile(
    r"""
    \[ \d* (?: [A-Z][a-z]? | [a-z]{1,2} | \* )
       (?: @@ | @ (?: TH | AL | SP | TB | OH ) \d{1,2} | @ )?
       (?: H \d* )? (?: \++ \d* | -+ \d* )? (?: : \d+ )? \]
    | Cl | Br | [BCNOPSFI] | [bcnops] | \*
    | [-=\#$:/\\~]
    | % (?: \d\d | \( \d+ \) ) | \d
    | [().]
    | >> | >
    """,
    re.VERBOSE | re.ASCII,
)


def split_smiles(text: str) -> list[str]:
    """A SMILES string as the tokens that chemistry models read; joined they are the text again.

    Bracket atoms, two-letter elements, two-digit ring closures and the ``>>`` of a reaction are
    one token each.

    Raises
    ------
    OptionError
        A character begins no SMILES token, or there is nothing.

    Examples
    --------
    >>> split_smiles("C[C@H](Cl)Br>>C%10")
    ['C', '[C@H]', '(', 'Cl', ')', 'Br', '>>', 'C', '%10']
    """
    text = text.strip()
    if not text:
        raise OptionError("an empty text is no SMILES string; give a molecule or reaction")
    tokens = []
    place = 0
    while place < len(text):
        found = _SMILES.match(text, place)
        if found is None:
            raise OptionError(
                f"'{inert(text[:60])}' is not SMILES: no token starts at character {place + 1}, "
                f"'{inert(text[place])}'; this model reads molecules and reactions, as CCO>>CC=O"
            )
        tokens.append(found[0])
        place = found.end()
    return tokens


def _place(path: Path, number: int | None = None) -> str:
    return inert(str(path)) + ("" if number is None else f", line {number}")


def check_file(path: str | Path) -> None:
    """Refuse a file of prompts that is not there or too large, without reading it.

    Raises
    ------
    FormatError
        No such file, it may not be looked at, or it is larger than a list of prompts may be.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise FormatError(f"{_place(path)}: no such file; check the path")
        size = path.stat().st_size
    except OSError as error:
        raise _unread(path, error) from error
    if size > _SIZE_LIMIT:
        raise FormatError(
            f"{_place(path)}: has {size} bytes, more than the {_SIZE_LIMIT} that a list of "
            "prompts may have; split it"
        )


def _unread(path: Path, error: OSError) -> FormatError:
    return FormatError(
        f"{_place(path)}: cannot be read ({error.strerror or type(error).__name__}); "
        "check that it exists and may be read"
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank with their numbers from 1; only a newline ends a line.

    U+2028 and its kin may stand inside a prompt. A byte order mark is dropped.
    """
    check_file(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _unread(path, error) from error
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{_place(path, number)}: is not UTF-8 text (byte 0x{raw[error.start]:02x}); save the "
            "file as UTF-8"
        ) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if "\0" in line:
            raise FormatError(
                f"{_place(path, number)}: holds a NUL character, so this is no UTF-8 text file; "
                "save it as UTF-8"
            )
        if line.strip():
            yield number, line.removesuffix("\r")


def _json_line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{_place(path, number)}: is not valid JSON ({error.msg} at column {error.colno}); "
            "every line must be one JSON value"
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of many digits
        raise FormatError(
            f"{_place(path, number)}: is JSON that cannot be read ({type(error).__name__}); "
            "every line must be one JSON value"
        ) from error


def _text_field(path: Path, number: int, line: str) -> str:
    row = _json_line(path, number, line)
    if not isinstance(row, dict) or "text" not in row:
        found = f"fields {sorted(row)[:5]}" if isinstance(row, dict) else type(row).__name__
        raise FormatError(
            f"{_place(path, number)}: has no field 'text' (found {inert(str(found))}); every line "
            'must be an object as {"text": "..."}'
        )
    text = row["text"]
    if not isinstance(text, str) or not text.strip():
        raise FormatError(
            f"{_place(path, number)}: 'text' is {inert(repr(text))[:40]}; it must be a string that "
            "is not empty"
        )
    # JSON can escape half of a surrogate pair, which no tokenizer can encode.
    if any(0xD800 <= ord(c) < 0xE000 for c in text):
        raise FormatError(
            f"{_place(path, number)}: 'text' holds half of a surrogate pair; write the character "
            "itself as UTF-8"
        )
    return text


def read_prompts(path: str | Path) -> list[str]:
    """Prompts of a file: one a line, or with the suffix .jsonl the ``text`` of every line.

    Blank lines are skipped.

    Raises
    ------
    FormatError
        No file, not UTF-8, no prompt in it, or a line of JSON without a text; with its number.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind == ".json":
        raise FormatError(
            f"{_place(path)}: prompts are read one a line, from plain text or .jsonl with a field "
            "'text'; convert the file, or rename it if it has one JSON object a line"
        )
    found = [
        _text_field(path, number, line) if kind == ".jsonl" else line
        for number, line in _lines(path)
    ]
    if not found:
        raise FormatError(f"{_place(path)}: holds no prompt; write one a line")
    return found


def read_token_ids(path: str | Path, vocab_size: int | None = None) -> list[list[int]]:
    """Token ids of a file with one JSON list a line; blank lines are skipped.

    Parameters
    ----------
    path
        The file, whatever its suffix.
    vocab_size
        Ids must lie below it; None does not check.

    Raises
    ------
    FormatError
        No file, not UTF-8, nothing in it, or a line that is no list of ids; with its number.
    """
    path = Path(path)
    out = []
    for number, line in _lines(path):
        row = _json_line(path, number, line)
        if not isinstance(row, list) or not row:
            raise FormatError(
                f"{_place(path, number)}: is {inert(repr(row))[:40]}; every line must be a JSON "
                "list of token ids, as [101, 2023, 102]"
            )
        for ident in row:
            # bool is a subclass of int, but true is no token.
            bad = type(ident) is not int or ident < 0
            if bad or (vocab_size is not None and ident >= vocab_size):
                limit = "" if vocab_size is None else f" below the vocabulary size {vocab_size}"
                raise FormatError(
                    f"{_place(path, number)}: {inert(repr(ident))[:40]} is no token id; ids are "
                    f"whole numbers from 0{limit}"
                )
        out.append(row)
    if not out:
        raise FormatError(f"{_place(path)}: holds no token ids; write one JSON list a line")
    return out


def random_token_ids(
    n_prompts: int,
    length: int,
    vocab_size: int,
    *,
    seed: int = 0,
    avoid: Collection[int] = (),
) -> list[list[int]]:
    """Prompts of uniformly random token ids, for models without a tokenizer.

    Parameters
    ----------
    n_prompts, length
        How many prompts, of how many tokens.
    vocab_size
        Ids lie below it.
    seed
        The same seed gives the same prompts.
    avoid
        Ids never drawn: special and unused tokens.

    Raises
    ------
    OptionError
        A number below 1, a negative seed, or no id left to draw.
    """
    for value, what in ((n_prompts, "prompts"), (length, "tokens a prompt")):
        if value < 1:
            raise OptionError(f"{value} {what}: random prompts need at least 1")
    if seed < 0:
        raise OptionError(f"seed {seed}: seeds are not negative")
    allowed = np.setdiff1d(np.arange(vocab_size), np.fromiter(avoid, dtype=np.int64))
    if not allowed.size:
        raise OptionError(
            f"a vocabulary of {vocab_size} ids, {len(avoid)} of them avoided, leaves none to draw; "
            "avoid fewer"
        )
    rng = np.random.default_rng(seed)
    drawn = allowed[rng.integers(0, allowed.size, size=(n_prompts, length))]
    return [[int(i) for i in row] for row in drawn]


_SPLITTERS: dict[str, Callable[[str], list[str]]] = {"sample:albert-rxn": split_smiles}


def splitter(label: str) -> Callable[[str], list[str]] | None:
    """How the text of a sample is cut before its vocabulary is looked up; None for other models."""
    return _SPLITTERS.get(label)
