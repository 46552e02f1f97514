"""Whether a model changes as it runs: then no two passes may run at once.

Rotary embeddings that scale with the length of the prompt and tables of positions that grow are
written into the modules by the pass itself, where another pass would read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

# Where torch keeps hooks, which come and go with every pass that is read.
_HOOKS = "_hooks"
_TENSORS = ("_parameters", "_buffers")

# Kinds of positions that are scaled to the length of a prompt, longer or shorter than the last.
_SCALED = ("dynamic", "longrope")


class Steadiness:
    """What all modules hold before a pass, to be compared with what they hold after it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._held = list(_held(model))

    def kept(self) -> bool:
        """Whether every module holds the same objects, unchanged as far as can be told.

        Never where positions are scaled: the next prompt may be the one that changes them.
        """
        now = list(_held(self._model))
        return len(now) == len(self._held) and all(
            new[0] == old[0] and new[1] is old[1] and new[2] == old[2] and not _scales(*new[:2])
            for new, old in zip(now, self._held, strict=True)
        )


def holds_table(model: Any, size: int) -> bool:
    """Whether a tensor of the model's, not a parameter, has `size` among its own sizes.

    A table that a module makes for prompts of one length, and makes anew for those of another,
    looks like that: a pass of the length that it was made for changes nothing.
    """
    return any(
        hasattr(value, "is_inference") and size in value.shape
        for module in model.modules()
        for name, held in list(vars(module).items())
        if name not in ("_parameters", "_modules")
        for value in _parts(held)
    )


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]


def changes(tensor: Any) -> int:
    """How often a tensor was changed in place; -1 where torch does not count (inference mode)."""
    return -1 if tensor.is_inference() else int(tensor._version)


def _scales(name: str, value: Any) -> bool:
    kinds = value.values() if isinstance(value, dict) else [value]
    return name == "rope_type" and any(kind in _SCALED for kind in kinds)


def scales_positions(model: Any) -> bool:
    """Whether positions depend on the length of what a prompt is padded to."""
    return any(
        _scales(name, value)
        for module in model.modules()
        for name, value in list(vars(module).items())
    )


def _held(model: Any) -> Iterator[tuple[str, Any, int]]:
    """Names and values of the attributes of all modules, with a size or a count of changes."""
    for module in model.modules():
        for name, value in list(vars(module).items()):  # at once: passes may run
            if name == "forward":  # replaced by who reads the model, for a thread of its own
                continue
            if name in _TENSORS:
                for key, tensor in list(value.items()):
                    yield key, tensor, -1 if tensor is None else changes(tensor)
            elif hasattr(value, "is_inference"):
                yield name, value, changes(value)
            elif isinstance(value, (dict, list, set, deque)):
                if not name.endswith(_HOOKS) and "_hooks_" not in name:
                    yield name, value, len(value)
            else:
                yield name, value, 0
