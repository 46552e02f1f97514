"""The equal-token identity: check every circuit against the running model.

Where all tokens that enter a layer's value projection are equal, rows of attention sum to 1, so the
output projection gives exactly `F x + b`, whatever queries, keys, mask or position terms are. Per
head, with different tokens and the captured attention: `y = sum_h A^h X F_h^T + b`. Where a sink
takes a share of attention the rows of A sum to less, and this form holds for equal tokens as well;
where a gate stands before the output projection it is held at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import upcast
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.plans import LayerPlan
from eigenlens.errors import ArchitectureError, OptionError
from eigenlens.live.feeds import REFUSALS, feeds
from eigenlens.live.load import load_model, need_transformers
from eigenlens.live.watch import Call, plain_attention, watch

# Keyword arguments of a forward pass: of the model, or of a part of it by name.
Given: TypeAlias = Mapping[str, Any] | tuple[str, Mapping[str, Any]]
TOLERANCES = {"float64": 1e-10, "float32": 1e-4}


@dataclass(frozen=True)
class VerifyRow:
    """How well one circuit agrees with the running model.

    Attributes
    ----------
    stack, layer, kind
        Which circuit.
    error_one, error_four
        Relative error of the identity with one token and with four equal ones (the worst of the
        difference of two probes against F, and of the output against F x + b). `error_one` is None
        where the model cannot be fed one token (images); `error_four` infinite where the layer
        never ran.
    error_heads
        The same for different tokens, head by head; None where no attention was returned.
    ok
        Whether all errors are within the tolerance of the dtype.
    note
        What was done differently for this layer; empty if nothing.
    """

    stack: str
    layer: int
    kind: str
    error_one: float | None
    error_four: float
    error_heads: float | None
    ok: bool
    note: str = ""


def verify(
    source: Any,
    model: Any = None,
    dtype: Any = "float64",
    seed: int = 0,
    *,
    inputs: Sequence[Given] = (),
    architecture: Any = None,
) -> list[VerifyRow]:
    """Check the circuits of a checkpoint against transformers.

    Parameters
    ----------
    source
        A `Checkpoint` or what `open_checkpoint` takes.
    model
        The live model; loaded from the source if None. It is checked in its own dtype.
    dtype
        float32 or float64, for loading.
    seed
        Of the probe vectors and token ids.
    inputs
        Keyword arguments for the forward pass, tried before those that the model's signature and
        config suggest; or the name of a part of the model and keyword arguments for it.
    architecture
        See `open_checkpoint`.

    Raises
    ------
    MissingDependencyError
        Without torch or transformers.
    ArchitectureError
        If the live model does not have the checkpoint's layers.
    OptionError
        If there is no model to check against (plain arrays).
    """
    torch, _ = need_transformers()
    checkpoint = open_checkpoint(source, architecture)
    if model is None:
        if checkpoint.source is None:
            raise OptionError("plain arrays have no model to verify against: pass model=")
        live_source = hasattr(source, "state_dict")
        model = (
            source
            if live_source
            else load_model(
                checkpoint.source, dtype, needed=[n for p in checkpoint.plans for n in p.tensors]
            )
        )
    rules = checkpoint.rules
    live = {(p.stack, p.layer, p.kind): p for p in open_checkpoint(model, rules).plans}
    missing = [p for p in checkpoint.plans if (p.stack, p.layer, p.kind) not in live]
    if missing:
        raise ArchitectureError(
            f"{checkpoint.source_label}: the running model has no {missing[0].stack} layer "
            f"{missing[0].layer}: it is not the model of these weights"
        )
    plans = [live[p.stack, p.layer, p.kind] for p in checkpoint.plans]
    bench = _Bench(torch, model, plans, np.random.default_rng(seed), tuple(inputs))
    return bench.check(checkpoint)


Feed = Callable[[], Any]


@dataclass
class _Bench:
    torch: Any
    model: Any
    plans: Sequence[LayerPlan]
    rng: np.random.Generator
    inputs: tuple[Given, ...]

    def check(self, checkpoint: Checkpoint) -> list[VerifyRow]:
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        tolerance = TOLERANCES.get(dtype, 5e-2)
        probes = [
            [self.rng.standard_normal(p.geometry.width_in) for p in self.plans] for _ in (0, 1)
        ]
        four = self._ways(4)
        one = [] if not self._takes_tokens() else self._ways(1)
        alone = self._alone()
        runs = {
            "one": [self._run(one + alone, probe) for probe in probes],
            "four": [self._run(four, probe) for probe in probes],
        }
        free = self._run(four, None)
        rows = []
        for i, (plan, circuit) in enumerate(zip(self.plans, checkpoint.circuits(), strict=True)):
            x1, x2 = probes[0][i], probes[1][i]
            errors = {
                n: (
                    _heads_error(circuit, [*r[0][i], *r[1][i]], sinks=True)
                    if plan.has_sinks
                    else _identity_error(circuit, x1, x2, r[0][i], r[1][i])
                )
                for n, r in runs.items()
            }
            heads = _heads_error(circuit, free[i], sinks=plan.has_sinks)
            notes = ["its gate was held at 1"] if plan.is_gated else []
            if plan.has_sinks:
                notes.append("a sink takes a share of its attention")
            if errors["one"] is None:
                notes.append("it cannot be fed one token")
            if heads is None:
                notes.append("no attention weights were seen")
            if errors["four"] is None:
                notes.append("it never ran")
            found = [e for e in (*errors.values(), heads) if e is not None]
            ok = errors["four"] is not None and max(found) <= tolerance
            last = np.inf if errors["four"] is None else errors["four"]
            note = "; ".join(notes)
            where = (plan.stack, plan.layer, plan.kind)
            rows.append(VerifyRow(*where, errors["one"], float(last), heads, ok, note))
        return rows

    # -- ways of running every layer ---------------------------------------------------------------

    def _takes_tokens(self) -> bool:
        """Whether one token can be fed; what attends in windows pads a text to a whole one."""
        windows = getattr(self.model.config, "attention_window", None)
        main = getattr(self.model, "main_input_name", "input_ids")
        return windows is None and main == "input_ids"

    def _ways(self, n: int) -> list[Feed]:
        """Forward passes that together run every layer: of the model, else of its parts."""
        ways: list[Feed] = []
        left = set(range(len(self.plans)))
        pairs = [g if isinstance(g, tuple) else ("", g) for g in self.inputs if n > 1]
        given = [(self._submodule(name), kwargs) for name, kwargs in pairs]
        for model, kwargs in given:
            left -= self._try(ways, model, kwargs, left)
        for model in self._models(left):
            if not left:
                break
            for kwargs in feeds(self.torch, model, n, self.rng):
                left -= self._try(ways, model, kwargs, left)
                if not left:
                    break
        return ways

    def _models(self, left: set[int]) -> list[Any]:
        """The model, then those parts of it, large to small, that are models and hold a layer."""
        found = [self.model]
        for i in sorted(left):
            parts = self.plans[i].value.split(".")
            for end in range(1, len(parts)):
                part = self._submodule(".".join(parts[:end]))
                if hasattr(part, "main_input_name") and not any(part is m for m in found):
                    found.append(part)
        return found

    def _submodule(self, name: str) -> Any:
        try:
            return self.model.get_submodule(name)
        except AttributeError:
            return None

    def _try(
        self, ways: list[Feed], model: Any, kwargs: Mapping[str, Any], left: set[int]
    ) -> set[int]:
        """Run once; keep the way where it reaches a layer that is left."""

        def way() -> Any:
            return model(**kwargs)

        try:
            calls = self._run([way], None)
        except REFUSALS:
            return set()
        reached = {i for i in left if any(c.y is not None for c in calls[i])}
        if reached:
            ways.append(way)
        return reached

    def _alone(self) -> list[Feed]:
        """Attention modules called with one token, of models that cannot be fed one."""
        if self._takes_tokens():
            return []
        found: list[Feed] = []
        first = next(self.model.parameters())
        for plan in self.plans:
            value, output = plan.value.split("."), plan.output.split(".")
            shared = 0
            while value[shared] == output[shared]:
                shared += 1
            module = self._submodule(".".join(value[:shared]))
            width = plan.geometry.width_in
            x = self.torch.zeros(1, 1, width, dtype=first.dtype, device=first.device)

            def way(module: Any = module, x: Any = x) -> Any:
                try:
                    return module(x)
                except REFUSALS:
                    return None

            if module is not None:
                found.append(way)
        return found

    def _run(
        self, ways: Sequence[Feed], probes: list[Float[np.ndarray, "d_in"]] | None
    ) -> list[list[Call]]:
        calls: list[list[Call]] = [[] for _ in self.plans]
        gated = frozenset(i for i, p in enumerate(self.plans) if p.is_gated or p.has_sinks)
        values, outputs = self._addresses("value"), self._addresses("output")
        was_training, before = self.model.training, self.torch.get_default_dtype()
        self.model.eval()
        self.torch.set_default_dtype(next(self.model.parameters()).dtype)
        try:
            with self.torch.no_grad(), plain_attention(self.torch):
                for way in ways:
                    with watch(self.torch, values, outputs, calls, probes, gated):
                        way()
        finally:
            self.model.train(was_training)
            self.torch.set_default_dtype(before)
        for plan, layer in zip(self.plans, calls, strict=True):
            late = [c for c in layer if c.y is not None and not c.biased]
            if late and plan.output_bias is not None:  # the model adds it after the product
                bias = self.model.get_parameter(plan.output_bias).detach().cpu().double().numpy()
                for call in late:
                    call.y = call.y + bias
        return [[c for c in layer if c.y is not None] for layer in calls]

    def _addresses(self, role: str) -> dict[int, list[int]]:
        tensors = dict(self.model.named_parameters(remove_duplicate=False))
        found: dict[int, list[int]] = {}
        for i, plan in enumerate(self.plans):
            found.setdefault(tensors[getattr(plan, role)].data_ptr(), []).append(i)
        return found


def _identity_error(
    circuit: OVCircuit,
    x1: Float[np.ndarray, "d_in"],
    x2: Float[np.ndarray, "d_in"],
    first: Sequence[Call],
    second: Sequence[Call],
) -> float | None:
    """Worst relative error over calls and positions, of `F (x1 - x2)` and of `F x1 + b`.

    None where the layer never ran: nothing was verified.
    """
    if not first or not second:
        return None
    difference = circuit.matvec(x1 - x2)
    affine = circuit.matvec(x1) + circuit.bias
    errors = [0.0]
    for call1, call2 in zip(first, second, strict=True):
        if call1.y is None or call2.y is None:
            continue
        y1, y2 = (y.reshape(-1, y.shape[-1]) for y in (call1.y, call2.y))
        if y1.shape == y2.shape:  # else what the layers read decides how many tokens there are
            errors.append(_relative(y1 - y2, np.broadcast_to(difference, y1.shape)))
        errors.append(_relative(y2, np.broadcast_to(circuit.matvec(x2) + circuit.bias, y2.shape)))
        errors.append(_relative(y1, np.broadcast_to(affine, y1.shape)))
    return max(errors)


def _heads_error(circuit: OVCircuit, calls: Sequence[Call], *, sinks: bool = False) -> float | None:
    """Relative error of `sum_h A^h (X F_h^T + b_h) + b_O` over the calls of a layer.

    The rows of A may sum to less than 1 (attention sinks), so each head's bias goes with its A.
    """
    heads = [circuit.head(h) for h in range(circuit.n_heads)]
    errors: list[float] = []
    for call in calls:
        found = _attention(circuit, call, sinks=sinks)
        if found is None or call.y is None:
            return None
        A, X, y = found
        expected = (0.0 if circuit.b_O is None else upcast(circuit.b_O, np.float64)) + sum(
            A[:, h] @ (np.stack([head.matvec(x.T).T for x in X]) + head.bias)
            for h, head in enumerate(heads)
        )
        errors.append(_relative(y, np.asarray(expected)))
    return max(errors) if errors else None


def _attention(circuit: OVCircuit, call: Call, *, sinks: bool) -> tuple[Any, Any, Any] | None:
    """A (batch, heads, m, n), X (batch, n, d_in) and y (batch, m, d_out) of one call, if seen."""
    if call.y is None:
        return None
    n_in, n_out = (a.size // a.shape[-1] for a in (call.X, call.y))
    for A in reversed(call.softmaxes):
        if A.ndim < 3 or (A.ndim > 4 and A.shape[-3] != 1):
            continue  # windows between heads and tokens: which token is in which is not known
        m, n = A.shape[-2:]
        batch, left = divmod(A.size, circuit.n_heads * m * n)
        if left == 0 and sinks and (batch * (n - 1), batch * m) == (n_in, n_out):
            A, n = A[..., :-1], n - 1  # the last column is the sink's
        if left == 0 and (batch * n, batch * m) == (n_in, n_out):
            X = call.X.reshape(batch, n, -1)
            return A.reshape(batch, circuit.n_heads, m, n), X, call.y.reshape(batch, m, -1)
    return None


def _relative(found: Float[np.ndarray, "n d"], expected: Float[np.ndarray, "n d"]) -> float:
    """Worst relative error over positions; a NaN is an infinite error, never a pass."""
    size = np.linalg.norm(expected, axis=-1)
    error = np.linalg.norm(found - expected, axis=-1) / np.maximum(size, np.finfo(float).tiny)
    return float(np.nan_to_num(error, nan=np.inf).max())
