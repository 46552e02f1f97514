"""Independent places where the model itself holds `before + attention`, to check states against.

In a post-norm block that is the input of the norm; in pre-norm and sandwich blocks the input of
the first later module that reads the residual stream; in parallel blocks, where the sum exists
nowhere, the feed-forward part's output is what the block adds beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from eigenlens.errors import NumericsError
from eigenlens.live.hooks import on_call
from eigenlens.live.places import Place
from eigenlens.live.precision import tolerance
from eigenlens.live.recipe import first_input


@dataclass(frozen=True)
class Witness:
    """A module of a block that sees a sum.

    Attributes
    ----------
    module
        Its input is `before + attention`, or its output is what the block adds to that.
    at_output
        Which of the two.
    """

    module: Any = field(repr=False)
    at_output: bool

    def register(self, see: Callable[[Witness, Any], None]) -> Any:
        """A hook that hands over what the module sees; the handle."""

        def hook(module: Any, args: Any, kwargs: Any, result: Any) -> None:
            see(self, _states(result) if self.at_output else first_input(args, kwargs))

        return on_call(self.module, hook)


def candidates(places: Iterable[Place]) -> list[Witness]:
    """Every module of a block, outside its attention, that may see the sum of one of its layers.

    Inputs of norms and projections, not of dropouts, which see the attention output alone; outputs
    of projections and of whole feed-forward parts (experts).
    """
    places = list(places)
    inside = {id(m) for place in places for m in place.attention.modules()}
    inside |= {id(place.norm_out) for place in places}
    found = []
    for module in places[0].block.modules():
        weight = getattr(module, "weight", None)
        reads = (weight is not None and weight.ndim == 2) or is_norm(module)
        leaf = not any(module.children())
        if id(module) in inside or module is places[0].block:
            continue
        found += [Witness(module, at_output=False)] if leaf and reads else []
        found += [Witness(module, at_output=True)] if reads or not leaf else []
    return found


def _states(result: Any) -> Any:
    return result[0] if isinstance(result, (tuple, list)) and result else result


def is_norm(module: Any) -> bool:
    """Whether a module's class calls itself a norm."""
    return "norm" in type(module).__name__.lower()


def disagreement(found: Any, expected: Any, size: Any, mask: Any) -> float:
    """Worst |found - expected| over real tokens, relative to the tokens' sizes (b, n)."""
    error = (found.to(expected.device) - expected).norm(dim=-1) / size
    worst = error.max() if mask is None else error[mask.to(error.device)].max()
    return float(worst)


def check_sum(
    label: str, witness: Witness, seen: Any, before: Any, after: Any, block: Any, mask: Any
) -> None:
    """Check one call's sum against what a witness saw.

    Raises
    ------
    NumericsError
        If they differ by more than the dtype's rounding.
    """
    wrong = _wrong(witness, seen, before, after, block, mask)
    if wrong is not None:
        kind = type(witness.module).__name__
        where = f"the {'output' if witness.at_output else 'input'} of its {kind}"
        raise NumericsError(
            f"{label}: state before + attention output is not what the model has at {where} "
            f"({wrong}): the placement of its norms is not what the architecture says"
        )


def choose(
    label: str,
    seen: Iterable[tuple[Witness, Any]],
    before: Any,
    after: Any,
    block: Any,
    mask: Any,
    *,
    parallel: bool,
) -> Witness | None:
    """The first candidate that saw the sum; None where there was nothing to compare with.

    Raises
    ------
    NumericsError
        If there were states to compare with and none was the sum.
    """
    compared = 0
    for witness, x in seen:
        if witness.at_output is parallel and _alike(x, after) is not None:
            compared += 1
            if _wrong(witness, x, before, after, block, mask) is None:
                return witness
    if compared:
        raise NumericsError(
            f"{label}: state before + attention output is found nowhere in its block ({compared} "
            "places were compared): its residual connection is not what the architecture says"
        )
    return None


def _wrong(
    witness: Witness, seen: Any, before: Any, after: Any, block: Any, mask: Any
) -> str | None:
    expected = block - after if witness.at_output else after
    if seen is None:
        return "it was not called"
    shape, seen = tuple(seen.shape), _alike(seen, expected)
    if seen is None:
        return f"it has shape {shape}"
    if not witness.at_output and seen.device == expected.device and _same(seen, expected):
        return None  # the usual case, and much the quickest
    size = before.norm(dim=-1) + after.norm(dim=-1) + (block.norm(dim=-1) * witness.at_output)
    error = disagreement(seen, expected, size.clamp_min(1e-30), mask)
    return None if error <= tolerance(before.dtype) else f"relative error {error:.1e}"


def _same(a: Any, b: Any) -> bool:
    """Whether all entries are equal and finite; in a third of the time that `torch.equal` takes."""
    if not a.numel():
        return True
    difference = a - b
    return bool(difference.amax() == 0) and bool(difference.amin() == 0)


def _alike(x: Any, states: Any) -> Any | None:
    """`x` in the shape of the states (OPT flattens prompts for its feed-forward part), or None."""
    same = x.shape[-1:] == states.shape[-1:] and x.numel() == states.numel()
    return x.reshape(states.shape) if same else None
