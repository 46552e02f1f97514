"""What an edit does to tokens and to predictions, measured on held-out text.

A study runs its texts once, unedited, and keeps what the edited layer needs; every strength is then
measured by a pass that begins at that layer. Directions are judged right after the sub-layer, after
the block and after the final norm; predictions by the KL divergence from the unedited model per
token, by perplexity, and by probability and rank of the wanted tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from eigenlens.errors import NumericsError
from eigenlens.live.batches import Batch
from eigenlens.live.hooks import hooked, on_enter, on_leave
from eigenlens.live.recipe import first_input
from eigenlens.live.recorder import Recorder
from eigenlens.steering.measures import Measure, Sums
from eigenlens.steering.opening import Head
from eigenlens.steering.push import Push
from eigenlens.steering.resume import Past, forward, record, resumed
from eigenlens.steering.stage import Stage, bodies, last_states

Vector = Float[np.ndarray, "d"]
KEPT_BYTES = 1 << 30
"""Log-probabilities of the unedited model are kept up to this size, else computed again."""


@dataclass
class _Reference:
    probabilities: Any  # (t, vocab)
    score: Any  # their mean log-probability, (t,)


@dataclass
class _Kept:
    batch: Batch
    past: Past
    reference: _Reference | None  # of the unedited predictions; None where they do not fit
    inputs: Any  # what the edited module read, (t, m)
    states: Any  # the stream right after the sub-layer, (t, d)
    sums: Any  # the same before a norm on the residual sum, (t, d)
    first: Bool[np.ndarray, "t"]


@dataclass
class Study:
    """Held-out text through one model, edited at one stage.

    Attributes
    ----------
    stage
        The edited layer.
    direction
        The unit direction u.
    targets
        Ids of the wanted tokens; empty for a direction that is no token's.
    head
        What the model predicts.
    """

    stage: Stage
    direction: Vector
    targets: tuple[int, ...]
    head: Head | None
    _kept: list[_Kept] = field(default_factory=list, repr=False)
    _images: dict[str, Vector | None] = field(default_factory=dict, repr=False)

    # -- the unedited model ----------------------------------------------------------------------

    def read(self, batches: Iterable[Batch], progress: Any = None) -> None:
        """Run the texts through the unedited model, once."""
        stage, session = self.stage, self.stage.session
        u = self.direction
        there = stage.after_block(u)
        self._images = {
            "after_sublayer": stage.after_sublayer(u),
            "after_block": there,
            "after_final_norm": None
            if stage.final_norm is None
            else stage.image(stage.final_norm, there),
        }
        made = list(batches)
        total = 0
        for i, batch in enumerate(made):
            seen: list[Any] = []
            recorder = self._recorder(batch)
            summed: list[Any] = []
            with hooked([*recorder.attach(), *self._taps(seen, summed)]):
                past, result = record(
                    session, stage.place, batch.inputs, last=stage.last, advice=batch.advice
                )
            call = recorder.calls[-1]
            b, n = batch.mask.shape
            z = seen[-1].reshape(b, n, -1)
            states = self._sublayer(call)
            sums = summed[-1] if summed else states
            reference = None
            if self.head is not None:
                logits = self._real(batch, result.logits)
                total += logits.numel() * 4
                if total <= KEPT_BYTES:
                    reference = self._reference(logits)
            self._kept.append(
                _Kept(
                    batch,
                    past,
                    reference,
                    batch.flat(z),
                    batch.flat(states),
                    batch.flat(sums),
                    _first_tokens(batch),
                )
            )
            if progress is not None:
                progress(i + 1, len(made), "unedited")

    def _taps(self, seen: list[Any], summed: list[Any]) -> list[Any]:
        """Hooks that see what the edited module reads, and the sum that a post-norm stands on."""
        stage = self.stage

        def keep(into: list[Any]) -> Any:
            def hook(module: Any, args: Any, kwargs: Any) -> None:
                into.append(first_input(args, kwargs).detach().clone())

            return hook

        norm = stage.block_norm if stage.site == "ffn" else stage.place.norm_out
        handles = [on_enter(stage.output, keep(seen))]
        if stage.post and norm is not None:
            handles.append(on_enter(norm, keep(summed)))
        return handles

    def _sublayer(self, call: Any) -> Any:
        """The stream right after the edited sub-layer, behind a norm that stands on the sum."""
        return call.block if self.stage.site == "ffn" else call.settled

    def _recorder(self, batch: Batch) -> Recorder:
        """Hooks that see the states of the edited layer alone."""
        from dataclasses import replace

        session = replace(self.stage.session, places=(self.stage.place,))
        return Recorder(session, batch.mask, witnesses={})

    def readings(self, w: Float[np.ndarray, "m"]) -> Float[np.ndarray, "t"]:
        """``w.z`` of every token."""
        return np.concatenate([kept.inputs.astype(np.float64) @ w for kept in self._kept])

    @property
    def sums(self) -> Float[np.ndarray, "t d"]:
        """The stream right after the sub-layer, unedited; before a norm that stands on it."""
        return np.concatenate([kept.sums for kept in self._kept]).astype(np.float64)

    @property
    def first(self) -> Bool[np.ndarray, "t"]:
        """Which tokens are the first of their prompt."""
        return np.concatenate([kept.first for kept in self._kept])

    @property
    def where(self) -> list[tuple[int, int]]:
        """Prompt and place in it of every token."""
        return [
            (int(prompt), place)
            for kept in self._kept
            for prompt, n in zip(kept.batch.prompts, kept.batch.mask.sum(axis=1), strict=True)
            for place in range(int(n))
        ]

    @property
    def image(self) -> Vector:
        """What the direction is right after the sub-layer."""
        found = self._images["after_sublayer"]
        return self.direction if found is None else found

    # -- a push ----------------------------------------------------------------------------------

    def unedited(self) -> Measure:
        """The model as it is; its KL to itself shows the noise of a pass that is resumed."""
        return self.measure(None, 0.0)

    def measure(
        self,
        push: Push | None,
        strength: float,
        *,
        applied: AbstractContextManager[Any] | None = None,
    ) -> Measure:
        """The effect of a push, or of an edit that is `applied` to the weights.

        With `applied` the passes are whole, as a user's would be.

        Raises
        ------
        NumericsError
            States stop being finite.
        """
        session, torch = self.stage.session, self.stage.session.torch
        sums = Sums()
        around = bodies(session, self.stage.place)
        with applied or nullcontext():
            for kept in self._kept:
                recorder = self._recorder(kept.batch)
                last: list[Any] = []

                def leave(module: Any, args: Any, result: Any, last: list[Any] = last) -> None:
                    states = last_states(session, result)
                    if states is not None and states.shape[-1] == len(self.direction):
                        last.append(states)

                with ExitStack() as stack:
                    if applied is None:
                        stack.enter_context(resumed(session, kept.past))
                    if push is not None:
                        stack.enter_context(push.active(torch))
                    handles = [on_leave(body, leave) for body in around]
                    handles += recorder.attach()
                    stack.enter_context(hooked(handles))
                    result = forward(session, kept.batch.inputs, kept.batch.advice)
                self._directions(sums, kept, recorder.calls[-1], last[-1] if last else None)
                if self.head is not None:
                    self._predictions(sums, kept, result.logits)
        return sums.measure(strength)

    def _directions(self, sums: Sums, kept: _Kept, call: Any, last: Any) -> None:
        states = self._sublayer(call)
        found = {"after_sublayer": states, "after_block": call.block, "after_final_norm": last}
        for name, image in self._images.items():
            if image is not None:
                sums.cosines[name].append(_cosines(kept.batch.flat(found[name]), image))
        sums.first.append(kept.first)

    def _predictions(self, sums: Sums, kept: _Kept, logits: Any) -> None:
        """KL, next-token losses and target probabilities, a prompt at a time to bound memory.

        With p of the unedited model and logits l', ``KL = (p.l - lse l) - (p.l' - lse l')``: one
        exponential a number, and exactly 0 for the unedited model.
        """
        torch = self.stage.session.torch
        reference = kept.reference
        if reference is None:
            with resumed(self.stage.session, kept.past):
                plain = forward(self.stage.session, kept.batch.inputs, kept.batch.advice).logits
            reference = self._reference(self._real(kept.batch, plain))
        start = 0
        ids = kept.batch.inputs.get("input_ids")
        for row, length in enumerate(kept.batch.mask.sum(axis=1)):
            real = torch.as_tensor(kept.batch.mask[row], device=logits.device)
            new = _wide(torch, logits[row][real])
            at = slice(start, start + int(length))
            start += int(length)
            lse = new.logsumexp(-1)
            score = (reference.probabilities[at].to(new.device) * new).sum(-1) - lse
            sums.kl.append(_numpy(reference.score[at].to(new.device) - score))
            if self.head == "causal" and ids is not None and length > 1:
                own = ids[row][real]
                sums.losses.append(_numpy(lse[:-1] - new[:-1].gather(-1, own[1:, None])[:, 0]))
            if self.targets:
                chosen = new[:, list(self.targets)]
                sums.probability.append(_numpy((chosen - lse[:, None]).exp().sum(-1)))
                best = chosen.max(-1, keepdim=True).values
                sums.rank.append(_numpy((new > best).sum(-1) + 1))

    def _reference(self, logits: Any) -> _Reference:
        """What the KL needs of the unedited predictions of some tokens."""
        new = _wide(self.stage.session.torch, logits)
        lse = new.logsumexp(-1)
        probabilities = (new - lse[:, None]).exp()
        return _Reference(probabilities, (probabilities * new).sum(-1) - lse)

    def _real(self, batch: Batch, x: Any) -> Any:
        mask = self.stage.session.torch.as_tensor(batch.mask, device=x.device)
        return x[mask]


def _wide(torch: Any, logits: Any) -> Any:
    """Logits in float32 or wider; what the model excludes is very unlikely instead of impossible.

    So 0 log 0 stays 0 where the unedited model excludes it.
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).clamp_min(-1e30)


def _numpy(x: Any) -> Float[np.ndarray, "..."]:
    return np.asarray(x.detach().cpu().double().numpy())


def _cosines(states: Float[np.ndarray, "t d"], u: Vector) -> Float[np.ndarray, "t"]:
    wide = states.astype(np.float64)
    sizes = np.linalg.norm(wide, axis=1)
    if not np.isfinite(sizes).all():
        raise NumericsError("states are NaN or infinite: use a smaller strength, or a wider dtype")
    return np.asarray((wide @ u) / np.maximum(sizes, np.finfo(np.float64).tiny))


def _first_tokens(batch: Batch) -> Bool[np.ndarray, "t"]:
    """The first real token of each prompt, among the real tokens."""
    first = np.zeros_like(batch.mask)
    rows = np.arange(len(batch.mask))
    first[rows, batch.mask.argmax(axis=1)] = True
    return np.asarray(first[batch.mask])
