"""What transformers asks the gguf package again and again while it loads a file, answered once.

A load parses the file three times (config, weights, tokenizer), each time with every token of the
vocabulary as a small array, and makes the table of tensor names anew for every module of the model:
most of the time of loading a small file. Both depend on their arguments alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from threading import RLock

_NAMES = ("GGUFReader", "get_tensor_name_map")
_lock = RLock()


@contextmanager
def gguf_once(wanted: bool) -> Iterator[None]:
    """Inside the block, if `wanted`, gguf reads each file and makes each table of names once.

    The file must not change meanwhile. Blocks of several threads run one after the other.
    """
    if not wanted or find_spec("gguf") is None:
        yield
        return
    import gguf

    with _lock:
        usual = {name: getattr(gguf, name) for name in _NAMES if hasattr(gguf, name)}
        for name, made in usual.items():
            setattr(gguf, name, lru_cache(maxsize=8)(made))
        try:
            yield
        finally:
            for name, made in usual.items():
                setattr(gguf, name, made)
