"""Prompt sets, prompt and token-id files, SMILES, unknown tokens, random tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenlens.errors import EigenlensError, FormatError, OptionError
from eigenlens.prompts import (
    PROMPT_SETS,
    prompt_set,
    random_token_ids,
    read_prompts,
    read_token_ids,
    split_smiles,
    splitter,
)
from eigenlens.samples import SAMPLES, sample_path


def test_default_set_is_64_different_short_sentences() -> None:
    found = prompt_set()
    assert len(found) == len(set(found)) == 64
    assert all(8 <= len(p.split()) <= 16 for p in found)
    assert all(p.isascii() and p == p.strip() for p in found)
    # Of many kinds: questions, speech, numbers, code, lists, commands.
    for sign, least in (("?", 5), ('"', 3), (":", 5), ("(", 2), ("{", 1), ("!", 1)):
        assert sum(sign in p for p in found) >= least
    assert sum(any(c.isdigit() for c in p) for p in found) >= 8
    assert len({p.split()[0] for p in found}) >= 48


def test_the_eight_sentences_of_the_known_answers() -> None:
    found = prompt_set("s8")
    assert len(found) == 8
    assert found[0] == "The quick brown fox jumps over the lazy dog."
    assert found[7] == "Rain is expected in the north while the south stays dry."
    assert not set(found) & set(prompt_set())


def test_sets_and_their_files_are_one_to_one() -> None:
    folder = Path(str(__import__("eigenlens").__file__)).parent / "data" / "prompts"
    assert {p.name for p in folder.iterdir()} == {row.file for row in PROMPT_SETS.values()}
    assert all(prompt_set(name) for name in PROMPT_SETS)
    known = {name for name in SAMPLES if splitter(f"sample:{name}") is not None}
    assert known == {"albert-rxn"}
    assert splitter("albert-rxn") is None  # a folder of the user's
    with pytest.raises(OptionError, match="nearest: 'smiles'"):
        prompt_set("smile")


def balanced(tokens: list[str]) -> bool:
    """Branches nest and every ring that is opened is closed, in each part of a reaction."""
    depth, rings = 0, set()
    for token in tokens:
        if token in (".", ">", ">>") and depth:
            return False
        if token in (">", ">>") and rings:
            return False
        depth += (token == "(") - (token == ")")
        if depth < 0:
            return False
        if re.fullmatch(r"\d|%.*", token):
            rings ^= {token.lstrip("%")}
    return depth == 0 and not rings


def test_smiles_set_is_well_formed() -> None:
    found = prompt_set("smiles")
    assert len(found) == len(set(found)) == 32
    assert sum(">>" in s for s in found) >= 12
    for text in found:
        tokens = split_smiles(text)
        assert "".join(tokens) == text
        assert balanced(tokens)
    # The check itself sees an open ring, an open branch and a branch that was never opened.
    for bad in ("C1CC", "C(C", "CC)C", "C(C.C)", "C1C>>C1C"):
        assert not balanced(split_smiles(bad))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ClCCBr", ["Cl", "C", "C", "Br"]),
        ("[nH]1cccc1", ["[nH]", "1", "c", "c", "c", "c", "1"]),
        ("C[C@@H](N)C", ["C", "[C@@H]", "(", "N", ")", "C"]),
        ("C%12C%(123)1", ["C", "%12", "C", "%(123)", "1"]),
        ("CSc", ["C", "S", "c"]),  # sulphur and aromatic carbon, not scandium
        ("[13CH3-].[Fe+2]", ["[13CH3-]", ".", "[Fe+2]"]),
        ("[CH3:1]/C=C\\[O-:2]", ["[CH3:1]", "/", "C", "=", "C", "\\", "[O-:2]"]),
        ("C#N>O>C$C", ["C", "#", "N", ">", "O", ">", "C", "$", "C"]),
        ("C~C>>*", ["C", "~", "C", ">>", "*"]),
        ("[Co@OH12][Ca++]", ["[Co@OH12]", "[Ca++]"]),
        ("  CC \n", ["C", "C"]),
    ],
)
def test_split_smiles(text: str, tokens: list[str]) -> None:
    assert split_smiles(text) == tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The quick fox", "character 1, 'T'"),
        ("CC[C", r"character 3, '\['"),
        ("C1CC%1", "character 5, '%'"),
        ("CC C", "character 3, ' '"),
        ("CX", "character 2, 'X'"),
        ("Ll", "character 1, 'L'"),
        ("C\u0661", "character 2"),  # a digit, but no ASCII one
        ("C\x1b[31m", r"character 2, '\\x1b'"),
        ("", "empty"),
    ],
)
def test_what_is_no_smiles_is_refused(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        split_smiles(text)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@given(st.lists(st.sampled_from(split_smiles("[C@H]ClBrCNOcn()=#%10/\\.>>[Na+]*")), min_size=1))
def test_tokens_joined_are_split_the_same(tokens: list[str]) -> None:
    text = "".join(tokens)
    found = split_smiles(text)
    assert "".join(found) == text
    if ">>" not in tokens:
        assert found == tokens


def vocabulary() -> list[str]:
    return (sample_path("albert-rxn") / "vocab.txt").read_text().split("\n")


def test_the_chemistry_vocabulary_knows_every_token() -> None:
    known = vocabulary()
    molecules = [t for t in known if not re.fullmatch(r"|\[([A-Z]{3,4}|unused\d+)\]", t)]
    assert len(molecules) > 500
    # Each entry is one token for the splitter, so no split can miss the vocabulary's own cut.
    assert [t for t in molecules if split_smiles(t) != [t]] == []
    ids = {token: i for i, token in enumerate(known)}
    prompts = [[ids.get(t, ids["[UNK]"]) for t in split_smiles(s)] for s in prompt_set("smiles")]
    assert not any(ids["[UNK]"] in prompt for prompt in prompts)
    # Planted: one character a token, what a splitter without a grammar does.
    loose = [ids.get(t, ids["[UNK]"]) for s in prompt_set("smiles") for t in s]
    assert loose.count(ids["[UNK]"]) / len(loose) > 0.05


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_one_prompt_a_line(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbffirst\r\n\n  \n second \nthi\xe2\x80\xa8rd"
    found = read_prompts(write(tmp_path, "p.txt", content))
    assert found == ["first", " second ", "thi\u2028rd"]
    assert read_prompts(str(write(tmp_path, "none", "one"))) == ["one"]


def test_jsonl_with_text(tmp_path: Path) -> None:
    rows = [{"text": "a\nb", "id": 3}, {"text": "ü \u2028 z"}]
    content = "\n\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n"
    assert read_prompts(write(tmp_path, "p.JSONL", content)) == ["a\nb", "ü \u2028 z"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.txt", b"", "holds no prompt"),
        ("p.txt", b"\n \n\t\n", "holds no prompt"),
        ("p.txt", b"good\nb\xffd\n", r"line 2: is not UTF-8 text \(byte 0xff\)"),
        ("p.txt", "a\nb".encode("utf-16"), "line 1: is not UTF-8"),
        ("p.txt", "a\nb".encode("utf-16-le"), "line 1: holds a NUL"),
        ("p.jsonl", b'{"text": "a"}\n\n{"text": }', "line 3: is not valid JSON"),
        ("p.jsonl", b'{"text": "a"}\n["b"]', "line 2: has no field 'text' .found list"),
        ("p.jsonl", b'{"txt": "a"}', r"line 1: has no field 'text' \(found fields \['txt'\]\)"),
        ("p.jsonl", b'{"text": 5}', "line 1: 'text' is 5; it must be a string"),
        ("p.jsonl", b'{"text": " "}', "not empty"),
        ("p.jsonl", b'{"text": "\\ud800"}', "line 1: 'text' holds half"),
        ("p.jsonl", b"[" * 200_000, "line 1: is (not valid JSON|JSON that cannot be read)"),
        ("p.jsonl", b'{"a":' + b"9" * 5000 + b"}", "line 1: is JSON that cannot be read"),
        ("p.jsonl", b"", "holds no prompt"),
        ("p.json", b'["a"]', "jsonl"),
    ],
)
def test_bad_prompt_files_name_the_line(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(FormatError, match=words) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_prompts, read_token_ids])
def test_missing_files_and_folders(tmp_path: Path, read: Callable[[Path], object]) -> None:
    for path in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(FormatError, match="no such file"):
            read(path)
    with pytest.raises(FormatError, match=r"a\\nb"):
        read(tmp_path / "a\nb")


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigenlens.prompts._SIZE_LIMIT", 4)
    with pytest.raises(FormatError, match="has 5 bytes"):
        read_prompts(write(tmp_path, "p.txt", "12345"))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "p.txt", "a")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(FormatError, match="Permission denied"):
        read_prompts(path)


def test_token_ids(tmp_path: Path) -> None:
    path = write(tmp_path, "ids.jsonl", "[1, 2, 3]\n\n[0]\r\n")
    assert read_token_ids(path) == [[1, 2, 3], [0]]
    assert read_token_ids(path, vocab_size=4) == [[1, 2, 3], [0]]
    with pytest.raises(FormatError, match=r"line 1: 3 is no token id; .* vocabulary size 3"):
        read_token_ids(path, vocab_size=3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no token ids"),
        ("[1]\n[]", r"line 2: is \[\]; every line must be a JSON list"),
        ("1 2 3", "line 1: is not valid JSON"),
        ('{"ids": [1]}', "line 1: is .*; every line must be a JSON list"),
        ("[1, -1]", "line 1: -1 is no token id"),
        ("[1.0]", "1.0 is no token id"),
        ("[true]", "True is no token id"),
        ('["a"]', "'a' is no token id"),
        ("[[1]]", r"\[1\] is no token id"),
        ("[NaN]", "nan is no token id"),
    ],
)
def test_bad_token_ids_name_the_line(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        read_token_ids(write(tmp_path, "ids.txt", content))
    assert "\n" not in str(caught.value)


def test_random_tokens_are_seeded_uniform_and_avoid() -> None:
    found = random_token_ids(200, 50, 8, seed=1, avoid={0, 3, 99})
    assert found == random_token_ids(200, 50, 8, seed=1, avoid={0, 3, 99})
    assert found != random_token_ids(200, 50, 8, seed=2, avoid={0, 3, 99})
    assert {len(row) for row in found} == {50}
    ids, counts = np.unique(found, return_counts=True)
    assert list(ids) == [1, 2, 4, 5, 6, 7]
    # 10,000 draws of six ids: each within five standard deviations of its share.
    assert np.abs(counts - 10_000 / 6).max() < 5 * np.sqrt(10_000 * 5 / 36)
    assert json.loads(json.dumps(found)) == found  # plain integers


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: random_token_ids(0, 4, 8), OptionError, "0 prompts"),
        (lambda: random_token_ids(1, 0, 8), OptionError, "0 tokens a prompt"),
        (lambda: random_token_ids(1, 1, 8, seed=-1), OptionError, "seed -1"),
        (lambda: random_token_ids(1, 1, 2, avoid=[0, 1]), OptionError, "none to draw"),
        (lambda: random_token_ids(1, 1, 0), OptionError, "none to draw"),
    ],
)
def test_bad_random_tokens(
    call: Callable[[], object], kind: type[EigenlensError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        call()
