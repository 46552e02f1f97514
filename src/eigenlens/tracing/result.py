"""What a trace returns: plain frozen objects, and their JSON and data-frame forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eigenlens.circuit.plans import Skipped
from eigenlens.shown import Shown, Told
from eigenlens.shown.words import count_text

LEVEL = 0.05
"""Significance level of the verdict, after Holm's correction over layers."""


@dataclass(frozen=True, repr=False)
class LayerTrace(Told):
    """One layer's step, measured on all tokens.

    Attributes
    ----------
    stack, layer, kind, step
        Which attention call.
    order, operator, regime, target, target_dim, gap
        Of the layer's spectrum; see `eigenlens.spectra.result.LayerSpectrum`.
    gamma, gain, signed_gain, rho
        Mean alignment after the step; mean of after - before; the signed one of a real leader;
        fraction of tokens that moved closer.
    expected_gamma
        Mean alignment of an isotropic random direction.
    gamma_ci, gain_ci, signed_gain_ci, rho_ci
        95 % intervals over prompts; None for fewer than 16 prompts.
    p_value, p_holm
        Rank of rho among random directions (one-sided: as large or larger), raw and corrected over
        layers.
    p_gamma
        Rank of gamma among random directions: as close or closer.
    p_half, p_half_holm
        Two-sided sign test over prompts of rho against 1/2, raw and corrected.
    nulls
        By name: gamma, gain, rho and what belongs to them; None where one is not defined.
    sinks
        Number and share of attention sinks, and gamma, gain, rho with and without them.
    collapse, collapse_block
        Collapse measures of the state after attention, and after the block.
    overlap_mean, overlap_sinks
        Overlap of the target with the mean direction of the tokens before, and of the sinks.
    n_tokens, n_prompts, undefined
        Tokens and prompts that count; tokens left out because a state is exactly zero.
    ladder
        By rung: gamma, gain, rho; None unless asked for.
    """

    BRIEF = ("regime", "gain", "rho")

    stack: str
    layer: int
    kind: str
    step: int
    order: str
    operator: str
    regime: str
    target: str
    target_dim: int
    gap: float | None
    gamma: float
    expected_gamma: float
    gain: float
    signed_gain: float | None
    rho: float
    gamma_ci: tuple[float, float] | None
    gain_ci: tuple[float, float] | None
    signed_gain_ci: tuple[float, float] | None
    rho_ci: tuple[float, float] | None
    p_value: float | None
    p_holm: float | None
    p_gamma: float | None
    p_half: float | None
    p_half_holm: float | None
    nulls: Mapping[str, Any] | None
    sinks: Mapping[str, Any]
    collapse: Mapping[str, float | None]
    collapse_block: Mapping[str, float | None] | None
    overlap_mean: float | None
    overlap_sinks: float | None
    n_tokens: int
    n_prompts: int
    undefined: int
    ladder: Mapping[str, Mapping[str, float]] | None = None

    @property
    def name(self) -> str:
        """``encoder.3``; of a step other than the layer's own ``encoder.0, step 7``."""
        return super().name if self.step == self.layer else f"{super().name}, step {self.step}"

    def facts(self) -> dict[str, object]:
        """What `print` tells."""
        return {
            "asked": f"order {self.order}, operator {self.operator}",
            "regime": f"{self.regime} (target {self.target}, dimension {self.target_dim})",
            "gap": self.gap,
            "gamma": self.gamma,
            "gamma of a random direction": self.expected_gamma,
            "gain": self.gain,
            "signed gain": self.signed_gain,
            "rho": self.rho,
            "rho, 95 %": self.rho_ci,
            "beyond random directions": self.beyond,
            "p, corrected": self.p_holm,
            "tokens": f"{self.n_tokens} of {count_text(self.n_prompts, 'prompt')}",
            "sinks": self.sinks.get("n"),
        }

    @property
    def beyond(self) -> bool | None:
        """Whether rho is larger than random directions give; None without that null.

        By the corrected p-value; with too few prompts for one, by the 97.5 % quantile.
        """
        if self.nulls is None:
            return None
        if self.p_holm is not None:
            return self.p_holm < LEVEL
        return bool(self.rho > self.nulls["random_direction"]["quantiles"]["rho"][2])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        out = dict(vars(self))
        out["beyond_random"] = self.beyond
        for name in ("gamma_ci", "gain_ci", "signed_gain_ci", "rho_ci"):
            ci = out[name]
            out[name] = None if ci is None else list(ci)
        return out

    def flat(self) -> dict[str, Any]:
        """The flat record of CSV and data frames."""
        whole = self.to_dict()
        out = {k: v for k, v in whole.items() if not isinstance(v, (Mapping, list))}
        out = {k: v for k, v in out.items() if k not in _NESTED}
        for name in ("gamma_ci", "gain_ci", "rho_ci"):
            low, high = whole[name] or (None, None)
            out[f"{name}_low"], out[f"{name}_high"] = low, high
        for name, found in (self.nulls or {}).items():
            for measure in ("gamma", "gain", "rho"):
                out[f"{name}_{measure}"] = None if found is None else found[measure]
        for name, value in self.collapse.items():
            out[f"collapse_{name}"] = value
            out[f"block_{name}"] = (self.collapse_block or {}).get(name)
        for rung, values in (self.ladder or {}).items():
            out |= {f"ladder_{rung}_{measure}": value for measure, value in values.items()}
        for which in ("with", "without"):
            out |= {f"{which}_sinks_{m}": self.sinks[which][m] for m in ("gamma", "gain", "rho")}
        return out


_NESTED = (
    *("nulls", "sinks", "collapse", "collapse_block", "ladder"),
    *("gamma_ci", "gain_ci", "signed_gain_ci", "rho_ci"),
)


@dataclass(frozen=True)
class StackTrace:
    """What is told of a whole stack.

    Attributes
    ----------
    stack, kind
        Which layers.
    layers
        Their indices, in the order of `overlaps`.
    overlaps
        Root mean square cosine of the principal angles between the layers' targets, (L, L).
    gain_against_gap
        Spearman's correlation over layers: r, ci, n, warning.
    start
        Collapse measures of the states before the first layer.
    """

    stack: str
    kind: str
    layers: tuple[int, ...]
    overlaps: Sequence[Sequence[float]] = field(repr=False)
    gain_against_gap: Mapping[str, Any]
    start: Mapping[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**vars(self), "layers": list(self.layers), "overlaps": list(self.overlaps)}


@dataclass(frozen=True, repr=False)
class Trace(Shown, shown_as="trace"):
    """A trace of real tokens through a model.

    Attributes
    ----------
    model
        source, model_type, d_model, n_layers, n_heads, n_kv_heads, head_dim, norm, placement.
    options
        What was asked, and what was taken where nothing was.
    layers
        One entry an attention call.
    stacks
        Overlaps of layers, and gain against gap.
    skipped
        Layers left out, with the reason.
    warnings
        Sentences a reader should see.
    """

    SCHEMA = "eigenlens.trace/1"

    model: dict[str, Any]
    options: dict[str, Any]
    layers: tuple[LayerTrace, ...]
    stacks: tuple[StackTrace, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> dict[str, Any]:
        """How many layers tilt: rho above 1/2, and beyond random directions (None without)."""
        known = [x.beyond for x in self.layers]
        tested = None not in known and bool(known)
        return {
            "layers": len(self.layers),
            "rho_above_half": sum(x.rho > 0.5 for x in self.layers),
            "gain_positive": sum(x.gain > 0 for x in self.layers),
            "beyond_random": sum(bool(b) for b in known) if tested else None,
            "by": None if not tested else "p" if self.layers[0].p_holm is not None else "quantile",
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in the schema ``eigenlens.trace/1``; numbers may be non-finite."""
        return {
            **self._head(model=self.model),
            "layers": [layer.to_dict() for layer in self.layers],
            "stacks": [stack.to_dict() for stack in self.stacks],
            "verdict": self.verdict,
            "skipped": [dict(vars(s)) for s in self.skipped],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record an attention call: what the data frame, CSV and parquet hold."""
        head = {"source": self.model["source"], "model_type": self.model["model_type"]}
        return [head | layer.flat() for layer in self.layers]
