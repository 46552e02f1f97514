"""How far tokens lean towards a subspace, before and after a step, summed prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from eigenlens.errors import NumericsError, OptionError, ShapeError

_BLOCK = 1 << 22  # entries of the largest temporary, 32 MB in float64

TIE_ULPS = 8
"""Alignments closer than this many eps of the states' dtype are a tie: rounding, not movement."""


def token_norms(X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n"]:
    """2-norms of the rows of `X`, in float64.

    Raises
    ------
    NumericsError
        A token holds a NaN or an infinity.
    """
    wide = np.asarray(X, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        norms: np.ndarray = np.sqrt(np.einsum("nd,nd->n", wide, wide))
    finite = np.isfinite(norms)
    if not finite.all():
        raise NumericsError(
            f"{int(np.count_nonzero(~finite))} of {norms.size} token states hold NaN or infinite "
            f"values (the first is token {int(np.argmin(finite))}): states must be finite; run the "
            "model in float32 or wider"
        )
    return norms


def unit_tokens(X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Rows of `X` divided by their norms, in float64; a zero row has no direction and gives NaN.

    Raises
    ------
    NumericsError
        A token holds a NaN or an infinity.
    """
    norms = token_norms(X)
    return np.asarray(np.asarray(X, dtype=np.float64) / np.where(norms > 0, norms, np.nan)[:, None])


def unit_sum(X: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "d"], int]:
    """Sum of the unit tokens, and how many there are; zero tokens are left out. O(nd), one pass.

    Raises
    ------
    NumericsError
        A token holds a NaN or an infinity.
    """
    wide = np.asarray(X, dtype=np.float64)
    norms = token_norms(wide)
    weights = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    return np.asarray(weights @ wide), int(np.count_nonzero(norms))


class Targets:
    """Subspaces that tokens are compared with, all at once: one matrix product a block of tokens.

    Parameters
    ----------
    bases
        Orthonormal bases (d, k), one a subspace; k may differ. A stack (m, d, k) will do.
    complement
        The bases span the orthogonal complements of the subspaces that are meant (a kernel is
        given by its row space).
    dtype
        Dtype of the product: float64, or float32 for many null directions at once.

    Raises
    ------
    ShapeError
        No basis, an empty one, or bases of different d.
    NumericsError
        A basis is not orthonormal to 1e-5 (complex eigenvectors must become a plane first).
    """

    def __init__(
        self,
        bases: Sequence[Float[np.ndarray, "d _k"]] | Float[np.ndarray, "m d k"],
        *,
        complement: bool = False,
        dtype: str = "float64",
    ) -> None:
        found = [np.asarray(B, dtype=np.float64) for B in bases]
        if not found:
            raise ShapeError("no target subspace was given; give at least one basis (d, k)")
        shapes = [B.shape for B in found]
        if any(len(s) != 2 or s[0] != shapes[0][0] or not 1 <= s[1] <= s[0] for s in shapes):
            raise ShapeError(
                f"target bases have the shapes {shapes[:4]}; they must be (d, k) with one d and "
                "1 <= k <= d"
            )
        for i, B in enumerate(found):
            off = float(np.abs(B.T @ B - np.eye(B.shape[1])).max())
            if not off <= 1e-5:
                raise NumericsError(
                    f"target basis {i} is not orthonormal (B^T B is off by {off:.2g}); "
                    "orthonormalise it, a complex vector by its real and imaginary part"
                )
        self.dims = np.array([s[1] for s in shapes])
        self.complement = complement
        self._columns = np.concatenate(found, axis=1).astype(dtype)
        self._starts = np.concatenate([[0], np.cumsum(self.dims)[:-1]])

    def __len__(self) -> int:
        return int(self.dims.size)

    @property
    def d(self) -> int:
        """Dimension of the space."""
        return int(self._columns.shape[0])

    @property
    def columns(self) -> Float[np.ndarray, "d c"]:
        """The basis vectors of all subspaces, one after the other."""
        return self._columns

    def _cosines(
        self, X: Float[np.ndarray, "n d"], norms: Float[np.ndarray, "n"]
    ) -> Float[np.ndarray, "n c"]:
        """Cosines of tokens (rows) with all basis vectors (columns); NaN for a zero token."""
        dtype = self._columns.dtype
        safe = np.where(norms > 0, norms, np.nan)
        if dtype == np.float64 or not ((norms < 1e-25) | (norms > 1e25)).any():
            # Dividing the few cosines instead of the tokens saves a copy of the states.
            return np.asarray((X.astype(dtype, copy=False) @ self._columns) / safe[:, None])
        return np.asarray((X / safe[:, None]).astype(dtype) @ self._columns)

    def alignment(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """``|B^T x| / |x|`` for every subspace and token, in [0, 1]; NaN for a zero token.

        O(n d sum k); temporaries are bounded whatever the number of subspaces.

        Raises
        ------
        NumericsError
            A token holds a NaN or an infinity.
        """
        norms = token_norms(X)
        out = np.empty((len(self), X.shape[0]))
        step = max(1, _BLOCK // self._columns.shape[1])
        for start in range(0, X.shape[0], step):
            block = slice(start, start + step)
            out[:, block] = self.of_cosines(self._cosines(X[block], norms[block]))
        return out

    def of_cosines(self, cosines: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "m n"]:
        """Alignments of tokens whose cosines with the columns of all bases are known."""
        share = np.square(cosines)
        if share.shape[1] > len(self):
            share = np.add.reduceat(share, self._starts, axis=1)
        if self.complement:
            share = 1.0 - share
        # Rounding may leave [0, 1] by some eps; NaN passes through.
        return np.asarray(np.sqrt(np.clip(share.T, 0.0, 1.0)))

    def signed(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """``v.x / |x|`` for targets that are one real vector each, in [-1, 1].

        Raises
        ------
        OptionError
            A target is a plane or a complement: it has no sign.
        """
        if self.complement or (self.dims > 1).any():
            raise OptionError("a signed alignment needs single real vectors; planes have no sign")
        return np.asarray(np.clip(self._cosines(X, token_norms(X)).T, -1.0, 1.0))


def alignment(X: Float[np.ndarray, "n d"], B: Float[np.ndarray, "d k"]) -> Float[np.ndarray, "n"]:
    """``|B^T x_i| / |x_i|``: cosine between each token and the subspace, in [0, 1].

    `B` is orthonormal; a zero token has no direction and gives NaN. Li and Altafini (2026), here
    for a subspace of any dimension.

    Raises
    ------
    ShapeError, NumericsError
        As `Targets`.

    Examples
    --------
    >>> import numpy as np
    >>> alignment(np.array([[3.0, 4.0], [0.0, 2.0]]), np.array([[1.0], [0.0]]))
    array([0.6, 0. ])
    """
    return np.asarray(Targets([B]).alignment(X)[0])


def signed_alignment(
    X: Float[np.ndarray, "n d"], v: Float[np.ndarray, "d"]
) -> Float[np.ndarray, "n"]:
    """``v.x_i / |x_i|`` for a real unit vector, in [-1, 1]; NaN for a zero token.

    The sign is that of `v`: eigenvectors have their largest entry positive by convention.
    """
    return np.asarray(Targets([v[:, None]]).signed(X)[0])


def gamma(after: Float[np.ndarray, "n"]) -> float:
    """Mean alignment after the step. Never negative: judge it by `expected_alignment`."""
    return float(np.mean(after))


def gain(before: Float[np.ndarray, "n"], after: Float[np.ndarray, "n"]) -> float:
    """Mean of after - before. With signed alignments, the signed gain (positive: towards +v1)."""
    return float(np.mean(after - before))


def wins(
    before: Float[np.ndarray, "*m n"], after: Float[np.ndarray, "*m n"], tie: float = 0.0
) -> Float[np.ndarray, "*m n"]:
    """1 where a token moved closer, 0 where it moved away, 1/2 for ``|after - before| <= tie``."""
    step = after - before
    return np.where(np.abs(step) <= tie, 0.5, np.where(step > 0, 1.0, 0.0))


def rho(before: Float[np.ndarray, "n"], after: Float[np.ndarray, "n"], tie: float = 0.0) -> float:
    """Fraction of tokens that moved closer, ties counted half. 1/2 by itself proves nothing.

    Examples
    --------
    >>> import numpy as np
    >>> rho(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.2, 0.3, 0.3, 0.1]))
    0.625
    """
    return float(np.mean(wins(before, after, tie)))


def expected_alignment(d: int, k: int = 1) -> float:
    """Mean alignment of an isotropic random direction of R^d with a fixed k-plane, exact.

    ``Gamma((k+1)/2) Gamma(d/2) / (Gamma(k/2) Gamma((d+1)/2))``: the ratio of the mean norms of a
    k- and a d-dimensional Gaussian vector, which is independent of the direction. For k = 1 about
    ``sqrt(2 / (pi d))``.

    Raises
    ------
    OptionError
        Not 1 <= k <= d.
    """
    if not 1 <= k <= d:
        raise OptionError(f"a subspace of dimension {k} of R^{d}: allowed are 1 to {d}")
    half = (math.lgamma((k + 1) / 2), math.lgamma(k / 2), math.lgamma(d / 2))
    return math.exp(half[0] - half[1] + half[2] - math.lgamma((d + 1) / 2))


def expected_squared_alignment(d: int, k: int = 1) -> float:
    """Mean of the squared alignment of an isotropic random direction with a k-plane: k/d."""
    return k / d


def principal_cosines(
    A: Float[np.ndarray, "d j"], B: Float[np.ndarray, "d k"]
) -> Float[np.ndarray, "m"]:
    """Cosines of the principal angles between two subspaces, descending; orthonormal bases."""
    return np.clip(np.linalg.svd(A.T @ B, compute_uv=False), 0.0, 1.0)


def overlap(A: Float[np.ndarray, "d j"], B: Float[np.ndarray, "d k"]) -> float:
    """Root mean square of the principal cosines, in [0, 1]; ``|cos|`` for two vectors.

    1 when the smaller subspace lies in the larger one.
    """
    return float(np.sqrt(np.mean(np.square(principal_cosines(A, B)))))


@dataclass(frozen=True)
class PromptSums:
    """Sums over the tokens of some prompts; see `sum_prompts`."""

    sums: Float[np.ndarray, "b 4"]
    counts: Float[np.ndarray, "b"]
    undefined: int


def sum_prompts(
    before: Float[np.ndarray, "g b n"],
    after: Float[np.ndarray, "g b n"],
    signed: Float[np.ndarray, "g b n"],
    counted: Bool[np.ndarray, "b n"],
    tie: float,
) -> list[PromptSums]:
    """What `AlignmentSums` keep, of g steps at once on the same prompts side by side.

    Parameters
    ----------
    before, after
        Alignments; NaN for a zero token.
    signed
        Signed gains, or zeros.
    counted
        Tokens that count.
    tie
        Half-width of a tie.
    """
    step = after - before
    known = np.isfinite(step) & counted
    closer = np.where(np.abs(step) <= tie, 0.5, step > 0)
    parts = (after, step, closer, signed)
    sums = np.stack([np.where(known, x, 0.0).sum(axis=2) for x in parts], axis=2)
    counts = np.count_nonzero(known, axis=2)
    total = int(np.count_nonzero(counted))
    return [
        PromptSums(s, c.astype(np.float64), total - int(c.sum()))
        for s, c in zip(sums, counts, strict=True)
    ]


class AlignmentSums:
    """Sums and counts per prompt of what gamma, gain and rho are made of; tokens are not kept.

    Memory is one row of a few numbers a prompt and target: all that a bootstrap over prompts needs.
    A prompt may arrive in pieces, prompts in any order.

    Parameters
    ----------
    n_targets
        Number m of subspaces measured side by side (1, or that of the null directions).
    tie
        Half-width of a tie; None takes `TIE_ULPS` eps of the states' dtype as given to `add`.

    Attributes
    ----------
    undefined
        Tokens left out because a state was exactly zero.
    """

    def __init__(self, n_targets: int = 1, tie: float | None = None) -> None:
        self.n_targets = n_targets
        self.tie = tie
        self.undefined = 0
        self._size = 0
        self._counts = np.zeros(0)
        self._sums = np.zeros((0, 4, n_targets))
        self._signed = 0

    def add(
        self,
        before: Float[np.ndarray, "*m n"],
        after: Float[np.ndarray, "*m n"],
        prompts: Int[np.ndarray, "n"] | int | None = None,
        *,
        signed: tuple[Float[np.ndarray, "*m n"], Float[np.ndarray, "*m n"]] | None = None,
        dtype: str = "float32",
    ) -> None:
        """Add tokens.

        Parameters
        ----------
        before, after
            Alignments (n,), or (m, n) for m targets.
        prompts
            Which prompt each token belongs to, counted from 0, or one number for all; None pools
            everything in one row, for nulls of which no interval is asked.
        signed
            Signed alignments before and after, for a real leading vector.
        dtype
            Name of the states' dtype, which says how large rounding is.

        Raises
        ------
        ShapeError
            Shapes do not fit each other or the number of targets.
        OptionError
            A prompt number is negative, or signed alignments are given on some calls only.
        """
        parts = [before, after, *(signed or ())]
        rows = [np.atleast_2d(np.asarray(p, dtype=np.float64)) for p in parts]
        n = rows[0].shape[1]
        if any(r.shape != (self.n_targets, n) for r in rows):
            raise ShapeError(
                f"alignments have the shapes {[p.shape for p in parts]}; they must all be "
                f"({self.n_targets}, n)"
            )
        if self._size and bool(self._signed) != (signed is not None):
            raise OptionError("signed alignments must be given on every call or on none")
        owner = np.broadcast_to(np.asarray(0 if prompts is None else prompts), (n,))
        if n and owner.min() < 0:
            raise OptionError(f"prompt number {int(owner.min())}: prompts are counted from 0")
        known = np.isfinite(rows[0]).all(axis=0) & np.isfinite(rows[1]).all(axis=0)
        self.undefined += int(n - np.count_nonzero(known))
        if signed is not None:
            self._signed += 1
        self._grow(int(owner.max()) + 1 if n else 0)
        a, b, p = rows[0][:, known], rows[1][:, known], owner[known]
        values = np.zeros((p.size, 4, self.n_targets))
        values[:, 0] = b.T
        values[:, 1] = (b - a).T
        values[:, 2] = wins(a, b, self._tie(dtype)).T
        if signed is not None:
            values[:, 3] = (rows[3] - rows[2])[:, known].T
        self._counts[: self._size] += np.bincount(p, minlength=self._size)
        if p.size and (p == p[0]).all():
            self._sums[p[0]] += values.sum(axis=0)
        else:
            np.add.at(self._sums, p, values)

    def add_prompts(self, part: PromptSums, prompts: Int[np.ndarray, "b"], *, signed: bool) -> None:
        """Add whole prompts whose sums are formed already (one target).

        Parameters
        ----------
        part
            See `sum_prompts`.
        prompts
            Their numbers, each once.
        signed
            Whether signed alignments were among them: on every call or on none.
        """
        self._grow(int(prompts.max()) + 1 if prompts.size else 0)
        self._counts[prompts] += part.counts
        self._sums[prompts, :, 0] += part.sums
        self.undefined += part.undefined
        self._signed += signed

    def _tie(self, dtype: str) -> float:
        return TIE_ULPS * float(np.finfo(dtype).eps) if self.tie is None else self.tie

    def _grow(self, size: int) -> None:
        if size > self._counts.size:
            room = max(size, 2 * self._counts.size)
            more = room - self._counts.size
            self._counts = np.concatenate([self._counts, np.zeros(more)])
            self._sums = np.concatenate([self._sums, np.zeros((more, 4, self.n_targets))])
        self._size = max(self._size, size)

    @property
    def counts(self) -> Float[np.ndarray, "p"]:
        """Tokens a prompt."""
        return self._counts[: self._size]

    @property
    def after(self) -> Float[np.ndarray, "p m"]:
        """Sum over a prompt's tokens of the alignment after the step."""
        return self._sums[: self._size, 0]

    @property
    def gains(self) -> Float[np.ndarray, "p m"]:
        """Sum over a prompt's tokens of after - before."""
        return self._sums[: self._size, 1]

    @property
    def wins(self) -> Float[np.ndarray, "p m"]:
        """Number of a prompt's tokens that moved closer, ties counted half."""
        return self._sums[: self._size, 2]

    @property
    def signed_gains(self) -> Float[np.ndarray, "p m"] | None:
        """Sum over a prompt's tokens of the signed gain; None when none was given."""
        return self._sums[: self._size, 3] if self._signed else None

    @property
    def n_tokens(self) -> int:
        """Tokens that count."""
        return int(self.counts.sum())

    @property
    def n_prompts(self) -> int:
        """Prompts with at least one token that counts."""
        return int(np.count_nonzero(self.counts))

    def _mean(self, sums: Float[np.ndarray, "p m"]) -> Float[np.ndarray, "m"]:
        total = self.counts.sum()
        if not total:
            return np.full(self.n_targets, np.nan)
        return np.asarray(sums.sum(axis=0) / total)

    def gamma(self) -> Float[np.ndarray, "m"]:
        """Mean over tokens of the alignment after the step, per target; NaN without tokens."""
        return self._mean(self.after)

    def gain(self) -> Float[np.ndarray, "m"]:
        """Mean over tokens of after - before, per target; NaN without tokens."""
        return self._mean(self.gains)

    def rho(self) -> Float[np.ndarray, "m"]:
        """Fraction of tokens that moved closer, per target; NaN without tokens."""
        return self._mean(self.wins)

    def signed_gain(self) -> Float[np.ndarray, "m"] | None:
        """Mean signed gain per target, or None."""
        signed = self.signed_gains
        return None if signed is None else self._mean(signed)
