"""`EigenlensCallback`: the watch inside a transformers Trainer, in the Trainer's own logs."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import Any

from eigenlens.errors import OptionError, nearest
from eigenlens.integrations.alarms import Alarm
from eigenlens.integrations.probes import probe_ids
from eigenlens.integrations.reading import Reading
from eigenlens.integrations.watching import EVERY, Watch, check_every, watch
from eigenlens.live.load import line, need_transformers

_, transformers = need_transformers()
LOGGER = logging.getLogger("eigenlens.watch")
_FRAMES = 6  # how far up the Trainer's handler can be


class EigenlensCallback(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
    """Watch a model that a transformers Trainer trains.

    ::

        trainer = Trainer(..., callbacks=[EigenlensCallback(probe=ids)])

    Every reading is a row of its own in the Trainer's logs (`state.log_history`, the progress bar,
    TensorBoard and whatever else `report_to` names), with keys like ``eigenlens/layer_3/gap``; the
    Trainer's own rows stay what they are. The first one is taken before the first step. Only
    process zero reads and logs.

    Parameters
    ----------
    probe, every
        See `eigenlens.integrations.watch`.
    strict
        Let an error of the watch stop the training; by default it is told once and the training
        goes on.
    **options
        Further options of `eigenlens.integrations.watch`.

    Attributes
    ----------
    watch
        The `Watch`; None before the training begins, or where the model cannot be watched.
    alarms, readings
        Those of the watch.

    Raises
    ------
    OptionError
        `every`, the probe or the name of an option is wrong; other values are looked at when the
        training begins.
    """

    def __init__(
        self, probe: Any = None, every: int = EVERY, *, strict: bool = False, **options: Any
    ) -> None:
        check_every(every)
        known = set(inspect.signature(watch).parameters) - {"model", "probe", "every", "strict"}
        for name in options:
            if name not in known:
                raise OptionError(
                    f"EigenlensCallback has no option '{name}'{nearest(name, sorted(known))}; "
                    f"there are {', '.join(sorted(known))}"
                )
        self._probe = None if probe is None else probe_ids(probe)
        self._every, self._strict, self._options = every, strict, options
        self._handler: Any = None
        self._first: Reading | None = None
        self.watch: Watch | None = None

    @property
    def alarms(self) -> list[Alarm]:
        """Every alarm so far."""
        return [] if self.watch is None else self.watch.alarms

    @property
    def readings(self) -> list[Reading]:
        """Every reading so far."""
        return [] if self.watch is None else self.watch.readings

    def set_trainer(self, trainer: Any) -> None:
        """Name the Trainer whose loggers are used; else it is the one that calls."""
        self._handler = trainer.callback_handler

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the model and read it once."""
        self.watch, self._first = None, None
        if not state.is_world_process_zero:
            return
        model, options = kwargs["model"], self._options
        try:
            self.watch = watch(model, self._probe, self._every, strict=self._strict, **options)
        except Exception as error:
            if self._strict:
                raise
            LOGGER.warning("the model is not watched; the training goes on: %s", line(error))
            return
        self._first = self.watch.read(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the first reading: now all other callbacks have begun."""
        if self._first is not None:
            first, self._first = self._first, None
            self._emit(first, args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Read the model where it is due, and log that."""
        if self.watch is None:
            return
        reading = self.watch.step(state.global_step)
        if reading is not None:
            self._emit(reading, args, state, control)

    def _emit(self, reading: Reading, args: Any, state: Any, control: Any) -> None:
        """A row for everything that watches the training, as `Trainer.log` makes them.

        `Trainer.log` itself is overridden by many trainers, which add and reset sums of their own
        with every row. The event that ends a row also takes back a pending request to log, which
        belongs to the Trainer's own row.
        """
        if self.watch is None:
            return
        logs: dict[str, Any] = dict(self.watch.numbers(reading))
        if state.epoch is not None:
            logs["epoch"] = state.epoch
        state.log_history.append({**logs, "step": state.global_step})
        handler = self._handler or _calling_handler()
        if handler is None:
            return
        asked = control.should_log
        try:
            handler.on_log(args, state, control, logs)
        except Exception as error:
            if self._strict:
                raise
            LOGGER.warning("a logger of the Trainer failed on a reading: %s", line(error))
        finally:
            control.should_log = asked


def _calling_handler() -> Any:
    """The Trainer's list of callbacks, which is what calls; a callback is handed no way to it."""
    kind = transformers.trainer_callback.CallbackHandler
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        owner = frame.f_locals.get("self")
        if isinstance(owner, kind):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None
