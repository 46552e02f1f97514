"""LAPACK's geevx with both sides, called so that other threads go on meanwhile.

numpy's own gives no left vectors. scipy's does, but holds the interpreter for as long as it runs,
seconds in which no other layer is solved and no key is heard. The routine itself is the one that
scipy offers to compiled code (`scipy.linalg.cython_lapack`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Complex, Float

_LETTERS = {"float32": "s", "float64": "d"}


def both_sides(
    matrix: Float[np.ndarray, "n n"], *, balance: bool = True
) -> tuple[Complex[np.ndarray, "n"], Complex[np.ndarray, "n n"], Complex[np.ndarray, "n n"]]:
    """Eigenvalues, left and right vectors: ``A v = lambda v`` and ``w^H A = lambda w^H``.

    Parameters
    ----------
    matrix
        A, in float32 or float64, with finite entries.
    balance
        Permute and scale the matrix first, as LAPACK's geev and numpy do. It serves most matrices
        and harms those in which a few entries are larger than all others by many digits: the
        backward error is then small for the scaled matrix only (Watkins, "A case where balancing is
        harmful", ETNA 23, 2006).

    Returns
    -------
    Values, left vectors and right vectors, as unit columns. Conjugates stand together, the one with
    the positive imaginary part first; their vectors are exact conjugates.

    Raises
    ------
    numpy.linalg.LinAlgError
        The QR algorithm did not converge.
    """
    n = matrix.shape[0]
    dtype = matrix.dtype
    a = np.array(matrix, order="F")
    real, imaginary = np.empty(n, dtype), np.empty(n, dtype)
    left, right = (np.empty((n, n), dtype, order="F") for _ in range(2))
    size, one_norm = np.empty(1, dtype), np.empty(1, dtype)
    scale, of_values, of_vectors = (np.empty(n, dtype) for _ in range(3))
    integers = np.empty(2 * n, np.intc)
    first, last, info = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()

    def call(work: np.ndarray, length: int) -> None:
        count = ctypes.byref(ctypes.c_int(n))
        _geevx(_LETTERS[dtype.name])(
            b"B" if balance else b"N",
            b"V",
            b"V",
            b"N",  # no condition numbers
            count,
            a.ctypes.data,
            count,
            real.ctypes.data,
            imaginary.ctypes.data,
            left.ctypes.data,
            count,
            right.ctypes.data,
            count,
            ctypes.byref(first),
            ctypes.byref(last),
            scale.ctypes.data,
            one_norm.ctypes.data,
            of_values.ctypes.data,
            of_vectors.ctypes.data,
            work.ctypes.data,
            ctypes.byref(ctypes.c_int(length)),
            integers.ctypes.data,
            ctypes.byref(info),
        )
        if info.value:
            raise np.linalg.LinAlgError(f"geevx of a {n} x {n} matrix: info {info.value}")

    call(size, -1)  # says how much room it likes to have
    room = int(size[0])
    call(np.empty(room, dtype), room)
    values = real + 1j * imaginary
    return values, _vectors(imaginary, left), _vectors(imaginary, right)


def _vectors(
    imaginary: Float[np.ndarray, "n"], packed: Float[np.ndarray, "n n"]
) -> Complex[np.ndarray, "n n"]:
    """Real and imaginary part of a pair's first vector stand in its two columns."""
    first = np.flatnonzero(imaginary > 0)
    found = packed.astype(np.result_type(packed.dtype, np.complex64))
    found.imag[:, first] = packed[:, first + 1]
    found[:, first + 1] = found[:, first].conj()
    return found


@cache
def _geevx(letter: str) -> Any:
    """The routine for a precision; ctypes lets the interpreter go while it runs."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__[f"{letter}geevx"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    kinds = [ctypes.c_char_p] * 4 + [ctypes.c_void_p] * 19
    return ctypes.CFUNCTYPE(None, *kinds)(pointer(capsule, name(capsule)))
