"""`eigenlens.integrations.watch`: two lines in a training loop of one's own.

::

    watch = eigenlens.integrations.watch(model, probe=ids, every=20)
    for step, batch in enumerate(batches, start=1):
        ...
        optimizer.step()
        watch.step(step, loss)
"""

from __future__ import annotations

import logging
import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from eigenlens.circuit.adapters import merge_adapters
from eigenlens.errors import EigenlensError, NumericsError, OptionError
from eigenlens.integrations.alarms import Alarm, Detector, Limits
from eigenlens.integrations.probes import probe_ids, random_probe
from eigenlens.integrations.reading import Reading, read_spectra, read_tokens
from eigenlens.integrations.untouched import bare, is_first_process, untouched
from eigenlens.live.batches import Batch, make_batches, random_pixels
from eigenlens.live.identity import check_circuits
from eigenlens.live.load import line, need_transformers
from eigenlens.live.session import Session, session_of
from eigenlens.spectra.options import SpectrumOptions

EVERY = 20
"""Steps between two readings: 1 to 2 % of the training of the bundled gpt2-tiny, measured."""

LOGGER = logging.getLogger("eigenlens.watch")

Log = Callable[[dict[str, float], int], None]
"""Called with the flat numbers and the step of each reading."""


class Watch:
    """Readings of a model in training, and the alarms that they gave; made by `watch`.

    Attributes
    ----------
    readings
        Every reading so far.
    alarms
        Every alarm so far, also in the log of `eigenlens.watch`.
    problems
        What kept the watch from reading something, each said once.
    """

    def __init__(
        self,
        model: Any,
        probe: Any = None,
        every: int = EVERY,
        options: SpectrumOptions | None = None,
        *,
        strict: bool = False,
        log: Log | None = None,
        limits: Limits | None = None,
        stack: str | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        check_every(every)
        self.every = every
        self.strict = strict
        self.readings: list[Reading] = []
        self.alarms: list[Alarm] = []
        self.problems: list[str] = []
        self._model = model
        self._stack = stack
        self._layers = None if layers is None else tuple(layers)
        self._options = options or SpectrumOptions(k=4, dtype="float32")
        self._log = log
        self._detector = Detector(limits)
        self._torch, _ = need_transformers()
        self._ids = None if probe is None else probe_ids(probe)
        self._trusted = False
        self._blind = False
        inner = bare(self._torch, model)  # refused on every process, or the others would wait
        if is_first_process(self._torch):
            with untouched(self._torch, inner):
                session = self._open()
                self._batches(session)
                session.checkpoint.circuits(stack=self._stack, layers=self._layers)

    def step(self, step: int, loss: Any = None) -> Reading | None:
        """Tell that training step number `step` is done; a reading every `every` steps.

        Parameters
        ----------
        step
            The number of optimizer steps so far.
        loss
            Its loss, a number or a tensor of one; only looked at when a reading is due.

        Returns
        -------
        The reading, or None where none was due, on other processes than the first, and where it
        failed (unless `strict`).

        Raises
        ------
        OptionError
            `step` is no whole number.
        EigenlensError
            As `read`.
        """
        try:
            step = operator.index(step)
        except TypeError:
            raise OptionError(f"step is {step!r}: it is the number of steps so far") from None
        if step % self.every or not is_first_process(self._torch):
            return None
        return self.read(step, loss)

    def read(self, step: int, loss: Any = None) -> Reading | None:
        """Take a reading now, whatever the step.

        Raises
        ------
        EigenlensError
            With `strict` alone: the model could not be read. Otherwise that is told once in the
            log and in `problems`, and the training goes on.
        """
        try:
            reading = self._read(step, loss)
        except Exception as error:
            if self.strict:
                raise
            self._tell(f"no reading at step {step}: {line(error) or type(error).__name__}", error)
            return None
        if self.strict and reading.problems:
            raise EigenlensError(f"step {step}: {reading.problems[0]}")
        for problem in reading.problems:
            self._tell(problem)
        self.readings.append(reading)
        self._judge(reading, loss)
        if self._log is not None:
            try:
                self._log(self.numbers(reading), step)
            except Exception as error:
                if self.strict:
                    raise
                self._tell(f"the log function failed: {line(error)}", error)
        return reading

    def numbers(self, reading: Reading) -> dict[str, float]:
        """What a reading gives to loggers: `Reading.flat`, and the number of alarms so far."""
        return reading.flat() | {"eigenlens/alarms": len(self.alarms)}

    # -- inside ----------------------------------------------------------------------------------

    def _open(self) -> Session:
        """The live model as it is now; a PEFT model as a merged copy."""
        session = session_of(merge_adapters(bare(self._torch, self._model)))
        return session if self._stack is None else session.only(self._stack)

    def _batches(self, session: Session) -> list[Batch]:
        if session.vision:
            if self._ids is not None:
                raise OptionError(f"{session.label} sees images, not tokens: leave the probe out")
            return list(random_pixels(session, 4, self._options.seed))
        if self._ids is None:
            self._ids = random_probe(session, self._options.seed)
        return list(make_batches(session, self._ids))

    def _read(self, step: int, loss: Any) -> Reading:
        start = time.perf_counter()
        number = _number(loss)
        with untouched(self._torch, bare(self._torch, self._model)):
            session = self._open()
            spectra = read_spectra(session, self._options, self._layers)
            reading = Reading(
                step,
                number if number is not None and math.isfinite(number) else None,
                spectra.layers,
                {},
                spectra.not_finite,
                spectra.problems,
            )
            if not spectra.not_finite and not self._blind:
                reading = self._with_tokens(session, reading)
        return replace(reading, seconds=time.perf_counter() - start)

    def _with_tokens(self, session: Session, reading: Reading) -> Reading:
        """The reading with its tokens; what cannot be run is said once and left out from then."""
        try:
            batches = self._batches(session)
            if not self._trusted:
                check_circuits(session, batches[0])
                self._trusted = True
        except EigenlensError as error:
            self._blind = not self.strict
            what = f"no collapse measures: {error}"
            return replace(reading, problems=(*reading.problems, what))
        try:
            return replace(reading, tokens=read_tokens(session, batches))
        except NumericsError as error:
            return replace(reading, not_finite=(("probe", str(error)),))
        except EigenlensError as error:
            self._blind = not self.strict
            what = f"no collapse measures: {error}"
            return replace(reading, problems=(*reading.problems, what))

    def _judge(self, reading: Reading, loss: Any) -> None:
        step = reading.step
        bad = list(reading.not_finite)
        number = _number(loss)
        if number is not None and not math.isfinite(number):
            bad.append(("loss", "the loss is not finite"))
        if bad:
            where, what = bad[0]
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            self._raise_alarms(self._detector.not_finite(step, where, f"{where}: {what}{more}"))
        sizes = {layer.name: layer.spectral_norm for layer in reading.layers}
        tokens = {
            name: {measure: math.nan if x is None else x for measure, x in row.items()}
            for name, row in reading.tokens.items()
        }
        self._raise_alarms(self._detector.add(step, sizes, tokens))

    def _raise_alarms(self, alarms: Sequence[Alarm]) -> None:
        for alarm in alarms:
            self.alarms.append(alarm)
            LOGGER.warning("step %d: %s", alarm.step, alarm.message)

    def _tell(self, problem: str, error: BaseException | None = None) -> None:
        known = problem.partition(": ")[2] or problem
        if any(known in said for said in self.problems):
            return
        self.problems.append(problem)
        LOGGER.warning("%s (said once; the training goes on)", problem)
        if error is not None:
            LOGGER.debug("where it happened", exc_info=error)


def watch(
    model: Any,
    probe: Any = None,
    every: int = EVERY,
    *,
    k: int = 4,
    order: str = "auto",
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    limits: Limits | None = None,
    log: Log | None = None,
    strict: bool = False,
    seed: int = 0,
) -> Watch:
    """Watch a model in a training loop of one's own; call `.step(step, loss)` after each step.

    Every `every` steps the live weights are read: each layer's leading eigenvalues, gap, regime and
    predicted rates, and how close the tokens of a fixed probe have come to one another. The
    training itself is not touched: weights, gradients, random states and training modes are the
    same with and without it.

    Parameters
    ----------
    model
        A live transformers model: plain, compiled, in DDP, or PEFT (read through a merged copy).
    probe
        Token ids of a few prompts, best of real text (8 of 64 tokens are plenty): lists, a matrix,
        or a tokenizer's batch. None: 8 prompts of 32 random tokens; for a vision model, noise.
    every
        Steps between readings.
    k, order
        How many leading eigenvalues are logged, and what leads; see `eigenlens.spectrum`.
    stack, layers
        Which layers; None for all. `layers` narrows the spectra, `stack` the probe as well.
    limits
        Of the alarms.
    log
        Called with (numbers by name, step) after each reading.
    strict
        Raise where something cannot be read, instead of telling it once and going on.
    seed
        Of the random probe and of the solvers.

    Raises
    ------
    OptionError
        An option or the probe is none, or the weights are sharded over processes.
    ArchitectureError
        The model has no attention layer that can be read.
    MissingDependencyError
        Without torch and transformers.
    """
    return Watch(
        model,
        probe,
        every,
        SpectrumOptions(k=k, order=order, dtype="float32", seed=seed),
        strict=strict,
        log=log,
        limits=limits,
        stack=stack,
        layers=layers,
    )


def check_every(every: int) -> None:
    """Refuse what is not a number of steps.

    Raises
    ------
    OptionError
        It is not a whole number of at least 1.
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise OptionError(f"every is {every!r}: it is a number of steps, at least 1")


def _number(loss: Any) -> float | None:
    return None if loss is None else float(loss.detach() if hasattr(loss, "detach") else loss)
