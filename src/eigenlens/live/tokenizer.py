"""A model's tokenizer as one small object, or none: text to ids, and which ids are special."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenlens.errors import EigenlensError, OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.live.load import line, need_transformers, place_of, quiet
from eigenlens.prompts import splitter
from eigenlens.tensors.source import Source

Split = Callable[[str], Sequence[str]]
UNKNOWN_LIMIT = 0.2
_OPEN, _CLOSE = ("[CLS]", "<s>"), ("[SEP]", "</s>")
_UNKNOWN, _OTHER = ("[UNK]", "<unk>"), ("[PAD]", "<pad>", "[MASK]", "<mask>")


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids.

    Attributes
    ----------
    encode
        Ids of a text, with the special tokens that the model expects around it.
    special
        Ids that stand for no text (begin, end, separator, mask, pad).
    unknown
        The id of what the vocabulary does not hold, or None.
    size
        Number of ids.
    bare
        Ids of a text without special tokens around it; None where that is not known.
    decode
        Text of ids, special tokens as they are written; None where that is not known.
    """

    encode: Callable[[str], list[int]]
    special: frozenset[int]
    unknown: int | None
    size: int
    bare: Callable[[str], list[int]] | None = None
    decode: Callable[[Sequence[int]], str] | None = None

    def unknown_share(self, prompts: Iterable[Sequence[int]]) -> float:
        """Share of unknown tokens among those that are not special; 0 if there is no such id."""
        if self.unknown is None:
            return 0.0
        text = [i for ids in prompts for i in ids if i == self.unknown or i not in self.special]
        return sum(i == self.unknown for i in text) / len(text) if text else 0.0

    def encode_all(self, texts: Sequence[str], limit: float = UNKNOWN_LIMIT) -> list[list[int]]:
        """Ids of every text.

        Raises
        ------
        OptionError
            If there is no text, a text gives no token, or more than `limit` of the tokens are
            unknown.
        """
        if not texts:
            raise OptionError("there is no prompt: give at least one line of text")
        prompts = [self.encode(text) for text in texts]
        for text, ids in zip(texts, prompts, strict=True):
            if not ids:
                raise OptionError(f"the prompt '{inert(text)[:40]}' has no tokens: leave it out")
        share = self.unknown_share(prompts)
        if share > limit:
            raise OptionError(
                f"{100 * share:.0f} % of the tokens are unknown to this model's vocabulary (at "
                f"most {100 * limit:.0f} % are allowed): give texts of the kind that it was "
                "trained on, or another split into tokens, or token ids"
            )
        return prompts


def load_tokenizer(
    source: Source, split: Split | None = None, *, trust_remote_code: bool = False
) -> Tokenizer:
    """The tokenizer of a source.

    Parameters
    ----------
    source
        A resolved model.
    split
        Cuts a text into the vocabulary's own tokens, for models that have a vocabulary but no
        tokenizer that transformers can run (chemistry); special tokens are put around. None takes
        that of the sample, where it has one.
    trust_remote_code
        Run the repository's own code; never without being asked.

    Raises
    ------
    SourceError
        If there is none, or the one that transformers makes up does not know the vocabulary.
    """
    split = split or splitter(source.label)
    if split is not None:
        return from_vocabulary(source.tokens(), split)
    if source.format == "arrays":
        raise SourceError(f"{source.label} has no tokenizer: give token ids")
    _, transformers = need_transformers()
    where, options = place_of(source)
    folder = source.folder if source.format != "gguf" else None
    complete = folder is not None and (folder / "tokenizer.json").is_file()
    if complete and folder is not None and not (folder / "tokenizer_config.json").is_file():
        # transformers would take the model's usual kind of tokenizer, whatever this one is
        return _from_json(source, None)
    try:
        with quiet(transformers):
            found = transformers.AutoTokenizer.from_pretrained(
                where, trust_remote_code=trust_remote_code, **options
            )
    except Exception as error:  # tokenizers raises plain Exception for every kind of damage
        return _from_json(source, error)
    size = len(found)
    known = _vocabulary_size(source)
    if 2 * size < known:
        raise SourceError(
            f"{source.label}: the tokenizer that transformers makes of these files knows {size} of "
            f"{known} tokens: pass a function that splits a text into tokens, or give token ids"
        )
    return _wrap(found, size)


def from_vocabulary(tokens: Sequence[str], split: Split) -> Tokenizer:
    """A tokenizer that looks up what `split` gives, between the vocabulary's begin and end."""
    ids = {token: i for i, token in enumerate(tokens)}

    def first(words: Sequence[str]) -> int | None:
        return next((ids[word] for word in words if word in ids), None)

    unknown, opening, closing = first(_UNKNOWN), first(_OPEN), first(_CLOSE)
    special = {ids[word] for word in (*_OPEN, *_CLOSE, *_OTHER) if word in ids}

    def encode(text: str) -> list[int]:
        pieces = split(text)
        strange = [piece for piece in pieces if piece not in ids]
        if strange and unknown is None:
            raise OptionError(
                f"the token '{inert(strange[0])[:40]}' is not in the vocabulary, which has no "
                "unknown token: give other texts"
            )
        found = [opening, *(ids.get(piece, unknown) for piece in pieces), closing]
        return [i for i in found if i is not None]

    def bare(text: str) -> list[int]:
        return [ids[piece] for piece in split(text) if piece in ids]

    def decode(chosen: Sequence[int]) -> str:
        return "".join(tokens[i] for i in chosen)

    return Tokenizer(encode, frozenset(special), unknown, len(tokens), bare, decode)


def folder_of(model: Any) -> Path | None:
    """The local folder that a live model says it was loaded from, if it is there."""
    name = getattr(getattr(model, "config", None), "_name_or_path", "")
    folder = Path(name) if isinstance(name, str) and name else None
    return folder if folder is not None and folder.is_dir() else None


def _wrap(found: Any, size: int) -> Tokenizer:
    _, transformers = need_transformers()
    unknown = found.unk_token_id
    names = ("bos_token", "eos_token", "sep_token", "cls_token", "mask_token", "pad_token")
    named = {getattr(found, f"{name}_id", None) for name in names}
    special = (set(found.all_special_ids) - {unknown}) | named

    def encode(text: str) -> list[int]:
        with quiet(transformers):  # it warns of texts longer than the model's positions
            return [int(i) for i in found(text)["input_ids"]]

    def bare(text: str) -> list[int]:
        with quiet(transformers):
            return [int(i) for i in found(text, add_special_tokens=False)["input_ids"]]

    def decode(ids: Sequence[int]) -> str:
        return str(found.decode(list(ids), clean_up_tokenization_spaces=False))

    kept = frozenset(int(i) for i in special if i is not None)
    return Tokenizer(encode, kept, unknown, size, bare, decode)


def _from_json(source: Source, error: Exception | None) -> Tokenizer:
    """tokenizer.json by the tokenizers library, where transformers cannot make a tokenizer of it.

    `error` is what transformers said.
    """
    path = None if source.folder is None else source.folder / "tokenizer.json"
    if path is None or not path.is_file():
        raise SourceError(
            f"{source.label} has no tokenizer that transformers can load"
            f"{f' ({line(error)[:150]})' if error else ''}: give token ids"
        ) from error
    from tokenizers import Tokenizer as Fast

    try:
        fast = Fast.from_file(str(path))
    except Exception as damage:  # plain Exception, see above
        raise SourceError(
            f"{source.label}: tokenizer.json cannot be read ({line(damage)[:150]}): get it again, "
            "or give token ids"
        ) from damage
    added = [int(i) for i, t in fast.get_added_tokens_decoder().items() if t.special]
    ids = [fast.token_to_id(word) for word in _UNKNOWN]
    unknown = next((i for i in ids if i is not None), None)
    special = frozenset(i for i in added if i != unknown)
    return Tokenizer(
        lambda text: fast.encode(text).ids,
        special,
        unknown,
        fast.get_vocab_size(),
        lambda text: fast.encode(text, add_special_tokens=False).ids,
        lambda ids: str(fast.decode(list(ids), skip_special_tokens=False)),
    )


def _vocabulary_size(source: Source) -> int:
    """What the vocabulary file says, else the config (which may count some rows too many)."""
    try:
        return len(source.tokens())
    except EigenlensError:  # no vocabulary file that is read here
        stated = source.config.get("vocab_size")
        return stated if isinstance(stated, int) else 0
