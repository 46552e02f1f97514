"""Whether a model changes as it runs: then no two passes may run at once.

Rotary embeddings that scale with the length of the prompt and tables of positions that grow are
written into the modules by the pass itself, where another pass would read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Where torch keeps hooks, which come and go with every pass that is read.
_HOOKS = "_hooks"
_TENSORS = ("_parameters", "_buffers")


class Steadiness:
    """What all modules hold before a pass, to be compared with what they hold after it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._held = list(_held(model))

    def kept(self) -> bool:
        """Whether every module still holds the same objects, unchanged as far as can be told."""
        now = list(_held(self._model))
        return len(now) == len(self._held) and all(
            name == old_name and value is old_value and size == old_size
            for (name, value, size), (old_name, old_value, old_size) in zip(
                now, self._held, strict=True
            )
        )


def _held(model: Any) -> Iterator[tuple[str, Any, int]]:
    """Names and values of the attributes of all modules, with a size or a count of changes."""
    for module in model.modules():
        for name, value in vars(module).items():
            if name in _TENSORS:
                for key, tensor in value.items():
                    yield key, tensor, -1 if tensor is None else int(tensor._version)
            elif isinstance(value, (dict, list, set)):
                if not name.endswith(_HOOKS) and "_hooks_" not in name:
                    yield name, value, len(value)
            else:
                yield name, value, 0
