"""What a comparison returns: plain frozen objects, and their JSON and data-frame forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eigenlens.comparing.difference import Difference
from eigenlens.comparing.matching import Match
from eigenlens.shown import Shown, Told

SIDES = ("a", "b")


@dataclass(frozen=True)
class Side:
    """What leads a layer in one of the two checkpoints; see `eigenlens.spectra.result`."""

    eigenvalue: complex | None
    error_bar: float | None
    regime: str
    target: str
    gap: float | None
    angle: float | None
    spectral_norm: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**vars(self), "eigenvalue": _pair(self.eigenvalue)}


@dataclass(frozen=True, repr=False)
class LayerComparison(Told):
    """One layer in both checkpoints.

    Attributes
    ----------
    stack, layer, kind
        Which layer.
    order, operator
        What leads, and of which matrix; both sides under the same.
    difference
        ``|F_A - F_B|_F`` and the rank of the difference.
    a, b
        What leads in either; None where F is not square and has no eigenvalues.
    matches
        The leading eigenvalues of both with their partners, in the sequence of A's list.
    principal_angles
        Between what A and B draw tokens to, in radians, largest first.
    bias_change
        ``|b_A - b_B| / |b_A|`` of ``b = W_O b_V + b_O``, which F does not hold; None without one.
    """

    BRIEF = ("|F_A - F_B| / |F_A|", "effective rank")

    stack: str
    layer: int
    kind: str
    order: str
    operator: str
    difference: Difference
    a: Side | None
    b: Side | None
    matches: tuple[Match, ...] = field(repr=False)
    principal_angles: tuple[float, ...]
    bias_change: float | None

    def facts(self) -> dict[str, object]:
        """What `print` tells."""
        d, sides = self.difference, {"A": self.a, "B": self.b}
        return {
            "asked": f"order {self.order}, operator {self.operator}",
            "|F_A - F_B| / |F_A|": d.relative,
            "more than rounding": d.is_real,
            "rank of the difference": d.rank,
            "effective rank": d.effective_rank,
            **{f"leading of {name}": x and x.eigenvalue for name, x in sides.items()},
            **{f"regime of {name}": x and x.regime for name, x in sides.items()},
            "another one leads": self.new_leader,
            "largest angle (rad)": self.principal_angles[0] if self.principal_angles else None,
            "largest shift": self.largest_shift,
            "change of the bias": self.bias_change,
        }

    @property
    def relative(self) -> float:
        """``|F_A - F_B|_F / |F_A|_F``."""
        return self.difference.relative

    @property
    def leader(self) -> Match | None:
        """What became of A's leading eigenvalue."""
        return next((m for m in self.matches if m.index_before == 0), None)

    @property
    def new_leader(self) -> bool:
        """Whether another eigenvalue than A's leading one leads B."""
        own = [m for m in self.matches if m.index_before == 0]
        return bool(own) and all(m.index_after != 0 for m in own)

    @property
    def regime_changed(self) -> bool:
        """Whether the two lead in different regimes, or towards different kinds of targets."""
        if self.a is None or self.b is None:
            return False
        return (self.a.regime, self.a.target) != (self.b.regime, self.b.target)

    @property
    def largest_shift(self) -> float:
        """Largest distance that a matched eigenvalue moved beyond its error bars; 0 if none did."""
        return max((m.distance for m in self.matches if m.changed), default=0.0)

    def _head(self) -> dict[str, Any]:
        """What the JSON form and the flat record begin with."""
        d = self.difference
        return {
            "stack": self.stack,
            "layer": self.layer,
            "kind": self.kind,
            "order": self.order,
            "operator": self.operator,
            "relative_change": d.relative,
            "frobenius_difference": d.norm,
            "frobenius_a": d.norm_a,
            "frobenius_b": d.norm_b,
            "spectral_difference": d.largest,
            "rounding": d.rounding,
            "cosine": d.cosine,
            "changed": d.is_real,
            "identical": d.identical,
            "rank": d.rank,
            "effective_rank": d.effective_rank,
            "bias_change": self.bias_change,
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.compare/1``."""
        return {
            **self._head(),
            "a": None if self.a is None else self.a.to_dict(),
            "b": None if self.b is None else self.b.to_dict(),
            "regime_changed": self.regime_changed,
            "new_leader": self.new_leader,
            "principal_angles": list(self.principal_angles),
            "eigenvalues": [
                {
                    **vars(m),
                    "before": _pair(m.before),
                    "after": _pair(m.after),
                    "changed": m.changed,
                }
                for m in self.matches
            ],
        }

    def flat(self) -> dict[str, Any]:
        """The flat record of CSV and data frames."""
        lead, head = self.leader, self._head()
        head.pop("rounding")
        out: dict[str, Any] = {
            **head,
            "largest_angle": self.principal_angles[0] if self.principal_angles else None,
            "regime_changed": self.regime_changed,
            "new_leader": self.new_leader,
            "leader_shift": None if lead is None else lead.distance,
            "leader_bar": None if lead is None else lead.bar,
            "leader_changed": None if lead is None else lead.changed,
            "largest_shift": self.largest_shift,
        }
        for name, side in (("a", self.a), ("b", self.b)):
            value = None if side is None else side.eigenvalue
            out[f"re_{name}"] = None if value is None else value.real
            out[f"im_{name}"] = None if value is None else value.imag
            out[f"regime_{name}"] = None if side is None else side.regime
            out[f"target_{name}"] = None if side is None else side.target
            out[f"gap_{name}"] = None if side is None else side.gap
        return out


@dataclass(frozen=True, repr=False)
class Comparison(Shown, shown_as="compare"):
    """Two checkpoints compared.

    Attributes
    ----------
    model, other
        A and B: source, model_type, d_model, n_layers, n_heads, n_kv_heads, head_dim, norm,
        placement.
    options
        What was asked.
    layers
        One entry a layer that both have, in natural order.
    only
        ``{"a": [...], "b": [...]}``: layers that only one of them has: stack, layer, kind and why.
    warnings
        Sentences a reader should see.
    """

    SCHEMA = "eigenlens.compare/1"

    model: dict[str, Any]
    other: dict[str, Any]
    options: dict[str, Any]
    layers: tuple[LayerComparison, ...]
    only: Mapping[str, tuple[dict[str, Any], ...]]
    warnings: tuple[str, ...] = ()

    @property
    def ranking(self) -> tuple[LayerComparison, ...]:
        """The layers by ``|F_A - F_B|_F / |F_A|_F``, largest first; equal ones as they stand.

        Layers that differ by no more than rounding come last.
        """
        return tuple(sorted(self.layers, key=lambda x: (not x.difference.is_real, -x.relative)))

    @property
    def largest(self) -> float:
        """The largest ``|F_A - F_B|_F / |F_A|_F`` of any layer: what ``--fail-above`` is about.

        Layers that differ by no more than rounding count as 0.
        """
        return max((x.relative for x in self.layers if x.difference.is_real), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.compare/1``; numbers may be non-finite."""
        return {
            **self._head(model=self.model, other=self.other),
            "largest_change": self.largest,
            "ranking": [x.name for x in self.ranking],
            "layers": [x.to_dict() for x in self.layers],
            "only": {side: [dict(x) for x in self.only[side]] for side in SIDES},
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a layer: what the data frame, CSV and parquet hold."""
        head = {"source_a": self.model["source"], "source_b": self.other["source"]}
        return [head | x.flat() for x in self.layers]


def _pair(value: complex | None) -> list[float] | None:
    return None if value is None else [value.real, value.imag]
