"""Text, tokenizers and baselines for `train_samples`: all from this Python's own documentation.

The corpus is the docstrings of the standard library, read from its source files without running
them (its tests left out), and the topics of ``pydoc``. It is split by module: a hash of the
module's name decides, so every machine makes the same split.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

VOCAB = 2048
END, PAD, UNK, CLS, SEP, MASK = "<|endoftext|>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
NOT_READ = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
HELD_OUT_ONE_IN = 11


@dataclass(frozen=True)
class Corpus:
    """Training and held-out text of this Python.

    Attributes
    ----------
    train, held_out
        The two texts; modules are separated by an empty line.
    modules
        Number of modules in each.
    sha256
        Hash of the JSON list of all ``[module, text]`` pairs, sorted.
    """

    train: str
    held_out: str
    modules: tuple[int, int]
    sha256: str


def clean(text: str) -> list[str]:
    """Paragraphs of a docstring: single spaces, no ruled lines, no empty lines."""
    paragraphs = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = [" ".join(line.split()) for line in block.splitlines()]
        lines = [line for line in lines if re.search(r"\w", line)]
        if lines:
            paragraphs.append("\n".join(lines))
    return paragraphs


def documented(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and paragraphs of every module below a library folder, in the order of their paths."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        parts = path.relative_to(root).with_suffix("").parts
        if NOT_READ & set(parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in a few files
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):  # files that are broken on purpose
                continue
        texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, owners)]
        if parts == ("pydoc_data", "topics"):
            values = (getattr(node, "value", None) for node in tree.body)
            table = next(value for value in values if isinstance(value, ast.Dict))
            texts += ast.literal_eval(table).values()
        paragraphs = [paragraph for text in texts if text for paragraph in clean(text)]
        yield ".".join(parts).removesuffix(".__init__"), list(dict.fromkeys(paragraphs))


def is_held_out(module: str) -> bool:
    """Whether a module is kept out of the training."""
    return hashlib.sha256(module.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def read_corpus() -> Corpus:
    """Collect and split the text; a held-out paragraph that is also in the training is dropped."""
    texts = [row for row in documented(Path(sysconfig.get_paths()["stdlib"])) if row[1]]
    known = {part for module, parts in texts if not is_held_out(module) for part in parts}
    train, held_out = [], []
    for module, parts in texts:
        if not is_held_out(module):
            train.append((module, "\n".join(parts)))
        elif kept := [part for part in parts if part not in known]:
            held_out.append((module, "\n".join(kept)))
    if not train or not held_out:
        raise SystemExit("no docstrings found: does this Python keep its library as .py files?")
    listing = json.dumps(sorted(train + held_out), ensure_ascii=False)
    return Corpus(
        "\n\n".join(text for _, text in train),
        "\n\n".join(text for _, text in held_out),
        (len(train), len(held_out)),
        hashlib.sha256(listing.encode()).hexdigest(),
    )


def train_tokenizer(text: str, masked: bool) -> Tokenizer:
    """Byte-level BPE for the causal models, lower-case WordPiece for the masked ones."""
    return _word_piece(text) if masked else _byte_pairs(text)


def _byte_pairs(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def _word_piece(text: str) -> Tokenizer:
    special = [PAD, UNK, CLS, SEP, MASK]
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCAB, special_tokens=special, limit_alphabet=80, show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    # The trainer numbers its tokens differently from run to run, so number them anew.
    words = special + sorted(set(tokenizer.get_vocab()) - set(special))
    tokenizer.model = models.WordPiece(
        {word: index for index, word in enumerate(words)}, unk_token=UNK
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(name, special.index(name)) for name in (CLS, SEP)],
    )
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of the special tokens that a tokenizer has."""
    found = {name: tokenizer.token_to_id(name) for name in (END, PAD, UNK, CLS, SEP, MASK)}
    return {name: index for name, index in found.items() if index is not None}


def encode(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Token ids of a text in one row, without special tokens."""
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids)


def baselines(train: np.ndarray, left: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Mean loss of two count models of the training tokens, in nats.

    Parameters
    ----------
    train
        Token ids to count.
    left, targets
        Tokens to predict and, for the bigram, the token before each.

    Returns
    -------
    dict
        ``unigram`` (add one) and ``bigram`` (interpolated Kneser-Ney, its discount estimated from
        the training tokens too).
    """
    unigram = np.bincount(train, minlength=VOCAB) + 1.0
    pairs = np.bincount(train[:-1] * VOCAB + train[1:], minlength=VOCAB**2).reshape(VOCAB, VOCAB)
    once, twice = (pairs == 1).sum(), (pairs == 2).sum()
    discount = once / (once + 2 * twice)
    seen = pairs.sum(1)
    backoff = np.where(seen > 0, discount * (pairs > 0).sum(1) / np.maximum(seen, 1), 1.0)
    spread = (pairs > 0).sum(0) + 1.0  # in how many contexts a token occurs
    bigram = np.maximum(pairs[left, targets] - discount, 0) / np.maximum(seen, 1)[left]
    bigram += backoff[left] * (spread / spread.sum())[targets]
    return {
        "unigram": float(-np.log(unigram / unigram.sum())[targets].mean()),
        "bigram": float(-np.log(bigram).mean()),
    }
