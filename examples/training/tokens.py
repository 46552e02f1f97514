"""Tokenizers of 2,048 entries, trained on the corpus, and their special tokens."""

from __future__ import annotations

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
