"""The nulls of section 6, gathered with the same tokens: six answers to "compared with what?"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.circuit.circuit import OVCircuit
from eigenlens.live.replay import mix
from eigenlens.live.session import Session
from eigenlens.live.states import scaled
from eigenlens.measure.alignment import Targets
from eigenlens.measure.nulls import MIN_DIRECTIONS, Null, haar_orthogonal, random_bases
from eigenlens.measure.sums import AlignmentSums
from eigenlens.tracing.moves import Move
from eigenlens.tracing.options import TraceOptions
from eigenlens.tracing.targets import LayerTarget
from eigenlens.tracing.tokens import Chosen

NULLS: dict[str, str] = {
    "random_direction": "isotropic random directions, planes for a plane",
    "second_pair": "the next eigenpair behind the leader",
    "other_layer": "the leaders of the other layers",
    "top_singular": "the left singular vector of F's largest singular value",
    "matched_spectrum": "F rotated at random, attention and tokens unchanged",
    "random_init": "the model with the weights that training starts from",
}
"""Names of the nulls in the output, and what each is."""

ROTATIONS = 8
"""Random rotations of F that `matched_spectrum` is the mean over."""

_BASES = 1 << 24  # numbers in all random bases of one kind, 128 MB
_TOGETHER = 1 << 24  # numbers in the temporaries of rotations that are one batch

Key = tuple[str, int, str]
Measure = dict[str, Any]


@dataclass(frozen=True)
class NullPlan:
    """What the nulls of one layer need, shared by all its steps.

    Attributes
    ----------
    target
        The layer's own.
    random
        Random subspaces of the target's kind.
    fixed, names
        The other subspaces side by side, and which null each is of.
    circuit
        The weights to be rotated; None where that null is left out.
    rotations
        The rotations.
    """

    target: LayerTarget
    random: Targets
    fixed: Targets | None
    names: tuple[str, ...]
    circuit: OVCircuit | None = field(repr=False, default=None)
    rotations: tuple[Float[np.ndarray, "d d"], ...] = field(repr=False, default=())

    def __call__(self, tie: float) -> NullSums:
        """Empty sums of one row."""
        return NullSums(self, tie)


class NullSums:
    """The nulls of one row, summed over all tokens."""

    def __init__(self, plan: NullPlan, tie: float) -> None:
        self.plan = plan
        self.random = Null(plan.random, tie)
        self.fixed = None if plan.fixed is None else Null(plan.fixed, tie)
        self.matched = [AlignmentSums(tie=tie) for _ in plan.rotations]
        self._turned = [
            Targets([Q @ plan.target.basis], complement=plan.target.complement)
            for Q in plan.rotations
        ]

    def add(self, session: Session, move: Move, chosen: Chosen, options: TraceOptions) -> None:
        """Add the tokens of one batch.

        Raises
        ------
        NumericsError
            A state holds a NaN or an infinity.
        """
        counted = ~chosen.sinks if options.drop_sinks else np.ones(chosen.sinks.size, dtype=bool)
        before, after = chosen.flat(move.before)[counted], chosen.flat(move.after)[counted]
        self.random.add(before, after)
        if self.fixed is not None:
            self.fixed.add(before, after)
        if self.plan.circuit is None or not move.linear or move.weights is None:
            return
        moves = rotated_steps(
            session, self.plan.circuit, move, self.plan.rotations, bias=options.keeps_bias
        )
        for moved, turned, sums in zip(moves, self._turned, self.matched, strict=True):
            sums.add(turned.alignment(before), turned.alignment(chosen.flat(moved)[counted]))

    def results(self) -> dict[str, Measure | None]:
        """Gamma, gain and rho of every null that was gathered here, None for the others."""
        out: dict[str, Measure | None] = dict.fromkeys(NULLS)
        spreads = self.random.spreads()
        found: Measure = {name: s.mean for name, s in spreads.items()}
        found["quantiles"] = {name: [s.low, s.median, s.high] for name, s in spreads.items()}
        found["n"] = len(self.plan.random)
        out["random_direction"] = found
        if self.fixed is not None:
            table = {
                "gamma": self.fixed.gamma(),
                "gain": self.fixed.gain(),
                "rho": self.fixed.rho(),
            }
            for name in dict.fromkeys(self.plan.names):
                where = [i for i, n in enumerate(self.plan.names) if n == name]
                means: Measure = {m: float(np.mean(v[where])) for m, v in table.items()}
                out[name] = {**means, "n": len(where)}
        done = [s for s in self.matched if s.n_tokens]
        if done:
            out["matched_spectrum"] = {
                "gamma": float(np.mean([s.gamma()[0] for s in done])),
                "gain": float(np.mean([s.gain()[0] for s in done])),
                "rho": float(np.mean([s.rho()[0] for s in done])),
                "n": len(done),
            }
        return out


def rotated_steps(
    session: Session,
    circuit: OVCircuit,
    move: Move,
    rotations: Sequence[Float[np.ndarray, "d d"]],
    *,
    bias: bool,
) -> Iterator[Any]:
    """The states after the step with ``Q F Q^T`` in the place of F; A and the tokens stay.

    Tokens are rotated in the place of the weights, ``sum_h A^h (X Q) F_h^T Q^T``: they are fewer,
    and several rotations are one batch.
    """
    place, constants = move.call.place, session.constants(move.call.place)
    torch, X, A = session.torch, move.values, move.weights
    entries = X.numel() + A.numel() + X.shape[0] * X.shape[1] * circuit.n_heads * circuit.head_dim
    together = max(1, _TOGETHER // max(1, int(entries)))
    sandwich = place.norm_out is not None and not place.post
    for start in range(0, len(rotations), together):
        turns = torch.stack([torch.as_tensor(Q) for Q in rotations[start : start + together]])
        turns = turns.to(X)[:, None]  # (r, 1, d, d)
        r = turns.shape[0]
        turned = (X @ turns).flatten(0, 1)
        y = mix(session, circuit, A.repeat(r, 1, 1, 1), turned).unflatten(0, (r, -1))
        y = y @ turns.transpose(-1, -2)
        if bias:
            y = y + constants.bias.to(y.device)
        if sandwich and move.values is not move.before:  # a free run goes round all norms
            with session.running():
                y = place.norm_out(y)
        yield from move.before + scaled(y, constants.scale).to(move.before.device)


def plan_nulls(
    targets: Mapping[Key, LayerTarget],
    options: TraceOptions,
    n_rows: int,
    circuits: Mapping[Key, OVCircuit],
) -> dict[Key, Callable[[float], NullSums]]:
    """The null plans of all layers; random subspaces of one kind are shared.

    Parameters
    ----------
    targets
        Of all layers.
    options
        Number of directions and the seed.
    n_rows
        Layers times steps that p-values are corrected for.
    circuits
        Weights of the layers whose spectrum is to be matched.
    """
    m = options.random_directions(n_rows)
    shared: dict[tuple[int, int, bool], Targets] = {}
    turns: dict[int, tuple[Float[np.ndarray, "d d"], ...]] = {}
    plans: dict[Key, Callable[[float], NullSums]] = {}
    for key, target in targets.items():
        d, k = target.basis.shape
        kind = (d, k, target.complement)
        if kind not in shared:
            fitting = max(MIN_DIRECTIONS, min(m, _BASES // (d * k)))
            bases = random_bases(d, k, fitting, options.seed)
            shared[kind] = Targets(bases, complement=target.complement, dtype="float32")
        if key in circuits and d not in turns:
            turns[d] = tuple(haar_orthogonal(d, options.seed + i) for i in range(ROTATIONS))
        bases_of = _fixed(key, target, targets)
        plans[key] = NullPlan(
            target,
            shared[kind],
            Targets([B for _, B in bases_of]) if bases_of else None,
            tuple(name for name, _ in bases_of),
            circuits.get(key),
            turns[d] if key in circuits else (),
        )
    return plans


def _fixed(
    key: Key, target: LayerTarget, targets: Mapping[Key, LayerTarget]
) -> Sequence[tuple[str, Float[np.ndarray, "d m"]]]:
    found = []
    if target.second is not None:
        found.append(("second_pair", target.second))
    if target.singular is not None:
        found.append(("top_singular", target.singular))
    found += [
        ("other_layer", other.span)
        for name, other in targets.items()
        if name != key and other.spectrum.d == target.spectrum.d and name[0] == key[0]
    ]
    return found
