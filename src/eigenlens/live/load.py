"""Load a transformers model from a source: eager attention, float32 or wider, offline if local."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eigenlens.arrays import compute_dtype
from eigenlens.errors import MissingDependencyError, SourceError
from eigenlens.inert import inert
from eigenlens.tensors.source import Source, resolve


def need_transformers() -> tuple[Any, Any]:
    """The modules torch and transformers.

    Raises
    ------
    MissingDependencyError
        With the pip command.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            f"a live model needs torch and transformers ({error.name} is not installed): "
            "pip install 'eigenlens[models]'"
        ) from error
    return torch, transformers


def load_model(
    source: str | Source,
    dtype: Any = "float32",
    *,
    head: bool = False,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> Any:
    """Load the model of a source with transformers.

    Attention is eager, because only then are attention weights returned. Half-precision checkpoints
    are upcast.

    Parameters
    ----------
    source
        What `eigenlens.tensors.source.resolve` takes, or its result.
    dtype
        float32 or float64.
    head
        With the language-model head that the checkpoint was saved with, else the body alone.
    device
        Where to put it.
    trust_remote_code
        Run the repository's own code; never without being asked.

    Raises
    ------
    MissingDependencyError
        Without torch or transformers.
    SourceError
        If transformers cannot load it, or the source is plain arrays.
    """
    torch, transformers = need_transformers()
    found = source if isinstance(source, Source) else resolve(source)
    if found.format == "arrays":
        raise SourceError(f"{found.label} is in memory: pass the live model itself")
    loader = transformers.AutoModel
    if head:
        architectures = found.config.get("architectures") or [""]
        masked = str(architectures[0]).endswith(("MaskedLM", "PreTraining"))
        loader = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    options: dict[str, Any] = {
        "dtype": getattr(torch, compute_dtype(dtype).name),
        "attn_implementation": "eager",
        "trust_remote_code": trust_remote_code,
    }
    if found.folder is None:
        where, _, revision = found.label.partition("@")
        if revision:
            options["revision"] = revision
    else:
        where = str(found.folder)
        options["local_files_only"] = True
    if found.format == "gguf":
        options["gguf_file"] = next(iter(_files(found)))
    try:
        with _quiet(transformers):
            model = loader.from_pretrained(where, **options)
    except ImportError as error:
        raise MissingDependencyError(
            f"transformers needs another package for {found.label}: {_line(error)}"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise SourceError(f"transformers cannot load {found.label}: {_line(error)}") from error
    return model.to(device).eval()


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hold back transformers' bars and load reports, whatever the environment asks for.

    What a report says of missing weights reaches nobody's data here: the caller verifies F.
    """
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _files(source: Source) -> set[str]:
    return {source.store.info(name).where for name in source.store.names()}


def _line(error: BaseException) -> str:
    return inert(" ".join(str(error).split()))[:300]
