"""Adapters of a live model (PEFT), known by what they can do: no package is imported for it."""

from __future__ import annotations

from typing import Any


def merge_adapters(model: Any) -> Any:
    """A PEFT model with its adapters merged, as a plain model; the one given stays as it is."""
    if not callable(getattr(model, "merge_and_unload", None)):
        return model
    from copy import deepcopy

    return deepcopy(model).merge_and_unload().eval()
