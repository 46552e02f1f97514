"""Why the direction is not what leads the edited layer, and from which strength on it is.

The pair that the term makes has the vector ``(lambda - F)^-1 u``, which is ``u + (lambda - F)^-1
F u`` up to its length: it is near u where lambda is far above ``|F u|``. And it leads where lambda
is above what else the layer has. Which of the two is missing is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from eigenlens.circuit.circuit import OVCircuit
from eigenlens.shown.words import complex_text
from eigenlens.spectra.maps import build_factors
from eigenlens.spectra.orders import ORDERS
from eigenlens.steering.edit import Edit
from eigenlens.steering.eigenpair import (
    Change,
    Leader,
    alpha_qu,
    arriving,
    factors,
    leader_with,
    read_of,
)
from eigenlens.steering.probes import Probe, Reader, at_strength, reader
from eigenlens.steering.rank_one import at_value

WANTED = 0.9
"""Cosine of the leading eigenvector with the direction below which a warning is due."""
_DOUBLINGS = 12
_HALVINGS = 5
_CLOSER = 1.05
_TRIES = 24  # of the solver, which takes seconds where a layer is large
_STRIDE = 1.5  # larger ones could pass over strengths that do not do
_BEYOND = (1e-3, 1e-2, 3e-2, 0.1)  # shares by which a placed value is put above the others
_SAME = 1e-6


def spectrum_warnings(circuit: OVCircuit, edit: Edit, change: Change) -> list[str]:
    """What must be told where the direction does not come out on top."""
    size = alpha_qu(circuit, edit)
    if edit.strength > 0 and size <= 0:
        return [
            f"q.u is {size / edit.strength:.3g}, not positive: the edit pushes the eigenvalue of "
            "the direction down, so that it cannot lead; use another probe"
        ]
    if edit.strength <= 0 or change.after.cos_direction >= WANTED:
        return []
    first = first_strength(circuit, edit, change)
    enough = "" if first is None else f"; it is {WANTED:g} or more from strength {first:.3g} on"
    return [
        f"at strength {edit.strength:.3g} the direction is not the leading eigenvector (cosine "
        f"{change.after.cos_direction:.2f}): {_why(circuit, edit, change, size)}{enough}"
    ]


def _why(circuit: OVCircuit, edit: Edit, change: Change, size: float) -> str:
    formula = change.formula
    if formula is None:
        return (
            f"strength x q.u is {size:.3g}, too weak to make an eigenvector of its own beside the "
            f"layer's own leader, {complex_text(change.before.eigenvalue)} before the edit"
        )
    if not pair_leads(change):
        own, order = change.after.eigenvalue, ORDERS[change.after.order]
        ours, theirs = order.key(np.array([formula.eigenvalue, own]))
        what = order.meaning.partition(":")[0]  # |1 + lambda|
        by = "" if order.name == "real" else f" ({what} {ours:.3g} against {theirs:.3g})"
        return (
            f"its new eigenvalue {_shown(formula.eigenvalue)} is not above the layer's own leader, "
            f"{complex_text(change.before.eigenvalue)} before the edit and {complex_text(own)} "
            f"with it{by}"
        )
    u = np.asarray(edit.direction, dtype=np.float64)
    image = float(np.linalg.norm(build_factors(circuit).matvec(u)))
    bent = math.tan(math.acos(min(max(formula.cos_direction, 1e-9), 1.0)))
    # Were F normal with all else near 0, what is added across u would be |F u| / |lambda| of it.
    resolvent = ""
    if bent > 2 * image / abs(formula.eigenvalue):
        resolvent = ", magnified since F has eigenvalues near it or is far from normal"
    return (
        f"the edit's own pair leads, but its vector u + (lambda - F)^-1 F u is bent away from u, "
        f"for |F u| is {image:.3g} and the new eigenvalue lambda {_shown(formula.eigenvalue)}"
        f"{resolvent}"
    )


def pair_leads(change: Change) -> bool:
    """Whether what leads after the edit is the pair that the term makes."""
    if change.formula is None:
        return False
    pair, found = change.formula.eigenvalue, change.after.eigenvalue
    apart = min(abs(pair - found), abs(pair.conjugate() - found))
    return apart <= _SAME * max(abs(pair), abs(found))


def _shown(value: complex) -> str:
    if value.imag == 0:
        return f"{value.real:.3g}"
    return f"{value.real:.3g}±{abs(value.imag):.3g}i"


def first_strength(circuit: OVCircuit, edit: Edit, change: Change) -> float | None:
    """A strength above the edit's from which on the cosine is `WANTED`, usually about the least.

    The secular equation is linear in the strength, so it is lambda that is searched above all that
    leads, before and after: doubled until the vector ``(lambda - F)^-1 u`` is near u, then
    bisected; one LU factorisation of the (r, r) core a step. The solver tries what is found. Where
    F's own leader falls as the strength rises, a smaller lambda leads as well, so that the solver
    is then asked about smaller strengths, until one does not do or `_TRIES` were asked; a strength
    between those that it tried may be missed.

    None where it is not reached, or the solver does not confirm it.
    """
    layer = reader(circuit)

    def leads(strength: float) -> bool:
        there = leader_with(circuit, _stronger(layer, edit, strength))
        return there.cos_direction >= WANTED

    if edit.probe == "placement":  # the strength is the eigenvalue, the vector u throughout
        above = _ahead(change.after)
        for more in _BEYOND:
            first = _rounded_up(above * (1 + more)) if above > 0 else 0.0
            if first > edit.strength and leads(first):
                return first
        return None
    best = _by_formula(circuit, edit, change)
    if best is None or not leads(best):
        return None
    return _lowered(best, edit.strength, leads)


def _stronger(layer: Reader, edit: Edit, strength: float) -> Edit:
    """The same edit at another strength."""
    u = np.asarray(edit.direction, dtype=np.float64)
    there = at_strength(layer, u, Probe(edit.w, edit.written), edit.probe, strength)
    return replace(edit, strength=strength, written=there.written)


def _by_formula(circuit: OVCircuit, edit: Edit, change: Change) -> float | None:
    """The least strength that the secular equation finds where lambda is above all leaders."""
    u = np.asarray(edit.direction, dtype=np.float64)
    low = max(_ahead(change.before), _ahead(change.after), 0.0)
    if change.formula is not None:
        low = max(low, change.formula.eigenvalue.real)
    low *= 1 + 1e-3  # beside an eigenvalue of F the resolvent has a pole
    if not low > 0:
        return None
    q, p, F = read_of(circuit, edit), arriving(circuit, edit), factors(circuit)

    def enough(value: float) -> float | None:
        """The strength at which lambda is `value`, if the vector is near enough to u there."""
        strength, vector = at_value(F, p, q, value)
        near = float(vector @ u) >= WANTED * float(np.linalg.norm(vector))
        return strength if near and edit.strength < strength < math.inf else None

    high, best = low, enough(low)
    for _ in range(_DOUBLINGS):
        if best is not None:
            break
        low, high = high, 2 * high
        best = enough(high)
    if best is None:
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        found = enough(middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    return _rounded_up(best)


def _lowered(best: float, least: float, leads: Callable[[float], bool]) -> float:
    """The smallest strength down to which `leads` holds, to a few percent; above `least`.

    One try where `best` is that already; what `_TRIES` reach where they are not enough.
    """
    low, step, left = least, _CLOSER, _TRIES
    while left and best / step > least:
        left -= 1
        lower = _rounded_up(best / step)
        if not leads(lower):
            low = lower
            break
        best, step = lower, min(step**2, _STRIDE)
    while left and best > _CLOSER * low:
        left -= 1
        middle = _rounded_up(math.sqrt(best * low))
        if not low < middle < best:
            break
        if leads(middle):
            best = middle
        else:
            low = middle
    return best


def _ahead(leader: Leader) -> float:
    """The positive eigenvalue that would be level with a leader."""
    order = ORDERS[leader.order]
    return float(order.key(np.array([leader.eigenvalue]))[0]) - order.one


def _rounded_up(x: float) -> float:
    """To three digits, as it is shown."""
    unit = 10.0 ** (math.floor(math.log10(x)) - 2)
    return float(f"{math.ceil(x / unit * (1 - 1e-12)) * unit:.3g}")
