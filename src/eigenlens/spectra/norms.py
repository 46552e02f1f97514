"""The spectral norm of a layer's map, which is not formed for it, and the size of its rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator

import numpy as np
from jaxtyping import Float

from eigenlens.blas import of_row_blocks, one_thread
from eigenlens.spectra.maps import Full, LinearMap, LowRank, is_large, normalised, restored

Asked = tuple[bool, np.ndarray]
"""A vector to be multiplied, and whether by the transpose."""

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
    inner = np.concatenate(
        of_row_blocks(lambda rows: np.square(right[rows]).sum(axis=1), *right.shape)
    )

    def of_left(rows: slice) -> tuple[float, Float[np.ndarray, "r"]]:
        squares = np.square(left[rows])
        return float((squares @ inner).max()), squares.sum(axis=0)

    tops, sums = zip(*of_row_blocks(of_left, *left.shape), strict=True)
    outer = np.sum(sums, axis=0)
    columns = np.sum(
        of_row_blocks(lambda rows: outer[rows] @ np.square(right[rows]), *right.shape), axis=0
    )
    return math.sqrt(max(tops)) + math.sqrt(float(columns.max()))


def spectral_norm(a: LinearMap, seed: int = 0) -> float:
    """``|A|_2``, the largest singular value.

    An SVD for small matrices, else a Lanczos process with a seeded start: on ``A^T A``, or within
    the row space of a low-rank A, where it needs no more than the r x r Gram matrices. The value
    converges long before the vector, so a flat top of the spectrum does no harm.
    """
    return SpectralNorm(a, seed).value


class SpectralNorm:
    """``|A|_2``, computed when it is first asked for, or on the way of other products with A.

    Parameters
    ----------
    a
        The map.
    seed
        Of the start vector.
    """

    def __init__(self, a: LinearMap, seed: int = 0) -> None:
        self._map, self._exponent = normalised(a)
        self._seed = seed
        self._found: float | None = None

    @property
    def shares(self) -> bool:
        """Whether it can go along with other products: of a dense map, by `products`."""
        return isinstance(self._map, Full) and self._map.d > _DENSE_NORM_LIMIT

    @property
    def value(self) -> float:
        """The norm.

        Raises
        ------
        NumericsError
            It is beyond the range of float64.
        """
        if self._found is None:
            self._found = self._compute()
        return restored(self._found, self._exponent)

    def _compute(self) -> float:
        a = self._map
        if a.rank_bound <= _DENSE_NORM_LIMIT or a.d <= _DENSE_NORM_LIMIT:
            return _norm_by_svd(a)
        if isinstance(a, LowRank):
            # u = R^T x: A^T A u = R^T (L^T L) (R R^T) x, and u.v = x (R R^T) y.
            outer, inner = a.rough_grams
            start = self._start(inner)
            run = _lanczos(lambda x: inner @ x, start, self._loose)
            with one_thread():  # many products too short to share
                top = drive(run, lambda mx: outer @ mx)
            return _norm_by_svd(a) if top is None else math.sqrt(max(top, 0.0))
        products = self.products()
        matrix, answer = a.matrix, None
        while True:
            try:
                transposed, x = products.send(answer)
            except StopIteration:
                break
            answer = (matrix.T if transposed else matrix) @ x
        return _norm_by_svd(a) if self._found is None else self._found

    def products(self) -> Generator[Asked, np.ndarray | None, None]:
        """Of a dense map: asks for products with it, and knows the norm when it has them all."""
        if not isinstance(self._map, Full):
            raise TypeError("only a dense map is asked for its own products")
        run = _lanczos(lambda x: x, self._start(self._map.matrix), self._loose)
        x = next(run)
        while True:
            y = yield False, x
            z = yield True, np.asarray(y)
            try:
                x = run.send(np.asarray(z))
            except StopIteration as end:
                if end.value is not None:
                    self._found = math.sqrt(max(float(end.value), 0.0))
                return

    def _start(self, like: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n"]:
        rng = np.random.default_rng(self._seed)
        return np.asarray(rng.standard_normal(like.shape[0]), dtype=like.dtype)

    @property
    def _loose(self) -> float:
        eps = float(np.finfo(self._map.dtype).eps)
        return 1e-5 if is_large(self._map) else 0.03 * math.sqrt(eps)


def top_eigenvalue(gram: Float[np.ndarray, "n n"], seed: int = 0) -> float:
    """Largest eigenvalue of a Gram matrix to a few digits, from below; O(n^2) a step."""
    start = np.asarray(np.random.default_rng(seed).standard_normal(len(gram)), dtype=gram.dtype)
    top = drive(_lanczos(lambda x: x, start, 0.05), lambda x: gram @ x)
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
