"""The .safetensors files that a checkpoint is rewritten from: its folder, or why there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.errors import OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.steering.target import EDITABLE, Target
from eigenlens.tensors.http_ranges import broken_connection
from eigenlens.tensors.patch import shard_of
from eigenlens.tensors.quantised import QuantisedStore
from eigenlens.tensors.source import Source

# Weights in other formats, which are not fetched.
_FOREIGN = [
    *("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.gguf"),
    *("*.tflite", "*.mlmodel", "onnx/*", "openvino/*", "coreml/*", "original/*"),
]
_IN_MEMORY = "or write --as lora or delta, which need no files"


def on_disk(checkpoint: Checkpoint, target: Target) -> Checkpoint:
    """The checkpoint as a folder of .safetensors files, or why it is none.

    Raises
    ------
    OptionError
        It is in memory, in another format, or the tensor is quantised.
    SourceError
        It cannot be fetched from the hub.
    """
    found = check_stored(checkpoint)
    if target.dtype not in EDITABLE:
        raise OptionError(
            f"tensor '{inert(target.tensor)}' is quantised ({inert(target.dtype)}): an edit can be "
            f"added to {', '.join(EDITABLE.values())}; dequantise the model first, {_IN_MEMORY}"
        )
    if found.folder is not None:
        return checkpoint
    return _fetched(checkpoint)


def check_stored(checkpoint: Checkpoint) -> Source:
    """The model's files, which must be .safetensors files.

    Raises
    ------
    OptionError
        It is in memory, or in another format.
    """
    found, label = checkpoint.source, checkpoint.source_label
    if found is None or found.format == "arrays":
        raise OptionError(
            f"{label} is in memory: save it (save_pretrained) and give the folder, {_IN_MEMORY}"
        )
    if found.format == "gguf":
        raise OptionError(
            f"{label} is a GGUF file, which is not rewritten: write --as lora or delta, or load it "
            "with transformers, save it (save_pretrained) and give that folder"
        )
    if found.format != "safetensors":
        raise OptionError(
            f"{label} is stored as .bin, which is read but not written: save it with transformers "
            f"(save_pretrained writes .safetensors) and give that folder, {_IN_MEMORY}"
        )
    return found


def _fetched(checkpoint: Checkpoint) -> Checkpoint:
    """A model of the hub, whole in the library's cache; weights of other formats are left out."""
    from huggingface_hub import snapshot_download

    name, _, revision = checkpoint.source_label.partition("@")
    broken: tuple[type[BaseException], ...] = (OSError, ValueError, *broken_connection())
    try:
        folder = snapshot_download(name, revision=revision or None, ignore_patterns=_FOREIGN)
    except broken as error:
        raise SourceError(
            f"{checkpoint.source_label}: cannot be fetched whole ({type(error).__name__}): get it "
            "with 'hf download', and give its folder"
        ) from error
    opened = open_checkpoint(folder, checkpoint.rules)
    return replace(opened, source_label=checkpoint.source_label)


def weight_files(checkpoint: Checkpoint, folder: Path) -> tuple[str, ...]:
    """The weight files that the model's tensors are in, relative to the folder."""
    source = checkpoint.source
    if source is None:
        return ()
    store = source.store.stored if isinstance(source.store, QuantisedStore) else source.store
    paths = {shard_of(store, name).path for name in store.names()}
    return tuple(sorted(path.relative_to(folder).as_posix() for path in paths))
