"""`eigenlens.reproduce`: the models of a suite one after the other, every claim on each."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from eigenlens.claims.evidence import Evidence, Settings
from eigenlens.claims.result import Reproduction, Row
from eigenlens.claims.suites import SUITES, Subject
from eigenlens.claims.table import CLAIMS, Claim
from eigenlens.claims.verdicts import Finding
from eigenlens.errors import EigenlensError, OptionError, nearest
from eigenlens.live.load import need_transformers
from eigenlens.live.session import out_of_memory

_LOG = logging.getLogger(__name__)
_FAULT = "this is a fault of eigenlens: please report it"

Progress = Callable[[int, int, str], None]
"""Called with (models done, models in all, what is measured now)."""


def reproduce(
    suite: str | Sequence[str] = "samples",
    *,
    claims: Sequence[str] | None = None,
    starts: int = 64,
    steps: int = 400,
    seed: int = 0,
    progress: Progress | None = None,
) -> Reproduction:
    """The paper's claims, each measured on the models of a suite.

    Parameters
    ----------
    suite
        ``samples``, ``paper``, or models of one's own.
    claims
        Names of claims (`eigenlens.claims.table.CLAIMS`); None for all.
    starts, steps, seed
        See `Settings`.
    progress
        Called before each measurement.

    Returns
    -------
    `Reproduction`. A claim that fails on a model is a row like one that holds; a model that cannot
    be had is a row ``not run`` with the reason.

    Raises
    ------
    OptionError
        An unknown suite or claim, or a number that is too small.
    MissingDependencyError
        torch and transformers are not installed.
    """
    need_transformers()
    subjects = _subjects(suite)
    chosen = _chosen(claims)
    settings = Settings(starts, steps, seed)
    rows: list[Row] = []
    warnings: list[str] = []
    for i, subject in enumerate(subjects):

        def step(what: str, i: int = i) -> None:
            if progress is not None:
                progress(i, len(subjects), what)

        rows += _of_model(Evidence(subject, settings, step), chosen, warnings)
        gc.collect()  # a model is a web of cycles; the next one needs its memory
    if progress is not None:
        progress(len(subjects), len(subjects), "")
    place = {c.name: n for n, c in enumerate(chosen)}
    rows.sort(key=lambda r: place[r.claim])  # stable: models keep their order
    return Reproduction(
        {
            "suite": suite if isinstance(suite, str) else list(suite),
            "claims": [c.name for c in chosen],
            **asdict(settings),
        },
        tuple(rows),
        tuple(warnings),
    )


def _of_model(evidence: Evidence, chosen: Sequence[Claim], warnings: list[str]) -> list[Row]:
    """The rows of one model; one that cannot be had is a single row."""
    subject = evidence.subject
    try:
        _ = evidence.session, evidence.layers
        about = [c for c in chosen if c.about(evidence)]
    except Exception as error:
        why = _why(error)
        warnings.append(f"{subject.source}: not run: {why}")
        return [_row(c, subject, Finding("not run", why)) for c in chosen[:1]]
    rows = [_row(c, subject, _judge(c, evidence)) for c in about]
    faults = [r for r in rows if r.finding.measured.endswith(_FAULT)]
    warnings += [f"{subject.source}, {r.claim}: not run: {r.finding.measured}" for r in faults]
    return rows


def _judge(claim: Claim, evidence: Evidence) -> Finding:
    """The finding; what cannot be measured on this model is not run, with the reason."""
    try:
        return claim.judge(evidence)
    except Exception as error:
        return Finding("not run", _why(error))


def _why(error: Exception) -> str:
    """The reason in one line; one model's fault never costs the rows of the others."""
    if isinstance(error, EigenlensError):
        return str(error)
    _LOG.debug("not run", exc_info=error)
    import torch

    if out_of_memory(torch, error):
        return "not enough memory"
    text = " ".join(str(error).split())[:200]
    if isinstance(error, OSError):  # a disk, a right, the network
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or f'{type(error).__name__}: {text}'}"
    return f"an error that was not foreseen, {type(error).__name__}: {text}; {_FAULT}"


def _row(claim: Claim, subject: Subject, finding: Finding) -> Row:
    return Row(claim.name, claim.statement, claim.choice, subject.source, finding)


def _subjects(suite: str | Sequence[str]) -> tuple[Subject, ...]:
    if isinstance(suite, str):
        if suite not in SUITES:
            raise OptionError(
                f"suite '{suite}' is unknown{nearest(suite, list(SUITES))}; there is "
                f"{' and '.join(SUITES)}"
            )
        return SUITES[suite]
    if not suite:
        raise OptionError("no models are given")
    return tuple(Subject(name) for name in dict.fromkeys(str(source) for source in suite))


def _chosen(names: Sequence[str] | None) -> list[Claim]:
    if names is None:
        return list(CLAIMS)
    known: dict[str, Any] = {c.name: c for c in CLAIMS}
    for name in names:
        if name not in known:
            raise OptionError(
                f"claim '{name}' is unknown{nearest(name, list(known))}; there are "
                f"{', '.join(known)}"
            )
    return [c for c in CLAIMS if c.name in names]
