"""An edit in a running model, and the model as it was afterwards, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.errors import ArchitectureError, OptionError
from eigenlens.inert import inert
from eigenlens.live.load import need_transformers
from eigenlens.live.places import owner
from eigenlens.live.session import Session
from eigenlens.steering.edit import Edit
from eigenlens.steering.target import EDITABLE, Realised, Target, find_target
from eigenlens.tensors.dtypes import TORCH_DTYPES
from eigenlens.tensors.store import ArrayStore


@contextmanager
def applied(edit: Edit, model: Any) -> Iterator[Realised]:
    """`model` with the edit, for as long as the context lasts.

    The layer's weight is replaced by the edited one, not changed in place, and put back at the
    end, also after an error: the model has the very tensors that it had. Edits may be nested. What
    was read of the model before (its state dict, a checkpoint opened from it) shows it unedited.
    The sum is taken as for a checkpoint, in the dtype that the model runs in.

    Parameters
    ----------
    edit
        With `steps` "last", a layer that a forward pass calls several times is edited in its last
        call alone. What calls the layer outside a pass through the whole model sees it unedited.
    model
        A transformers model, or a `Session`.

    Yields
    ------
    Realised
        What the cast to the model's dtype left of the edit.

    Raises
    ------
    OptionError, ShapeError
        The edit does not fit the model, or its weights cannot be changed (quantised, offloaded).
    NumericsError
        The edit vanishes in the model's dtype, or overflows it.
    """
    session = model if isinstance(model, Session) else None
    running = model.model if isinstance(model, Session) else model
    live: Checkpoint = session.live if session is not None else open_checkpoint(running)
    target = find_target(live, edit)
    weight = _weight(running, target)
    new, realised = _edited(weight, target, edit)
    with ExitStack() as stack:
        if target.plan.steps > 1 and edit.steps == "last":
            stack.enter_context(_last_call(running, target, weight, new))
        else:
            stack.enter_context(_swapped(weight, new))
        yield realised


def _weight(model: Any, target: Target) -> Any:
    try:
        weight = model.get_parameter(target.tensor)
    except AttributeError as error:
        raise ArchitectureError(
            f"the running model has no parameter '{inert(target.tensor)}': it is not the model of "
            "these weights"
        ) from error
    kind = TORCH_DTYPES.get(str(weight.dtype).removeprefix("torch."), str(weight.dtype))
    if kind not in EDITABLE:
        raise OptionError(
            f"parameter '{inert(target.tensor)}' is held as {kind}: an edit can be added to "
            f"{', '.join(EDITABLE.values())}; load the model dequantised"
        )
    if weight.device.type == "meta":
        raise OptionError(
            f"parameter '{inert(target.tensor)}' is offloaded: load the model without device_map, "
            "or so that this layer stays on a device"
        )
    return weight


def _edited(weight: Any, target: Target, edit: Edit) -> tuple[Any, Realised]:
    torch, _ = need_transformers()
    stored = ArrayStore({target.tensor: weight}).read(target.tensor)
    array, realised = target.edited(stored, edit)
    if array.dtype.name == "bfloat16":  # torch takes no array of ml_dtypes
        made = torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    else:
        made = torch.from_numpy(array)
    return made.to(weight.device), realised


@contextmanager
def _swapped(weight: Any, new: Any) -> Iterator[None]:
    before = weight.data
    weight.data = new
    try:
        yield
    finally:
        weight.data = before


@dataclass
class _LastCall:
    """Counts a layer's calls within a pass, and puts the edited weight in for the last."""

    label: str
    weight: Any
    new: Any
    steps: int
    before: Any = None
    passing: bool = False
    calls: int = field(default=0)

    def begin(self, *_: Any) -> None:
        """A pass through the model begins."""
        self.end()
        self.passing, self.calls = True, 0

    def call(self, *_: Any) -> None:
        """The layer is about to run."""
        if not self.passing:
            return
        self.calls += 1
        if self.calls == self.steps:
            self.before = self.weight.data
            self.weight.data = self.new

    def check(self, *_: Any) -> None:
        """A pass came to its end: the last call must have been one of those counted.

        Raises
        ------
        ArchitectureError
            The layer ran another number of times, so that its last call was not edited.
        """
        if self.passing and self.calls != self.steps:
            raise ArchitectureError(
                f"{self.label} ran {self.calls} times in a pass, not {self.steps} as the config "
                "says: its last call cannot be told from the others; edit all calls (steps 'all')"
            )

    def end(self, *_: Any) -> None:
        """The pass is over, or broke off."""
        self.passing = False
        if self.before is not None:
            self.weight.data, self.before = self.before, None


@contextmanager
def _last_call(model: Any, target: Target, weight: Any, new: Any) -> Iterator[None]:
    """The calls are counted at the attention's output projection, for both sites.

    After its last call in a pass nothing of the layer runs but the feed-forward part of that same
    call, so the weight may stay until the pass is over.
    """
    counter = _LastCall(target.label, weight, new, target.plan.steps)
    body = model.base_model
    projection = model.get_submodule(owner(target.plan.output))
    handles = (
        body.register_forward_pre_hook(counter.begin),
        body.register_forward_hook(counter.check),
        body.register_forward_hook(counter.end, always_call=True),
        projection.register_forward_pre_hook(counter.call),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        counter.end()
