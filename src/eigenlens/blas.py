"""BLAS threads: one for small problems, where starting and syncing threads costs more than work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

SMALL = 640
"""Up to this matrix size one thread is used; measured with geev, which threads badly."""


@cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401 - brings a BLAS of its own, which must be loaded to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def threads_for(size: int) -> Iterator[None]:
    """One BLAS thread inside the block if the matrices in it are no larger than `SMALL`."""
    if size > SMALL:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
