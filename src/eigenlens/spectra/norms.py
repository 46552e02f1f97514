"""The spectral norm of a layer's map, which is not formed for it, and the size of its rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator

import numpy as np
from jaxtyping import Float

from eigenlens.blas import of_row_blocks, one_thread
from eigenlens.spectra.maps import Full, LinearMap, LowRank, is_large, normalised, restored

_DENSE_NORM_LIMIT = 64  # below this size an SVD is cheaper than starting a Lanczos process


def product_rounding(a: LinearMap) -> float:
    """Size of what rounding in units of eps does to ``L R``: as ``|A|_2``, or more if it cancels.

    Rounding errors of the entries are all but independent, with variances ``sum_k (L_ik R_kj)^2``;
    the spectral norm of such a matrix is about its largest row norm plus its largest column norm
    (Bandeira and van Handel, 2016).
    """
    if isinstance(a, Full):
        return 0.0
    left, right = a.left, a.right
    outer, inner = a.inner_squares()
    rows = of_row_blocks(lambda some: float((left[some] ** 2 @ inner).max()), *left.shape)
    columns = of_row_blocks(lambda some: outer[some] @ right[some] ** 2, *right.shape)
    return math.sqrt(max(rows)) + math.sqrt(float(np.sum(columns, axis=0).max()))


def spectral_norm(a: LinearMap, seed: int = 0) -> float:
    """``|A|_2``, the largest singular value.

    An SVD for small matrices, else a Lanczos process with a seeded start: on ``A^T A``, or within
    the row space of a low-rank A, where it needs no more than the r x r Gram matrices. The value
    converges long before the vector, so a flat top of the spectrum does no harm.

    Raises
    ------
    NumericsError
        It is beyond the range of float64.
    """
    fit, exponent = normalised(a)
    return restored(_norm(fit, seed), exponent)


def _norm(a: LinearMap, seed: int) -> float:
    """That of a map whose entries are of order 1."""
    if a.rank_bound <= _DENSE_NORM_LIMIT or a.d <= _DENSE_NORM_LIMIT:
        return _norm_by_svd(a)
    loose = 1e-5 if is_large(a) else 0.03 * math.sqrt(float(np.finfo(a.dtype).eps))
    if isinstance(a, LowRank):
        # u = R^T x: A^T A u = R^T (L^T L) (R R^T) x, and u.v = x (R R^T) y.
        outer, inner = a.rough_grams
        run = _lanczos(lambda x: inner @ x, _start(inner, seed), loose)
        with one_thread():  # many products too short to share
            top = drive(run, lambda mx: outer @ mx)
    else:
        matrix = a.matrix
        run = _lanczos(lambda x: x, _start(matrix, seed), loose)
        top = drive(run, lambda x: matrix.T @ (matrix @ x))
    return _norm_by_svd(a) if top is None else math.sqrt(max(top, 0.0))


def _start(like: Float[np.ndarray, "n n"], seed: int) -> Float[np.ndarray, "n"]:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal(like.shape[0]), dtype=like.dtype)


def top_eigenvalue(gram: Float[np.ndarray, "n n"], seed: int = 0) -> float:
    """Largest eigenvalue of a Gram matrix to a few digits, from below; O(n^2) a step."""
    top = drive(_lanczos(lambda x: x, _start(gram, seed), 0.05), lambda x: gram @ x)
    return float(np.linalg.norm(gram)) if top is None else top


def _norm_by_svd(a: LinearMap) -> float:
    if isinstance(a, LowRank):  # the small factors of two QRs carry all singular values
        left: np.ndarray = np.asarray(np.linalg.qr(a.left, mode="r"))
        right: np.ndarray = np.asarray(np.linalg.qr(a.right.T, mode="r"))
        return float(np.linalg.norm(left @ right.T, 2))
    return float(np.linalg.norm(a.matrix, 2))


Lanczos = Generator[np.ndarray, np.ndarray, float | None]


def drive(run: Lanczos, apply: Callable[[np.ndarray], np.ndarray]) -> float | None:
    """Give a run the products that it asks for, to its end."""
    try:
        x = next(run)
        while True:
            x = run.send(apply(x))
    except StopIteration as end:
        found: float | None = end.value
        return found


def _lanczos(
    metric: Callable[[np.ndarray], np.ndarray],
    start: Float[np.ndarray, "n"],
    tolerance: float,
    steps: int = 300,
) -> Lanczos:
    """Largest eigenvalue of an operator that is self-adjoint and >= 0 in an inner product.

    The inner product is ``x . metric(y)``; what is yielded is ``metric(x)``, and what is to be sent
    is the operator's image of x. Full reorthogonalisation; None if the value has not settled after
    `steps`. The error of the value is the square of the residual over the gap, hence loose bounds
    on the residual serve.
    """
    eps = float(np.finfo(start.dtype).eps)
    steps = min(steps, start.size)
    basis = np.empty((steps, start.size), dtype=start.dtype)
    dual = np.empty_like(basis)
    small = np.zeros((steps, steps))
    x, mx = start, metric(start)
    size = float(np.sqrt(max(float(x @ mx), 0.0)))
    for j in range(steps):
        if size == 0.0:
            return 0.0
        basis[j], dual[j] = x / size, mx / size
        x = yield dual[j]
        for _ in range(2):
            c = dual[: j + 1] @ x
            x = x - c @ basis[: j + 1]
            small[j, j] += c[j]
        mx = metric(x)
        size = float(np.sqrt(max(float(x @ mx), 0.0)))
        last = j + 1 == start.size
        if j % 5 == 4 or last or size <= 10 * eps * small[0, 0]:
            values, vectors = np.linalg.eigh(small[: j + 1, : j + 1])
            if last or size * abs(vectors[-1, -1]) <= tolerance * values[-1]:
                return float(values[-1])
        if j + 1 < steps:
            small[j, j + 1] = small[j + 1, j] = size
    return None
