"""Load a transformers model from a source: eager attention, float32 unless asked, never in part."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from textwrap import shorten
from typing import Any

from eigenlens.errors import MissingDependencyError, OptionError, SourceError, nearest
from eigenlens.inert import inert
from eigenlens.tensors.files import read_json, shown
from eigenlens.tensors.hub import parse_hub_id
from eigenlens.tensors.source import Source, resolve

DTYPES = ("float32", "float64", "bfloat16", "float16")
ADAPTER_CONFIG = "adapter_config.json"


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
    source: str | Path | Source,
    dtype: Any = "float32",
    *,
    head: bool = False,
    device: str = "cpu",
    device_map: Any = None,
    adapter: str | Path | None = None,
    trust_remote_code: bool = False,
    needed: Collection[str] | None = None,
) -> Any:
    """Load the model of a source with transformers.

    Attention is eager, because only then are attention weights returned. The dtype is the one asked
    for, whatever the checkpoint is stored in (transformers itself would keep float16).

    Parameters
    ----------
    source
        What `eigenlens.tensors.source.resolve` takes, or its result; or the folder of a PEFT
        adapter, which names its base.
    dtype
        One of `DTYPES`.
    head
        With the language-model head that the checkpoint was saved with, else the body alone.
    device
        Where to put it.
    device_map
        How accelerate spreads a model that is larger than one device (`"auto"`, or a mapping);
        then `device` is not used.
    adapter
        Folder of a PEFT adapter; it is merged into the weights.
    trust_remote_code
        Run the repository's own code; never without being asked.
    needed
        Names of the weights that have to be in the files, as the files name them; by default all
        of the body.

    Raises
    ------
    MissingDependencyError
        Without torch, transformers, or what the options need (accelerate, peft).
    OptionError
        If the dtype or the device is none.
    SourceError
        If transformers cannot load it, weights of the body are missing, or the source is arrays.
    """
    torch, transformers = need_transformers()
    wanted = _dtype(torch, dtype)
    place = _device(torch, device)
    if not isinstance(source, Source):
        source, adapter = split_adapter(source, adapter)
    found = source if isinstance(source, Source) else resolve(source)
    if found.format == "arrays":
        raise SourceError(f"{found.label} is in memory: pass the live model itself")
    if device_map is not None:
        _need("accelerate", "device_map")

    def load(with_head: bool) -> Any:
        return _load(transformers, found, wanted, with_head, device_map, trust_remote_code, needed)

    model = load(head) if adapter is None else _adapted(load, Path(adapter), head)
    return (model if device_map is not None else model.to(place)).eval()


def split_adapter(
    source: str | Path, adapter: str | Path | None = None
) -> tuple[str | Path, str | Path | None]:
    """A base and an adapter: a folder that holds only a PEFT adapter names its base itself.

    A base on the hub is taken at the revision that the adapter was trained on, if it says so.

    Raises
    ------
    SourceError
        If the adapter does not say which model it belongs to.
    """
    folder = Path(source)
    config = folder / ADAPTER_CONFIG
    if str(source).startswith("sample:") or "\0" in str(source) or not config.is_file():
        return source, adapter
    if (folder / "config.json").is_file():
        return source, adapter
    settings = read_json(config, ADAPTER_CONFIG)
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise SourceError(
            f"{shown(config)}: does not name its base model (base_model_name_or_path): give the "
            "base, and this folder as the adapter"
        )
    return _at_revision(base, settings.get("revision")), source


def _at_revision(base: str, revision: Any) -> str:
    """A hub id with its revision; given by an adapter, one in a folder that is here is no slip."""
    hub_id = parse_hub_id(base)
    if hub_id is None or hub_id[1] is not None or Path(base).exists():
        return base
    if not isinstance(revision, str) or parse_hub_id(f"{base}@{revision}") is None:
        revision = "main" if Path(base).parent.is_dir() else None
    return f"{base}@{revision}" if revision else base


def missing_weights(model: Any, report: Mapping[str, Any]) -> list[str]:
    """Names of the body's weights that a load report says were not in the files.

    Heads and poolers do not count: what is measured does not depend on them.
    """
    prefix = getattr(model, "base_model_prefix", "")
    inside = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    mismatched = [item[0] for item in report.get("mismatched_keys", ())]
    names = sorted({*report.get("missing_keys", ()), *mismatched})
    return [n for n in names if n.startswith(inside) and "pooler" not in n.split(".")]


def _load(
    transformers: Any,
    found: Source,
    dtype: Any,
    head: bool,
    device_map: Any,
    trust_remote_code: bool,
    needed: Collection[str] | None,
) -> Any:
    _check_known(transformers, found)
    loader = transformers.AutoModel
    if head:
        architectures = found.config.get("architectures") or [""]
        masked = str(architectures[0]).endswith(("MaskedLM", "PreTraining"))
        loader = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    where, options = place_of(found)
    options |= {
        "dtype": dtype,
        "attn_implementation": "eager",
        "trust_remote_code": trust_remote_code,
        "output_loading_info": True,
    }
    if device_map is not None:
        options["device_map"] = device_map
    try:
        with quiet(transformers):
            model, report = loader.from_pretrained(where, **options)
    except ImportError as error:
        raise MissingDependencyError(
            f"transformers needs another package for {found.label}: {line(error)}"
        ) from error
    except MemoryError as error:
        raise SourceError(
            f"{found.label} does not fit into memory: use a narrower dtype or device_map"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        raise SourceError(f"transformers cannot load {found.label}: {line(error)}") from error
    lost = missing_weights(model, report)
    if needed is not None:  # names in the files may have a prefix that the model's have not
        lost = [n for n in lost if any(n == m or m.endswith(f".{n}") for m in needed)]
    if lost:
        raise SourceError(
            f"{found.label}: {len(lost)} weights of the model are not in its files and would be "
            f"random, the first is '{inert(lost[0])}': the config does not belong to these weights"
        )
    return model


def _check_known(transformers: Any, found: Source) -> None:
    """Raises SourceError for a type that transformers has no class for, nor the repository."""
    name = found.config.get("model_type")
    known = name in transformers.CONFIG_MAPPING or "auto_map" in found.config
    if found.format == "gguf" or known or not isinstance(name, str):
        return
    raise SourceError(
        f"{found.label}: transformers {transformers.__version__} has no model of type "
        f"'{inert(name)[:80]}', so it cannot run: what reads the files alone works (spectrum, "
        "inspect without --verify); or build the model in Python and hand it over"
    )


def place_of(found: Source) -> tuple[str, dict[str, Any]]:
    """What to hand to `from_pretrained`, for models and tokenizers: a name, and options."""
    if found.folder is None:
        where, _, revision = found.label.partition("@")
        return where, {"revision": revision} if revision else {}
    options: dict[str, Any] = {"local_files_only": True}
    if found.format == "gguf":
        options["gguf_file"] = next(iter(_files(found)))
    return str(found.folder), options


def _adapted(load: Any, folder: Path, head: bool) -> Any:
    """Base and adapter merged; the adapter's names decide whether its base has a head."""
    peft = _need("peft", "an adapter")
    _, transformers = need_transformers()
    if not (folder / ADAPTER_CONFIG).is_file():
        raise SourceError(f"{shown(folder)}: has no {ADAPTER_CONFIG}, so is no PEFT adapter")
    unmatched = ""
    for with_head in dict.fromkeys((head, True)):
        try:
            with warnings.catch_warnings(record=True) as caught, quiet(transformers):
                warnings.simplefilter("always")
                base = load(with_head)
                model = peft.PeftModel.from_pretrained(base, str(folder)).merge_and_unload()
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            raise SourceError(f"peft cannot load {shown(folder)}: {line(error)}") from error
        unmatched = "; ".join(
            inert(str(w.message))[:200] for w in caught if "missing adapter keys" in str(w.message)
        )
        if not unmatched:
            return model
    raise SourceError(f"{shown(folder)}: the adapter does not fit this base: {unmatched}")


def _dtype(torch: Any, dtype: Any) -> Any:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise OptionError(
            f"dtype '{inert(name)}' is none for a live model{nearest(name, DTYPES)}: allowed are "
            f"{', '.join(DTYPES)}"
        )
    return getattr(torch, name)


def _device(torch: Any, device: Any) -> Any:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise OptionError(
            f"device '{inert(str(device))}' cannot be used here ({line(error)[:120]}): use cpu, or "
            "a device that torch finds"
        ) from error
    return place


def _need(package: str, what: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs {package}, which is not installed: pip install {package}"
        ) from error


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Hold back transformers' bars and load reports, whatever the environment asks for.

    The bar of GGUF files obeys no setting, so what is written to stderr meanwhile is dropped; what
    matters of it arrives as an error or in the load report.
    """
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _files(source: Source) -> set[str]:
    return {source.store.info(name).where for name in source.store.names()}


def line(error: BaseException) -> str:
    """An error of another library as one harmless line."""
    return shorten(inert(" ".join(str(error).split())), 300, placeholder=" ...")
