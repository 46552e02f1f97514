"""What tokens are compared with: a layer's leader, its second pair, where F writes most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from eigenlens.blas import threads_for
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.live.places import Place
from eigenlens.live.session import Session
from eigenlens.measure.alignment import Targets, expected_alignment
from eigenlens.measure.nulls import top_left_singular
from eigenlens.spectra.analyse import analyse
from eigenlens.spectra.maps import build_map
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.result import LayerSpectrum
from eigenlens.tracing.options import TraceOptions

_INSIDE = 1e-3  # a unit vector whose part outside the target is smaller lies in it


@dataclass(frozen=True)
class LayerTarget:
    """What the tokens of one layer are measured against.

    Attributes
    ----------
    place, spectrum
        The layer and its certified spectrum.
    second
        Orthonormal basis of the next eigenpair behind the target; None if there is none.
    singular
        Left singular vector of the largest singular value, (d, 1); None unless nulls are asked.
    """

    place: Place
    spectrum: LayerSpectrum
    second: Float[np.ndarray, "d m"] | None = None
    singular: Float[np.ndarray, "d 1"] | None = None

    @property
    def complement(self) -> bool:
        """The basis spans what is orthogonal to the target, as for a kernel."""
        return self.spectrum.target == "kernel"

    @property
    def basis(self) -> Float[np.ndarray, "d m"]:
        """Orthonormal basis of the target, or of its orthogonal complement."""
        return self.spectrum.target_vectors

    @property
    def dim(self) -> int:
        """Dimension of the target."""
        d, m = self.basis.shape
        return int(d - m) if self.complement else int(m)

    @property
    def signed(self) -> bool:
        """Whether the target is one real vector, which has a sign."""
        return self.spectrum.target == "v1"

    @property
    def expected(self) -> float:
        """Mean alignment of an isotropic random direction with the target."""
        return expected_alignment(self.spectrum.d, self.dim) if self.dim else 0.0

    @cached_property
    def span(self) -> Float[np.ndarray, "d m"]:
        """Orthonormal basis of the target itself, O(d^2 rank) for a kernel."""
        return self.spectrum.basis()

    @cached_property
    def targets(self) -> Targets:
        """The target as `Targets`."""
        return Targets([self.basis], complement=self.complement)


def read_targets(
    session: Session,
    options: TraceOptions,
    places: Sequence[Place],
    *,
    nulls: bool,
    keep: Callable[[Place, OVCircuit], None] | None = None,
) -> dict[tuple[str, int, str], LayerTarget]:
    """Analyse the circuits of some layers, one at a time.

    Parameters
    ----------
    session, options
        The model, and order, operator and ties.
    places
        Which layers; those whose F is not square, or is zero, are passed over.
    nulls
        Also the second pair and the top singular vector.
    keep
        Called with every circuit, whose weights are let go of otherwise.

    Raises
    ------
    NumericsError
        A spectrum missed its tolerance.
    """
    found = {}
    for place in places:
        circuit = session.circuit(place)
        if not circuit.is_square:
            continue
        target = read_target(place, circuit, options, nulls=nulls)
        if not target.spectrum.spectral_norm:
            continue
        session.remember(place, circuit)
        found[place.key] = target
        if keep is not None:
            keep(place, circuit)
    return found


def read_target(
    place: Place, circuit: OVCircuit, options: TraceOptions, *, nulls: bool
) -> LayerTarget:
    """The target of one layer, from its circuit."""
    with threads_for(circuit.rank_bound):
        asked = options.spectrum()
        spectrum = analyse(circuit, asked)
        if not nulls:
            return LayerTarget(place, spectrum)
        second = second_basis(spectrum)
        if second is None:
            second = _further(circuit, asked, options, spectrum)
        singular = top_left_singular(build_map(circuit, options.operator), options.seed)
    return LayerTarget(place, spectrum, second, singular)


def _further(
    circuit: OVCircuit, asked: SpectrumOptions, options: TraceOptions, spectrum: LayerSpectrum
) -> Float[np.ndarray, "d m"] | None:
    """The second pair where the target took up all pairs that were asked for."""
    tied = spectrum.target_vectors.shape[1]
    if spectrum.target == "kernel" or tied < asked.k:
        return None
    return second_basis(analyse(circuit, options.spectrum(tied + 2)))


def second_basis(spectrum: LayerSpectrum) -> Float[np.ndarray, "d m"] | None:
    """Basis of the first eigenpair that does not lie in the target; a conjugate pair's plane."""
    kernel = spectrum.target == "kernel"
    B = spectrum.target_vectors
    for i in range(spectrum.right_vectors.shape[1]):
        value, v = spectrum.eigenvalues[i], spectrum.right_vectors[:, i]
        if value.imag < 0:
            continue
        outside = v if kernel else v - B @ (B.T @ v)
        if np.linalg.norm(outside) <= _INSIDE or (kernel and value == 0):
            continue
        if value.imag == 0:
            return np.asarray(v.real / np.linalg.norm(v.real))[:, None]
        left, sizes, _ = np.linalg.svd(np.stack([v.real, v.imag], axis=1), full_matrices=False)
        return np.asarray(left[:, sizes > 1e-8 * sizes[0]])
    return None
