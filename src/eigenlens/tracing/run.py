"""`eigenlens.trace`: real tokens through a live model, one batch at a time, with every null."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, Literal

from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.describe import describe
from eigenlens.circuit.plans import Skipped, layer_numbers
from eigenlens.errors import ArchitectureError, OptionError
from eigenlens.live.batches import first_prompts
from eigenlens.live.capture import capture, capture_each
from eigenlens.live.places import Key, Place
from eigenlens.live.session import Session, initialised_like, open_session
from eigenlens.live.states import Captured
from eigenlens.measure.bootstrap import too_few
from eigenlens.spectra.analyse import not_square
from eigenlens.tracing.feed import Feed, Prompts, batches_of, read_feed
from eigenlens.tracing.finish import Gathered, finish
from eigenlens.tracing.gather import Gatherer, Reading
from eigenlens.tracing.ladder import LadderSums
from eigenlens.tracing.nulls import plan_nulls
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.result import Trace
from eigenlens.tracing.targets import LayerTarget, read_targets

Progress = Callable[[int, int, str], None]
"""Called with (prompts done, prompts in all, what is done)."""


def trace(
    source: Any,
    texts: Sequence[str] | None = None,
    *,
    prompts: Any = None,
    token_ids: Any = None,
    random_tokens: int | None = None,
    length: int | None = None,
    mode: str = "step",
    ladder: bool = False,
    bias: bool | None = None,
    order: str = "auto",
    operator: str = "raw",
    tie_tolerance: float = 0.01,
    radius: float | Literal["sqrt_d"] | None = None,
    steps: int | None = None,
    nulls: bool = True,
    directions: int | None = None,
    bootstrap: int = 1000,
    drop_sinks: bool = False,
    special_tokens: str = "keep",
    batch_size: int = 8,
    too_long: Literal["warn", "error"] = "warn",
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    dtype: Any = "float32",
    device: str = "cpu",
    seed: int = 0,
    architecture: Any = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Follow real tokens through a model and measure how they align with each layer's leader.

    Parameters
    ----------
    source
        A folder, a .gguf file, ``sample:NAME``, a hub id, a live transformers model, or an open
        `Session`.
    texts, prompts, token_ids, random_tokens, length
        What is fed; see `eigenlens.tracing.feed.Prompts` (`prompts` is a file). None of them: the
        64 default sentences, SMILES for the chemistry sample, random tokens without a tokenizer.
    mode, ladder, bias, order, operator, tie_tolerance, radius, steps, nulls, directions
        See `TraceOptions`.
    bootstrap, drop_sinks, special_tokens, batch_size, too_long, seed
        See `TraceOptions`.
    stack, layers
        Which layers; None for all. The null ``other_layer`` is over those chosen.
    dtype, device, architecture, trust_remote_code
        See `eigenlens.live.session.open_session`; of an open session they are what they are.
    progress
        Called after each batch.

    Returns
    -------
    `Trace`, one `LayerTrace` an attention call. Memory does not grow with the length of the
    prompts' list but for a few numbers a prompt and layer.

    Raises
    ------
    EigenlensError
        The source, an option, a prompt or a state is not usable; the message says what to do.
    """
    asked = Prompts(texts, prompts, token_ids, random_tokens, length)
    options = TraceOptions(
        mode=mode,
        order=order,
        operator=operator,
        tie_tolerance=tie_tolerance,
        bias=bias,
        radius=radius,
        steps=steps,
        ladder=ladder,
        nulls=nulls,
        directions=directions,
        bootstrap=bootstrap,
        drop_sinks=drop_sinks,
        special_tokens=special_tokens,
        batch_size=batch_size,
        too_long=too_long,
        seed=seed,
    )
    loaded = (dtype, device, architecture, trust_remote_code)
    session, feed = opened(source, asked, seed, stack, *loaded)
    return run(session, feed, options, layers=layers, progress=progress)


def opened(
    source: Any,
    prompts: Prompts,
    seed: int,
    stack: str | None,
    dtype: Any,
    device: str,
    architecture: Any,
    trust_remote_code: bool,
) -> tuple[Session, Feed]:
    """The running model, or one stack of it, and the token ids that it is fed; see `trace`.

    Raises
    ------
    EigenlensError
        As `trace`.
    """
    session = open_session(
        source,
        dtype=dtype,
        device=device,
        architecture=architecture,
        trust_remote_code=trust_remote_code,
        tokenizer=prompts.token_ids is None and prompts.random is None,
    )
    if stack is not None:
        session = session.only(stack)
    return session, read_feed(session, prompts, seed)


def run(
    session: Session,
    feed: Feed,
    options: TraceOptions,
    *,
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """`trace` on an open session and prompts that are token ids already.

    Raises
    ------
    EigenlensError
        As `trace`.
    """
    session, places = chosen_places(session, options, layers)
    feed, batches = batches_of(session, feed, options)
    warnings = [*(w for w in session.warnings if "token" not in w), *feed.warnings]
    weights = options.nulls and options.mode != "block" and _weights(session, batches, warnings)
    circuits: dict[Key, OVCircuit] = {}

    def keep(place: Place, circuit: OVCircuit) -> None:
        if weights:
            circuits[place.key] = circuit

    targets = read_targets(session, options, places, nulls=options.nulls, keep=keep)
    zero = _zero(places, targets)
    if not targets:
        raise ArchitectureError(
            f"{session.label}: F is zero in every layer that was asked for, so no direction leads: "
            "there is nothing to trace"
        )
    n_rows = _n_rows(targets, options)
    plans = plan_nulls(targets, options, n_rows, circuits) if options.nulls else None
    gatherer = Gatherer(session, options, targets, plans)
    steps = LadderSums(session, options, targets) if options.ladder else None
    done, total = 0, feed.n_prompts * (2 if options.nulls else 1)

    def tell(more: int, name: str) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total, name)

    what = "prompts, trained model" if options.nulls else "prompts"
    tell(0, what)
    unchecked: tuple[str, ...] = ()

    def read(captured: Captured) -> Reading:
        if steps is not None:
            steps.add(captured)
        return gatherer.read(captured)

    alone = weights or plans is not None or steps is not None  # these are added as they are read
    for reading in capture_each(session, batches, read, weights=weights, alone=alone):
        gatherer.add(reading)
        unchecked = reading.unchecked
        tell(len(reading.prompts), what)
    fresh = None
    if options.nulls:
        fresh = _initialised(session, feed, options, layers, warnings, tell)
    few = too_few(feed.n_prompts)
    warnings += [few] if few else []
    if unchecked:
        warnings.append(
            f"{', '.join(unchecked)}: the sum of state and attention output could not be compared "
            "with the model's own"
        )
    if not any(row.every.n_tokens for row in gatherer.rows.values()):
        raise OptionError(
            f"{session.label}: no token is left to measure: the prompts hold special tokens that "
            "were dropped, or states that are exactly zero; give other prompts, or keep special "
            "tokens"
        )
    rows, stacks = finish(Gathered(gatherer, steps, fresh), options)
    return Trace(
        model=describe(session.checkpoint),
        options=told_options(session, feed, options, n_rows, layers),
        layers=rows,
        stacks=stacks,
        skipped=(*session.checkpoint.skipped, *_not_square(session, layers), *zero),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def told_options(
    session: Session,
    feed: Feed,
    options: TraceOptions,
    n_rows: int,
    layers: Sequence[int] | None,
) -> dict[str, Any]:
    """What was asked, and what was taken where nothing was: the options of a result."""
    return {
        **asdict(options),
        "bias": options.keeps_bias,
        "radius": options.length if options.mode == "free" or options.ladder else None,
        "directions": options.random_directions(n_rows) if options.nulls else None,
        "prompts": feed.source,
        "n_prompts": feed.n_prompts,
        "dtype": str(session.dtype).removeprefix("torch."),
        "device": str(session.device),
        "layers": None if layers is None else list(layers),
    }


def chosen_places(
    session: Session, options: TraceOptions, layers: Sequence[int] | None
) -> tuple[Session, list[Place]]:
    """The places to measure; in a free run all layers run, whichever are measured.

    Raises
    ------
    OptionError
        There is no such layer.
    ArchitectureError
        No layer has a spectrum.
    """
    there = {place.plan.layer for place in session.places}
    if layers is not None:
        layers = layer_numbers(layers, there, session.label)
    places = [p for p in session.places if layers is None or p.plan.layer in layers]
    if not any(p.plan.geometry.width_in == p.plan.geometry.d_model for p in places):
        raise ArchitectureError(
            f"{session.label}: no layer has an F with a spectrum: there is nothing to trace"
        )
    if options.mode != "free" and len(places) < len(session.places):
        session = replace(session, places=tuple(places))
    return session, places


def _weights(session: Session, batches: Any, warnings: list[str]) -> bool:
    """Whether the model returns attention weights, which rotated weights are replayed with.

    Two prompts show it; a whole batch would be the costliest pass of all, for nothing.
    """
    try:
        probe = first_prompts(next(iter(batches)), 2)
        next(capture(session, [probe], weights=True, check=False))
    except (ArchitectureError, OptionError) as error:
        warnings.append(f"the null matched_spectrum is left out: {error}")
        return False
    return True


def _n_rows(targets: Mapping[Key, LayerTarget], options: TraceOptions) -> int:
    if options.mode == "free" and options.steps is not None:
        return options.steps * len({key[0] for key in targets})
    return sum(target.spectrum.steps for target in targets.values())


def _initialised(
    session: Session,
    feed: Feed,
    options: TraceOptions,
    layers: Sequence[int] | None,
    warnings: list[str],
    tell: Callable[[int, str], None],
) -> Gatherer | None:
    """The same tokens through the model before training, measured against its own leaders."""
    try:
        fresh = initialised_like(session, options.seed)
    except (ArchitectureError, OptionError, ValueError, TypeError, RuntimeError) as error:
        text = " ".join(str(error).split())[:200]
        warnings.append(f"the null random_init is left out: no new model can be made ({text})")
        return None
    fresh = fresh.only(*dict.fromkeys(p.plan.stack for p in session.places))
    fresh, places = chosen_places(fresh, options, layers)
    targets = read_targets(fresh, options, places, nulls=False)
    gatherer = Gatherer(fresh, options, targets)
    _, batches = batches_of(fresh, feed, options)
    for reading in capture_each(fresh, batches, gatherer.read, check=False):
        gatherer.add(reading)
        tell(len(reading.prompts), "prompts, untrained model")
    return gatherer


def _zero(places: Sequence[Place], targets: Mapping[Key, LayerTarget]) -> list[Skipped]:
    """Layers that add nothing to a token: no direction leads there."""
    return [
        Skipped(
            place.plan.stack,
            place.plan.layer,
            "F is zero: attention adds nothing, nothing leads",
            place.plan.kind,
        )
        for place in places
        if place.key not in targets and place.plan.geometry.width_in == place.plan.geometry.d_model
    ]


def _not_square(session: Session, layers: Sequence[int] | None) -> list[Any]:
    stacks = dict.fromkeys(p.plan.stack for p in session.places)
    return list(chain(*(not_square(session.checkpoint, stack, layers) for stack in stacks)))
