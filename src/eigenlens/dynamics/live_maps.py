"""A live model's layers as maps of states, with their hooks set once for a whole run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Complex, Float

from eigenlens.dynamics.maps import Form, StateMap
from eigenlens.dynamics.masks import Mask
from eigenlens.errors import OptionError
from eigenlens.live.hooks import hooked, on_leave
from eigenlens.live.recipe import states_of
from eigenlens.live.replay import Variant, attention_output, sphere
from eigenlens.live.session import Session
from eigenlens.live.states import AttentionCall, scaled
from eigenlens.live.threads import one_if

States = Float[np.ndarray, "s n d"]

DENSE_LIMIT = 400
"""Coordinates n d up to which a Jacobian is formed whole."""
JACOBIAN_LIMIT = 40_000
"""Coordinates n d above which no Jacobian is looked at."""
SMALL_STEP = 1 << 29
"""Multiplications in a step of a layer up to which one thread is quicker than several."""
_EVEN = 1e-4


@dataclass(frozen=True)
class LiveMap:
    """One layer of a running model as a map of states; call it within `running`.

    | form | l2 | real | l2 with feed-forward part | real with it |
    |---|---|---|---|---|
    | normalised | N(x + attn(x)) | norm(x + attn(x)) | N(block(x)) | block(x) |
    | stream | h + attn(N(h)) | h + attn(norm(h)) | h + block(N(h)) - N(h) | block(h) |

    N(z) = r z/|z|; norm and block are the model's own.

    Attributes
    ----------
    session, call
        The model and the captured call whose masks and positions are used.
    form
        ``normalised`` or ``stream``.
    variant
        Norm, radius, biases, feed-forward part.
    """

    session: Session = field(repr=False)
    call: AttentionCall = field(repr=False)
    form: Form
    variant: Variant
    _seen: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, X: States) -> States:
        """The next states."""
        torch, session = self.session.torch, self.session
        x = torch.as_tensor(X).to(device=session.device, dtype=session.dtype)
        return np.asarray(self.tensor(x).detach().cpu().double().numpy())

    def tensor(self, x: Any) -> Any:
        """The next states of a tensor (s, n, d), with gradients where they are on."""
        variant, stream = self.variant, self.form == "stream"
        l2 = variant.norm == "l2"
        r = variant.length(x.shape[-1])
        if variant.ffn:
            entering = sphere(x, r) if l2 and stream else x
            after = self._block(entering)
            if l2:
                return x + after - entering if stream else sphere(after, r)
            return after
        if stream:
            return x + self._attention(sphere(x, r) if l2 else x)
        after = x + self._attention(x)
        return sphere(after, r) if l2 else self.call.place.norm_out(after)

    def hooks(self) -> list[Any]:
        """Register what the map reads by; the handles."""
        place, seen = self.call.place, self._seen

        def output(module: Any, args: Any, result: Any) -> None:
            seen["output"] = result

        handles = [on_leave(place.output, output)]
        if self.variant.norm == "l2" and self._norm_inside and not self.variant.ffn:
            handles.append(on_leave(self.call.norm, _pass_by))
        return handles

    @property
    def _norm_inside(self) -> bool:
        norm = self.call.norm
        return norm is not None and any(m is norm for m in self.call.place.attention.modules())

    def _attention(self, x: Any) -> Any:
        call, place = self.call, self.call.place
        real = self.variant.norm == "real"
        constants = self.session.constants(place)
        outside = real and call.norm is not None and not self._norm_inside
        call.recipe(call.norm(x) if outside else x)
        y = self._seen.pop("output")
        if not self.variant.bias:
            y = y - constants.bias.to(y.device)
        if real and place.norm_out is not None and not place.post:
            y = place.norm_out(y)
        return scaled(y, constants.scale).to(x.device)

    def _block(self, x: Any) -> Any:
        result: Any = states_of(self.session.torch, self.call.block_recipe(x))
        return result.to(x.device)


def _pass_by(module: Any, args: Any, result: Any) -> Any:
    return args[0]


@contextmanager
def running(session: Session, maps: Sequence[LiveMap]) -> Iterator[None]:
    """The hooks of all maps, evaluation without gradients, and float64 kept where it is asked for.

    Raises
    ------
    OptionError
        When memory runs out.
    """
    without = {}
    if maps[0].variant.ffn and not maps[0].variant.bias:
        blocks = {id(m.call.place.block) for m in maps}
        without = {id(p.output): p for p in session.places if id(p.block) in blocks}
    with session.running("these states"):
        handles = [handle for m in maps for handle in m.hooks()]
        for place in without.values():
            bias = session.constants(place).bias
            handles.append(on_leave(place.output, _taking_off(bias)))
        with hooked(handles):
            yield


def quick_threads(session: Session, tokens: int) -> AbstractContextManager[None]:
    """One thread for states of few `tokens` (of all starts)."""
    d = session.places[0].plan.geometry.d_model
    return one_if(8 * tokens * d * d <= SMALL_STEP, session)


def _taking_off(bias: Any) -> Any:
    def hook(module: Any, args: Any, result: Any) -> Any:
        return result - bias.to(result.device)

    return hook


@dataclass(frozen=True)
class Sight:
    """What tokens attend to while they are all equal.

    Attributes
    ----------
    mask
        The mask that shows the same; None where there is none, or where the layer returns no
        weights.
    even
        Whether attention is uniform over what is seen; not with a position term in the logits.
    """

    mask: Mask | None
    even: bool


def sight(session: Session, call: AttentionCall, variant: Variant) -> Sight:
    """What tokens attend to while they are all equal, read from the layer's own weights."""
    n = int(call.before.shape[1])
    equal = variant.start(call.before[:1, :1].expand(1, n, -1))
    try:
        _, A = attention_output(session, call, equal, norm=variant.norm, weights=True)
    except OptionError:  # attention that returns no weights
        return Sight(None, even=False)
    if A is None or A.shape[-2:] != (n, n):
        return Sight(None, even=False)
    weights = A[0].cpu().double().numpy()
    visible = weights.max(axis=0) > 0
    uniform = visible / np.maximum(visible.sum(axis=1, keepdims=True), 1)
    even = bool(np.abs(weights - uniform).max() <= _EVEN)
    window = max(int(visible.sum(axis=1).max()), 1)
    for mask in (Mask(), Mask(causal=True), Mask(causal=True, window=window)):
        if (mask.allowed(n) == visible).all():
            return Sight(mask, even)
    return Sight(None, even=False)


def live_multipliers(
    maps: Sequence[StateMap], X: Float[np.ndarray, "n d"], sign: float, k: int = 4
) -> Complex[np.ndarray, "k"] | None:
    """The k leading multipliers of the Jacobian of a pass of live maps at a state, matrix-free.

    From products ``v^T J`` by reverse-mode differentiation of one recorded pass: the transpose has
    the same spectrum, and a product costs one backward pass. Motion along a token, whose length the
    map keeps, is projected out. Whole up to `DENSE_LIMIT` coordinates, else by Arnoldi.

    Parameters
    ----------
    maps
        Live maps, within `running`.
    X
        A state with ``pass(X) = sign X``.
    sign
        -1 for a state that flips.
    k
        How many.

    Returns
    -------
    None for more than `JACOBIAN_LIMIT` coordinates, where a layer has no derivative, or where
    Arnoldi does not converge.
    """
    first = maps[0]
    if X.size > JACOBIAN_LIMIT or not isinstance(first, LiveMap):
        return None
    session, torch = first.session, first.session.torch
    U = X / np.linalg.norm(X, axis=-1, keepdims=True)

    def tangent(v: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        return np.asarray(v - np.sum(v * U, axis=-1, keepdims=True) * U)

    def tensor(v: Float[np.ndarray, "n d"]) -> Any:
        return torch.as_tensor(v[None]).to(device=session.device, dtype=session.dtype)

    with torch.enable_grad():
        x = tensor(X).requires_grad_()
        y = x
        for step in maps:
            y = step.tensor(y) if isinstance(step, LiveMap) else y

        def product(v: Float[np.ndarray, "m"]) -> Float[np.ndarray, "m"]:
            seed = tensor(tangent(v.reshape(X.shape)))
            (found,) = torch.autograd.grad(y, x, seed, retain_graph=True)
            back = found[0].cpu().double().numpy()
            return np.asarray(sign * tangent(back).ravel())

        try:
            values = _leading(product, X.size, k)
        except NotImplementedError:  # a fused operation without a derivative
            return None
    if values is None:
        return None
    return np.asarray(values[np.argsort(-np.abs(values), kind="stable")][:k])


def _leading(product: Any, size: int, k: int) -> Complex[np.ndarray, "m"] | None:
    if size <= DENSE_LIMIT:
        whole = np.stack([product(row) for row in np.eye(size)])
        return np.linalg.eigvals(whole).astype(complex)
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

    start = np.random.default_rng(0).standard_normal(size)
    operator = LinearOperator((size, size), matvec=product, dtype=float)
    try:
        found = eigs(
            operator, k=k, which="LM", v0=start, return_eigenvectors=False, tol=1e-4, maxiter=200
        )
    except ArpackNoConvergence:
        return None
    return np.asarray(found)
