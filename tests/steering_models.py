"""Tiny models with a random edit each, and oracles that know nothing of how an edit is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.steering.edit import Edit
from eigenlens.steering.target import locate

FAMILIES = (
    *("bert", "distilbert", "gpt2", "gpt_neo", "gpt_neox", "opt", "llama", "gemma2"),
    *("phi3", "albert-groups", "qwen3", "gptj"),
)
IDS = (5, 9, 31, 7, 12, 3, 20, 17)


def random_edit(
    checkpoint: Checkpoint,
    *,
    site: str = "attention",
    steps: str = "all",
    layer: int | None = None,
    strength: float = 2.0,
    seed: int = 0,
) -> Edit:
    """An edit of the last layer (or another) with random vectors."""
    rng = np.random.default_rng(seed)
    plan = [p for p in checkpoint.plans if layer is None or p.layer == layer][-1]
    d, m = locate(checkpoint, plan.stack, plan.layer, plan.kind, site).matrix_shape
    u, w = rng.normal(size=d), rng.normal(size=m)
    u /= np.linalg.norm(u)
    return Edit(
        model=checkpoint.source_label,
        model_type=str(checkpoint.model_type),
        stack=plan.stack,
        layer=plan.layer,
        kind=plan.kind,
        site=site,
        steps=steps,
        probe="eigen",
        direction=u,
        written=u,
        w=w / np.linalg.norm(w),
        strength=strength,
        label="a random direction",
    )


def logits(model: Any) -> Any:
    """Logits on a few tokens (of a body, its last states)."""
    import torch

    with torch.no_grad():
        out = model(torch.tensor([IDS]))
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


@contextmanager
def by_hook(model: Any, edit: Edit, module: str, last_of: int = 1) -> Iterator[None]:
    """The edit's effect without touching a weight: ``strength written (w.z)`` after a module.

    With `last_of` > 1 only every so-manieth call of the module is edited.
    """
    import torch

    calls = [0]

    def add(_: Any, args: Any, out: Any) -> Any:
        calls[0] += 1
        if calls[0] % last_of:
            return None
        w = torch.as_tensor(edit.w).to(args[0].dtype)
        u = torch.as_tensor(edit.written).to(args[0].dtype)
        return out + edit.strength * (args[0] @ w)[..., None] * u

    handle = model.get_submodule(module).register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()


def hashes(folder: Path) -> dict[str, str]:
    """Every file of a folder with the hash of its content; links are followed."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Type, shape and bytes of every tensor of a .safetensors file, read by hand."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length :]
    return {
        name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])])
        for name, e in header.items()
    }


def changed_tensors(before: Path, after: Path) -> list[str]:
    """Names whose type, shape or bytes differ between two files, or that only one holds."""
    old, new = tensors(before), tensors(after)
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def stored_model(folder: Path, name: str, dtype: str = "float32", **options: Any) -> Path:
    """A tiny family saved in a dtype, with a tokenizer's and other files beside."""
    import torch

    from families import BY_NAME

    model = BY_NAME[name].build(head=True).to(getattr(torch, dtype))
    model.save_pretrained(folder, **options)
    extras = {
        "tokenizer.json": b'{"model": {}}\n',
        "chat_template.jinja": b"{{ messages }}\r\n",
        "modeling_own.py": b"print('never run')\n",
        "sub/vocab.txt": b"a\nb\n",
    }
    for file, content in extras.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


def opened(folder: Path) -> Checkpoint:
    return open_checkpoint(folder)
