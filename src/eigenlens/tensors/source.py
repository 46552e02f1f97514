"""Where a model comes from: a sample, a folder, a file or the hub, as one `Source`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from eigenlens.errors import SourceError
from eigenlens.inert import inert
from eigenlens.samples import sample_path
from eigenlens.tensors.files import shown
from eigenlens.tensors.folder import OPENERS, inside, open_folder, read_config
from eigenlens.tensors.gguf_file import GGUFFile
from eigenlens.tensors.hub import HubModel, parse_hub_id
from eigenlens.tensors.quantised import dequantised
from eigenlens.tensors.store import TensorStore
from eigenlens.tensors.vocabulary import VOCABULARY_FILES

_SUFFIXES = {".safetensors": "safetensors", ".bin": "bin", ".pt": "bin", ".pth": "bin"}


@dataclass(frozen=True)
class Source:
    """A model as its files: config, tensors, vocabulary; nothing is instantiated.

    Parameters
    ----------
    label
        What the user said, made inert for display.
    config
        The parsed config.json, or the same made from GGUF metadata (with ``"gguf": True``).
    store
        The tensors, read one at a time.
    folder
        Folder of a local model; None on the hub or in memory.
    format
        ``"safetensors"``, ``"bin"``, ``"gguf"`` or ``"arrays"``.
    tokens
        Gives the text of every token id, raw (inert when shown); SourceError without a vocabulary.
    """

    label: str
    config: dict[str, Any]
    store: TensorStore
    folder: Path | None
    format: str
    tokens: Callable[[], Sequence[str]]


def resolve(model: str | Path) -> Source:
    """Find a model and read its config and headers.

    Parameters
    ----------
    model
        ``sample:NAME``; an existing folder with config.json; one .safetensors or .bin file beside
        its config.json; one .gguf file; or a hub id ``org/name[@revision]``. A path that exists is
        never looked up on the hub, and neither is one in a folder that exists, unless it names a
        revision.

    Raises
    ------
    SourceError
        Nothing is found there, or it cannot be fetched.
    FormatError
        A file is damaged or unsafe.
    """
    text = str(model)
    label = inert(text)
    if not text or "\0" in text:
        raise SourceError(
            f"'{label}' names no model; give a folder, a file, org/name or sample:NAME"
        )
    if isinstance(model, str) and model.startswith("sample:"):
        return _resolve_path(sample_path(model.removeprefix("sample:")), label)
    try:
        path = Path(text).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "no home folder for ~"
        raise SourceError(
            f"{label[:200]}: cannot be looked up ({reason}); give a folder, a file or org/name"
        ) from error
    if exists:
        return _resolve_path(path, label)
    hub_id = parse_hub_id(text) if isinstance(model, str) else None
    if hub_id is None:
        raise SourceError(
            f"{label[:200]}: no such folder or file; a hub id looks like org/name or "
            "org/name@revision, a sample like sample:minilm"
        )
    name, revision = hub_id
    if revision is None and path.parent.is_dir():
        raise SourceError(
            f"{label}: no such file or folder in {shown(path.parent)}; if a model of the hub is "
            f"meant, name its revision: {label}@main"
        )
    return _resolve_hub(HubModel(name, revision))


def _resolve_path(path: Path, label: str) -> Source:
    if path.is_dir():
        return _resolve_folder(path, label)
    if path.suffix == ".gguf":
        gguf = GGUFFile(path)
        return Source(
            label, gguf.config(), gguf, path.parent, "gguf", _once(partial(_gguf_tokens, gguf))
        )
    if path.suffix not in _SUFFIXES:
        raise SourceError(
            f"{shown(path)}: is not a model file; allowed are a folder, .safetensors, .bin and "
            ".gguf"
        )
    kind = _SUFFIXES[path.suffix]
    config = path.parent / "config.json"
    if not config.exists():
        raise SourceError(
            f"{shown(path)}: needs a config.json beside it that says what the model is; add it"
        )
    found = read_config(config)
    return Source(
        label,
        found,
        dequantised(OPENERS[kind](path), found, label),
        path.parent,
        kind,
        _folder_tokens(path.parent),
    )


def _resolve_folder(folder: Path, label: str) -> Source:
    if not (folder / "config.json").exists():
        gguf = sorted(folder.glob("*.gguf"))
        hint = f"; it holds {inert(gguf[0].name)}: give that file" if gguf else ""
        if (folder / "adapter_config.json").exists():
            hint = (
                ": it holds an adapter; trace and simulate run it with its base; here merge the "
                "two with peft, and give the result"
            )
        raise SourceError(
            f"{shown(folder)}: has no config.json, so is not a model "
            f"folder{hint or '; give the folder that has it'}"
        )
    config = read_config(inside(folder, "config.json"))
    store, kind = open_folder(folder)
    store = dequantised(store, config, label)
    return Source(label, config, store, folder, kind, _folder_tokens(folder))


def _resolve_hub(hub: HubModel) -> Source:
    config = read_config(hub.need("config.json"))
    store, kind = hub.open_weights()
    return Source(
        hub.label,
        config,
        dequantised(store, config, hub.label),
        None,
        kind,
        _once(partial(_first_vocabulary, hub.fetch, hub.label)),
    )


def _folder_tokens(folder: Path) -> Callable[[], Sequence[str]]:
    def fetch(name: str) -> Path | None:
        return inside(folder, name) if (folder / name).is_file() else None

    return _once(partial(_first_vocabulary, fetch, shown(folder)))


def _first_vocabulary(fetch: Callable[[str], Path | None], where: str) -> Sequence[str]:
    for name, read in VOCABULARY_FILES.items():
        path = fetch(name)
        if path is not None:
            return read(path)
    raise SourceError(
        f"{where}: has no vocabulary ({', '.join(VOCABULARY_FILES)}), so tokens cannot be named; "
        "add one"
    )


def _gguf_tokens(gguf: GGUFFile) -> Sequence[str]:
    tokens = gguf.tokens()
    if tokens is None:
        raise SourceError(f"{shown(gguf.path)}: has no vocabulary, so tokens cannot be named")
    return tokens


def _once(read: Callable[[], Sequence[str]]) -> Callable[[], Sequence[str]]:
    """`read`, at most once: a vocabulary is parsed when first asked for and kept."""
    return cache(read)
