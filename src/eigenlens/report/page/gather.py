"""Everything the page is drawn from: computed, or handed over; and why a part is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from eigenlens.cache import Cache
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.dynamics.result import Simulation
from eigenlens.errors import (
    ArchitectureError,
    EigenlensError,
    FormatError,
    MissingDependencyError,
    OptionError,
    SourceError,
)
from eigenlens.report.page.sections import Section
from eigenlens.report.panels.sphere import States
from eigenlens.spectra.analyse import spectrum as compute_spectrum
from eigenlens.spectra.estimate import layer_costs
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.result import Spectrum
from eigenlens.tracing.result import Trace

WHOLE = 1024
"""Rank up to which all eigenvalues of a layer may be computed, O(rank^3)."""
MOST = 12_000
"""Eigenvalues in a page, all layers together: what keeps it below 8 MB."""
LEADING = 32
"""Eigenvalues a layer where its rank is larger than `WHOLE`."""
DECODED = 8

Progress = Callable[[int, int, str], None]
"""Called with (parts done, parts in all, what comes next)."""


@dataclass(frozen=True)
class Options:
    """What a report is asked for, besides its sections.

    Attributes
    ----------
    order, operator, tie_tolerance, seed
        As in `eigenlens.spectrum`.
    texts, prompts
        What is traced: texts, or a file of them; neither for the default prompts.
    steps
        Layer steps of the simulation; None for 100, or as many as should settle it, up to 1000.
    stack, layers
        Which layers; None for all.
    dtype, device, trust_remote_code, architecture
        Of the live model; see `eigenlens.live.session.open_session`. A session keeps its own.
    """

    order: str = "auto"
    operator: str = "raw"
    tie_tolerance: float = 0.01
    seed: int = 0
    texts: Sequence[str] | None = None
    prompts: str | Path | None = None
    steps: int | None = None
    stack: str | None = None
    layers: Sequence[int] | None = None
    dtype: str = "float32"
    device: str = "cpu"
    trust_remote_code: bool = False
    architecture: Any = None


@dataclass
class Material:
    """Results, each None where it was not asked for or could not be had; `missing` says why.

    Attributes
    ----------
    checkpoint
        The model's files, for the provenance.
    spectrum, trace, simulate, states
        The results.
    missing
        What a section needs and does not have, and the reason.
    seconds
        What each part took.
    """

    checkpoint: Checkpoint | None = None
    spectrum: Spectrum | None = None
    trace: Trace | None = None
    simulate: Simulation | None = None
    states: States | None = None
    missing: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def gather(
    source: Any,
    sections: Sequence[Section],
    options: Options,
    given: Material,
    *,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> Material:
    """Compute what `sections` need and `given` does not hold.

    A part that needs the running model and fails is missing, with its reason; the spectrum is what
    everything rests on, so its errors are raised.

    Raises
    ------
    EigenlensError
        The source is not usable, an option or a prompt is wrong.
    """
    needs = {section.needs for section in sections}
    parts: list[str] = ["trace", "states", "simulate"]
    live = [n for n in parts if n in needs and getattr(given, n) is None]
    steps = ["spectrum"] * (given.spectrum is None) + ["model"] * bool(live) + live
    done = 0

    def tell(name: str) -> None:
        nonlocal done
        if progress is not None:
            progress(done, len(steps), name)
        done += 1

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        tell(_WORDS[name])
        start = perf_counter()
        yield
        given.seconds[name] = perf_counter() - start

    if source is not None and given.checkpoint is None:
        given.checkpoint = _checkpoint(source, options)
    if given.spectrum is None:
        with timed("spectrum"):
            given.spectrum = _spectrum(given.checkpoint, sections, options, cache)
    if live:
        _live(source, live, options, given, timed)
    if progress is not None:
        progress(len(steps), len(steps), "page")
    return given


_WORDS = {
    "spectrum": "spectrum",
    "model": "loading the model",
    "trace": "tracing prompts",
    "states": "states",
    "simulate": "simulating",
}


def _checkpoint(source: Any, options: Options) -> Checkpoint:
    checkpoint = getattr(source, "checkpoint", None)  # an open session
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    return open_checkpoint(source, options.architecture)


def _spectrum(
    checkpoint: Checkpoint | None,
    sections: Sequence[Section],
    options: Options,
    cache: Cache | None,
) -> Spectrum:
    if checkpoint is None:
        raise OptionError("there is neither a model nor a finished spectrum to report on")
    names = {section.name for section in sections}
    asked: dict[str, Any] = {
        "order": options.order,
        "operator": options.operator,
        "per_head": "heads" in names,
        "tie_tolerance": options.tie_tolerance,
        "seed": options.seed,
    }
    chosen: dict[str, Any] = {"stack": options.stack, "layers": options.layers}
    costs = layer_costs(checkpoint, SpectrumOptions(**asked), **chosen)
    sizes = [cost.solved for cost in costs] or [0]
    whole = max(sizes) <= WHOLE
    few = min(max(sizes), max(8, MOST // len(sizes)))
    return compute_spectrum(
        checkpoint,
        few if whole and sum(sizes) > MOST else LEADING if not whole else 8,
        **asked,
        all=whole and sum(sizes) <= MOST,
        decode=DECODED if "tokens" in names and has_tokens(checkpoint) else 0,
        **chosen,
        cache=cache,
    )


def has_tokens(checkpoint: Checkpoint) -> bool:
    """Whether the model's vectors can be read in tokens: it has an embedding and a vocabulary."""
    return why_no_tokens(checkpoint) is None


def why_no_tokens(checkpoint: Checkpoint) -> str | None:
    """Why the model's vectors cannot be read in tokens; None where they can."""
    if checkpoint.source is None:
        return "plain matrices come without a vocabulary"
    try:
        if not checkpoint.readout.has_vocabulary:
            return "this model has no token embedding"
    except EigenlensError:
        return "the embedding of this model cannot be read"
    try:
        return None if checkpoint.source.tokens() else "this model comes without a vocabulary"
    except SourceError:  # there is no such file
        return "this model comes without a vocabulary"
    except EigenlensError:
        return "the vocabulary of this model cannot be read"


Timed = Callable[[str], AbstractContextManager[None]]


def _live(source: Any, live: list[str], options: Options, given: Material, timed: Timed) -> None:
    """Trace, states and simulation on one session; what fails is missing, with its reason."""
    if source is None:
        for need in live:
            given.missing[need] = "the results were given without a model to run"
        return
    try:
        with timed("model"):
            session = _opened(source, options)
    except (MissingDependencyError, ArchitectureError, SourceError, FormatError) as error:
        for need in live:
            given.missing[need] = str(error)
        return
    feed = None
    try:
        feed = _feed(session, source, options)
    except EigenlensError as error:
        if options.texts is not None or options.prompts is not None:
            raise
        for need in ("trace", "states"):
            given.missing[need] = str(error)
        live = [need for need in live if need == "simulate"]
    makers: dict[str, Callable[[], Any]] = {
        "trace": lambda: _trace(session, feed, options),
        "states": lambda: _states(session, feed, given.spectrum),
        "simulate": lambda: _simulate(session, options),
    }
    for need in live:
        try:
            with timed(need):
                setattr(given, need, makers[need]())
        except EigenlensError as error:
            given.missing[need] = str(error)


def _opened(source: Any, options: Options) -> Any:
    """The running model, as a session."""
    from eigenlens.live.session import open_session

    session = open_session(
        source,
        dtype=options.dtype,
        device=options.device,
        architecture=options.architecture,
        trust_remote_code=options.trust_remote_code,
    )
    return session if options.stack is None else session.only(options.stack)


def _feed(session: Any, source: Any, options: Options) -> Any:
    """The prompts as token ids."""
    from eigenlens.tracing.feed import Prompts, read_feed

    asked = Prompts(options.texts, options.prompts)
    return read_feed(session, asked, options.seed)


def _trace(session: Any, feed: Any, options: Options) -> Trace:
    from eigenlens.tracing.options import TraceOptions
    from eigenlens.tracing.run import run

    asked = TraceOptions(
        order=options.order,
        operator=options.operator,
        tie_tolerance=options.tie_tolerance,
        seed=options.seed,
    )
    return run(session, feed, asked, layers=options.layers)


def _states(session: Any, feed: Any, spectrum: Spectrum | None) -> States:
    from eigenlens.report.page.states import capture_states

    if spectrum is None:
        raise OptionError("the sphere's axes need a spectrum")
    return capture_states(session, feed, spectrum)


_STEPS, _MOST_STEPS = 100, 1000  # of a simulation whose number of steps is left open
_SPARE = 1.5  # times the steps foretold, which are a first guess


def _simulate(session: Any, options: Options) -> Simulation:
    from eigenlens.dynamics.live_run import simulate_model

    def run(steps: int) -> Simulation:
        return simulate_model(
            session,
            steps=steps,
            stack=options.stack,
            layers=options.layers,
            tie_tolerance=options.tie_tolerance,
            seed=options.seed,
        )

    found = run(_STEPS if options.steps is None else options.steps)
    needed = found.outcome.steps_to_settle
    if options.steps is not None or needed is None or needed > _MOST_STEPS:
        return found
    return run(min(math.ceil(_SPARE * needed), _MOST_STEPS))
