"""One quick check of every circuit before a run: equal tokens must receive exactly `F x + b`.

The thorough one, with several probes, lengths and heads, is `verify`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import ArchitectureError, NumericsError
from eigenlens.live.batches import Batch
from eigenlens.live.hooks import hooked, on_enter, on_leave
from eigenlens.live.places import Key, Place
from eigenlens.live.precision import dtype_name, tolerance
from eigenlens.live.recipe import first_input
from eigenlens.live.session import Session

_ROWS = 2


def check_circuits(session: Session, batch: Batch, seed: int = 0) -> dict[str, float]:
    """Feed every layer's values the same vector and compare its output with `F x + b`.

    One forward pass over the first prompts of a batch. Circuits are read one at a time.

    Parameters
    ----------
    session
        The model, and the checkpoint whose circuits are checked.
    batch
        Any prompts; only real tokens are compared.
    seed
        Of the probe vectors.

    Returns
    -------
    The worst relative error of each layer, by label.

    Raises
    ------
    NumericsError
        If a layer's error is larger than its dtype allows, naming it.
    ArchitectureError
        If a layer did not run, or reads its states in another layout.
    """
    rng = np.random.default_rng(seed)
    probes: dict[Key, Any] = {}
    outputs: dict[Key, list[Any]] = {place.key: [] for place in session.places}
    handles = []
    for place in session.places:
        handles.append(_replace(session, place, probes, rng))
        handles.append(_collect(place, outputs[place.key]))
    inputs = {k: v[:_ROWS] if hasattr(v, "shape") else v for k, v in batch.inputs.items()}
    with hooked(handles):
        session.forward(inputs)
    mask = batch.mask[:_ROWS]
    errors = {}
    for place in session.places:
        circuit = session.circuit(place)
        session.remember(place, circuit)
        found = outputs[place.key]
        if not found:
            raise ArchitectureError(
                f"{place.label}: did not run in a forward pass on {', '.join(inputs)}: leave its "
                "stack out, or give the inputs that it needs"
            )
        x = probes[place.key].cpu().double().numpy()
        worst = max(_error(circuit, x, y, mask) for y in found)
        if not worst <= tolerance(session.dtype):
            raise NumericsError(
                f"{place.label}: the model does not apply the F of this checkpoint: equal tokens "
                f"give F x + b with a relative error of {worst:.1e} in {dtype_name(session.dtype)} "
                f"(at most {tolerance(session.dtype):.0e} is rounding); "
                f"{'; '.join(place.plan.notes) or 'are these the weights of the model that runs?'}"
            )
        errors[place.label] = worst
    return errors


def _replace(
    session: Session, place: Place, probes: dict[Key, Any], rng: np.random.Generator
) -> Any:
    """All tokens that enter the values become one vector, the same in every call of the layer."""

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        old = first_input(args, kwargs)
        width = place.plan.geometry.width_in
        if old.shape[-1] != width:
            raise ArchitectureError(
                f"{place.label}: its values read states of shape {tuple(old.shape)}, whose last "
                f"axis is not the width {width}: tokens in another layout cannot be traced"
            )
        if place.key not in probes:
            probe = session.torch.as_tensor(rng.standard_normal(old.shape[-1]))
            probes[place.key] = probe.to(device=old.device, dtype=old.dtype)
        new = probes[place.key].to(old.device).expand_as(old)

        def swap(x: Any) -> Any:
            return new if x is old else x

        return tuple(map(swap, args)), {k: swap(v) for k, v in kwargs.items()}

    return on_enter(place.value, hook)


def _collect(place: Place, into: list[Any]) -> Any:
    def hook(module: Any, args: Any, result: Any) -> None:
        into.append(result.detach().cpu().double().numpy())

    return on_leave(place.output, hook)


def _error(
    circuit: OVCircuit,
    x: Float[np.ndarray, "d"],
    y: Float[np.ndarray, "*b d"],
    mask: Any,
) -> float:
    """Worst relative error over real tokens; a NaN is an infinite error, never a pass."""
    expected = circuit.matvec(x) + circuit.bias
    rows = y[mask] if y.shape[:2] == mask.shape else y.reshape(-1, y.shape[-1])
    error = np.linalg.norm(rows - expected, axis=-1) / max(float(np.linalg.norm(expected)), 1e-300)
    return float(np.nan_to_num(error, nan=np.inf).max())
