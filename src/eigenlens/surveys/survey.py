"""`eigenlens.survey`: many checkpoints on dask, taken up where the last run stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenlens.errors import OptionError
from eigenlens.prompts import read_prompts
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.surveys.clusters import connected
from eigenlens.surveys.dataset import Dataset, missing
from eigenlens.surveys.members import Members, read_members
from eigenlens.surveys.options import Question, TraceQuestion
from eigenlens.surveys.result import Run, Survey
from eigenlens.surveys.running import Progress, Runner, State
from eigenlens.surveys.summary import summarise


def survey(
    source: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    trace: bool = False,
    k: int = 8,
    order: str = "auto",
    operator: str = "raw",
    all: bool = False,
    solver: str = "auto",
    tie_tolerance: float = 0.01,
    dtype: str = "float64",
    seed: int = 0,
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    architecture: str | Path | None = None,
    prompts: str | Path | Sequence[str] | None = None,
    nulls: bool = True,
    batch_size: int = 8,
    device: str = "cpu",
    trust_remote_code: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    cache: bool = True,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> Survey:
    """Spectra (or traces) of many checkpoints, in one parquet data set.

    Work is handed to processes of this machine, or to a dask cluster: one task a layer, or one a
    checkpoint where that is small. Every finished task is one file in `out`, written whole or not
    at all. What is there already, of the same files, options and version, is not computed again: a
    run that was stopped or killed is taken up by calling it again. A worker that dies costs its
    task, which runs again; a checkpoint that fails is listed with its reason, the others go on.

    Local workers are new processes that import the main module: a script that calls this needs
    ``if __name__ == "__main__":`` around it.

    Parameters
    ----------
    source
        Which checkpoints; see `eigenlens.surveys.members.read_members`.
    out
        Folder of the data set; ``pandas.read_parquet(out)`` reads it, its columns are
        `eigenlens.surveys.rows.COLUMNS`.
    trace
        Also run each model on prompts and measure alignment; needs torch on the workers.
    k, order, operator, all, solver, tie_tolerance, dtype, seed
        See `eigenlens.spectra.options.SpectrumOptions`.
    stack, layers
        Which layers; None for all.
    architecture
        A file of rules for model types that the table does not know.
    prompts, nulls, batch_size, device, trust_remote_code
        Of the trace: a file of texts or the texts (None: what fits each model), and as in
        `eigenlens.trace`.
    workers
        Local processes; None for as many as cores.
    scheduler
        Address of a dask scheduler to use instead.
    cache
        Whether results of layers that `eigenlens.spectrum` kept are used. None are added.
    progress
        Called after each task with tasks done, tasks in all as far as known, and the last one.
    note
        Called with one line on where the dashboard is.

    Returns
    -------
    `Survey`, one entry a checkpoint.

    Raises
    ------
    EigenlensError
        The list, an option, the folder or the cluster is not usable. That a checkpoint fails is no
        error: see `Survey.failed`.
    """
    try:
        import pyarrow  # noqa: F401 - before any work
    except ImportError:
        raise missing() from None
    spectra = SpectrumOptions(k, order, operator, all, False, 0, solver, tie_tolerance, dtype, seed)
    if not trace and (prompts is not None or trust_remote_code or device != "cpu"):
        raise OptionError("prompts, device and remote code are of a trace: give --trace as well")
    question = Question(
        spectra,
        stack,
        None if layers is None else tuple(layers),
        None if architecture is None else str(Path(architecture).expanduser().absolute()),
        TraceQuestion(_texts(prompts), nulls, batch_size, device, trust_remote_code)
        if trace
        else None,
        cache,
    )
    members = read_members(source)
    data = Dataset(Path(out))
    data.prepare()
    with data.locked():
        return _run(data, members, question, workers, scheduler, progress, note)


def _run(
    data: Dataset,
    members: Members,
    question: Question,
    workers: int | None,
    scheduler: str | None,
    progress: Progress | None,
    note: Callable[[str], None] | None,
) -> Survey:
    begun = time.perf_counter()
    record = data.record()
    reasons: dict[str, str | None] = dict(record.get("members", {}))
    reasons |= dict.fromkeys(m.name for m in members.found)
    options = question.to_dict()
    other = set(record.get("other_options", []))
    if record and record["options"] != json.loads(json.dumps(options)):
        other |= set(record["members"])
    told = _Record(data, options, reasons, other)
    gpu = question.trace is not None and question.trace.needs_gpu
    with connected(workers, scheduler, gpu=gpu) as cluster, told:
        if note is not None and cluster.dashboard:
            note(f"dashboard: {cluster.dashboard}")
        runner = Runner(
            cluster, data, question, members.found, told.failed, progress, planned=told.planned
        )
        runner.run()
    kept = sum(state.kept for state in runner.states)
    broken = sum(state.reason is not None for state in runner.states)
    run = Run(
        computed=len(runner.states) - kept - broken,
        kept=kept,
        failed=broken,
        seconds=time.perf_counter() - begun,
    )
    asked = [member.name for member in members.found]
    return summarise(data, run, [*members.warnings, *runner.warnings], asked)


@dataclass
class _Record:
    """The record of a run: written when it begins, when something fails, and when it ends.

    A long one is written less often: no more than a twentieth of the time goes into it.
    """

    data: Dataset
    options: dict[str, Any]
    reasons: dict[str, str | None]
    other: set[str]
    _next: float = 0.0

    def __enter__(self) -> None:
        self._write()

    def __exit__(self, *_: object) -> None:
        self._write()

    def failed(self, state: State) -> None:
        """A checkpoint failed."""
        self.reasons[state.member.name] = state.reason
        self._write_at_times()

    def planned(self, state: State) -> None:
        """What other options left of a checkpoint is gone."""
        if state.member.name in self.other:
            self.other.discard(state.member.name)
            self._write_at_times()  # a run that is killed has made these rows all the same

    def _write_at_times(self) -> None:
        if time.monotonic() >= self._next:
            self._write()

    def _write(self) -> None:
        begun = time.monotonic()
        self.data.write_record(
            {
                "options": self.options,
                "members": self.reasons,
                "other_options": sorted(self.other),
            }
        )
        now = time.monotonic()
        self._next = now + 20 * (now - begun)


def _texts(prompts: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Prompts as texts: a file is read here, since workers may not have it."""
    if prompts is None:
        return None
    return tuple(read_prompts(prompts) if isinstance(prompts, (str, Path)) else prompts)
