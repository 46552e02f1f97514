"""What a worker does: look at a checkpoint, solve a layer, trace a model; it never raises.

A worker of a spectrum survey needs numpy and scipy only. Everything here runs in one thread with
one BLAS thread: the cluster decides how much runs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from eigenlens.blas import one_thread
from eigenlens.errors import EigenlensError, SourceError
from eigenlens.inert import inert
from eigenlens.spectra.estimate import PROGRAM_BYTES
from eigenlens.surveys.members import Member
from eigenlens.surveys.opened import Opened, open_member
from eigenlens.surveys.options import Question
from eigenlens.surveys.rows import Row, layer_row, traced_row

Found = TypeVar("Found")
Known = Mapping[tuple[str, int], frozenset[int]]
"""The parts that are on disk, by key and number of parts."""

WHOLE_SECONDS = 2.0
"""A checkpoint whose spectra take one core less than this is one task."""
WHOLE_BYTES = 256_000_000
"""Nor does such a checkpoint take more memory than this, which the first task of each declares."""


@dataclass(frozen=True)
class Todo:
    """A part of a checkpoint that is to be computed.

    Attributes
    ----------
    part
        Its number among the checkpoint's parts.
    position
        Of the layer among those asked for; -1 for a whole model that is traced.
    memory
        Bytes that it takes.
    key
        Identity of the layer; None where there is none.
    """

    part: int
    position: int
    memory: int
    key: str | None


@dataclass(frozen=True)
class Plan:
    """What the first task of a checkpoint found.

    Attributes
    ----------
    key
        Identity of the files, the options and the version.
    parts
        How many files the checkpoint's rows make.
    rows
        Rows of parts that are done with it, by part.
    todo
        The parts that are to be computed.
    """

    key: str
    parts: int
    rows: Mapping[int, list[Row]]
    todo: tuple[Todo, ...]


@dataclass(frozen=True)
class Failed:
    """A task that could not be done, and why, in one inert line."""

    reason: str


def begin(member: Member, question: Question, known: Known) -> Plan | Failed:
    """Open a checkpoint and plan it; solve it at once if it is small.

    Parameters
    ----------
    member, question
        Which, and what is asked.
    known
        The parts that are on disk already, by key and number of parts.
    """
    return _guarded(lambda: _begin(open_member(member, question), known))


def solve(member: Member, question: Question, todo: Todo) -> list[Row] | Failed:
    """The rows of one layer of a checkpoint that `begin` planned."""
    return _guarded(lambda: _solve(open_member(member, question), todo))


def follow(member: Member, question: Question, todo: Todo) -> list[Row] | Failed:
    """The rows of a traced checkpoint, one an attention call. Imports torch."""
    return _guarded(lambda: _follow(open_member(member, question), todo))


def _guarded(work: Callable[[], Found]) -> Found | Failed:
    """What `work` returns, or `Failed`: a checkpoint's fault never reaches the cluster."""
    try:
        with one_thread():
            return work()
    except EigenlensError as error:
        return Failed(inert(str(error)))
    except MemoryError:
        return Failed("not enough memory on the worker; try --dtype float32 or fewer workers")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return Failed(inert(f"{place}{error.strerror or type(error).__name__}"))
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return Failed(
            inert(
                f"an error that was not foreseen, {type(error).__name__}: {text}; this is a fault "
                "of eigenlens: please report it"
            )
        )


def _begin(opened: Opened, known: Known) -> Plan:
    key = opened.key()
    if opened.question.trace is not None:
        memory = PROGRAM_BYTES + opened.live_bytes
        todo = Todo(0, -1, memory, key if opened.has_identity else None)
        return Plan(key, 1, {}, () if known.get((key, 1)) else (todo,))
    largest = max((c.memory_bytes for c in opened.costs.values()), default=0)
    if largest <= WHOLE_BYTES and (opened.seconds <= WHOLE_SECONDS or len(opened.costs) < 2):
        if known.get((key, 1)):
            return Plan(key, 1, {}, ())
        return Plan(key, 1, {0: opened.rows(list(opened.costs)) + opened.skipped_rows()}, ())
    last = len(opened.costs)
    skipped = opened.skipped_rows()
    parts = last + bool(skipped)
    there = known.get((key, parts), frozenset())
    todos = (
        Todo(part, i, PROGRAM_BYTES + cost.memory_bytes, opened.layer_key(i))
        for part, (i, cost) in enumerate(opened.costs.items())
    )
    return Plan(
        key,
        parts,
        {last: skipped} if skipped and last not in there else {},
        tuple(todo for todo in todos if todo.part not in there),
    )


def _solve(opened: Opened, todo: Todo) -> list[Row]:
    _unchanged(opened, opened.layer_key(todo.position), todo)
    return opened.rows([todo.position])


def _follow(opened: Opened, todo: Todo) -> list[Row]:
    from eigenlens.tracing.run import trace

    asked = opened.question.trace
    if asked is None:
        raise SourceError(f"{opened.member.name}: no trace was asked for")
    _unchanged(opened, opened.key(), todo)
    options = opened.question.spectrum
    start = opened.start()
    by_layer: dict[tuple[str, int, str], Row] = {}
    for i in opened.costs:
        layer = opened.spectrum(i)
        # Vectors are let go: beside the live model there is no room for those of all layers.
        by_layer[layer.stack, layer.layer, layer.kind] = layer_row(start, layer)
    found = trace(
        opened.member.model,
        None if asked.texts is None else list(asked.texts),
        order=options.order,
        operator=options.operator,
        tie_tolerance=options.tie_tolerance,
        nulls=asked.nulls,
        batch_size=asked.batch_size,
        stack=opened.question.stack,
        layers=None if opened.question.layers is None else list(opened.question.layers),
        device=asked.device,
        seed=options.seed,
        architecture=opened.question.architecture,
        trust_remote_code=asked.trust_remote_code,
    )
    rows = [traced_row(by_layer[x.stack, x.layer, x.kind], x) for x in found.layers]
    traced = {(x.stack, x.layer, x.kind) for x in found.layers}
    rows += [row for name, row in by_layer.items() if name not in traced]
    return rows + opened.skipped_rows()


def _unchanged(opened: Opened, key: str | None, todo: Todo) -> None:
    """Refuse a checkpoint that is not the one any more that was planned."""
    if todo.key is not None and key != todo.key:
        raise SourceError(
            f"{opened.member.name}: its files changed while it was surveyed; run the survey again"
        )
