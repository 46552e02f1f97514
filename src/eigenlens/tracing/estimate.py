"""What a trace will cost: counted prompts and tokens, and a time measured on part of the run.

The model is loaded and the prompts are cut as in the run itself. Then one batch of middling length
goes through one layer's share of the trace and through that of a few others: from the difference
follows what a layer costs, and both are multiplied. Few layers are measured whole. On an idle
machine the time is good to a factor of about two.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eigenlens.circuit.describe import describe
from eigenlens.frames import Result
from eigenlens.live.batches import Batch, Batches
from eigenlens.live.capture import capture
from eigenlens.live.places import Place
from eigenlens.live.session import Session
from eigenlens.tracing.feed import Feed, Prompts, batches_of
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.run import chosen_places, opened, run, told_options

_STATES = 3  # of a layer that a batch keeps: before, after attention, after the block
_PARTS = 3  # measured runs: the bare model, one layer, a few layers
_FEW = 6  # layers that are not worth a reckoning
_MOST = 5  # layers of the longer run


@dataclass(frozen=True)
class TraceEstimate(Result):
    """The cost of a trace, schema ``eigenlens.trace-estimate/1``.

    Attributes
    ----------
    model
        The model block of every command.
    options
        What the estimate is for, with the number of random directions that will be drawn.
    n_prompts, n_tokens, n_batches, longest
        What is fed: prompts, their tokens (of images their number alone, and 0), batches, and the
        tokens of the longest prompt.
    n_layers
        Layers that are traced.
    measured_prompts, measured_layers, measured_seconds
        What the estimate rests on: prompts of the batch, layers, and the time that it took.
    memory_bytes
        Peak memory of the process, None where the system does not tell it.
    seconds
        Time of the whole run, with loading the model as long as it took here.
    warnings
        Prompts that are cut, and what else deserves to be known before the start.
    """

    SCHEMA = "eigenlens.trace-estimate/1"

    model: dict[str, Any]
    options: dict[str, Any]
    n_prompts: int
    n_tokens: int
    n_batches: int
    longest: int
    n_layers: int
    measured_prompts: int
    measured_layers: int
    measured_seconds: float
    memory_bytes: int | None
    seconds: float
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**self._head(model=self.model), **self.rows()[0]}

    def rows(self) -> list[dict[str, Any]]:
        """One flat record."""
        return [{k: v for k, v in vars(self).items() if k not in ("model", "options", "warnings")}]


@dataclass(frozen=True)
class _Timed:
    """Seconds of a measured run, and of its batches alone."""

    whole: float
    batch: float


def estimate(
    source: Any,
    *,
    texts: Sequence[str] | None = None,
    prompts: Any = None,
    token_ids: Any = None,
    random_tokens: int | None = None,
    length: int | None = None,
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    dtype: Any = "float32",
    device: str = "cpu",
    architecture: Any = None,
    trust_remote_code: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> TraceEstimate:
    """What `eigenlens.tracing.run.trace` with the same arguments would cost.

    Parameters
    ----------
    source, texts, prompts, token_ids, random_tokens, length, stack, layers
        As for `trace`.
    dtype, device, architecture, trust_remote_code, options
        As for `trace`; `options` are those of `TraceOptions`.
    progress
        Called as measured runs end.

    Raises
    ------
    EigenlensError
        As `trace`.
    """
    asked = TraceOptions(**options)
    fed = Prompts(texts, prompts, token_ids, random_tokens, length)
    loaded = (dtype, device, architecture, trust_remote_code)
    begun = time.perf_counter()
    session, feed = opened(source, fed, asked.seed, stack, *loaded)
    opening = time.perf_counter() - begun
    chosen, places = chosen_places(session, asked, layers)
    feed, batches = batches_of(chosen, feed, asked)
    square = [p for p in places if p.plan.geometry.width_in == p.plan.geometry.d_model]
    rows = sum(p.plan.steps for p in square)
    if asked.mode == "free" and asked.steps is not None:
        rows = asked.steps * len({p.plan.stack for p in square})
    fixed = replace(asked, directions=asked.random_directions(rows))
    lengths = [len(p) for p in feed.ids] or [1] * feed.n_prompts  # images count as one each
    part = _middle(feed, lengths, asked.batch_size)

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, _PARTS, "measuring a part")

    begun = time.perf_counter()
    tell(0)
    bare = _bare(chosen, batches_of(chosen, part, fixed)[1])
    tell(1)
    units = sorted({p.plan.layer for p in square})
    first, others = _measured(units)
    if first:
        _timed(session, part, replace(fixed, nulls=False), units[:1])  # warms up
    one = _timed(session, part, fixed, first) if first else None
    tell(2)
    reckoned = _scaled(one, _timed(session, part, fixed, others), len(others), len(units))
    tell(3)
    took = time.perf_counter() - begun
    once = sum(map(len, part.ids)) or part.n_prompts
    more = max(0.0, sum(lengths) / once - 1)
    again = reckoned.batch + (bare if asked.nulls else 0.0)
    rest = [p for p in square if p.plan.layer not in others]
    peak = _peak_bytes()
    return TraceEstimate(
        model=describe(session.checkpoint),
        options=told_options(session, feed, asked, rows, layers),
        n_prompts=feed.n_prompts,
        n_tokens=sum(lengths) if feed.ids else 0,
        n_batches=len(batches),
        longest=max(lengths) if feed.ids else 0,
        n_layers=len(units),
        measured_prompts=part.n_prompts,
        measured_layers=len(first) + len(others),
        measured_seconds=took,
        memory_bytes=None if peak is None else peak + _kept(rest, fixed, _sizes(batches)),
        seconds=opening + reckoned.whole + more * again,
        warnings=feed.warnings,
    )


def _middle(feed: Feed, lengths: Sequence[int], size: int) -> Feed:
    """As many prompts of middling length as a batch has."""
    if not feed.ids:
        return replace(feed, n_prompts=min(size, feed.n_prompts))
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = max(0, (len(order) - size) // 2)
    own = tuple(feed.ids[i] for i in order[start : start + size])
    return Feed(own, feed.source, len(own))


def _measured(units: Sequence[int]) -> tuple[list[int], list[int]]:
    """Layers of the first run and others of the second; in the second alone where there are few.

    What is kept of a layer after its first run would make it cheaper in the second.
    """
    if len(units) < _FEW:
        return [], list(units)
    rest = [x for x in units if x != units[0]]
    step = max(1, len(rest) // (_MOST + 1))
    spread = rest[::step]
    return spread[:1], spread[1 : 1 + min(_MOST, len(spread) - 1)]


def _scaled(one: _Timed | None, many: _Timed, measured: int, n: int) -> _Timed:
    """The time of n layers from that of one and of `measured` others.

    Where the machine was too busy for a difference, from the longer run alone, which is too much.
    """

    def reach(short: float, long: float) -> float:
        each = (long - short) / (measured - 1)
        return long + (n - measured) * each if each > 0 else long * n / measured

    if one is None or measured < 2:
        return many
    return _Timed(reach(one.whole, many.whole), reach(one.batch, many.batch))


def _bare(session: Session, batches: Iterable[Batch]) -> float:
    """Seconds of batches through the model alone; the first pass, which warms up, apart."""
    seconds = 0.0
    for _ in range(2):
        begun = time.perf_counter()
        for _captured in capture(session, batches, check=False):
            pass
        seconds = time.perf_counter() - begun
    return seconds


def _timed(session: Session, feed: Feed, options: TraceOptions, layers: list[int]) -> _Timed:
    """A run of a part of the prompts and some layers."""
    told: list[float] = []

    def tell(done: int, total: int, name: str) -> None:
        if done <= feed.n_prompts:
            told.append(time.perf_counter())

    begun = time.perf_counter()
    run(session, feed, options, layers=layers, progress=tell)
    end = time.perf_counter()
    return _Timed(end - begun, told[-1] - told[0])


def _sizes(batches: Batches | Sequence[Batch]) -> list[tuple[int, int]]:
    """Prompts and tokens of every batch; images count as one token each."""
    if isinstance(batches, Batches):
        return [(len(group), len(batches.prompts[group[0]])) for group in batches.groups]
    return [(len(batch.prompts), 1) for batch in batches]


def _kept(places: Sequence[Place], options: TraceOptions, sizes: Sequence[tuple[int, int]]) -> int:
    """Bytes that layers which were not measured add: weights to rotate, states of a batch."""
    total = 0
    tokens, scores = max(b * n for b, n in sizes), max(b * n * n for b, n in sizes)
    for place in places:
        g = place.plan.geometry
        if options.nulls and options.mode != "block":
            total += 8 * g.d_model * (g.value_width + g.output_width)
        total += 4 * place.plan.steps * _STATES * tokens * g.d_model
        total += 4 * place.plan.steps * scores * g.n_heads  # attention weights
    return total


def _peak_bytes() -> int | None:
    """The most that this process has held so far."""
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
