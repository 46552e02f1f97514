"""Steering a running model: direction, probe, strength, and everything that is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.describe import describe
from eigenlens.errors import OptionError
from eigenlens.live.batches import make_batches, special_ids
from eigenlens.live.batches import vocabulary_size as size_of
from eigenlens.steering.continuations import Continuation, continued, starts_of
from eigenlens.steering.directions import (
    Direction,
    from_vocabulary,
    names_of,
    of_contrast,
    of_layer,
    of_masked_tokens,
    of_tokens,
    says,
    token_ids,
)
from eigenlens.steering.edit import Edit
from eigenlens.steering.eigenpair import alpha_qu, spectrum_change
from eigenlens.steering.evaluate import Measure, Study
from eigenlens.steering.moments import moments_of, read_inputs
from eigenlens.steering.opening import Subject, place_of, quick
from eigenlens.steering.options import AUTO, NOISE, SteerOptions
from eigenlens.steering.probes import Probe, Reader, level, reader, scaled
from eigenlens.steering.push import Added, Term
from eigenlens.steering.result import Steering
from eigenlens.steering.stage import Stage, find_stage
from eigenlens.steering.steer import (
    at_strength,
    given_vector,
    make_edit,
    make_probe,
    spectrum_warnings,
)
from eigenlens.steering.strength import (
    Window,
    curve,
    for_cosine,
    kl_of,
    match_kl,
    search,
    starting_strength,
    useful_window,
)
from eigenlens.steering.target import FAINT, Realised
from eigenlens.steering.texts import Sets, encode_file, read_sets


@dataclass
class _Ticker:
    """Progress over parts whose number is only guessed."""

    progress: Callable[[int, int, str], None] | None
    total: int
    done: int = 0

    def __call__(self, what: str) -> None:
        if self.progress is not None:
            self.progress(self.done, max(self.total, self.done + 1), what)
        self.done += 1

    def batches(self, what: str) -> Callable[[int, int, str], None]:
        return lambda done, total, name: self(what)

    def end(self) -> None:
        if self.progress is not None:
            self.progress(self.total, self.total, "")


@dataclass
class _Run:
    """What the parts of one run share."""

    subject: Subject
    options: SteerOptions
    sets: Sets
    stage: Stage
    circuit: OVCircuit
    tick: _Ticker
    warnings: list[str] = field(default_factory=list)

    @property
    def layer(self) -> Reader | None:
        """Values and output projection, for probes that need F; None for the feed-forward site."""
        return reader(self.circuit) if self.options.site == "attention" else None


def run(
    subject: Subject,
    options: SteerOptions,
    calibrate: Any,
    evaluate: Any,
    progress: Callable[[int, int, str], None] | None = None,
) -> Steering:
    """Everything that `eigenlens.steer` does with a running model."""
    with quick(subject.session):
        session = subject.session
        place = place_of(session, options.layer, options.stack)
        sets = read_sets(session, calibrate, evaluate, seed=options.seed)
        first = next(iter(make_batches(session, sets.evaluation[:1])))
        stage = find_stage(session, place, options.site, options.steps_edited, first.inputs)
        batches = -(-len(sets.calibration) // options.batch_size)
        batches += -(-len(sets.evaluation) // options.batch_size)
        guess = batches + 8 + 9 * options.sweep + 5 + 4
        made = _Run(subject, options, sets, stage, session.circuit(place), _Ticker(progress, guess))
        made.warnings += [*subject.warnings, *sets.warnings]
        return _steer(made)


def _steer(run: _Run) -> Steering:
    options, stage, circuit = run.options, run.stage, run.circuit
    session = stage.session
    found = _direction(run)
    calibration = make_batches(session, run.sets.calibration, batch_size=options.batch_size)
    Z = read_inputs(stage, calibration, run.tick.batches("reading text to calibrate on"))
    layer = run.layer
    probe = _probe(layer, found, options, Z)
    evaluation = make_batches(session, run.sets.evaluation, batch_size=options.batch_size)
    run.warnings += [*found.warnings, *calibration.warnings, *evaluation.warnings]
    study = Study(stage, found.vector, found.targets, run.subject.head)
    study.read(evaluation, run.tick.batches("reading text to evaluate on"))

    def term(alpha: float) -> Term:
        there = at_strength(layer, found, probe, options, alpha)
        # In a resumed pass the calls before the edited one do not happen.
        return Term(stage.output, there.w, there.written, alpha)

    def measure(alpha: float) -> Measure:
        run.tick(f"strength {alpha:.3g}")
        return study.measure(term(alpha), alpha)

    before = study.unedited()
    if before.kl is not None and before.kl > NOISE:
        run.warnings.append(
            f"two passes through the unedited model differ by a KL of {before.kl:.1e}: smaller "
            "effects than that are noise"
        )
    strength, tried = _strength(run, study, found, probe, measure)
    edit = make_edit(
        session.checkpoint,
        circuit,
        options,
        found,
        at_strength(layer, found, probe, options, strength),
        strength,
    )
    # The running model knows its own type, which a GGUF file may call otherwise.
    edit = replace(edit, model_type=session.live.model_type or edit.model_type)
    run.tick("the edited model")
    realised: list[Realised] = []
    after = study.measure(None, strength, applied=_noting(edit, session, realised))
    _judge(run, before, after, realised[0].projection)
    points, window = None, None
    if options.sweep and run.subject.head is None:
        run.warnings.append("no sweep: it measures predictions, and the model makes none here")
    if options.sweep and run.subject.head is not None:
        points, window = _sweep(run, measure, strength, tried, before)
    activation = _activation(run, study, after, probe, Z, found)
    likely = (before if strength < 0 else after).probabilities
    places = None if likely is None else dict(zip(study.where, likely.tolist(), strict=True))
    texts = _continuations(run, edit, activation, found, places)
    change = None
    if options.site == "attention":
        run.tick("spectrum before and after")
        change = spectrum_change(circuit, edit)
        run.warnings += spectrum_warnings(circuit, edit, change)
    run.tick.end()
    return Steering(
        model={**describe(session.checkpoint), "head": run.subject.head},
        options={
            **options.record(),
            "calibration": run.sets.sources[0],
            "evaluation": run.sets.sources[1],
            "n_calibration": len(run.sets.calibration),
            "n_evaluation": len(run.sets.evaluation),
            "dtype": str(session.dtype).removeprefix("torch."),
        },
        edit=edit,
        direction=found,
        says=says(session.checkpoint, found.vector),
        calls=stage.calls,
        alpha_qu=alpha_qu(circuit, edit) if options.site == "attention" else None,
        relative_norm=edit.dW_norm / _size(stage),
        realised=realised[0],
        spectrum=change,
        before=before,
        after=after,
        curve=points,
        window=window,
        activation=activation,
        continuations=tuple(texts),
        warnings=tuple(dict.fromkeys(run.warnings)),
        checkpoint=session.checkpoint,
    )


# -- direction and probe -------------------------------------------------------------------------


def _direction(run: _Run) -> Direction:
    options, session = run.options, run.stage.session
    plan = run.stage.place.plan
    d = plan.geometry.d_model
    if options.contrast is not None:
        sides = [encode_file(session, texts) for texts in options.contrast]
        named = [x if isinstance(x, str) else getattr(x, "name", "texts") for x in options.contrast]
        return of_contrast(run.stage, sides[0], sides[1], (str(named[0]), str(named[1])))
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
    if run.subject.head == "masked" and not linear:
        return of_masked_tokens(run.subject, run.sets.calibration, ids, names, d)
    return of_tokens(session.checkpoint.readout, ids, names, d)


def _probe(
    layer: Reader | None, found: Direction, options: SteerOptions, Z: Float[np.ndarray, "n m"]
) -> Probe:
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


# -- strength ------------------------------------------------------------------------------------


def _strength(
    run: _Run,
    study: Study,
    found: Direction,
    probe: Probe,
    measure: Callable[[float], Measure],
) -> tuple[float, tuple[Measure, ...]]:
    options = run.options
    if options.target_cosine is not None:
        return for_cosine(study, probe.w, options.target_cosine), ()
    if options.strength != AUTO:
        return float(options.strength), ()
    if run.subject.head is None:
        raise OptionError(
            f"{study.stage.session.label} has no output head, so that no KL bounds the strength: "
            "give --strength or --target-cosine"
        )
    start = starting_strength(study, probe.w)
    result = search(measure, start, options.max_kl, target=bool(found.targets))
    if not result.bounded:
        run.warnings.append(
            f"the KL stays below {options.max_kl:g} whatever the strength: the largest strength "
            "that was tried is taken"
        )
    return result.chosen.strength, result.tried


def _sweep(
    run: _Run,
    measure: Callable[[float], Measure],
    strength: float,
    tried: tuple[Measure, ...],
    before: Measure,
) -> tuple[tuple[Measure, ...], Window | None]:
    points = curve(measure, strength, tried)
    known = sorted(
        {m.strength: m for m in (*tried, *points)}.values(), key=lambda m: abs(m.strength)
    )
    same = [m for m in known if m.strength * strength > 0]
    return points, useful_window(same, before, run.options.max_kl, down=strength < 0)


def _judge(run: _Run, before: Measure, after: Measure, realised: float) -> None:
    """Warnings about what was measured."""
    if after.kl is not None and kl_of(after) > run.options.max_kl * 1.05:
        run.warnings.append(
            f"the KL from the unedited model is {kl_of(after):.3g} nats per token, above "
            f"{run.options.max_kl:g}: the model's predictions suffer"
        )
    if realised < FAINT:
        run.warnings.append(
            f"only {realised:.0%} of the edit survives the rounding to the model's dtype: use a "
            "wider --dtype or a larger strength"
        )
    pair = after.tokens.get("after_sublayer")
    usual = before.tokens.get("after_sublayer")
    if pair is None or pair[0] is None or usual is None or usual[0] is None:
        return
    if run.options.probe_name == "eigen" and 0.02 < pair[0].positive_fraction < 0.98:
        run.warnings.append(
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
    return float(weight.detach().double().norm())


# -- what people use today, and texts ------------------------------------------------------------


def _activation(
    run: _Run,
    study: Study,
    after: Measure,
    probe: Probe,
    Z: Float[np.ndarray, "n m"],
    found: Direction,
) -> Measure | None:
    """Activation addition after the same block, of the strength with the same KL."""
    kl = kl_of(after)
    if run.subject.head is None or not 1e-8 < kl < np.inf:
        return None
    stage = run.stage

    def measure(beta: float) -> Measure:
        run.tick("activation addition at the same KL")
        return study.measure(Added(stage.place.block, found.vector, beta, stage.skip), beta)

    moved = float(np.mean(np.abs(Z @ probe.w)))
    return match_kl(measure, after.strength * moved, kl)


def _continuations(
    run: _Run,
    edit: Edit,
    activation: Measure | None,
    found: Direction,
    likely: dict[tuple[int, int], float] | None,
) -> list[Continuation]:
    session = run.stage.session
    if run.subject.head != "causal":
        return []
    decode = None if session.tokenizer is None else session.tokenizer.decode
    starts = starts_of(run.sets.evaluation, special_ids(session), decode, likely)
    versions: dict[str, Any] = {"before": nullcontext(), "after": edit.applied(session)}
    if activation is not None:
        added = Added(run.stage.place.block, found.vector, activation.strength, run.stage.skip)
        versions["activation"] = added.active(session.torch)
    texts: dict[str, list[str]] = {}
    for name, push in versions.items():
        run.tick("sentences going on")
        made, why = continued(session, starts, push)
        if made is None:
            run.warnings.append(f"no continuations: {why}")
            return []
        texts[name] = made
    if decode is None:
        return []
    special = special_ids(session)
    return [
        Continuation(
            decode([i for i in ids if i not in special]),
            {name: made[k] for name, made in texts.items()},
        )
        for k, ids in enumerate(starts)
    ]
