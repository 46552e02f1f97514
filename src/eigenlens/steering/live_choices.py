"""What a steering run settles on: its direction, its probe, its strength."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from eigenlens.errors import OptionError
from eigenlens.live.batches import vocabulary_size as size_of
from eigenlens.steering.directions import Direction, names_of, of_contrast, of_layer
from eigenlens.steering.evaluate import Study
from eigenlens.steering.live_job import Job
from eigenlens.steering.measures import Measure
from eigenlens.steering.moments import moments_of
from eigenlens.steering.options import AUTO, SteerOptions
from eigenlens.steering.probes import Probe, Reader, level, placed, scaled
from eigenlens.steering.steer import given_vector, make_probe
from eigenlens.steering.strength import (
    Window,
    curve,
    for_cosine,
    search,
    starting_strength,
    useful_window,
)
from eigenlens.steering.texts import encode_file
from eigenlens.steering.token_directions import (
    from_vocabulary,
    of_masked_tokens,
    of_tokens,
    token_ids,
)


def direction_of(job: Job) -> Direction:
    """The direction that is asked for."""
    options, session = job.options, job.stage.session
    plan = job.stage.place.plan
    d = plan.geometry.d_model
    if options.contrast is not None:
        sides = [encode_file(session, texts) for texts in options.contrast]
        named = [x if isinstance(x, str) else getattr(x, "name", "texts") for x in options.contrast]
        return of_contrast(job.stage, sides[0], sides[1], (str(named[0]), str(named[1])))
    if options.from_layer is not None:
        return of_layer(session.checkpoint, plan.stack, options.from_layer, d)
    if not options.token:
        return given_vector(options, d, plan.layer)
    names = names_of(session.tokenizer, session.checkpoint)
    bare = None if session.tokenizer is None else session.tokenizer.bare
    if bare is None:
        ids = from_vocabulary(session.checkpoint, options.token)
    else:
        ids = token_ids(options.token, bare, names, size_of(session))
    linear = session.checkpoint.readout.roles.get("mode", "raw") != "raw"
    if job.subject.head == "masked" and not linear:
        return of_masked_tokens(job.subject, job.sets.calibration, ids, names, d)
    return of_tokens(session.checkpoint.readout, ids, names, d)


def probe_of(
    layer: Reader | None, found: Direction, options: SteerOptions, Z: Float[np.ndarray, "n m"]
) -> Probe:
    """The probe that is asked for, on the inputs `Z` of the edited matrix."""
    if layer is not None:
        return make_probe(layer, found.vector, options.probe_name, Z)
    if options.probe_name == "direction":
        if Z.shape[1] != len(found.vector):
            raise OptionError(
                f"the feed-forward part's output matrix reads {Z.shape[1]} numbers and writes "
                f"{len(found.vector)}: the probe direction does not fit it; use calibrated"
            )
        return scaled(Probe(found.vector, found.vector), Z)
    return scaled(level(moments_of(Z), found.vector), Z)


def strength_of(
    job: Job,
    study: Study,
    found: Direction,
    probe: Probe,
    measure: Callable[[float], Measure],
) -> tuple[float, tuple[Measure, ...]]:
    """The strength, and the measures of those that were tried for it."""
    options = job.options
    if options.target_cosine is not None:
        layer = job.layer

        def written(alpha: float) -> Float[np.ndarray, "d"]:
            if options.probe_name == "placement" and layer is not None:
                return placed(layer, found.vector, probe, alpha).written
            return alpha * probe.written

        return for_cosine(study, probe.w, written, options.target_cosine), ()
    if options.strength != AUTO:
        return float(options.strength), ()
    start = starting_strength(study, probe.w)
    result = search(measure, start, options.max_kl, target=bool(found.targets))
    if not result.bounded:
        job.warnings.append(
            f"the KL stays below {options.max_kl:g} whatever the strength: the largest strength "
            "that was tried is taken"
        )
    return result.chosen.strength, result.tried


def sweep_of(
    job: Job,
    measure: Callable[[float], Measure],
    strength: float,
    tried: tuple[Measure, ...],
    before: Measure,
) -> tuple[tuple[Measure, ...], Window | None]:
    """Measures over strengths, and the window of useful ones."""
    points = curve(measure, strength, tried)
    known = sorted(
        {m.strength: m for m in (*tried, *points)}.values(), key=lambda m: abs(m.strength)
    )
    same = [m for m in known if m.strength * strength > 0]
    return points, useful_window(same, before, job.options.max_kl, down=strength < 0)
