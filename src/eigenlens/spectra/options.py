"""What a spectrum run is asked for, checked before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass

from eigenlens.arrays import compute_dtype
from eigenlens.errors import OptionError
from eigenlens.spectra.maps import OPERATORS
from eigenlens.spectra.orders import resolve_order
from eigenlens.spectra.solvers import choose_solvers


@dataclass(frozen=True)
class SpectrumOptions:
    """What to compute, checked once before any weight is read.

    Attributes
    ----------
    k
        Leading eigenvalues a layer, at least 1; a conjugate pair is kept whole.
    order
        ``auto``, ``residual``, ``real`` or ``modulus``.
    operator
        ``raw`` or ``folded``.
    all
        All eigenvalues instead of k.
    per_head
        Also each head's spectrum, trace ratio, copying score and share of lambda_1.
    decode
        This many tokens for each end of the leading vectors; 0 for none.
    solver
        ``auto``, ``dense`` or ``krylov``.
    tie_tolerance
        Relative gap below which leaders count as tied.
    dtype
        ``float64`` or ``float32``.
    seed
        Of the Krylov start vectors.
    keep_vectors
        Keep the vectors of all reported eigenvalues, not only of the k leading ones.
    """

    k: int = 8
    order: str = "auto"
    operator: str = "raw"
    all: bool = False
    per_head: bool = False
    decode: int = 0
    solver: str = "auto"
    tie_tolerance: float = 0.01
    dtype: str = "float64"
    seed: int = 0
    keep_vectors: bool = False

    def __post_init__(self) -> None:
        if self.k < 1:
            raise OptionError(f"k is {self.k}; ask for at least 1 eigenvalue")
        if self.decode < 0:
            raise OptionError(f"decode is {self.decode}; it is a number of tokens, 0 or more")
        if not 0 <= self.tie_tolerance < 1:
            raise OptionError(f"tie tolerance is {self.tie_tolerance}; it lies in [0, 1)")
        if self.seed < 0:
            raise OptionError(f"seed is {self.seed}; it is a whole number, 0 or more")
        if self.operator not in OPERATORS:
            known = ", ".join(OPERATORS)
            raise OptionError(f"operator {self.operator!r} is unknown; use one of {known}")
        compute_dtype(self.dtype)
        resolve_order(self.order, None)
        choose_solvers(self.solver, 0, None if self.all else self.k)
