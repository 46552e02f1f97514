"""Layers iterated from many starts: where the tokens end, beside what the spectrum foretold."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.arrays import check_radius
from eigenlens.blas import threads_for
from eigenlens.dynamics.effective import ORDER_OF, Target, effective_matrix, find_target
from eigenlens.dynamics.maps import Form, StateMap, l2_map
from eigenlens.dynamics.masks import Mask, parse_mask
from eigenlens.dynamics.matrices import build_layers, given_starts, random_starts
from eigenlens.dynamics.outcome import Outcome, Tolerance
from eigenlens.dynamics.predict import Prediction, predict
from eigenlens.dynamics.result import Simulation
from eigenlens.dynamics.run import DOUBLE, Run, iterate
from eigenlens.dynamics.stability import leading_multipliers
from eigenlens.dynamics.summary import basins, outcomes, summarise, trajectory
from eigenlens.errors import OptionError, nearest

States = Float[np.ndarray, "s n d"]
Multipliers = Callable[[Sequence[StateMap], Float[np.ndarray, "n d"], float], Any]
FORMS: tuple[Form, ...] = ("normalised", "stream")


def simulate(source: Any = None, *, F: Any = None, heads: Any = None, **options: Any) -> Simulation:
    """Iterate a model's layers, or matrices of one's own, far beyond the model's depth.

    Parameters
    ----------
    source
        A model; see `eigenlens.dynamics.live_run.simulate_model` for its options. Needs torch and
        transformers.
    F, heads
        Matrices instead; see `simulate_matrices` for their options. numpy alone.
    **options
        Of the one or the other.

    Raises
    ------
    OptionError
        Both or neither of a model and matrices, or an option that is unknown there.
    EigenlensError
        See the two functions.

    Examples
    --------
    >>> import numpy as np, eigenlens
    >>> found = eigenlens.simulate(F=np.diag([1.0, 0.6, 0.2]), n_tokens=5)
    >>> found.outcome.label, round(found.outcome.observed.alignment_rate, 3)
    ('consensus', 0.8)
    """
    matrices = F is not None or heads is not None
    if matrices == (source is not None):
        raise OptionError(
            "give either a model, or matrices as F= or heads=, to simulate"
            + (", not both" if matrices else "")
        )
    if matrices:
        _check_names(options, simulate_matrices)
        return simulate_matrices(F, heads, **options)
    from eigenlens.dynamics.live_run import simulate_model

    _check_names(options, simulate_model)
    return simulate_model(source, **options)


def _check_names(options: dict[str, Any], function: Callable[..., Any]) -> None:
    known = list(inspect.signature(function).parameters)[1:]
    for name in options:
        if name not in known:
            raise OptionError(
                f"option {name!r} is unknown here{nearest(name, known)}; the options are "
                f"{', '.join(known)}"
            )


def simulate_matrices(
    F: Any = None,
    heads: Any = None,
    *,
    logits: Any = None,
    position: Any = None,
    form: Form = "normalised",
    mask: str = "full",
    steps: int = 100,
    starts: int = 1,
    n_tokens: int = 24,
    states: Any = None,
    radius: float | str = 1.0,
    tie_tolerance: float = 0.01,
    tolerance: Tolerance | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Iterate layers given as matrices, and say where tokens end and what was foretold.

    Parameters
    ----------
    F, heads, logits, position
        See `eigenlens.dynamics.matrices.build_layers`: one matrix a layer or one a head.
    form
        ``normalised``, ``N(x + attn(x))``, or ``stream``, ``h + attn(N(h))``; N the L2 norm.
    mask
        ``full``, ``causal`` or ``window:W``.
    steps
        Layer steps.
    starts, n_tokens, seed
        Random starts on the sphere, tokens in each.
    states
        Starts of one's own, (n, d) or (s, n, d), instead of random ones.
    radius
        Of N: a number, or ``sqrt_d``.
    tie_tolerance
        Relative gap below which leaders count as tied.
    tolerance
        When directions count as equal and as still.
    progress
        Called with (steps done, steps in all).

    Raises
    ------
    OptionError, ShapeError, NumericsError
        An option or a matrix is not usable; the message says what and what to do.
    """
    if form not in FORMS:
        raise OptionError(f"form {form!r} is unknown; use one of {', '.join(FORMS)}")
    check_steps(steps)
    chosen = parse_mask(mask)
    layers = build_layers(F, heads, logits, position, chosen)
    d = layers[0].F.shape[0]
    r = parse_radius(radius, d)
    X = _starts(states, starts, n_tokens, d, r, seed)
    matrices = [layer.F for layer in layers]
    maps = [l2_map(layer, form, r) for layer in layers]
    order = ORDER_OF[form]
    whole = find_target(effective_matrix(matrices, form), order, tie_tolerance)
    own = [whole] if len(layers) == 1 else [find_target(m, order, tie_tolerance) for m in matrices]
    return finish(
        {
            "source": "matrices",
            "d_model": d,
            "n_layers": len(layers),
            "n_heads": int(layers[0].F_heads.shape[0]),
        },
        {
            "form": form,
            "mask": str(chosen),
            "steps": steps,
            "starts": len(X),
            "n_tokens": X.shape[1],
            "radius": r,
            "order": order,
            "tie_tolerance": tie_tolerance,
            "seed": seed,
        },
        maps,
        X,
        Outlook(whole, own, foretell(whole, form, chosen, X.shape[1], len(layers))),
        tolerance,
        progress,
    )


def parse_radius(radius: float | str, d: int) -> float:
    """A radius in numbers: itself, or the square root of d for ``sqrt_d``.

    Raises
    ------
    OptionError
        Another text, or a number that `check_radius` refuses.
    """
    if radius == "sqrt_d":
        return math.sqrt(d)
    try:
        r = float(radius)
    except ValueError:
        raise OptionError(f"radius {radius!r}: it must be a positive number or sqrt_d") from None
    check_radius(r)
    return r


def _starts(states: Any, starts: int, n: int, d: int, radius: float, seed: int) -> States:
    if states is None:
        if starts < 1 or n < 1:
            raise OptionError(f"{starts} starts of {n} tokens: at least one of each is needed")
        if seed < 0:
            raise OptionError(f"seed is {seed}; it is a whole number, 0 or more")
        return random_starts(starts, n, d, radius, seed)
    return given_starts(states, d)


def foretell(
    target: Target, form: Form, mask: Mask | None, n: int, depth: int
) -> Prediction | None:
    """The prediction for a pass, a step of it on average; None where none is made.

    Rates are those of a leader without a tie. For different layers they are made only where the
    mask is full: under another mask tokens mix differently at every layer.

    Parameters
    ----------
    target
        Of the whole pass.
    form, n, depth
        Form of the map, tokens, layers of a pass.
    mask
        What tokens see while they are equal; None where attention is not even then (a position
        term in the logits): how fast tokens come together is then not foretold.
    """
    if target.regime == "near_degenerate" or target.name == "kernel":
        return None
    if form == "stream":
        return predict(target.eigenvalues, form, Mask(), n)
    if depth > 1 and (mask is None or mask.causal):
        return None
    found = predict(target.eigenvalues, form, mask or Mask(), n)
    if mask is None:
        found = replace(found, disagreement_rate=None)
    if depth == 1:
        return found

    def a_step(rate: float | None) -> float | None:
        return None if rate is None else float(rate ** (1 / depth))

    return replace(
        found,
        disagreement_rate=a_step(found.disagreement_rate),
        alignment_rate=a_step(found.alignment_rate),
        angle_per_step=None if found.angle_per_step is None else found.angle_per_step / depth,
    )


@dataclass(frozen=True)
class Outlook:
    """What the spectra say before anything runs.

    Attributes
    ----------
    whole, own
        Target of a whole pass, and of each of its layers.
    prediction
        See `foretell`.
    """

    whole: Target
    own: Sequence[Target]
    prediction: Prediction | None


def finish(
    model: dict[str, Any],
    options: dict[str, Any],
    maps: Sequence[StateMap],
    X: States,
    outlook: Outlook,
    tolerance: Tolerance | None,
    progress: Callable[[int, int], None] | None,
    *,
    noise: float = DOUBLE,
    multipliers: Multipliers | None = None,
    warnings: Sequence[str] = (),
) -> Simulation:
    """Run the maps `options["steps"]` steps and put the result together; of matrices or a model.

    `multipliers` gives those of the Jacobian of a pass at a state, with a sign (-1 for a state
    that flips), or None; by default from differences of the maps.
    """
    form, steps, whole = maps[0].form, int(options["steps"]), outlook.whole
    tolerance = tolerance or Tolerance()
    bases = [target.basis for target in outlook.own]
    with threads_for(X.shape[2]):
        run = iterate(maps, X, steps, whole.basis, bases, progress, noise)
        found = outcomes(run, form, tolerance, whole, outlook.prediction)
        summary = summarise(run, found, whole, outlook.prediction, form, tolerance)
    stability = None
    if form == "normalised":
        stability = _stability(maps, run, found[0], multipliers or _by_differences)
    return Simulation(
        model=model,
        options={**options, **_tolerances(tolerance)},
        trajectory=trajectory(run, options.get("layers") or range(len(maps))),
        outcome=summary,
        basins=basins(found),
        stability=stability,
        eigenvalues=tuple(complex(v) for v in whole.eigenvalues[:8]),
        warnings=(*warnings, *_warnings(run, found)),
        final=run.final,
    )


def _tolerances(tolerance: Tolerance) -> dict[str, float]:
    """What counted as equal, as a result keeps it."""
    return {
        "angle_tolerance": tolerance.angle,
        "turn_tolerance": tolerance.turn,
        "longest_period": tolerance.period,
    }


def check_steps(steps: int) -> None:
    """Refuse a run of no steps.

    Raises
    ------
    OptionError
        Fewer than 1.
    """
    if steps < 1:
        raise OptionError(f"steps is {steps}; at least 1 is needed")


def _stability(
    maps: Sequence[StateMap], run: Run, outcome: Outcome, multipliers: Multipliers
) -> tuple[float, ...] | None:
    """Moduli of the leading multipliers where the first start ended, if that is a fixed point."""
    if outcome.label == "rotation" or run.steps % run.depth:
        return None
    X = run.final[0]
    sign = -1.0 if outcome.label == "flip" else 1.0
    moved = np.linalg.norm(sign * _whole_pass(maps, X[None])[0] - X) / np.linalg.norm(X)
    if moved > max(1e-6, 256 * run.noise):
        return None
    found: Complex[np.ndarray, "k"] | None = multipliers(maps, X, sign)
    return None if found is None else tuple(float(abs(m)) for m in found)


def _whole_pass(maps: Sequence[StateMap], X: States) -> States:
    for step in maps:
        X = step(X)
    return X


def _by_differences(
    maps: Sequence[StateMap], X: Float[np.ndarray, "n d"], sign: float
) -> Complex[np.ndarray, "k"]:
    return leading_multipliers(lambda Y: _whole_pass(maps, Y), X, 4, sign)


def _warnings(run: Run, found: Sequence[Outcome]) -> list[str]:
    open_ = sum(not outcome.settled for outcome in found)
    if not open_:
        return []
    which = f"{open_} of {len(found)} starts " if len(found) > 1 else ""
    return [f"{which}not settled after {run.steps} steps"]
