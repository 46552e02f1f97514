"""What transformers asks the gguf package again and again while it loads a file, answered once.

A load parses the file three times (config, weights, tokenizer), each time with every token of the
vocabulary as a small array, and makes the table of tensor names anew for every module of the model:
most of the time of loading a small file. Both depend on their arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from threading import RLock, get_ident
from typing import Any

_NAMES = ("GGUFReader", "get_tensor_name_map")
_lock = RLock()


def _kept_here(made: Callable[..., Any]) -> Callable[..., Any]:
    """`made`, its answers kept for the thread that is here now."""
    kept, mine = lru_cache(maxsize=8)(made), get_ident()

    def answered(*args: Any, **named: Any) -> Any:
        return (kept if get_ident() == mine else made)(*args, **named)

    return answered


@contextmanager
def gguf_once(wanted: bool) -> Iterator[None]:
    """Inside the block, if `wanted`, gguf reads each file and makes each table of names once.

    Only for the thread that is in the block: what others ask is answered anew. Meanwhile the two
    names of the module stand for functions, so that nobody can derive from `gguf.GGUFReader` or ask
    what is an instance of it. The file must not change meanwhile. Blocks of several threads run one
    after the other.
    """
    if not wanted or find_spec("gguf") is None:
        yield
        return
    import gguf

    with _lock:
        usual = {name: getattr(gguf, name) for name in _NAMES if hasattr(gguf, name)}
        for name, made in usual.items():
            setattr(gguf, name, _kept_here(made))
        try:
            yield
        finally:
            for name, made in usual.items():
                setattr(gguf, name, made)
