"""The loop: hand tasks to the workers a few at a time, write what comes back, go on after deaths.

Only so many tasks are handed over as keep every thread busy: results are written as they come and
let go, so memory does not grow with the survey. A task whose worker dies again and again waits
until the others are done and is then tried once more with nothing beside it; so it is known which
one kills its worker, and the others are not counted among the dead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, Queue
from typing import Any

from eigenlens.errors import SourceError
from eigenlens.surveys.clusters import Workers
from eigenlens.surveys.dataset import Dataset
from eigenlens.surveys.members import Member
from eigenlens.surveys.options import Question
from eigenlens.surveys.tasks import WHOLE_BYTES, Failed, Plan, Todo, begin, follow, solve

Progress = Callable[[int, int, str], None]
"""Called with (layers done, layers in all as far as known, what came last)."""

TICK_SECONDS = 2.0
LOST_SECONDS = 120.0
"""Without any worker for so long, the survey ends with what it has."""


@dataclass
class State:
    """How far one checkpoint is."""

    member: Member
    key: str = ""
    parts: int = 0
    open: int = 0
    """Parts that are still to come."""
    kept: bool = False
    """Nothing had to be computed."""
    reason: str | None = None


@dataclass(frozen=True)
class Task:
    """One call on a worker."""

    state: State
    todo: Todo | None = None
    alone: bool = False


@dataclass
class Runner:
    """The tasks of one survey.

    Attributes
    ----------
    workers, data, question, members
        Where, whereto, what, of which.
    failed
        Called with a checkpoint's state when it fails.
    progress
        See `Progress`.
    planned
        Called with a checkpoint's state when rows of other options are gone from its folder.
    """

    workers: Workers
    data: Dataset
    question: Question
    members: Sequence[Member]
    failed: Callable[[State], None]
    progress: Progress | None = None
    planned: Callable[[State], None] | None = None
    states: list[State] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _ready: deque[Task] = field(default_factory=deque)
    _last: deque[Task] = field(default_factory=deque)
    _running: dict[Any, Task] = field(default_factory=dict)
    _declared: list[dict[str, float]] = field(default_factory=list)
    _coming: Queue[Any] = field(default_factory=Queue)
    _done: int = 0
    _tell_next: float = 0.0
    _seen: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Compute what is not there; returns when every checkpoint is complete or has failed.

        Raises
        ------
        SourceError
            A file cannot be written, or the cluster is lost.
        """
        self._look()
        self.states = [State(member) for member in self.members]
        self._ready.extend(Task(state) for state in self.states)
        self._tell("")
        while self._ready or self._last or self._running:
            self._hand_over()
            if not self._running:
                continue
            try:
                future = self._coming.get(timeout=TICK_SECONDS)
            except Empty:
                self._watch()
                continue
            self._seen = time.monotonic()
            task = self._running.pop(future)
            try:
                self._take(task, future)
            finally:
                future.release()
            self._tell(task.state.member.name)
        self._tell("")

    def _watch(self) -> None:
        """While nothing comes back: see that there are workers at all."""
        if self.workers.revive is not None:
            self.workers.revive()
        if self.workers.client.status != "running":
            raise _lost("the dask scheduler was lost")
        if self.workers.resources():
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > LOST_SECONDS:
            raise _lost(f"the cluster has had no workers for {LOST_SECONDS:.0f} s")

    def _look(self) -> None:
        """Ask what the workers declare."""
        self._declared = self.workers.resources()
        if (
            self.question.trace is not None
            and self.question.trace.needs_gpu
            and not any(w.get("GPU", 0) >= 1 for w in self._declared)
        ):
            raise SourceError(
                "no worker of the cluster declares a GPU, which --device "
                f"{self.question.trace.device} needs; start them with --resources 'GPU=1'"
            )
        if not any("MEMORY" in w for w in self._declared):
            self.warnings.append(
                "the workers declare no memory, so nothing keeps large layers from running side by "
                "side; start them with --resources 'MEMORY=100e9' (bytes)"
            )

    @property
    def _window(self) -> int:
        """Tasks that are handed over at once: one running and one waiting a thread."""
        return 2 * max(1, int(sum(w["threads"] for w in self._declared)))

    def _hand_over(self) -> None:
        while self._ready and len(self._running) < self._window:
            self._submit(self._ready.popleft())
        if not self._ready and not self._running and self._last:
            self._submit(self._last.popleft())

    def _submit(self, task: Task) -> None:
        if task.state.reason is not None:
            return  # another part of the checkpoint failed
        needs = self._needs(task)
        lacking = self._lacking(needs)
        if lacking is not None:
            self._fail(task, lacking)
            return
        client, member = self.workers.client, task.state.member
        same: dict[str, Any] = {"resources": needs, "pure": False}
        if task.todo is None:
            known: dict[tuple[str, int], frozenset[int]] = {}
            for part in self.data.parts(member.name):
                key = (part.key, part.parts)
                known[key] = known.get(key, frozenset()) | {part.part}
            future = client.submit(begin, member, self.question, known, **same)
        else:
            call = solve if self.question.trace is None else follow
            future = client.submit(call, member, self.question, task.todo, **same)
        self._running[future] = task
        future.add_done_callback(self._coming.put)

    def _needs(self, task: Task) -> dict[str, float]:
        """Resources of a task, of the kinds that any worker declares."""
        needs = {}
        most = max((w["MEMORY"] for w in self._declared if "MEMORY" in w), default=None)
        if most is not None:
            # Looking at a checkpoint takes little; only a small one takes more, solved at once.
            needs["MEMORY"] = float(task.todo.memory) if task.todo else min(most, WHOLE_BYTES)
        trace = self.question.trace
        if trace is not None and trace.needs_gpu and task.todo is not None:
            needs["GPU"] = 1.0
        return needs

    def _lacking(self, needs: dict[str, float]) -> str | None:
        """Why no worker can ever run it; None where one can."""
        if any(all(w.get(name, 0) >= n for name, n in needs.items()) for w in self._declared):
            return None
        self._declared = self.workers.resources()  # others may have come
        if any(all(w.get(name, 0) >= n for name, n in needs.items()) for w in self._declared):
            return None
        most = max((w.get("MEMORY", 0.0) for w in self._declared), default=0.0)
        return (
            f"a task of it needs {needs.get('MEMORY', 0) / 1e9:.1f} GB of memory and the largest "
            f"worker declares {most / 1e9:.1f} GB; give fewer --workers, or larger ones"
        )

    def _take(self, task: Task, future: Any) -> None:
        """What became of a task."""
        from distributed.scheduler import KilledWorker

        state = task.state
        if future.status == "finished":
            found = future.result()
            if isinstance(found, Failed):
                self._fail(task, found.reason)
            elif isinstance(found, Plan):
                self._planned(state, found)
            else:
                self._part(state, task, found)
            return
        if future.status != "error":
            raise _lost("the dask scheduler was lost")
        error = future.exception()
        if isinstance(error, KilledWorker):
            if task.alone:
                self._fail(
                    task,
                    "its worker died each time, alone too: out of memory, or the files crash a "
                    "library; try it by itself with eigenlens spectrum",
                )
            else:
                self._last.append(replace(task, alone=True))
            return
        text = " ".join(str(error).split())[:200]
        self._fail(
            task,
            f"the worker could not run it ({type(error).__name__}: {text}); is the same version "
            "of eigenlens installed there?",
        )

    def _planned(self, state: State, plan: Plan) -> None:
        state.key, state.parts, state.open = plan.key, plan.parts, len(plan.todo)
        state.kept = not plan.rows and not plan.todo
        name = state.member.name
        self.data.drop_others(name, plan.key, plan.parts)
        if self.planned is not None:
            self.planned(state)
        for part, rows in plan.rows.items():
            self.data.write(name, plan.key, part, plan.parts, rows)
            self._done += 1
        # Before the plans of others: fewer checkpoints are half done when a run is stopped.
        self._ready.extendleft(Task(state, todo) for todo in reversed(plan.todo))

    def _part(self, state: State, task: Task, rows: list[dict[str, Any]]) -> None:
        if task.todo is not None:
            self.data.write(state.member.name, state.key, task.todo.part, state.parts, rows)
            state.open -= 1
            self._done += 1

    def _fail(self, task: Task, reason: str) -> None:
        state = task.state
        if state.reason is None:
            state.reason = reason
            self.failed(state)

    def _tell(self, name: str) -> None:
        """Layers done and in all; checkpoints without a plan count as the average planned one."""
        begun = time.monotonic()
        if self.progress is None or (name and begun < self._tell_next):
            return
        planned = [s for s in self.states if s.parts and not s.kept and s.reason is None]
        unknown = sum(1 for s in self.states if not s.parts and s.reason is None)
        known = self._done + sum(s.open for s in planned)
        each = known / len(planned) if planned else 1.0
        finished = sum(1 for s in self.states if s.reason or (s.parts and not s.open))
        text = f"{name} ({finished} of {len(self.states)} checkpoints)" if name else ""
        self.progress(self._done, max(round(known + each * unknown), self._done), text)
        # Counting takes as long as the list is: of a long one it is told less often.
        self._tell_next = time.monotonic() + 20 * (time.monotonic() - begun)


def _lost(what: str) -> SourceError:
    return SourceError(f"{what}; what is done is kept, run the survey again to go on")
