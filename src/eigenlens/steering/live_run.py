"""Steering a running model: direction, probe, strength, and everything that is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.circuit.describe import describe
from eigenlens.live.batches import make_batches, special_ids
from eigenlens.steering.continuations import Continuation, Said, continued, starts_of
from eigenlens.steering.directions import Direction, says
from eigenlens.steering.edit import Edit, relative_norm
from eigenlens.steering.eigenpair import alpha_qu, spectrum_change
from eigenlens.steering.evaluate import Study
from eigenlens.steering.leading import spectrum_warnings
from eigenlens.steering.live_choices import direction_of, probe_of, strength_of, sweep_of
from eigenlens.steering.live_job import Job, Ticker
from eigenlens.steering.measures import Measure
from eigenlens.steering.moments import read_inputs
from eigenlens.steering.opening import Subject, no_predictions, place_of, quick
from eigenlens.steering.options import NOISE, SteerOptions
from eigenlens.steering.probes import Probe, at_strength
from eigenlens.steering.push import Added, Term
from eigenlens.steering.result import Steering
from eigenlens.steering.stage import Stage, find_stage
from eigenlens.steering.steer import make_edit
from eigenlens.steering.strength import (
    kl_of,
    match_kl,
)
from eigenlens.steering.target import FAINT, Realised
from eigenlens.steering.texts import read_sets


def run(
    subject: Subject,
    options: SteerOptions,
    calibrate: Any,
    evaluate: Any,
    progress: Callable[[int, int, str], None] | None = None,
) -> Steering:
    """Everything that `eigenlens.steer` does with a running model."""
    if subject.head is None and options.needs_head:
        raise no_predictions(subject.session.label)
    with quick(subject.session):
        session = subject.session
        place = place_of(session, options.layer, options.stack)
        sets = read_sets(session, calibrate, evaluate, seed=options.seed)
        first = next(iter(make_batches(session, sets.evaluation[:1])))
        stage = find_stage(session, place, options.site, options.steps_edited, first.inputs)
        batches = -(-len(sets.calibration) // options.batch_size)
        batches += -(-len(sets.evaluation) // options.batch_size)
        guess = batches + 8 + 9 * options.sweep + 5 + 4
        made = Job(subject, options, sets, stage, session.circuit(place), Ticker(progress, guess))
        made.warnings += [*subject.warnings, *sets.warnings]
        return _steer(made)


def _steer(job: Job) -> Steering:
    options, stage, circuit = job.options, job.stage, job.circuit
    session = stage.session
    found = direction_of(job)
    calibration = make_batches(session, job.sets.calibration, batch_size=options.batch_size)
    Z = read_inputs(stage, calibration, job.tick.batches("reading text to calibrate on"))
    layer = job.layer
    probe = probe_of(layer, found, options, Z)
    evaluation = make_batches(session, job.sets.evaluation, batch_size=options.batch_size)
    job.warnings += [*found.warnings, *calibration.warnings, *evaluation.warnings]
    study = Study(stage, found.vector, found.targets, job.subject.head)
    study.read(evaluation, job.tick.batches("reading text to evaluate on"))

    def term(alpha: float) -> Term:
        there = at_strength(layer, found.vector, probe, options.probe_name, alpha)
        # In a resumed pass the calls before the edited one do not happen.
        return Term(stage.output, there.w, there.written, alpha)

    def measure(alpha: float) -> Measure:
        job.tick(f"strength {alpha:.3g}")
        return study.measure(term(alpha), alpha)

    before = study.unedited()
    if before.kl is not None and before.kl > NOISE:
        job.warnings.append(
            f"two passes through the unedited model differ by a KL of {before.kl:.1e}: smaller "
            "effects than that are noise"
        )
    strength, tried = strength_of(job, study, found, probe, measure)
    edit = make_edit(
        session.checkpoint,
        circuit,
        options,
        found,
        at_strength(layer, found.vector, probe, options.probe_name, strength),
        strength,
    )
    # The running model knows its own type, which a GGUF file may call otherwise.
    edit = replace(edit, model_type=session.live.model_type or edit.model_type)
    job.tick("the edited model")
    realised: list[Realised] = []
    after = study.measure(None, strength, applied=_noting(edit, session, realised))
    _judge(job, before, after, realised[0].projection)
    points, window = None, None
    if options.sweep and job.subject.head is None:
        job.warnings.append("no sweep: it measures predictions, and the model makes none here")
    if options.sweep and job.subject.head is not None:
        points, window = sweep_of(job, measure, strength, tried, before)
    activation = _activation(job, study, after, probe, Z, found)
    likely = (before if strength < 0 else after).probabilities
    places = None if likely is None else dict(zip(study.where, likely.tolist(), strict=True))
    texts = _continuations(job, edit, activation, found, places)
    change = None
    if options.site == "attention":
        job.tick("spectrum before and after")
        change = spectrum_change(circuit, edit)
        job.warnings += spectrum_warnings(circuit, edit, change)
    job.tick.end()
    return Steering(
        model={**describe(session.checkpoint), "head": job.subject.head},
        options={
            **options.record(),
            "calibration": job.sets.sources[0],
            "evaluation": job.sets.sources[1],
            "n_calibration": len(job.sets.calibration),
            "n_evaluation": len(job.sets.evaluation),
            "dtype": str(session.dtype).removeprefix("torch."),
        },
        edit=edit,
        direction=found,
        says=says(session.checkpoint, found.vector),
        calls=stage.calls,
        alpha_qu=alpha_qu(circuit, edit) if options.site == "attention" else None,
        relative_norm=relative_norm(edit.dW_norm, _size(stage)),
        realised=realised[0],
        spectrum=change,
        before=before,
        after=after,
        curve=points,
        window=window,
        activation=activation,
        continuations=tuple(texts),
        warnings=tuple(dict.fromkeys(job.warnings)),
        checkpoint=session.checkpoint,
    )


def _judge(job: Job, before: Measure, after: Measure, realised: float) -> None:
    """Warnings about what was measured."""
    if after.kl is not None and kl_of(after) > job.options.max_kl * 1.05:
        job.warnings.append(
            f"the KL from the unedited model is {kl_of(after):.3g} nats per token, above "
            f"{job.options.max_kl:g}: the model's predictions suffer"
        )
    if realised < FAINT:
        job.warnings.append(
            f"only {realised:.0%} of the edit survives the rounding to the model's dtype: use a "
            "wider --dtype or a larger strength"
        )
    pair = after.tokens.get("after_sublayer")
    usual = before.tokens.get("after_sublayer")
    if pair is None or pair[0] is None or usual is None or usual[0] is None:
        return
    if job.options.probe_name == "eigen" and 0.02 < pair[0].positive_fraction < 0.98:
        job.warnings.append(
            f"the probe eigen splits the tokens: {pair[0].positive_fraction:.0%} go to the "
            "direction, the others away from it, whatever the strength; --probe calibrated reads "
            "all tokens alike"
        )


def _noting(edit: Edit, session: Any, into: list[Realised]) -> Any:
    """The edit applied; what the model's dtype kept of it is noted."""
    from contextlib import contextmanager

    @contextmanager
    def applied() -> Any:
        with edit.applied(session) as realised:
            into.append(realised)
            yield

    return applied()


def _size(stage: Stage) -> float:
    weight = next(p for p in stage.output.parameters() if p.ndim >= 2)
    return float(weight.detach().cpu().double().norm())


# -- what people use today, and texts ------------------------------------------------------------


def _activation(
    job: Job,
    study: Study,
    after: Measure,
    probe: Probe,
    Z: Float[np.ndarray, "n m"],
    found: Direction,
) -> Measure | None:
    """Activation addition after the same block, of the strength with the same KL."""
    kl = kl_of(after)
    if job.subject.head is None or not 1e-8 < kl < np.inf:
        return None
    stage = job.stage

    def measure(beta: float) -> Measure:
        job.tick("activation addition at the same KL")
        return study.measure(Added(stage.place.block, found.vector, beta, stage.skip), beta)

    moved = float(np.mean(np.abs(Z @ probe.w)))
    return match_kl(measure, after.strength * moved, kl)


def _continuations(
    job: Job,
    edit: Edit,
    activation: Measure | None,
    found: Direction,
    likely: dict[tuple[int, int], float] | None,
) -> list[Continuation]:
    session = job.stage.session
    if job.subject.head != "causal":
        return []
    decode = None if session.tokenizer is None else session.tokenizer.decode
    starts = starts_of(job.sets.evaluation, special_ids(session), decode, likely)
    versions: dict[str, Any] = {"before": nullcontext(), "after": edit.applied(session)}
    if activation is not None:
        added = Added(job.stage.place.block, found.vector, activation.strength, job.stage.skip)
        versions["activation"] = added.active(session.torch)
    texts: dict[str, list[Said]] = {}
    for name, push in versions.items():
        job.tick("sentences going on")
        made, why = continued(session, starts, push)
        if made is None:
            job.warnings.append(f"no continuations: {why}")
            return []
        texts[name] = made
    if decode is None:
        return []
    special = special_ids(session)
    return [
        Continuation(
            decode([i for i in ids if i not in special]),
            {name: made[k].text for name, made in texts.items()},
            {
                name: share
                for name, made in texts.items()
                if (share := made[k].distinct) is not None
            },
        )
        for k, ids in enumerate(starts)
    ]
