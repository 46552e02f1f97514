"""Call a layer's own attention on other states: the paper's model, the real block, what is between.

Attention runs as the model has it, with the masks and positions of the pass that was captured; only
the states differ. What is around it (norm, biases, feed-forward part) is a `Variant`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from eigenlens.arrays import check_radius
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import NumericsError, OptionError
from eigenlens.live.batches import size_text
from eigenlens.live.hooks import hooked, on_leave
from eigenlens.live.precision import dtype_name
from eigenlens.live.recipe import states_of
from eigenlens.live.session import Session
from eigenlens.live.states import AttentionCall, find_weights, scaled

NormName = Literal["l2", "real"]
NORMS: tuple[str, ...] = ("l2", "real")


@dataclass(frozen=True)
class Variant:
    """Which map from the states before a layer to those after it.

    Attributes
    ----------
    norm
        `l2`: the paper's model `N(x + attn(x))`, `N(z) = r z/|z|`, where attention sees the states
        as they are. `real`: the model's own norms where the model has them.
    radius
        r of `l2`: a number, or `sqrt_d`.
    bias
        Whether the affine part `b = W_O b_V + b_O` stays on the attention output.
    ffn
        Whether the whole block runs, feed-forward part and its norms included; under `l2` its
        result is put back on the sphere.
    """

    norm: NormName = "l2"
    radius: float | Literal["sqrt_d"] = 1.0
    bias: bool = False
    ffn: bool = False

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise OptionError(f"norm {self.norm!r} is unknown: allowed are {', '.join(NORMS)}")
        if self.radius != "sqrt_d":
            if not isinstance(self.radius, (int, float)) or isinstance(self.radius, bool):
                raise OptionError(f"radius {self.radius!r}: it must be a positive number or sqrt_d")
            check_radius(float(self.radius))

    def length(self, d: int) -> float:
        """The radius as a number."""
        return float(d) ** 0.5 if self.radius == "sqrt_d" else float(self.radius)

    def start(self, states: Any) -> Any:
        """States as this map expects them: on the sphere under `l2`, else as they are."""
        return sphere(states, self.length(states.shape[-1])) if self.norm == "l2" else states


# From the paper's model to the real block, one thing at a time.
LADDER: Mapping[str, Variant] = {
    "l2": Variant(),
    "norm": Variant(norm="real"),
    "bias": Variant(norm="real", bias=True),
    "ffn": Variant(norm="real", bias=True, ffn=True),
}


@dataclass(frozen=True)
class FreeStep:
    """One step of a free run.

    Attributes
    ----------
    number
        From 0; layers that are run again go on counting.
    call
        The captured call whose layer ran.
    before, after
        States (b, n, d).
    weights
        A, (b, n_heads, n, n), where asked for.
    """

    number: int
    call: AttentionCall
    before: Any
    after: Any
    weights: Any = None


def sphere(states: Any, radius: float = 1.0) -> Any:
    """`r z/|z|`, token by token; a zero token stays zero."""
    norms = states.norm(dim=-1, keepdim=True)
    tiny = 1e-30 if states.dtype.itemsize > 2 else 1e-7
    return states * (radius / norms.clamp_min(tiny))


def attention_output(
    session: Session,
    call: AttentionCall,
    states: Any,
    *,
    norm: NormName = "real",
    bias: bool = True,
    weights: bool = False,
) -> tuple[Any, Any]:
    """What the layer's attention adds to other residual states.

    Parameters
    ----------
    session
        The model.
    call
        A captured call: its masks and positions are used.
    states
        (b, n, d), with the b of the captured batch (or a captured b of 1).
    norm
        `real`: states go through the norm before the attention, and its output through the norm
        behind it (sandwich). `l2`: neither.
    bias
        Whether b stays on the output.
    weights
        Also return A.

    Returns
    -------
    The attention output times the output scale (b, n, d), and A (b, n_heads, n, n) or None. With
    the captured states, `norm="real"` and `bias=True` this is the captured output, bit by bit.

    Raises
    ------
    OptionError
        Weights are asked of attention that returns none; memory ran out.
    """
    if weights:
        session.need_eager()
    place, constants = call.place, session.constants(call.place)
    seen: dict[str, Any] = {}

    def output(module: Any, args: Any, result: Any) -> None:
        seen["output"] = result.detach()

    def leave(module: Any, args: Any, result: Any) -> None:
        if seen.get("weights") is None:
            seen["weights"] = find_weights(session.torch, result, place.plan.geometry.n_heads)

    handles = [on_leave(place.output, output)]
    if weights:
        inner = [m for m in place.attention.modules() if any(m.children())]
        handles += [on_leave(m, leave) for m in inner]
    with session.running(size_text(*states.shape[:2])):
        real = norm == "real"
        inside = call.norm is not None and any(m is call.norm for m in place.attention.modules())
        if inside and not real:  # ESM's attention module normalises by itself
            handles.append(on_leave(call.norm, _pass_by))
        outside = real and call.norm is not None and not inside
        entering = call.norm(states) if outside else states
        with hooked(handles):
            (call.recipe.with_weights() if weights else call.recipe)(entering)
        y = seen["output"]
        if not bias:
            y = y - constants.bias.to(y.device)
        if real and place.norm_out is not None and not place.post:
            y = place.norm_out(y)
        return scaled(y, constants.scale).to(states.device), seen.get("weights")


def step(
    session: Session, call: AttentionCall, states: Any, variant: Variant, *, weights: bool = False
) -> tuple[Any, Any]:
    """One layer's map on other states; see `Variant`.

    Returns
    -------
    The states after it (b, n, d), and A or None.
    """
    place = call.place
    if variant.ffn:
        after, A = block_output(session, call, states, bias=variant.bias, weights=weights)
    else:
        y, A = attention_output(
            session, call, states, norm=variant.norm, bias=variant.bias, weights=weights
        )
        after = states + y
        if variant.norm == "real" and place.post:
            with session.running():
                after = place.norm_out(after)
    return variant.start(after), A


def block_output(
    session: Session,
    call: AttentionCall,
    states: Any,
    *,
    bias: bool = True,
    weights: bool = False,
) -> tuple[Any, Any]:
    """The whole block on other states, feed-forward part included.

    Without `bias`, b is taken off the output projection on the way. Where a block has two attention
    layers (decoders with cross attention) both run.

    Returns
    -------
    The states after the block (b, n, d), and A of this call's layer or None.
    """
    if weights:
        session.need_eager()
    place = call.place
    seen: list[Any] = []

    def leave(module: Any, args: Any, result: Any) -> None:
        found = find_weights(session.torch, result, place.plan.geometry.n_heads)
        seen.extend([] if found is None else [found])

    handles = []
    if not bias:
        handles = [
            _take_off(p.output, session.constants(p).bias)
            for p in session.places
            if p.block is place.block
        ]
    if weights:
        inner = [m for m in place.attention.modules() if any(m.children())]
        handles += [on_leave(m, leave) for m in inner]
    with session.running(size_text(*states.shape[:2])), hooked(handles):
        recipe = call.block_recipe.with_weights() if weights else call.block_recipe
        result: Any = states_of(session.torch, recipe(states))
    return result.detach().to(states.device), seen[0] if seen else None


def free_run(
    session: Session,
    calls: Sequence[AttentionCall],
    variant: Variant = LADDER["l2"],
    *,
    steps: int | None = None,
    start: Any = None,
    weights: bool = False,
) -> Iterator[FreeStep]:
    """Run layers in order on their own output, from the embeddings or other states.

    Parameters
    ----------
    session
        The model.
    calls
        Captured calls of one stack in order (`captured.stack(name)`).
    variant
        The map.
    steps
        How many; None runs each call once. More than there are calls begins again with the first.
    start
        States (b, n, d) to begin with; None takes those before the first call. Under `l2` they are
        put on the sphere first.
    weights
        Also give A of each step.

    Raises
    ------
    OptionError
        If there is no call.
    NumericsError
        If states stop being finite, naming the step and the layer.
    """
    ordered = _once_a_block(calls) if variant.ffn else list(calls)
    if not ordered:
        raise OptionError("there is no attention layer to run: give the calls of one stack")
    states = variant.start(ordered[0].before if start is None else start)
    for number in range(len(ordered) if steps is None else steps):
        call = ordered[number % len(ordered)]
        after, A = step(session, call, states, variant, weights=weights)
        if not bool(session.torch.isfinite(after.sum(dtype=_wide(session, after)))):
            raise NumericsError(
                f"{call.label}: states are NaN or infinite after step {number} of a free run in "
                f"{dtype_name(after)}: use a wider dtype, or the l2 norm"
            )
        yield FreeStep(number, call, states, after, A)
        states = after


def mix(
    session: Session,
    circuit: OVCircuit,
    weights: Any,
    values: Any,
    *,
    rotation: Any = None,
) -> Any:
    """`y = sum_h A^h X F_h^T`: attention with given weights, biases left out.

    Parameters
    ----------
    session
        For device and dtype.
    circuit
        The layer's W_V and W_O.
    weights
        A, (b, n_heads, n, m).
    values
        X, what enters the value projection, (b, m, d).
    rotation
        An orthogonal Q (d, d) as numpy: F becomes `Q F Q^T` (`W_V Q^T`, `Q W_O`) while A stays,
        the null `matched_spectrum`.

    Returns
    -------
    (b, n, d), without the output scale.
    """
    torch = session.torch

    def tensor(array: Any) -> Any:
        wide = np.asarray(array, dtype=np.float64)
        return torch.as_tensor(np.ascontiguousarray(wide)).to(values)

    W_V, W_O = tensor(circuit.W_V), tensor(circuit.W_O)
    if rotation is not None:
        Q = tensor(rotation)
        W_V, W_O = W_V @ Q.T, Q @ W_O
    with session.running(size_text(*values.shape[:2])):
        heads = (values @ W_V.T).unflatten(-1, (circuit.n_kv_heads, circuit.head_dim))
        shared = circuit.n_heads // circuit.n_kv_heads
        heads = heads.transpose(1, 2).repeat_interleave(shared, dim=1)
        mixed = weights.to(values) @ heads
        return mixed.transpose(1, 2).flatten(-2) @ W_O.T


def _pass_by(module: Any, args: Any, result: Any) -> Any:
    return args[0]


def _take_off(module: Any, bias: Any) -> Any:
    def hook(module: Any, args: Any, result: Any) -> Any:
        return result - bias.to(result.device)

    return on_leave(module, hook)


def _once_a_block(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """One call for each time that a block ran."""
    return list({id(call.block_recipe): call for call in reversed(calls)}.values())[::-1]


def _wide(session: Session, x: Any) -> Any:
    return session.torch.promote_types(x.dtype, session.torch.float32)
