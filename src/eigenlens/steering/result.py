"""What steering returns: the edit, what it did, and its JSON and data-frame forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.errors import OptionError
from eigenlens.shown import Shown
from eigenlens.shown.names import Names
from eigenlens.steering.continuations import Continuation
from eigenlens.steering.directions import Direction
from eigenlens.steering.edit import Edit
from eigenlens.steering.eigenpair import Change
from eigenlens.steering.forms import FORMS, Destination
from eigenlens.steering.measures import Cosines, Measure
from eigenlens.steering.strength import Window
from eigenlens.steering.target import Realised
from eigenlens.steering.written import Written

FORM_NAMES: tuple[str, ...] = tuple(FORMS)
"""Forms that an edit can be written in."""


@dataclass(frozen=True, repr=False)
class Steering(Shown, shown_as="steer"):
    """An edit and everything that was measured of it.

    Attributes
    ----------
    model, options, warnings
        As in every result.
    edit
        The edit itself: ``with result.edit.applied(model): ...``.
    direction
        What is put on top, and the tokens that it stands for (`says`).
    calls
        How many times a forward pass runs the edited layer.
    alpha_qu
        ``strength q.u``, about the new eigenvalue; None for the feed-forward site.
    relative_norm
        ``|dW|`` over the Frobenius norm of the matrix that is edited; None where it was not read.
    realised
        What the dtype of the running model kept of the edit; None without a model.
    spectrum
        Before and after; None for the feed-forward site.
    before, after
        The unedited and the edited model on the evaluation text; None without a model.
    curve
        With a sweep, measures by strength.
    window
        With a sweep, the useful strengths; None where there are none.
    activation
        Plain activation addition after the same block, at the same KL.
    continuations
        How some sentences go on.
    """

    SCHEMA = "eigenlens.steer/1"

    model: dict[str, Any]
    options: dict[str, Any]
    edit: Edit
    direction: Direction
    says: tuple[str, ...]
    calls: int
    alpha_qu: float | None
    relative_norm: float | None
    realised: Realised | None
    spectrum: Change | None
    before: Measure | None
    after: Measure | None
    curve: tuple[Measure, ...] | None = None
    window: Window | None = None
    activation: Measure | None = None
    continuations: tuple[Continuation, ...] = ()
    warnings: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = field(default=None, repr=False)
    written: Written | None = None

    def write(
        self,
        folder: str | Path,
        form: str = "checkpoint",
        *,
        force: bool = False,
        link: bool = False,
    ) -> Written:
        """Save the edit.

        Parameters
        ----------
        folder
            Where; for a delta the name of a .safetensors file.
        form
            ``checkpoint`` (the whole model), ``lora`` (a PEFT adapter) or ``delta``.
        force
            Write over what is there.
        link
            Of a checkpoint: hard links in place of copies of the files that stay the same.

        Raises
        ------
        OptionError
            The form is unknown, the model has no files, or a form without links is asked for them.
        EigenlensError
            See `Destination.write`.
        """
        if self.checkpoint is None:
            raise OptionError("there are no files to write the edit for: give a model's path")
        return Destination(folder, form, force, link).write(self.checkpoint, self.edit)

    @property
    def where(self) -> str:
        """The edited layer as tables name it: ``layer 3``, or ``decoder.3`` of several stacks."""
        e = self.edit
        groups = {(e.stack, e.kind)}
        if self.checkpoint is not None:
            groups |= {(plan.stack, plan.kind) for plan in self.checkpoint.plans}
        return Names(groups).named(e.stack, e.kind, e.layer)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.steer/1``; numbers may be non-finite."""
        e = self.edit
        return {
            **self._head(model=self.model),
            "direction": {
                "label": self.direction.label,
                "kind": self.direction.kind,
                "through": self.direction.through,
                "targets": list(self.direction.targets),
                "says": list(self.says),
            },
            "edit": {
                "stack": e.stack,
                "layer": e.layer,
                "kind": e.kind,
                "site": e.site,
                "steps": e.steps,
                "calls": self.calls,
                "probe": e.probe,
                "strength": e.strength,
                "dW_norm": e.dW_norm,
                "relative_norm": self.relative_norm,
                "alpha_qu": self.alpha_qu,
                "realised_ratio": None if self.realised is None else self.realised.ratio,
                "realised_projection": None if self.realised is None else self.realised.projection,
            },
            "spectrum": None if self.spectrum is None else self.spectrum.to_dict(),
            "tokens": self._tokens(),
            "effect": self._effect(),
            "curve": None if self.curve is None else [point(m) for m in self.curve],
            "window": None
            if self.window is None
            else {"low": self.window.low, "high": self.window.high},
            "activation": None if self.activation is None else point(self.activation),
            "continuations": [c.to_dict() for c in self.continuations],
            "written": None if self.written is None else self.written.to_dict(),
        }

    def _tokens(self) -> dict[str, Any] | None:
        if self.after is None or self.before is None:
            return None
        found: dict[str, Any] = {}
        for place, pair in self.after.tokens.items():
            if pair is None:
                found[place] = None
                continue
            usual = self.before.tokens.get(place)
            found[place] = {
                **_cosines(pair[0]),
                "mean_cosine_before": None
                if usual is None or usual[0] is None
                else usual[0].mean_cosine,
                "first": _cosines(pair[1]),
            }
        return found

    def _effect(self) -> dict[str, Any] | None:
        a, b = self.after, self.before
        if a is None or b is None:
            return None
        return {
            "kl": a.kl,
            "kl_unedited": b.kl,
            "perplexity_before": b.perplexity,
            "perplexity_after": a.perplexity,
            "target_probability_before": b.target_probability,
            "target_probability_after": a.target_probability,
            "target_rank_before": b.target_rank,
            "target_rank_after": a.target_rank,
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a strength: what the data frame, CSV and parquet hold.

        The sweep's curve, or the one edit; the unedited model comes first, activation addition
        last. Without a model, the edit alone.
        """
        e = self.edit
        head = {
            "source": self.model["source"],
            "model_type": self.model["model_type"],
            "stack": e.stack,
            "layer": e.layer,
            "site": e.site,
            "probe": e.probe,
            "direction": e.label,
        }
        if self.after is None or self.before is None:
            after = None if self.spectrum is None else self.spectrum.after
            return [
                {
                    **head,
                    "method": "edit",
                    "strength": e.strength,
                    "dW_norm": e.dW_norm,
                    "alpha_qu": self.alpha_qu,
                    "eigenvalue_re": None if after is None else after.eigenvalue.real,
                    "eigenvalue_im": None if after is None else after.eigenvalue.imag,
                    "cos_direction": None if after is None else after.cos_direction,
                }
            ]
        points = [("unedited", self.before)]
        points += [("edit", m) for m in (self.curve or (self.after,))]
        if self.activation is not None:
            points.append(("activation addition", self.activation))
        return [{**head, "method": name, **_flat(m)} for name, m in points]


def point(m: Measure) -> dict[str, Any]:
    """One strength as a record."""
    return {
        **m.effect(),
        "tokens": {
            place: None if pair is None else {**_cosines(pair[0]), "first": _cosines(pair[1])}
            for place, pair in m.tokens.items()
        },
    }


def _cosines(found: Cosines | None) -> dict[str, Any]:
    if found is None:
        return dict.fromkeys(("mean_cosine", "min_cosine", "positive_fraction", "n_tokens"))
    return found.to_dict()


def _flat(m: Measure) -> dict[str, Any]:
    out = m.effect()
    for place in ("after_sublayer", "after_block", "after_final_norm"):
        pair = m.tokens.get(place)
        found = _cosines(None if pair is None else pair[0])
        for key in ("mean_cosine", "min_cosine", "positive_fraction"):
            out[f"{place}_{key}"] = found[key]
    return out
