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
from eigenlens.errors import ArchitectureError, EigenlensError
from eigenlens.live.batches import Batch
from eigenlens.live.hooks import hooked, hooks_on
from eigenlens.live.identity import check_circuits
from eigenlens.live.modes import evaluating
from eigenlens.live.places import Key
from eigenlens.live.recorder import Recorder, Slot
from eigenlens.live.session import Session
from eigenlens.live.states import Captured
from eigenlens.live.steadiness import Steadiness, holds_table
from eigenlens.live.threads import set_own_threads, usual_threads
from eigenlens.live.witness import Witness

_ABREAST = 4  # batches at most: all share one interpreter
_AHEAD = 16  # batches begun or done behind the one whose result is waited for
_ENTRIES = 1 << 27  # numbers that a pass holds, 512 MB in float32, from which on it runs alone
_STATES, _SCORES = 5, 3  # arrays of that shape that a call keeps, that attention holds at once

Found = TypeVar("Found")


@dataclass(frozen=True)
class _Learned:
    """What passes that ran alone found out for the later ones.

    Attributes
    ----------
    copies, witnesses
        See `Recorder`.
    lengths
        Of prompts in passes since the model last changed in one. Between passes of one length it
        keeps nothing then, so that several may run at once; after two, whatever their length.
    free
        Whether one is enough: the model holds no table that was made for prompts of that length.
    hooks
        Those of others on the model, which may do anything to it.
    """

    copies: frozenset[Slot] | None
    witnesses: Mapping[Key, Witness | None] | None
    lengths: frozenset[int] = frozenset()
    free: bool = False
    hooks: tuple[Any, ...] = ()


def capture(
    session: Session,
    batches: Iterable[Batch],
    *,
    weights: bool = False,
    check: bool = True,
) -> Iterator[Captured]:
    """Run batches and yield the states of each; no state is kept between batches.

    What is found out about the model is kept with the session: which states it overwrites, where
    its sums can be compared.

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
    is all that is kept. Between two results BLAS has one thread in the caller as well. Batches run
    alone until the session knows that the model does not change with the length of a prompt; then
    those that are longer than all before or fill the cores by themselves, all of a model that
    changes as it runs, and all where the caller's thread has what others would not have (autocast,
    inference mode). A caller who stops early is not told of a change that came unseen.

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
            if abreast > 1 and not _own_modes(session.torch) and runner.knows(batch):
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


def _own_modes(torch: Any) -> bool:
    """Whether this thread has modes of torch that the threads of a pool would run without."""
    # functions in its place and default devices; how many there are is known to torch's core alone
    stacks = ("_len_torch_function_stack", "_len_torch_dispatch_stack")
    return bool(
        torch.is_autocast_enabled("cpu")
        or torch.is_inference_mode_enabled()
        or any(getattr(torch._C, name, int)() for name in stacks)
    )


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
        self._together: Steadiness | None = None
        self._place = ("learned", weights, check)
        self._hooks = hooks_on(session.model)

    def knows(self, batch: Batch) -> bool:
        """Whether a batch may run beside others; not where hooks of others may keep anything."""
        self._check(batch)
        if not all(harmless for _, _, harmless in self._hooks):
            return False
        fits = self._steady(batch) and self._entries(batch) < _ENTRIES
        if fits and self._together is None:
            self._together = Steadiness(self.session.model)
        return fits

    def _steady(self, batch: Batch) -> bool:
        """Whether a batch of this length cannot change the model, by those that ran alone."""
        n, seen = batch.mask.shape[-1], self._learned.lengths
        known = self._learned.free or len(seen) > 1
        return n in seen or (known and 0 < n < max(seen))

    def _entries(self, batch: Batch) -> int:
        """Numbers that a pass holds at its largest moment, about."""
        plans = [place.plan for place in self.session.places]
        states = sum(plan.steps * plan.geometry.d_model for plan in plans)
        heads = [plan.geometry.n_heads for plan in plans]
        # attention weights that are asked for are kept of all layers
        kept = sum(plan.steps * n for plan, n in zip(plans, heads, strict=True))
        scores = _SCORES * max(heads) + (kept if self.weights else 0)
        return int(batch.mask.size) * int(_STATES * states + scores * batch.mask.shape[-1])

    def alone(self, batch: Batch) -> Captured:
        """Run a batch while no other runs, and learn from it."""
        self.check_steady()
        self._together = None  # this pass may change the model: no other runs
        self._check(batch)
        known, tokens = self._learned, batch.mask.shape[-1]
        before = Steadiness(self.session.model) if tokens and not self._steady(batch) else None
        found, recorder = self._run(batch)
        copies = self._overwritten(recorder)
        lengths, free = known.lengths, known.free
        if before is not None:
            kept = before.kept()
            lengths = lengths | {tokens} if kept else frozenset()
            free = kept and not holds_table(self.session.model, tokens)
        learned = _Learned(copies, recorder.witnesses, lengths, free, self._hooks)
        self.session.memory[self._place] = learned
        return found

    def beside(self, batch: Batch) -> Captured:
        """Run a batch that `knows` lets through, while others run."""
        try:
            found, recorder = self._run(batch)
            self._overwritten(recorder)
        except EigenlensError:  # where the model changed, that is the reason that comes first
            self.check_steady()
            raise
        return found

    def _overwritten(self, recorder: Recorder) -> frozenset[Slot] | None:
        """What must be copied from now on, also where this pass shows too late that it must be."""
        try:
            return recorder.overwritten()
        except ArchitectureError:
            learned = replace(self._learned, copies=recorder.copies)
            self.session.memory[self._place] = learned
            raise

    def check_steady(self) -> None:
        """Check that nothing changed in the model since batches last began to run beside others.

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
        if self._checked:
            return
        state = self.session.weights_state()
        if state not in self.session.checked:
            self.session.memory.clear()  # of other weights
            check_circuits(self.session, batch)
            self.session.checked.add(state)
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
