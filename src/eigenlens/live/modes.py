"""Evaluation mode, for as long as anyone runs a model: several threads may at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_lock = Lock()
_running: dict[int, tuple[list[int], list[Any]]] = {}
"""By model: how many run it, in a list of one, and its modules that were training before."""


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode inside the block; modules that were training train again behind the last."""
    with _lock:
        if id(model) not in _running:
            # setting the mode of modules that have it already would cost a tenth of a small pass
            training = [module for module in model.modules() if module.training]
            if training:
                try:
                    model.eval()
                except BaseException:  # a model's own, which may stop halfway
                    for module in training:
                        module.training = True
                    raise
            _running[id(model)] = [0], training
        count, training = _running[id(model)]
        count[0] += 1
    try:
        yield
    finally:
        with _lock:
            count[0] -= 1
            if not count[0]:
                del _running[id(model)]
                for module in training:
                    module.training = True
