"""An edit as a PEFT adapter of rank 1: ``lora_B lora_A = strength written w^T``, a few kilobytes.

The names in an adapter are those of the running model, which need not be those of the files. They
are taken from the model's class, built without weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.errors import EigenlensError, NumericsError, OptionError
from eigenlens.inert import inert
from eigenlens.live.load import ADAPTER_CONFIG, line, need_transformers, place_of, quiet
from eigenlens.live.places import owner
from eigenlens.steering.edit import Edit
from eigenlens.steering.folders import apart, new_folder
from eigenlens.steering.target import find_target
from eigenlens.steering.written import Written
from eigenlens.tensors.dtypes import DTYPES
from eigenlens.tensors.patch import Piece, raw, write_new, write_pieces

WEIGHTS = "adapter_model.safetensors"
LOST = 1e-4
"""How much of the edit's size float32 may lose."""
_ELSE = "write --as checkpoint or delta"


def write_lora(
    checkpoint: Checkpoint, edit: Edit, folder: str | Path, *, force: bool = False
) -> Written:
    """Write an edit as a PEFT adapter, which `peft.PeftModel.from_pretrained` loads.

    Its scale is 1 and it acts on one module alone. The two factors share the edit's size evenly and
    are kept in float32, so that nothing is lost before they are merged.

    Parameters
    ----------
    checkpoint
        The base model: a source of files or of the hub, GGUF included, or a live model.
    edit
        What to write.
    folder
        Where; must not be there yet.
    force
        Replace an adapter's folder that is there.

    Raises
    ------
    OptionError
        The edit does not fit; it acts on the last call of a shared layer; the module is none that
        PEFT adapts; or `folder` is there, or is the model's own or one around it.
    NumericsError
        The edit is too large or too small for float32.
    MissingDependencyError
        Without torch and transformers.
    SourceError
        The folder cannot be written; nothing is left behind.
    """
    target = find_target(checkpoint, edit)
    if target.plan.steps > 1 and edit.steps == "last":
        raise OptionError(
            f"{target.label} is called {target.plan.steps} times with the same weights, and an "
            "adapter acts on every call: write --as checkpoint, or edit all calls (--steps-edited "
            "all)"
        )
    module, turned = _module(checkpoint, edit)
    size = float(np.sqrt(edit.dW_norm))
    A = np.zeros((1, len(edit.w)), dtype=np.float32)
    B = np.zeros((len(edit.written), 1), dtype=np.float32)
    if edit.strength:
        along = np.asarray(edit.w, dtype=np.float64)
        written = np.asarray(edit.written, dtype=np.float64)
        with np.errstate(over="ignore"):
            A[0] = size / np.linalg.norm(along) * along
            B[:, 0] = np.sign(edit.strength) * size / np.linalg.norm(written) * written
        parts = (B[:, 0] @ (np.sign(edit.strength) * written), A[0] @ along)
        sizes = size * np.linalg.norm(written), size * np.linalg.norm(along)
        if not np.allclose(np.divide(parts, sizes), 1.0, rtol=LOST):
            raise NumericsError(
                f"an adapter keeps the edit in float32, which cannot hold its size (|dW| = "
                f"{edit.dW_norm:.3g}): use another strength, or --as delta"
            )
    at = f"base_model.model.{module}"
    pieces = [_piece(f"{at}.lora_A.weight", A), _piece(f"{at}.lora_B.weight", B)]
    config = json.dumps(_config(checkpoint, module, turned), indent=2, ensure_ascii=False) + "\n"
    folder = Path(folder)
    if checkpoint.source is not None and checkpoint.source.folder is not None:
        apart(checkpoint.source.folder, folder, own=False, inside=True)
    with new_folder(folder, force=force, known_by=(ADAPTER_CONFIG,)) as building:
        write_pieces(building / WEIGHTS, pieces, {"format": "pt"})
        write_new(building / ADAPTER_CONFIG, config.encode())
        total = sum(path.stat().st_size for path in building.iterdir())
    files = (ADAPTER_CONFIG, WEIGHTS)
    return Written(edit, "lora", folder, files, f"{module}.weight", WEIGHTS, size=total)


def _piece(name: str, array: Any) -> Piece:
    data = raw(array.astype(DTYPES["F32"]))
    return Piece(name, "F32", array.shape, len(data), lambda: (data,))


def _config(checkpoint: Checkpoint, module: str, turned: bool) -> dict[str, Any]:
    base, revision = _base(checkpoint)
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "revision": revision,
        "r": 1,
        "lora_alpha": 1,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "bias": "none",
        "fan_in_fan_out": turned,
        # A text is a pattern that a module's whole name must match.
        "target_modules": re.escape(module),
        "modules_to_save": None,
        "inference_mode": True,
    }


def _base(checkpoint: Checkpoint) -> tuple[str, str | None]:
    """What a user loads the base model with: a name or path, and a revision."""
    source = checkpoint.source
    if source is None or source.format == "arrays":
        return str(checkpoint.config.get("_name_or_path") or ""), None
    if source.folder is None:
        name, _, revision = source.label.partition("@")
        return name, revision or None
    files = {source.store.info(n).where for n in source.store.names()}
    gguf = next(iter(files)) if source.format == "gguf" else ""
    return str((source.folder / gguf).resolve()), None


def _module(checkpoint: Checkpoint, edit: Edit) -> tuple[str, bool]:
    """The module's name in the model's class, and whether it keeps its weight as (in, out).

    Raises
    ------
    OptionError
        The module is none that PEFT adapts by a plain product, or the class cannot be built.
    """
    torch, _ = need_transformers()
    from transformers.pytorch_utils import Conv1D

    model = _empty_model(checkpoint)
    try:
        target = find_target(open_checkpoint(model, checkpoint.rules), edit)
    except EigenlensError as error:
        raise OptionError(
            f"{checkpoint.source_label}: the layer is not found in {type(model).__name__} ({error})"
        ) from error
    module = model.get_submodule(owner(target.tensor))
    plain = torch.nn.Linear
    by_hand = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
    if isinstance(module, by_hand) or not isinstance(module, (plain, Conv1D)):
        raise OptionError(
            f"'{inert(target.tensor)}' belongs to a {type(module).__name__}, which a LoRA adapter "
            f"of PEFT does not act on: {_ELSE}"
        )
    return owner(target.tensor), isinstance(module, Conv1D)


def _empty_model(checkpoint: Checkpoint) -> Any:
    """The model's class on the meta device: names and shapes, no weights."""
    torch, transformers = need_transformers()
    try:
        with quiet(transformers):
            config = _transformers_config(transformers, checkpoint)
            with torch.device("meta"):
                return _class_of(transformers, config)(config)
    except _broken() as error:
        raise OptionError(
            f"{checkpoint.source_label}: transformers cannot build the model's class, whose names "
            f"an adapter needs ({line(error)}): {_ELSE}"
        ) from error


def _broken() -> tuple[type[Exception], ...]:
    """What a config or a class that does not fit raises in transformers."""
    from huggingface_hub import errors

    strict = getattr(errors, "StrictDataclassError", ValueError)
    return (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, strict)


def _class_of(transformers: Any, config: Any) -> Any:
    """What makes the model that the checkpoint was saved as, else one with a head, else a body."""
    stated = list(getattr(config, "architectures", None) or [])
    name = str(stated[0]) if stated else ""
    found = getattr(transformers, name, None) if name.isidentifier() else None
    if found is not None:
        return found._from_config
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as HEADS

    auto = transformers.AutoModelForCausalLM if type(config) in HEADS else transformers.AutoModel
    return auto.from_config


def _transformers_config(transformers: Any, checkpoint: Checkpoint) -> Any:
    source = checkpoint.source
    if source is None or source.format == "arrays":
        stated: Mapping[str, Any] = checkpoint.config
        rest = {k: v for k, v in stated.items() if k != "model_type"}
        return transformers.AutoConfig.for_model(str(checkpoint.model_type), **rest)
    where, options = place_of(source)
    return transformers.AutoConfig.from_pretrained(where, **options)
