"""How a module was called, with a hole where its states went in: others can be put there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# What transformers calls the states that a module works on, where they are passed by name.
_NAMES = ("hidden_states", "hidden_state", "x", "query", "inputs")


class _Hole:
    def __repr__(self) -> str:
        return "<states>"


HOLE = _Hole()


@dataclass(frozen=True)
class Recipe:
    """A call of a module: its arguments as they were (masks, position embeddings), without states.

    Attributes
    ----------
    module
        What was called.
    args, kwargs
        Its arguments; `HOLE` stands wherever the states were given.
    """

    module: Any = field(repr=False)
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(
        cls, torch: Any, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], width: int
    ) -> Recipe:
        """The recipe of one call; states have `width` coordinates. Caches are left out."""
        states = hidden_states(torch, args, kwargs, width)

        def keep(x: Any) -> Any:
            if x is states and x is not None:
                return HOLE
            return None if type(x).__name__.endswith("Cache") else x

        return cls(module, tuple(map(keep, args)), {k: keep(v) for k, v in kwargs.items()})

    def __call__(self, states: Any) -> Any:
        """Call the module again, on other states."""

        def fill(x: Any) -> Any:
            return states if x is HOLE else x

        return self.module(*map(fill, self.args), **{k: fill(v) for k, v in self.kwargs.items()})

    @property
    def mask(self) -> Any:
        """The attention mask that was given, (b, 1 or n_heads, n, m) and added to the logits.

        None where the module was given none.
        """
        for name, x in self._tensors():
            if x.ndim == 4 and (name is None or "mask" in name):
                return x
        return None

    def with_mask(self, mask: Any) -> Recipe:
        """The same call under another attention mask; as it is where it was given none."""
        old = self.mask
        if old is None:
            return self

        def swap(x: Any) -> Any:
            return mask if x is old else x

        kwargs = {k: swap(v) for k, v in self.kwargs.items()}
        return Recipe(self.module, tuple(map(swap, self.args)), kwargs)

    def with_weights(self) -> Recipe:
        """The same call, asked for attention weights where the module has to be asked."""
        name = "output_attentions"
        if name in self.kwargs:
            return Recipe(self.module, self.args, {**self.kwargs, name: True})
        names = list(inspect.signature(self.module.forward).parameters)
        position = names.index(name) if name in names else len(self.args)
        if position >= len(self.args):
            return self
        args = (*self.args[:position], True, *self.args[position + 1 :])
        return Recipe(self.module, args, self.kwargs)

    def _tensors(self) -> Iterator[tuple[str | None, Any]]:
        for name, x in (*((None, a) for a in self.args), *self.kwargs.items()):
            if hasattr(x, "ndim") and hasattr(x, "dtype"):
                yield name, x


def hidden_states(
    torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any], width: int
) -> Any | None:
    """The argument that holds the states: (b, n, width), first by position, then by name."""
    named = [kwargs[name] for name in _NAMES if name in kwargs]
    for x in (*args, *named, *kwargs.values()):
        if torch.is_tensor(x) and x.is_floating_point() and x.ndim == 3 and x.shape[-1] == width:
            return x
    return None


def states_of(torch: Any, result: Any) -> Any | None:
    """The states among what a module returned: the result itself, or its first tensor."""
    if torch.is_tensor(result):
        return result
    items = result.values() if isinstance(result, Mapping) else result
    return next((x for x in items if torch.is_tensor(x)), None)


def first_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a one-input module was called with."""
    return args[0] if args else next(iter(kwargs.values()), None)
