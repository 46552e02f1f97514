"""Hooks of one forward pass that read the states around every attention layer.

For each attention call: the residual state before it, the attention output as it joins the residual
stream, their sum, and the state after the whole block. The last block's state is the one before the
final norm, which transformers' own last hidden state is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eigenlens.errors import ArchitectureError, NumericsError
from eigenlens.live.hooks import on_call, on_enter, on_leave
from eigenlens.live.places import Key, Place
from eigenlens.live.recipe import Recipe, first_input, hidden_states, states_of
from eigenlens.live.session import Session
from eigenlens.live.states import (
    AttentionCall,
    check_finite,
    find_weights,
    mask_for,
    scaled,
    total,
)
from eigenlens.live.witness import Witness, candidates, check_sum, choose, is_norm

Slot = tuple[Key, str]


class Recorder:
    """Hooks of one forward pass, and what they saw.

    Parameters
    ----------
    session
        The model.
    mask
        Real tokens, (b, n); None if all are.
    weights
        Whether to keep attention weights.
    copies
        What must be copied when it is seen, because the model goes on to overwrite it; None copies
        everything. See `overwritten`.
    witnesses
        Where each layer's sum is compared; None looks for the places, an empty mapping compares
        nothing.
    """

    def __init__(
        self,
        session: Session,
        mask: Any,
        weights: bool = False,
        copies: frozenset[Slot] | None = None,
        witnesses: Mapping[Key, Witness | None] | None = None,
    ) -> None:
        self.session = session
        self.mask = None if mask is None else session.torch.as_tensor(mask)
        self.weights = weights
        self.copies = copies
        self._versions: list[tuple[Slot, Any, int]] = []
        self._uncounted = False
        self.calls: list[AttentionCall] = []
        self.witnesses = dict(witnesses or {})
        self._search = witnesses is None
        self._open: dict[Key, dict[str, Any]] = {}
        self._clock = 0
        self._totals: list[Any] = []

    def attach(self) -> list[Any]:
        """Register the hooks of every place; the handles."""
        handles: list[Any] = []
        blocks: dict[int, list[Place]] = {}
        for place in self.session.places:
            blocks.setdefault(id(place.block), []).append(place)
        for places in blocks.values():
            handles += self._attach_block(places)
            if self._search:
                see = self._seen_by(places)
                handles += [witness.register(see) for witness in candidates(places)]
        for place in self.session.places:
            handles += self._attach_states(place)
            handles += self._attach_norms(place)
            witness = self.witnesses.get(place.key)
            if witness is not None and not self._search and not place.post:
                handles.append(witness.register(self._seen_by([place])))
        return handles

    # -- hooks -----------------------------------------------------------------------------------

    def _attach_block(self, places: Sequence[Place]) -> list[Any]:
        block, torch = places[0].block, self.session.torch
        width = places[0].plan.geometry.d_model

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            recipe = Recipe.of(torch, module, args, kwargs, width)
            for place in places:
                self._open[place.key] = {"block_recipe": recipe, "seen": [], "norms": []}

        def leave(module: Any, args: Any, result: Any) -> None:
            # in the order in which they ran: self attention before cross attention
            ran = [p for p in places if "order" in self._open.get(p.key, {})]
            for place in sorted(ran, key=lambda p: int(self._open[p.key]["order"])):
                self._close(place, states_of(torch, result))

        return [
            on_enter(block, enter),
            on_leave(block, leave),
        ]

    def _attach_states(self, place: Place) -> list[Any]:
        torch, width = self.session.torch, place.plan.geometry.d_model

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            entry = self._entry(place)
            self._clock += 1
            entry["order"] = self._clock
            entry["recipe"] = Recipe.of(torch, module, args, kwargs, width)
            if place.norm_in is None:
                states = hidden_states(torch, args, kwargs, width)
                # a norm of the queries alone (cross attention) stands between, though not before F
                norms = (found for found in entry["norms"] if found[2] is states)
                entry["norm"], before, _ = next(norms, (None, states, None))
                entry["before"] = self._keep(place, "before", before)
                entry["norms"].clear()

        def values(module: Any, args: Any, kwargs: Any) -> None:
            self._entry(place)["values"] = self._keep(place, "values", first_input(args, kwargs))

        def output(module: Any, args: Any, result: Any) -> None:
            self._entry(place)["output"] = self._keep(place, "output", result)

        def leave(module: Any, args: Any, result: Any) -> None:
            entry = self._entry(place)
            if entry.get("weights") is None:
                entry["weights"] = find_weights(torch, result, place.plan.geometry.n_heads)

        handles = [
            on_enter(place.attention, enter),
            on_enter(place.value, values),
            on_leave(place.output, output),
        ]
        if self.weights:
            inner = [m for m in place.attention.modules() if any(m.children())]
            handles += [on_leave(m, leave) for m in inner]
        return handles

    def _attach_norms(self, place: Place) -> list[Any]:
        handles = []

        def before(module: Any, args: Any, kwargs: Any) -> None:
            entry = self._entry(place)
            if "before" not in entry:
                entry["before"] = self._keep(place, "before", first_input(args, kwargs))

        def after(module: Any, args: Any, kwargs: Any, result: Any) -> None:
            entry = self._entry(place)
            if "output" in entry and "normed" not in entry:  # not an earlier use of the norm
                entry["normed"] = self._keep(place, "normed", result)
                entry["sum"] = self._keep(place, "sum", first_input(args, kwargs))

        def any_norm(module: Any, args: Any, kwargs: Any, result: Any) -> None:
            entry = self._entry(place)
            if "order" not in entry:
                x = self._keep(place, "before", first_input(args, kwargs))
                entry["norms"].append((module, x, result))

        if place.norm_in is not None:
            handles.append(on_enter(place.norm_in, before))
        elif not place.post:
            norms = [m for m in place.block.modules() if is_norm(m)]
            handles += [on_call(m, any_norm) for m in norms]
        if place.norm_out is not None:
            handles.append(on_call(place.norm_out, after))
        return handles

    def _entry(self, place: Place) -> dict[str, Any]:
        return self._open.setdefault(place.key, {"seen": [], "norms": []})

    def _seen_by(self, places: Sequence[Place]) -> Callable[[Witness, Any], None]:
        def see(witness: Witness, x: Any) -> None:
            for place in places:
                entry = self._entry(place)
                # an input counts once the attention has run; outputs may come before it
                counts = witness.at_output or "output" in entry
                if counts and not place.post and self.session.torch.is_tensor(x):
                    entry["seen"].append((witness, self._keep(place, "seen", x)))

        return see

    def _keep(self, place: Place, name: str, x: Any) -> Any:
        """A state as it is now; some blocks add in place to what they were given."""
        slot = (place.key, name)
        if x is None:
            return None
        if self.copies is None or slot in self.copies or x.is_inference():
            kept = x.detach().clone()
        else:
            kept = x.detach()
        if x.is_inference():
            self._uncounted = True
        else:
            self._versions.append((slot, x, x._version))
        return kept

    def overwritten(self) -> frozenset[Slot] | None:
        """What the model has overwritten since it was seen, by torch's count of changes in place.

        None, for `copies` of the next pass, where it is not known: in inference mode torch does not
        count.

        Raises
        ------
        ArchitectureError
            If a state was, that was not copied: a model that does so in some passes only.
        """
        found = frozenset(slot for slot, x, version in self._versions if x._version != version)
        fresh = found - (found if self.copies is None else self.copies)
        if fresh:
            (stack, layer, _), name = min(fresh)
            self.copies = found | (self.copies or frozenset())
            raise ArchitectureError(
                f"{stack} layer {layer}: the model overwrites its {name} in place in some passes "
                "and not in others: run it again with the same session, which copies it from now "
                "on, or one prompt a batch"
            )
        if self._uncounted and self.copies is None:
            return None
        return found | (self.copies or frozenset())

    # -- results ---------------------------------------------------------------------------------

    def _close(self, place: Place, block: Any) -> None:
        entry = self._open.pop(place.key)
        needed = ["block_recipe", "before", "values", "output"]
        needed += ["normed"] if place.norm_out is not None else []
        missing = [name for name in needed if entry.get(name) is None]
        if missing:
            raise ArchitectureError(
                f"{place.label}: its {missing[0].replace('_', ' ')} could not be read: the modules "
                "of its attention were not called in the usual order"
            )
        before = entry["before"]
        sandwich = place.norm_out is not None and not place.post
        added = entry["normed"] if sandwich else entry["output"]
        scale = self.session.constants(place).scale
        added = scaled(added, scale).to(before.device)
        if block is None or not added.shape == before.shape == block.shape:
            part, other = "attention", added
            if added.shape == before.shape and block is not None:
                part, other = "the block", block
            raise ArchitectureError(
                f"{place.label}: {part} writes states of shape {tuple(other.shape)} where the "
                f"residual stream has {tuple(before.shape)}: its tokens are regrouped (windows, "
                "pooling) or change their width, which cannot be traced"
            )
        if self.weights and entry.get("weights") is None:
            raise ArchitectureError(
                f"{place.label}: its attention module returned no attention weights"
            )
        after = before + added
        call = AttentionCall(
            place=place,
            step=place.plan.calls[min(self._ran(place), place.plan.steps - 1)],
            before=before,
            attention=added,
            after=after,
            settled=entry["normed"].to(before.device) if place.post else after,
            block=self._keep(place, "block", block).to(before.device),
            values=entry["values"],
            weights=entry.get("weights"),
            norm=entry.get("norm", place.norm_in),
            recipe=entry["recipe"],
            block_recipe=entry["block_recipe"],
        )
        self.calls.append(call)
        self._totals.append(total(self.session.torch, call))
        try:
            self._check(call, entry)
        except NumericsError:  # states that are not finite are the reason that comes first
            self._check_finite()
            raise

    def _check(self, call: AttentionCall, entry: Mapping[str, Any]) -> None:
        place, mask = call.place, mask_for(self.mask, call.before)
        states = (call.before, call.after, call.block, mask)
        if self._search and place.key not in self.witnesses:
            self.witnesses[place.key] = (
                Witness(place.norm_out, at_output=False)
                if place.post
                else choose(
                    call.label,
                    entry["seen"],
                    *states,
                    parallel=place.plan.placement == "parallel",
                )
            )
        found = self.witnesses.get(place.key)
        if found is not None:
            others = (x for w, x in entry["seen"] if w is found)
            seen = entry["sum"] if place.post else next(others, None)
            check_sum(call.label, found, seen, *states)

    def _check_finite(self) -> None:
        for call in self.calls:
            check_finite(self.session.torch, call, mask_for(self.mask, call.before))

    def _ran(self, place: Place) -> int:
        return sum(call.place is place for call in self.calls)

    def finished(self) -> tuple[AttentionCall, ...]:
        """The calls in order.

        Raises
        ------
        ArchitectureError
            If a layer did not run as often as its plan says.
        NumericsError
            If a state is NaN or infinite, naming the first layer where that is so.
        """
        if not all(map(math.isfinite, map(float, self._totals))):
            self._check_finite()
        for place in self.session.places:
            if self._ran(place) != place.plan.steps:
                raise ArchitectureError(
                    f"{place.label}: ran {self._ran(place)} times in a forward pass, expected "
                    f"{place.plan.steps}: the model skips or repeats it"
                )
        return tuple(self.calls)
