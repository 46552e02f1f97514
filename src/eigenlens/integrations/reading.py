"""One look at a model in training: each layer's spectrum now, and its tokens on the probe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from eigenlens.blas import threads_for
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.plans import LayerPlan
from eigenlens.errors import EigenlensError, NumericsError
from eigenlens.live.batches import Batch
from eigenlens.live.capture import capture
from eigenlens.live.session import Session
from eigenlens.spectra.analyse import analyse
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.principal import REGIMES
from eigenlens.spectra.result import LayerSpectrum
from eigenlens.tracing.collapse import CollapseMeans

MEASURES = ("cosine", "rank_residual", "effective_rank")
REGIME_CODES: dict[str, int] = {name: i for i, name in enumerate(REGIMES)}
"""Loggers take numbers: a regime's place among `eigenlens.spectra.principal.REGIMES`."""


@dataclass(frozen=True)
class LayerReading:
    """One layer's spectrum at one step.

    Attributes
    ----------
    name
        `layer_3`; `decoder_layer_3` or `decoder_cross_layer_3` in a model of several stacks.
    order, regime, gap, angle, spectral_norm
        As in `eigenlens.spectra.result.LayerSpectrum`.
    eigenvalues, error_bars
        The leading ones, and how far they are sure.
    disagreement_rate, alignment_rate
        What the regime predicts if this layer were iterated under the order `residual`, per step:
        tokens come together by ``1/|m_1|`` (full attention), their angle to the target shrinks by
        ``|m_2|/|m_1|``, ``m = 1 + lambda``. None where the leader is tied or not amplified.
    alignment_exponent
        The same under `real`: the angle shrinks as ``t^exponent``, ``-(1 - Re l_2/Re l_1)``.
    """

    name: str
    order: str
    regime: str
    eigenvalues: tuple[complex, ...]
    error_bars: tuple[float, ...]
    gap: float | None
    angle: float | None
    spectral_norm: float
    disagreement_rate: float | None
    alignment_rate: float | None
    alignment_exponent: float | None

    @classmethod
    def of(cls, name: str, found: LayerSpectrum) -> LayerReading:
        """The reading of a certified spectrum."""
        leads = found.regime not in ("near_degenerate", "no_consensus") and found.gap is not None
        gap = found.gap if leads else None
        residual, stream = found.order == "residual", found.order == "real"
        values = tuple(complex(v) for v in found.eigenvalues)
        return cls(
            name,
            found.order,
            found.regime,
            values,
            tuple(float(b) for b in found.error_bars),
            found.gap,
            found.angle,
            found.spectral_norm,
            1 / abs(1 + values[0]) if leads and residual else None,
            None if gap is None or not residual else 1 - gap,
            None if gap is None or not stream else -gap,
        )

    def flat(self) -> dict[str, float | None]:
        """Numbers by name; the regime as its code."""
        out: dict[str, float | None] = {"regime": REGIME_CODES[self.regime]}
        for i, value in enumerate(self.eigenvalues, start=1):
            out[f"lambda_{i}_re"], out[f"lambda_{i}_im"] = value.real, value.imag
        rest = ("gap", "angle", "spectral_norm", "disagreement_rate", "alignment_rate")
        return out | {name: getattr(self, name) for name in (*rest, "alignment_exponent")}


@dataclass(frozen=True)
class Reading:
    """What one look found.

    Attributes
    ----------
    step
        The training step after which it was taken.
    loss
        What the training gave with it; None without, or where it is not finite.
    layers
        The spectra, in natural order; layers that could not be read are missing.
    tokens
        Collapse measures of the state behind each block, by name, in the order of depth; a layer
        that is applied several times has one entry a step (`layer_0_step_5`).
    not_finite
        (where, what) for each tensor or state that holds NaN or infinity.
    problems
        What else went wrong, one sentence each.
    seconds
        What the reading took, wall time.
    """

    step: int
    loss: float | None
    layers: tuple[LayerReading, ...]
    tokens: Mapping[str, Mapping[str, float | None]] = field(repr=False)
    not_finite: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0

    def flat(self, prefix: str = "eigenlens") -> dict[str, float]:
        """`eigenlens/layer_3/gap` and so on: finite numbers only, what is undefined is left out."""
        rows: dict[str, float | None] = {}
        for layer in self.layers:
            rows |= {f"{layer.name}/{key}": value for key, value in layer.flat().items()}
        for name, measures in self.tokens.items():
            rows |= {f"{name}/{key}": value for key, value in measures.items()}
        return {
            f"{prefix}/{key}": value
            for key, value in rows.items()
            if value is not None and math.isfinite(value)
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        out = asdict(self)
        for layer in out["layers"]:
            layer["eigenvalues"] = [[v.real, v.imag] for v in layer["eigenvalues"]]
        return out


def layer_names(plans: Sequence[LayerPlan]) -> list[str]:
    """`layer_3` where one stack has one kind of attention, else the stack and kind before it."""
    several = len({(plan.stack, plan.kind) for plan in plans}) > 1
    names = []
    for plan in plans:
        cross = "cross_" if plan.kind == "cross" else ""
        names.append(
            f"{plan.stack}_{cross}layer_{plan.layer}" if several else f"layer_{plan.layer}"
        )
    return names


@dataclass(frozen=True)
class Spectra:
    """Spectra of the live weights, and what could not be read."""

    layers: tuple[LayerReading, ...]
    not_finite: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def read_spectra(
    session: Session, options: SpectrumOptions, layers: Sequence[int] | None = None
) -> Spectra:
    """Each layer's spectrum; one that fails does not stop the others."""
    found: list[LayerReading] = []
    bad: list[tuple[str, str]] = []
    problems: list[str] = []
    stacks = {place.plan.stack for place in session.places}
    plans = [plan for plan in session.checkpoint.plans if plan.stack in stacks]
    names = dict(zip(map(id, plans), layer_names(plans), strict=True))
    circuits = session.checkpoint.circuits()
    for i, plan in enumerate(session.checkpoint.plans):
        square = plan.geometry.width_in == plan.geometry.d_model
        if id(plan) not in names or not square or (layers is not None and plan.layer not in layers):
            continue
        name = names[id(plan)]
        try:
            circuit: OVCircuit = circuits[i]
        except NumericsError as error:
            bad.append((name, str(error)))
            continue
        try:
            with threads_for(circuit.rank_bound):
                found.append(LayerReading.of(name, analyse(circuit, options)))
        except EigenlensError as error:
            problems.append(f"{name}: {error}")
    return Spectra(tuple(found), tuple(bad), tuple(problems))


def read_tokens(session: Session, batches: Sequence[Batch]) -> dict[str, dict[str, float | None]]:
    """Collapse measures behind every block, means over the probe's prompts.

    Raises
    ------
    NumericsError
        A state is NaN or infinite.
    ArchitectureError
        The model cannot be run, or its states cannot be read.
    """
    names = layer_names([place.plan for place in session.places])
    by_key = dict(zip((p.key for p in session.places), names, strict=True))
    sums: dict[str, CollapseMeans] = {}
    for captured in capture(session, batches, check=False):
        for call in captured.calls:
            plan = call.place.plan
            name = by_key[call.place.key]
            name += f"_step_{call.step}" if plan.steps > 1 else ""
            gathered = sums.setdefault(name, CollapseMeans())
            for states, owners in _prompts(captured.batch, call.block):
                gathered.add(states, owners)
    return {name: _few(gathered.means()) for name, gathered in sums.items()}


def _prompts(batch: Batch, block: Any) -> Iterator[tuple[Any, Any]]:
    """States of real tokens with their owners; positions of an image tower have no pads."""
    states = batch.flat(block)
    if batch.mask.shape == tuple(block.shape[:2]):
        yield states, batch.owners()
    else:
        yield states, batch.prompts.repeat(block.shape[1])


def _few(means: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: means[name] for name in MEASURES}
