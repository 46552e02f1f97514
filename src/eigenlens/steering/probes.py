"""Which row w the edit ``dW_O = alpha u w^T`` reads tokens with; one function a probe.

z_i is what the output projection sees of token i: the concatenated head outputs, values repeated
over the query heads that share them. The token then receives ``alpha u (w.z_i)``, and F becomes
``F + alpha u q^T`` with ``q = W_V^T w`` (W_V repeated likewise). Two things must both hold: u is
the leading eigenvector (alpha q.u > 0 and large), and w.z_i has one sign over tokens.

Where the model multiplies what W_O writes with an output scale s, F is ``diag(s) W_O W_V`` here as
it is in a spectrum, and what is written is ``u / s``: u is what arrives in the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import upcast
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import NumericsError, OptionError, ShapeError

Vector = Float[np.ndarray, "m"]

TAU = 0.5
"""``q.u`` that the calibrated probe is held to before it is scaled."""
RIDGE = 0.01
"""Ridge of the calibrated probe, relative to the mean variance ``tr(C) / m``."""
_SMALL = 1e-6


@dataclass(frozen=True)
class Moments:
    """First and second moments of the head outputs over tokens of some text.

    Attributes
    ----------
    mean
        Mean z, (m,).
    second
        ``C = mean z z^T``, (m, m).
    count
        Tokens.
    """

    mean: Vector
    second: Float[np.ndarray, "m m"]
    count: int


@dataclass(frozen=True)
class Reader:
    """The values as the output projection sees them, and what is written for a reading.

    Attributes
    ----------
    values
        W_V repeated over the heads that share it, (m, d).
    W_O
        The output projection, (d, m).
    scale
        What the model multiplies its output with, a number or one a coordinate;
        ``F = diag(scale) W_O @ values`` is never formed.
    """

    values: Float[np.ndarray, "m d"]
    W_O: Float[np.ndarray, "d m"]
    scale: float | Float[np.ndarray, "d"] = 1.0

    def image(self, x: Float[np.ndarray, "d"]) -> Float[np.ndarray, "d"]:
        """``F x`` through the factors."""
        return np.asarray(self.scale * (self.W_O @ (self.values @ x)))

    def writing(self, x: Float[np.ndarray, "d"]) -> Float[np.ndarray, "d"]:
        """What W_O must write for x to arrive in the residual stream.

        Raises
        ------
        NumericsError
            The output scale is 0 where x is not.
        """
        scale = np.broadcast_to(np.asarray(self.scale, dtype=np.float64), x.shape)
        lost = int(np.count_nonzero((scale == 0) & (x != 0)))
        if lost:
            raise NumericsError(
                f"the model multiplies {lost} of {len(x)} coordinates of what this layer writes "
                "with 0: no edit of W_O makes the direction arrive; take another layer or direction"
            )
        return np.asarray(x / np.where(scale == 0, 1.0, scale))


def repeated_values(circuit: OVCircuit) -> Float[np.ndarray, "m d"]:
    """W_V with every head's rows repeated for the query heads that read it: ``F = W_O @ this``."""
    r = circuit.n_kv_heads
    heads = circuit.value().reshape(r, circuit.head_dim, -1)
    full = np.repeat(heads, circuit.n_heads // r, axis=0)
    return np.asarray(full.reshape(circuit.n_heads * circuit.head_dim, -1))


def reader(circuit: OVCircuit) -> Reader:
    """What the probes need of a layer.

    Raises
    ------
    ShapeError
        The layer reads another width than it writes: it has no spectrum to steer.
    """
    if not circuit.is_square:
        raise ShapeError(
            f"{circuit.stack} layer {circuit.layer} reads {circuit.d_in} coordinates and writes "
            f"{circuit.d_model}: it has no eigenvectors to steer"
        )
    values = repeated_values(circuit)
    return Reader(values, upcast(circuit.W_O), circuit.output_scale)


@dataclass(frozen=True)
class Probe:
    """A reading vector, and the direction that is written for it.

    Attributes
    ----------
    w
        What reads z, (m,).
    written
        What W_O writes for ``w.z = 1`` at strength 1, so that u arrives behind the output scale;
        for placement ``(lambda* I - F) u`` does.
    """

    w: Vector
    written: Float[np.ndarray, "d"]


def eigen(layer: Reader, u: Vector, moments: Moments | None) -> Probe:
    """``w = W_V u``: q.u = |W_V u|^2, the largest for a given |w|; weights alone are needed.

    Tokens split by the sign of ``u^T W_V^T z``, so u and -u are reached whatever the strength.

    Raises
    ------
    NumericsError
        The values hardly see u.
    """
    seen = layer.values @ u
    size = float(np.linalg.norm(seen))
    if size <= _SMALL * np.linalg.norm(layer.values):
        raise NumericsError(
            f"the values of this layer do not see the direction (|W_V u| = {size:.1e}): no edit of "
            "W_O can make it an eigenvector; take another layer or direction"
        )
    return Probe(seen / size, layer.writing(u))


def direction(layer: Reader, u: Vector, moments: Moments | None) -> Probe:
    """``w = u``, the plain ``alpha u u^T``; for square W_O only.

    Raises
    ------
    ShapeError
        W_O is not square.
    """
    m, d = layer.values.shape
    if m != d:
        raise ShapeError(
            f"W_O has shape ({d}, {m}): u u^T does not fit it; use the probe eigen or calibrated"
        )
    return Probe(u, layer.writing(u))


def calibrated(layer: Reader, u: Vector, moments: Moments | None) -> Probe:
    """Least squares: w.z near 1 for all tokens, subject to ``q.u = TAU``.

    Minimises ``mean (w.z_i - 1)^2 + rho |w|^2``, rho = RIDGE tr(C)/m, with a Lagrange multiplier:
    with ``A = C + rho I`` and ``g = W_V u``, ``w = A^-1 zbar + (TAU - g.A^-1 zbar) / (g.A^-1 g)
    A^-1 g``. O(m^3).

    Raises
    ------
    OptionError
        There are no moments: text and a live model are needed.
    NumericsError
        The values hardly see u, or the text gives too few tokens.
    """
    if moments is None:
        raise OptionError(
            "the calibrated probe needs text and a live model; use --probe eigen for weights only"
        )
    written = eigen(layer, u, None).written  # raises where the values do not see u
    g = layer.values @ u
    A = _ridged(moments)
    both = np.linalg.solve(A, np.stack([moments.mean, g], axis=1))
    toward, along = both[:, 0], both[:, 1]
    return Probe(toward + (TAU - g @ toward) / (g @ along) * along, written)


def level(moments: Moments, u: Vector) -> Probe:
    """`calibrated` without its constraint: w.z near 1 for all tokens, and nothing else.

    For the feed-forward part's output matrix, which has no spectrum. O(m^3).

    Raises
    ------
    NumericsError
        The readings are all 0 over the text.
    """
    return Probe(np.linalg.solve(_ridged(moments), moments.mean), u)


def _ridged(moments: Moments) -> Float[np.ndarray, "m m"]:
    """``C + rho I``."""
    m = len(moments.mean)
    rho = RIDGE * float(np.trace(moments.second)) / m
    if not np.isfinite(rho):
        raise NumericsError(
            "what the matrix reads is NaN or infinite over the calibration text: the weights are "
            "damaged, or need a wider dtype; eigenlens trace names the first layer where it is so"
        )
    if not rho > 0:
        raise NumericsError("what the matrix reads is 0 over all of the calibration text")
    return np.asarray(moments.second + rho * np.eye(m))


def placement(layer: Reader, u: Vector, moments: Moments | None) -> Probe:
    """``w.W_V u = 1`` with the least norm; what arrives is ``(lambda* I - F) u``, see `placed`.

    What is written depends on lambda*, so it is filled in by `placed`.
    """
    seen = layer.values @ u
    written = eigen(layer, u, None).written  # raises where the values do not see u
    return Probe(seen / float(seen @ seen), written)


def placed(layer: Reader, u: Vector, probe: Probe, value: float) -> Probe:
    """The placement probe for one eigenvalue: with ``F + (value I - F) u q^T`` it is at u.

    The other eigenvalues become those of ``F (I - u q^T)``, whatever `value`.
    """
    return Probe(probe.w, layer.writing(value * u - layer.image(u)))


def at_strength(layer: Reader | None, u: Vector, probe: Probe, name: str, strength: float) -> Probe:
    """The probe at a strength: of placement, what is written depends on it.

    There the strength is the eigenvalue: what arrives is ``(strength I - F) u`` in all.
    """
    if name != "placement" or layer is None:
        return probe
    there = placed(layer, u, probe, strength)
    return Probe(there.w, there.written / strength)


PROBES: Mapping[str, Callable[[Reader, Vector, Moments | None], Probe]] = {
    "calibrated": calibrated,
    "eigen": eigen,
    "direction": direction,
    "placement": placement,
}
"""Probe by the name that users type."""


def scaled(probe: Probe, Z: Float[np.ndarray, "n m"] | None) -> Probe:
    """The probe in its unit: mean ``|w.z|`` over tokens 1 with text, ``|w| = 1`` without.

    Raises
    ------
    NumericsError
        It reads nothing from any token.
    """
    size = float(np.linalg.norm(probe.w)) if Z is None else float(np.mean(np.abs(Z @ probe.w)))
    if not np.isfinite(size) or size <= 0:
        raise NumericsError("the probe reads 0 from every token: take another direction or text")
    return Probe(probe.w / size, probe.written)
