"""What was found in a checkpoint: which tensors make each layer's F, and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.describe import describe
from eigenlens.circuit.plans import LayerPlan, Skipped
from eigenlens.errors import OptionError

SCHEMA = "eigenlens.inspect/1"


@dataclass(frozen=True)
class Inspection:
    """A checkpoint as eigenlens sees it; no weight is read for it.

    Attributes
    ----------
    model
        The model block of every command.
    layers
        A record a layer: stack, layer, kind, steps, layout, orientation of the output projection,
        rank, widths (d_in is not d_out: no spectrum), output_scale, placement, causal, whether V
        and O have biases, tensor names, notes, and `verified` (None, or the errors of the
        equal-token identity).
    skipped
        Layers without a circuit, with the reason.
    options
        What was asked.
    """

    model: dict[str, Any]
    layers: tuple[dict[str, Any], ...]
    skipped: tuple[Skipped, ...]
    options: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether no layer that was verified failed."""
        return all(x["verified"] is None or x["verified"]["ok"] for x in self.layers)

    def with_verification(
        self, rows: Mapping[tuple[str, int, str], Mapping[str, Any]]
    ) -> Inspection:
        """The same with the verification of each (stack, layer, kind)."""
        layers = tuple(
            {**x, "verified": _verified(rows.get((x["stack"], x["layer"], x["kind"])))}
            for x in self.layers
        )
        return replace(self, layers=layers, options={**self.options, "verify": True})

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, schema ``eigenlens.inspect/1``."""
        from eigenlens import __version__

        return {
            "schema": SCHEMA,
            "eigenlens_version": __version__,
            "model": self.model,
            "options": self.options,
            "warnings": [],
            "layers": list(self.layers),
            "skipped": [asdict(s) for s in self.skipped],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a layer."""
        out = []
        for x in self.layers:
            flat = {k: v for k, v in x.items() if not isinstance(v, dict) and k != "verified"}
            flat["notes"] = "; ".join(x["notes"])
            flat |= {f"bias_{k}": v for k, v in x["bias"].items()}
            flat |= {f"tensor_{k}": v for k, v in x["tensors"].items()}
            if self.options["verify"]:
                verified = x["verified"] or {}
                flat |= {
                    k: verified.get(k) for k in ("error_one", "error_four", "error_heads", "ok")
                }
            out.append(flat)
        return out


def inspect(source: Any, architecture: Any = None) -> Inspection:
    """Look at a model's files: every layer's tensors, layout, norms, biases and scales.

    Parameters
    ----------
    source
        What `open_checkpoint` takes, except plain arrays.
    architecture
        A file of rules for a model type that is not known; see `open_checkpoint`.

    Raises
    ------
    EigenlensError
        The source cannot be opened, or is plain arrays, which have no names to show.
    """
    checkpoint: Checkpoint = open_checkpoint(source, architecture)
    if not checkpoint.plans:
        raise OptionError("plain arrays have no tensor names to inspect; give a model")
    return Inspection(
        model=describe(checkpoint),
        layers=tuple(_layer(plan) for plan in checkpoint.plans),
        skipped=checkpoint.skipped,
        options={"verify": False},
    )


def _layer(plan: LayerPlan) -> dict[str, Any]:
    g = plan.geometry
    norms = {"norm_in": plan.norm_in, "norm_out": plan.norm_out}
    return {
        "stack": plan.stack,
        "layer": plan.layer,
        "kind": plan.kind,
        "steps": plan.steps,
        "layout": plan.layout.name,
        "orientation": plan.orientation,
        "rank": min(g.value_width, g.d_model, g.width_in),
        "d_in": g.width_in,
        "d_out": g.d_model,
        "output_scale": plan.output_scale,
        "placement": plan.placement,
        "causal": plan.causal,
        "bias": {"V": plan.value_bias is not None, "O": plan.output_bias is not None},
        "tensors": {
            "V": plan.value,
            "O": plan.output,
            "b_V": plan.value_bias,
            "b_O": plan.output_bias,
            **{role: norm and (norm.gain or norm.module) for role, norm in norms.items()},
            "scale": plan.scale,
        },
        "notes": list(plan.notes),
        "verified": None,
    }


def _verified(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {k: row[k] for k in ("error_one", "error_four", "error_heads", "ok", "note")}
