"""What a simulation returns: trajectory, outcome and what was foretold; JSON and flat rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.dynamics.predict import Prediction
from eigenlens.shown import Shown


@dataclass(frozen=True)
class Observed:
    """The same quantities as in a `Prediction`, fitted to what was seen; None where not seen.

    Rates are of the starts with the outcome that is told whose tokens are equal, the median over
    these; an angle only of a turn that lasts.
    """

    disagreement_rate: float | None = None
    alignment_rate: float | None = None
    exponent: float | None = None
    angle_per_step: float | None = None


@dataclass(frozen=True)
class Share:
    """How often an outcome was met.

    Attributes
    ----------
    label
        The outcome, or ``unsettled``.
    count, share
        Starts that ended so, and their share of all starts.
    interval
        Wilson interval of the share (95 %); its upper end is for all unsettled starts ending so.
    together
        Of these starts, those whose tokens had become one direction.
    """

    label: str
    count: int
    share: float
    interval: tuple[float | None, float | None]
    together: int


@dataclass(frozen=True)
class Summary:
    """Where the tokens ended.

    Attributes
    ----------
    label
        The most frequent outcome over the starts, a key of `eigenlens.dynamics.outcome.LABELS`;
        ``unsettled`` where most had not come to rest, nor to a lasting turn.
    groups
        Sizes of the groups of equal tokens, of the first start with this label.
    step_reached
        Median step from which it held, over the starts with this label, for unsettled ones from
        which what they look like so far did; None if it never did for good within the tolerance.
    settled
        Whether these starts have settled: the label is not ``unsettled``.
    steps_to_settle
        Steps after which all starts should have settled, by the predicted rates; None where all
        have, where no rate is predicted, and above 1e15.
    target
        `v1`, `plane`, `span` or `kernel`: what the leading eigenvalues foretell.
    reached
        The eigenspace that the tokens of that start lie in after the last whole pass: `target`,
        or another one (``v2``, ``plane 2``, ...); None for none of them.
    distance
        Angle of the tokens to the target in radians after the last whole pass, root mean square;
        median over starts.
    period
        Steps after which a rotation closes; None otherwise.
    balanced
        Whether the directions of that start's tokens sum to nearly 0.
    """

    label: str
    groups: tuple[int, ...]
    step_reached: int | None
    settled: bool
    steps_to_settle: float | None
    target: str
    reached: str | None
    distance: float
    period: int | None
    balanced: bool
    observed: Observed
    predicted: Prediction | None


@dataclass(frozen=True, repr=False)
class Simulation(Shown, shown_as="simulate"):
    """A finished simulation.

    Attributes
    ----------
    model, options
        What was simulated, and how.
    trajectory
        One record a step, means over the starts: step, layer, cosine, disagreement, gamma, gain,
        rho; step 0 is the start, with gamma, gain and rho None.
    outcome, basins
        Where the tokens ended; how often each outcome was met.
    stability
        Moduli of the leading multipliers of the Jacobian at the final state of the first start,
        largest first; None where that state moves.
    eigenvalues
        Of the layer matrix that a whole pass stands for, leading first.
    final
        The last states, (starts, n, d).
    """

    SCHEMA = "eigenlens.simulate/1"

    model: dict[str, Any]
    options: dict[str, Any]
    trajectory: tuple[dict[str, Any], ...]
    outcome: Summary
    basins: tuple[Share, ...]
    stability: tuple[float, ...] | None
    eigenvalues: tuple[complex, ...]
    warnings: tuple[str, ...] = ()
    final: Float[np.ndarray, "s n d"] = field(
        repr=False, default_factory=lambda: np.zeros((0, 0, 0))
    )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.simulate/1``."""
        outcome = asdict(self.outcome)
        outcome["groups"] = list(self.outcome.groups)
        return {
            **self._head(model=self.model),
            "outcome": outcome,
            "basins": [
                {"label": b.label, "count": b.count, "share": b.share, "interval": list(b.interval)}
                | {"together": b.together}
                for b in self.basins
            ],
            "stability": None if self.stability is None else list(self.stability),
            "eigenvalues": [[v.real, v.imag] for v in self.eigenvalues],
            "trajectory": [dict(step) for step in self.trajectory],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a step."""
        return [dict(step) for step in self.trajectory]
