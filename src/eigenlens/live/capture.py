"""States around every attention layer while the model runs: a batch at a time, or side by side.

A small model leaves the second core idle most of the time, and what is read of its states takes as
long as the model. So `capture_each` runs whole batches side by side, each on its share of the
threads, and reads each where it ran.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from eigenlens.blas import one_thread
from eigenlens.errors import ArchitectureError
from eigenlens.live.batches import Batch
from eigenlens.live.hooks import hooked, hooks_on
from eigenlens.live.identity import check_circuits
from eigenlens.live.modes import evaluating
from eigenlens.live.places import Key
from eigenlens.live.recorder import Recorder, Slot
from eigenlens.live.session import Session
from eigenlens.live.states import Captured
from eigenlens.live.steadiness import Steadiness
from eigenlens.live.threads import set_own_threads, usual_threads
from eigenlens.live.witness import Witness

_ABREAST = 4  # batches at most: all share one interpreter
_AHEAD = 16  # batches begun or done behind the one whose result is waited for
_ENTRIES = 1 << 25  # numbers in the states of a batch, 128 MB, from which on it runs alone

Found = TypeVar("Found")


@dataclass(frozen=True)
class _Learned:
    """What the first pass finds out for the later ones.

    Attributes
    ----------
    copies, witnesses
        See `Recorder`.
    tokens
        Length of its prompts.
    steady
        Whether the model kept nothing between passes, so that several may run at once.
    hooks
        Those of others on the model, which may do anything to it.
    """

    copies: frozenset[Slot] | None
    witnesses: Mapping[Key, Witness | None] | None
    tokens: int = 0
    steady: bool = False
    hooks: tuple[Any, ...] = ()


def capture(
    session: Session,
    batches: Iterable[Batch],
    *,
    weights: bool = False,
    check: bool = True,
) -> Iterator[Captured]:
    """Run batches and yield the states of each; nothing is kept between batches.

    Parameters
    ----------
    session
        The model.
    batches
        See `make_batches`.
    weights
        Also return the attention weights (eager attention only).
    check
        Check, on the first batch, that every circuit's F is the one that the model applies (again
        only when the weights of the session's model have changed); on all batches, that states
        add up where the model itself adds them.

    Raises
    ------
    NumericsError
        A state is NaN or infinite, naming the layer; F or a sum is not the model's.
    ArchitectureError
        A layer did not run, or its attention acts on states of another shape.
    OptionError
        Memory ran out; attention weights were asked of attention that returns none.
    """
    if weights:
        session.need_eager()
    runner = _Runner(session, weights, check)
    for batch in batches:
        found = runner.alone(batch)
        yield found
        del found  # or it would stay while the next batch runs


def capture_each(
    session: Session,
    batches: Iterable[Batch],
    work: Callable[[Captured], Found],
    *,
    weights: bool = False,
    check: bool = True,
    alone: bool = False,
) -> Iterator[Found]:
    """``work(captured)`` of every batch, in their order; on a CPU batches run side by side.

    `work` runs in the thread of its pass, several at once, with one BLAS thread each; what it gives
    is all that is kept. Between two results BLAS has one thread in the caller as well. The first
    batch runs alone, as do batches that are longer or fill the cores by themselves, and all of a
    model that changes as it runs.

    Parameters
    ----------
    session, batches, weights, check
        See `capture`.
    work
        What is wanted of a batch.
    alone
        One batch after the other all the same, for work that is not to be done in several threads.

    Raises
    ------
    NumericsError, ArchitectureError, OptionError
        See `capture`; and whatever `work` raises.
    """
    if weights:
        session.need_eager()
    runner = _Runner(session, weights, check)
    abreast = min(_ABREAST, session.torch.get_num_threads())
    if alone or session.device.type != "cpu":
        abreast = 1
    waiting: deque[Future[Found]] = deque()
    pool: ThreadPoolExecutor | None = None
    with evaluating(session.model), ExitStack() as stack:
        for batch in batches:
            if abreast > 1 and runner.knows(batch):
                pool = pool or stack.enter_context(_pool(session, abreast))
                waiting.append(pool.submit(lambda own: work(runner.beside(own)), batch))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
                continue
            while waiting:
                yield waiting.popleft().result()
            yield work(runner.alone(batch))
        while waiting:
            yield waiting.popleft().result()
        runner.check_steady()


@contextmanager
def _pool(session: Session, workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that share those of torch among them, with one BLAS thread each."""
    torch = session.torch
    with one_thread(), usual_threads(torch) as usual:
        own = torch, max(1, usual // workers)
        pool = ThreadPoolExecutor(workers, initializer=set_own_threads, initargs=own)
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)  # after a failure nothing more is begun


class _Runner:
    """Runs batches of one session; what the first shows about the model serves all others."""

    def __init__(self, session: Session, weights: bool, check: bool) -> None:
        self.session = session
        self.weights = weights
        self.check = check
        self._checked = not check
        self._before: Steadiness | None = None
        self._together: Steadiness | None = None
        self._place = ("learned", weights, check)
        self._hooks = hooks_on(session.model)

    def knows(self, batch: Batch) -> bool:
        """Whether a batch may run beside others; not where hooks of others may keep anything."""
        self._check(batch)
        if not all(harmless for _, _, harmless in self._hooks):
            return False
        learned = self._learned
        entries = batch.mask.size * sum(
            place.plan.steps * place.plan.geometry.d_model for place in self.session.places
        )
        fits = 0 < batch.mask.shape[-1] <= learned.tokens and entries < _ENTRIES
        if learned.steady and fits and self._together is None:
            self._together = Steadiness(self.session.model)
        return learned.steady and fits

    def alone(self, batch: Batch) -> Captured:
        """Run a batch while no other runs, and learn from it."""
        self._check(batch)
        known, tokens = self._learned, batch.mask.shape[-1]
        if self._before is None and known.tokens < tokens:
            self._before = Steadiness(self.session.model)
        found, recorder = self._run(batch)
        steady = known.steady
        if known.tokens < tokens:
            steady = (steady or not known.tokens) and bool(self._before and self._before.kept())
            self._before = None
        self.session.memory[self._place] = _Learned(
            recorder.overwritten(),
            recorder.witnesses,
            max(tokens, known.tokens),
            steady,
            self._hooks,
        )
        return found

    def beside(self, batch: Batch) -> Captured:
        """Run a batch that `knows` lets through, while others run."""
        found, recorder = self._run(batch)
        recorder.overwritten()
        return found

    def check_steady(self) -> None:
        """Check that nothing changed in the model since the first batch that ran beside others.

        Raises
        ------
        ArchitectureError
            It did: a pass may have read what another one wrote.
        """
        if self._together is not None and not self._together.kept():
            raise ArchitectureError(
                f"{self.session.label}: the model wrote into its own modules while batches ran "
                "side by side, so their states may be mixed up: call torch.set_num_threads(1) "
                "first, and they run one after the other"
            )

    @property
    def _learned(self) -> _Learned:
        nothing = _Learned(None, None if self.check else {})
        found: _Learned = self.session.memory.get(self._place, nothing)
        return found if found.hooks == self._hooks else nothing

    def _check(self, batch: Batch) -> None:
        """Compare F with the live model's, at the first batch."""
        if not self._checked and self.session.first_time():
            self.session.memory.pop(self._place, None)
            self._before = Steadiness(self.session.model)
            check_circuits(self.session, batch)
        self._checked = True

    def _run(self, batch: Batch) -> tuple[Captured, Recorder]:
        session, learned = self.session, self._learned
        mask = batch.mask if batch.mask.size else None
        recorder = Recorder(session, mask, self.weights, learned.copies, learned.witnesses)
        with hooked(recorder.attach()):
            session.forward(batch.inputs, batch.advice, weights=self.weights)
        calls = recorder.finished()
        if mask is None:  # images: all positions count, only the pass says how many
            every = np.ones(tuple(calls[0].before.shape[:2]), dtype=bool)
            batch = replace(batch, mask=every, special=~every)
        witnesses = recorder.witnesses
        lost = [p.label for p in session.places if witnesses.get(p.key, True) is None]
        return Captured(batch, calls, tuple(lost)), recorder
