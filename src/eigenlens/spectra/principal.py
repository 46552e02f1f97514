"""From eigenpairs to the principal one: distinct eigenvalues, the kernel, ties, gap and regime.

Everything here is a decision about numbers with error bars; nothing is claimed that the bars do
not carry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.spectra.maps import LinearMap, LowRank, normalised
from eigenlens.spectra.orders import Order
from eigenlens.spectra.solvers import Eigenpairs

REGIMES: dict[str, str] = {
    "real_dominant": "one direction leads: iterated, it would gather all tokens",
    "complex_dominant": "a complex pair leads: iterated, tokens would turn in a plane",
    "flip": "the leader reverses sign each step: iterated, tokens would agree and flip",
    "near_degenerate": "several directions tie: iterated, tokens would settle in their span",
    "no_consensus": "nothing is amplified: no direction attracts the tokens",
}
"""Regime and what it means, "as if this layer were iterated"."""

_EXACT = 1e-4  # error bars, relative to the eigenvalue, up to which two may count as one

TARGETS = ("v1", "plane", "span", "kernel")


@dataclass(frozen=True)
class Distinct:
    """One distinct eigenvalue: a real one, a conjugate pair or an exact multiple, counted once.

    Attributes
    ----------
    value
        The eigenvalue, of a pair the one with positive imaginary part.
    key
        Its key under the order.
    bar
        Its error bar, absolute; it holds for the key as well.
    members
        Positions among the eigenpairs (empty for the kernel that the shape prescribes).
    is_kernel
        The eigenvalue is 0 within its bar.
    defective
        So ill-conditioned that the first-order bar itself is no guide: a Jordan block or close.
    """

    value: complex
    key: float
    bar: float
    members: tuple[int, ...]
    is_kernel: bool
    defective: bool

    @property
    def is_pair(self) -> bool:
        """Complex beyond doubt: the imaginary part stands clear of the error bar."""
        return abs(self.value.imag) > self.bar


@dataclass(frozen=True)
class Principal:
    """What leads a layer, by how much, and what that means.

    Attributes
    ----------
    regime
        A key of `REGIMES`.
    target
        `v1`, `plane` (complex pair), `span` (tied or multiple), `kernel`.
    members
        Positions of the eigenpairs that span the target; empty for the kernel.
    gap
        ``(key_1 - key_2) / |key_1|``; None where key_1 is 0, or not positive under `real`, or
        there is no second distinct eigenvalue.
    angle, angle_unit
        Rotation of the leader: ``arg(1 + lambda)`` or ``arg(lambda)`` in rad per step,
        ``Im/Re`` in rad per unit of log depth under `real`; None where the leader is not amplified
        at all under `real`.
    steps_to_separate
        Steps until the second is a factor 10 behind the first: ``ln 10 / ln(key_1 / key_2)``;
        under `real`, where the ratio decays as ``t^-gap``, the factor ``10^(1/gap)`` by which
        depth has to grow. None where that is infinite or not defined.
    defective
        The leader is a Jordan block or close to one: its eigenvectors do not span the target, an
        invariant subspace does.
    """

    regime: str
    target: str
    members: tuple[int, ...]
    gap: float | None
    angle: float | None
    angle_unit: str
    steps_to_separate: float | None
    defective: bool = False


def find_principal(
    pairs: Eigenpairs, d: int, rank_bound: int, order: Order, tie_tolerance: float = 0.01
) -> Principal | None:
    """Decide regime, target and gap from sorted eigenpairs.

    Parameters
    ----------
    pairs
        Certified pairs, sorted by `order`.
    d, rank_bound
        If ``rank_bound < d`` the eigenvalue 0 exists besides the pairs and takes part.
    order
        The order that sorted them.
    tie_tolerance
        Relative gap below which leaders count as tied.

    Returns
    -------
    The decision, or None when `pairs` is an incomplete list that ends inside the tie, so that more
    pairs are needed.
    """
    distinct = distinct_leaders(pairs, d, rank_bound, order, tie_tolerance)
    first = distinct[0]
    others = distinct[1:]
    scale = max(abs(first.key), np.finfo(float).tiny)
    tied = [first]
    second: Distinct | None = None
    for other in others:
        close = first.key - other.key
        loose = first.defective and abs(first.value - other.value) <= _spread(pairs)
        if close < tie_tolerance * scale or close <= first.bar + other.bar or loose:
            tied.append(other)
        second = second or other
    if not pairs.complete and (second is None or tied[-1] is distinct[-1]):
        return None
    gap = None
    if second is not None and first.key != 0 and not (order.name == "real" and first.key <= 0):
        # Keys that tie by rounding are sorted otherwise: the second may be ahead by that.
        gap = max(first.key - second.key, 0.0) / abs(first.key)
    regime = _regime(first, len(tied) > 1 or first.defective, order)
    members, target = _target(regime, first, tied)
    angle, unit = _angle(first, order)
    steps = None if regime == "near_degenerate" else _steps(first, second, gap, order)
    return Principal(regime, target, members, gap, angle, unit, steps, first.defective)


def distinct_leaders(
    pairs: Eigenpairs, d: int, rank_bound: int, order: Order, tie_tolerance: float
) -> list[Distinct]:
    """Distinct eigenvalues by descending key: the leader, all that tie with it, and one more.

    Conjugates and eigenvalues that agree within their error bars are one; the kernel is one,
    whether the shape prescribes it or eigenvalues are 0 within their bars.
    """
    hopeless = _hopeless(pairs)
    keys = order.key(pairs.values)
    bars = sure_bars(pairs)
    has_kernel = (pairs.values.size if pairs.complete else rank_bound) < d
    kernel_key = float(order.key(np.zeros(1, dtype=complex))[0])
    waiting = [Distinct(0j, kernel_key, 0.0, (), True, False)] if has_kernel else []
    found: list[Distinct] = []
    for i, value in enumerate(pairs.values):
        key = float(keys[i])
        while waiting and waiting[0].key >= key:
            _add(found, waiting.pop())
        if len(found) > 1 and _settled(found, key, tie_tolerance):
            return found
        bar = float(bars[i])
        defective = float(pairs.conditions[i]) > hopeless
        is_kernel = bool(abs(value) <= bar)
        _add(found, Distinct(complex(value), key, bar, (i,), is_kernel, defective))
    # An incomplete list says nothing about what lies below it, the kernel's place included.
    for kernel in waiting if pairs.complete else ():
        _add(found, kernel)
    return found


def _hopeless(pairs: Eigenpairs) -> float:
    return 0.03 / math.sqrt(float(np.finfo(pairs.values.dtype).eps))


def sure_bars(pairs: Eigenpairs) -> Float[np.ndarray, "k"]:
    """Error bars, those of defective eigenvalues as wide as rounding scatters their cluster.

    The first-order bar of a Jordan block is unbounded, but eps does not move its m eigenvalues by
    more than about ``eps^(1/m) |A|`` (Lidskii, 1966). m is the largest number of defective ones,
    at least 2, that lie as close together as that. Their mean is well conditioned, so where all of
    them are at hand, how far they stand from it shows what rounding did.
    """
    bars = pairs.error_bars.astype(np.float64)
    eps = float(np.finfo(pairs.values.dtype).eps)
    defective = pairs.conditions > _hopeless(pairs)
    cluster = pairs.values[defective]
    reach = eps ** (1 / np.arange(1, cluster.size + 1)) * pairs.norm
    least = math.sqrt(eps) * pairs.norm
    for i in np.flatnonzero(defective & (bars > least)):
        distance = np.abs(cluster - pairs.values[i])
        near = np.flatnonzero(np.sort(distance) <= 4 * reach)  # a diameter, and a constant
        bars[i] = min(bars[i], max(least, float(reach[near].max())))
        if pairs.complete:
            together = cluster[np.argsort(distance)[: near[-1] + 1]]
            scatter = float(np.abs(together - together.mean()).max())
            bars[i] = least + scatter
    return bars


def _add(found: list[Distinct], new: Distinct) -> None:
    """Append `new`, or count it into the one it repeats."""
    for place, old in enumerate(found):
        if _is_same(old, new):
            found[place] = Distinct(
                old.value,
                old.key,
                max(old.bar, new.bar),
                (*old.members, *new.members),
                old.is_kernel and new.is_kernel,
                old.defective or new.defective,
            )
            return
    found.append(new)


def _settled(found: list[Distinct], key: float, tie_tolerance: float) -> bool:
    """The last one found is clear of the tie, and `key` belongs to something further down."""
    first, last = found[0], found[-1]
    clear = first.key - last.key > max(tie_tolerance * abs(first.key), 2 * (first.bar + last.bar))
    return clear and not first.defective and last.key - key > last.bar


def _is_same(a: Distinct, b: Distinct) -> bool:
    """Conjugates, or equal within the bars (which say nothing about a defective eigenvalue)."""
    if a.is_kernel and b.is_kernel:
        return True
    if a.value == b.value.conjugate():
        return True
    if a.defective or b.defective:
        return False
    near = min(abs(a.value - b.value), abs(a.value - b.value.conjugate()))
    bars = a.bar + b.bar  # wide bars make a tie, not a multiple
    return near <= bars <= _EXACT * max(abs(a.value), abs(b.value))


def _spread(pairs: Eigenpairs) -> float:
    """How far rounding scatters a Jordan block: eps^(1/p) |A|, here with p up to 4."""
    eps = float(np.finfo(pairs.values.dtype).eps)
    return float(eps**0.25 * pairs.norm)


def _regime(first: Distinct, tie: bool, order: Order) -> str:
    """The decision table of each order."""
    multiplier = first.value + 1 if order.name == "residual" else first.value
    if order.name == "residual" and (first.is_kernel or abs(multiplier) <= 1 + first.bar):
        return "no_consensus"
    if order.name == "real" and first.key <= first.bar:
        return "no_consensus"
    if order.name == "modulus" and first.is_kernel:
        return "no_consensus"  # F is nilpotent or zero: nothing leads
    if tie:
        return "near_degenerate"
    if first.is_pair:
        return "complex_dominant"
    if multiplier.real < 0:  # under `real` the key is positive, so this cannot be
        return "flip"
    return "real_dominant"


def _target(regime: str, first: Distinct, tied: list[Distinct]) -> tuple[tuple[int, ...], str]:
    """Pairs that span the target, and its kind."""
    if regime == "near_degenerate":
        members = tuple(i for t in tied for i in t.members)
        return members, "span"
    if first.is_kernel:
        return (), "kernel"
    single = 2 if first.is_pair else 1
    if len(first.members) > single:
        return first.members, "span"
    return first.members, "plane" if first.is_pair else "v1"


def _angle(first: Distinct, order: Order) -> tuple[float | None, str]:
    if order.name == "real":
        unit = "rad per unit of log depth"
        if first.key <= 0:
            return None, unit
        return first.value.imag / first.value.real, unit
    multiplier = first.value + 1 if order.name == "residual" else first.value
    if multiplier == 0:
        return None, "rad per step"
    return abs(math.atan2(multiplier.imag, multiplier.real)), "rad per step"


def _steps(
    first: Distinct, second: Distinct | None, gap: float | None, order: Order
) -> float | None:
    if second is None or gap is None or gap <= 0:
        return None
    if order.name == "real":
        exponent = 1 / gap
        return 10.0**exponent if exponent < 300 else None
    if second.key == 0:
        return 0.0
    return math.log(10) / math.log(first.key / second.key)


def target_basis(a: LinearMap, pairs: Eigenpairs, principal: Principal) -> Float[np.ndarray, "d m"]:
    """Orthonormal basis of the target; for the kernel, of its orthogonal complement.

    A real leader gives its vector, a pair ``Re v, Im v``, a tie all its vectors. Where the leader
    is defective its eigenvectors are nearly parallel, and the basis is that of the invariant
    subspace, from an ordered Schur form of the core.
    """
    if principal.target == "kernel":
        return a.row_space()
    vectors = pairs.right[:, list(principal.members)]
    if principal.defective:
        return _invariant_subspace(a, pairs.values[list(principal.members)])
    if principal.target == "v1":  # a unit vector already, its sign fixed
        return np.asarray(vectors.real)
    columns = np.concatenate([vectors.real, vectors.imag], axis=1)
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    floor = 1e3 * float(np.finfo(sizes.dtype).eps) * sizes[0]
    return np.asarray(left[:, sizes > floor])


def _invariant_subspace(
    a: LinearMap, cluster: Complex[np.ndarray, "m"]
) -> Float[np.ndarray, "d m"]:
    """Schur vectors of the eigenvalues that lie among `cluster`, lifted to R^d."""
    import scipy.linalg

    low_rank = isinstance(a, LowRank) and a.rank_bound < a.d
    a, exponent = normalised(a)
    cluster = np.ldexp(cluster.real, -exponent) + 1j * np.ldexp(cluster.imag, -exponent)
    core = a.core() if low_rank else a.dense()
    eps = float(np.finfo(core.dtype).eps)
    radius = eps**0.25 * max(float(np.linalg.norm(core, 2)), float(np.finfo(core.dtype).tiny))

    _, q, count = scipy.linalg.schur(
        core, sort=lambda real, imag: bool(np.abs(cluster - complex(real, imag)).min() <= radius)
    )
    small = q[:, :count]
    lifted = a.left @ small if low_rank and isinstance(a, LowRank) else small
    basis, _ = np.linalg.qr(lifted)
    return np.asarray(basis)
