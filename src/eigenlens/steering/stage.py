"""The edited layer in a running model: its modules, and what the norms behind it do to u.

A direction that is written meets norms: those on the attention output (sandwich) or on the
residual sum (post-norm) at once, the final norm at the end. A state behind a norm is compared with
the image of the direction under it, ``gain * P u``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.errors import OptionError
from eigenlens.live.hooks import hooked, on_leave
from eigenlens.live.places import Place, owner
from eigenlens.live.recipe import states_of
from eigenlens.live.session import Session
from eigenlens.live.witness import is_norm
from eigenlens.steering.target import locate

Vector = Float[np.ndarray, "d"]
_FAR = 1e3
_FLAT = 1e-4
_NOTHING = 0.02


@dataclass(frozen=True)
class Stage:
    """One layer that is edited.

    Attributes
    ----------
    session
        The model.
    place
        The attention layer's modules.
    site
        `attention` or `ffn`.
    output
        The module whose weight is edited.
    last
        Whether only its last call of a pass is edited (ALBERT).
    scale
        What the model multiplies the sub-layer's output with before the residual sum.
    block_norm
        The norm that a block ends with (post-norm), or has on its feed-forward part (sandwich);
        None in other blocks.
    final_norm
        The norm behind the last block, or None.
    """

    session: Session = field(repr=False)
    place: Place = field(repr=False)
    site: str
    output: Any = field(repr=False)
    last: bool
    scale: float | Vector = field(default=1.0, repr=False)
    block_norm: Any = field(default=None, repr=False)
    final_norm: Any = field(default=None, repr=False)

    @property
    def calls(self) -> int:
        """How often a pass runs the layer."""
        return self.place.plan.steps

    @property
    def skip(self) -> int:
        """How many calls of a pass come before the first that is edited."""
        return self.calls - 1 if self.last else 0

    @property
    def post(self) -> bool:
        """Whether a norm stands on the residual sum."""
        return self.place.post

    @property
    def saturates(self) -> bool:
        """Whether a norm stands between the edit and the residual sum: strength levels off."""
        return self.place.plan.placement == "sandwich"

    def image(self, norm: Any, u: Vector) -> Vector:
        """The unit direction that a norm module makes of u: half of ``norm(t u) - norm(-t u)``.

        Raises
        ------
        OptionError
            It makes nothing of u: a layer norm subtracts what all coordinates have in common, and
            a gain may be 0.
        """
        if norm is None:
            return u
        other = np.resize([1.0, -1.0], len(u)) / np.sqrt(len(u))
        both = self.through(norm, _FAR * np.stack([u, -u, other, -other]))
        found = both[0] - both[1]
        size, usual = float(np.linalg.norm(found)), float(np.linalg.norm(both[2] - both[3]))
        flat = np.linalg.norm(u - u.mean()) < _FLAT  # what is left of it then is rounding
        if size == 0 or (flat and size < _NOTHING * usual):
            why = "a layer norm subtracts what all coordinates have in common"
            raise OptionError(
                f"{self.place.label}: a norm behind it removes the direction "
                f"({why if flat else 'its gain is 0 there'}), so that no token can carry it; take "
                "another direction"
            )
        return np.asarray(found / size)

    def through(self, norm: Any, states: Float[np.ndarray, "t d"]) -> Float[np.ndarray, "t d"]:
        """States behind a norm module, computed in the model's dtype."""
        like = next(iter(norm.parameters()), None)
        dtype = self.session.dtype if like is None else like.dtype
        device = self.session.device if like is None else like.device
        x = self.session.torch.as_tensor(np.array(states, dtype=np.float64)).to(device, dtype)
        with self.session.running():
            made = norm(x[None])[0]
        return np.asarray(made.cpu().double().numpy())

    def after_sublayer(self, u: Vector) -> Vector:
        """What u is in the stream right after the sub-layer."""
        norm = self.block_norm if self.site == "ffn" else self.place.norm_out
        return self.image(norm, u)

    def after_block(self, u: Vector) -> Vector:
        """What u is in the stream after the block."""
        there = self.after_sublayer(u)
        if self.site == "attention" and self.post:
            return self.image(self.block_norm, there)
        return there


def find_stage(
    session: Session, place: Place, site: str, steps: str, inputs: Mapping[str, Any]
) -> Stage:
    """The modules of a layer that is edited, found in a pass on some inputs.

    Raises
    ------
    OptionError
        The site cannot be edited in this model.
    """
    plan = place.plan
    target = locate(session.live, plan.stack, plan.layer, plan.kind, site)
    try:
        output = session.model.get_submodule(owner(target.tensor))
    except AttributeError as error:
        raise OptionError(
            f"{place.label}: its output matrix is no module of the running model: use --site "
            "attention"
        ) from error
    block_norm, final_norm = _norms(session, place, inputs)
    if plan.placement not in ("post", "sandwich"):
        block_norm = None
    last = steps == "last" and plan.steps > 1
    found = session.constants(place).scale if site == "attention" else plan.output_scale
    scale = found if isinstance(found, float) else np.asarray(found.cpu().double().numpy())
    return Stage(session, place, site, output, last, scale, block_norm, final_norm)


def _norms(session: Session, place: Place, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The norm that runs last in the block, and the one whose output the body returns."""
    inside: list[Any] = []
    outside: list[tuple[Any, int]] = []
    returned: list[int] = []
    in_blocks = {id(m) for p in session.places for m in p.block.modules()}

    def of_block(module: Any, args: Any, result: Any) -> None:
        inside.append(module)

    def of_body(module: Any, args: Any, result: Any) -> None:
        outside.append((module, result.data_ptr()))

    def leave(module: Any, args: Any, result: Any) -> None:
        returned.append(last_states(session, result).data_ptr())

    handles = [on_leave(m, of_block) for m in place.block.modules() if is_norm(m)]
    handles += [
        on_leave(m, of_body)
        for m in session.body.modules()
        if is_norm(m) and id(m) not in in_blocks
    ]
    handles += [on_leave(m, leave) for m in bodies(session, place)]
    with hooked(handles):
        session.forward(inputs)
    final = [m for m, pointer in outside if pointer in returned]
    return (inside[-1] if inside else None), (final[-1] if final else None)


def bodies(session: Session, place: Place) -> list[Any]:
    """Modules that hold the whole stack: some heads call an inner one, not the body (OPT)."""
    blocks = {id(p.block) for p in session.places if p.plan.stack == place.plan.stack}
    found = []
    for module in session.body.modules():
        inside = {id(m) for m in module.modules()}
        if blocks < inside and hasattr(module, "forward") and not _is_list(module):
            found.append(module)
    return found


def _is_list(module: Any) -> bool:
    return type(module).__name__ in ("ModuleList", "Sequential", "ModuleDict")


def last_states(session: Session, result: Any) -> Any:
    """The states (b, n, d) that a body returned."""
    found = getattr(result, "last_hidden_state", None)
    return states_of(session.torch, result) if found is None else found
