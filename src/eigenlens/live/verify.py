"""The equal-token identity: check every circuit against the running model.

Where all tokens that enter a layer's value projection are equal, rows of attention sum to 1, so the
output projection gives exactly `F x + b`, whatever queries, keys, mask or position terms are. Per
head, with different tokens and the captured attention: `y = sum_h A^h X F_h^T + b`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.resolve import LayerPlan
from eigenlens.errors import ArchitectureError, OptionError
from eigenlens.live.load import load_model, need_transformers

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
        difference of two probes against F, and of the output against F x + b).
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
    error_one: float
    error_four: float
    error_heads: float | None
    ok: bool
    note: str = ""


def verify(
    source: Any, model: Any = None, dtype: Any = "float64", seed: int = 0
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
    checkpoint = open_checkpoint(source)
    if model is None:
        if checkpoint.source is None:
            raise OptionError("plain arrays have no model to verify against: pass model=")
        live_source = hasattr(source, "state_dict")
        model = source if live_source else load_model(checkpoint.source, dtype)
    bench = _Bench(torch, model, np.random.default_rng(seed))
    live = {(p.stack, p.layer, p.kind): p for p in open_checkpoint(model).plans}
    missing = [p for p in checkpoint.plans if (p.stack, p.layer, p.kind) not in live]
    if missing:
        raise ArchitectureError(
            f"{checkpoint.source_label}: the running model has no {missing[0].stack} layer "
            f"{missing[0].layer}: it is not the model of these weights"
        )
    plans = [live[p.stack, p.layer, p.kind] for p in checkpoint.plans]
    return bench.check(checkpoint, plans)


@dataclass
class _Bench:
    torch: Any
    model: Any
    rng: np.random.Generator

    def check(self, checkpoint: Checkpoint, plans: Sequence[LayerPlan]) -> list[VerifyRow]:
        config = self.model.config
        vision = hasattr(config, "image_size")
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        tolerance = TOLERANCES.get(dtype, 5e-2)
        probes = [self.rng.standard_normal((2, p.geometry.d_model)) for p in plans]
        runs = {}
        for n in (1, 4):
            feed = self._modules(plans, n) if vision and n == 1 else self._tokens(n)
            runs[n] = [self._equal(plans, [p[which] for p in probes], feed) for which in (0, 1)]
        inputs, outputs, attentions = self._different(plans)
        rows = []
        for i, (plan, circuit) in enumerate(zip(plans, checkpoint.circuits(), strict=True)):
            one, four = (
                _identity_error(circuit, probes[i], [runs[n][w][plan.value] for w in (0, 1)])
                for n in (1, 4)
            )
            heads = _heads_error(circuit, plan, inputs[plan.value], outputs[plan.value], attentions)
            note = "one token: its attention module was called alone" if vision else ""
            if heads is None:
                note = "; ".join(filter(None, (note, "no attention weights were returned")))
            worst = max(one, four, heads or 0.0)
            rows.append(
                VerifyRow(
                    plan.stack, plan.layer, plan.kind, one, four, heads, worst <= tolerance, note
                )
            )
        return rows

    # -- running ---------------------------------------------------------------------------------

    def _equal(
        self,
        plans: Sequence[LayerPlan],
        probes: Sequence[Float[np.ndarray, "d"]],
        feed: Callable[[], Any],
    ) -> dict[str, list[Float[np.ndarray, "n d"]]]:
        """Output of each output projection while every input of the values is its probe."""
        captured: dict[str, list[Float[np.ndarray, "n d"]]] = {p.value: [] for p in plans}
        with ExitStack() as hooks:
            for plan, probe in zip(plans, probes, strict=True):
                hooks.enter_context(self._replace(plan.value, probe))
                hooks.enter_context(self._capture(plan.output, captured[plan.value], output=True))
            self._run(feed)
        return captured

    def _different(self, plans: Sequence[LayerPlan]) -> tuple[Any, Any, Sequence[Any] | None]:
        inputs: dict[str, list[Any]] = {p.value: [] for p in plans}
        outputs: dict[str, list[Any]] = {p.value: [] for p in plans}
        with ExitStack() as hooks:
            for plan in plans:
                hooks.enter_context(self._capture(plan.value, inputs[plan.value], output=False))
                hooks.enter_context(self._capture(plan.output, outputs[plan.value], output=True))
            result = self._run(self._tokens(5, output_attentions=True))
        found = getattr(result, "attentions", None)
        if not found or any(a is None for a in found):
            return inputs, outputs, None
        return inputs, outputs, [_numpy(a)[0] for a in found]

    def _run(self, feed: Callable[[], Any]) -> Any:
        was_training = self.model.training
        self.model.eval()
        try:
            with self.torch.no_grad(), _keep_double(self.torch):
                return feed()
        finally:
            self.model.train(was_training)

    def _tokens(self, n: int, **options: Any) -> Callable[[], Any]:
        config, torch = self.model.config, self.torch
        first = next(self.model.parameters())
        if hasattr(config, "image_size"):
            size = config.image_size
            height, width = (size, size) if isinstance(size, int) else size
            pixels = self.rng.standard_normal((1, config.num_channels, height, width))
            x = torch.tensor(pixels, dtype=first.dtype, device=first.device)
            return lambda: self.model(pixel_values=x, **options)
        avoid = {getattr(config, "pad_token_id", None)}
        ids = [i for i in range(min(int(config.vocab_size), 1000)) if i not in avoid]
        chosen = torch.tensor(self.rng.choice(ids, size=(1, n)), device=first.device)
        mask = torch.ones_like(chosen)
        return lambda: self.model(input_ids=chosen, attention_mask=mask, **options)

    def _modules(self, plans: Sequence[LayerPlan], n: int) -> Callable[[], Any]:
        """Call each attention module alone: for models that cannot be fed n tokens."""
        first = next(self.model.parameters())
        modules = []
        for plan in plans:
            value, output = plan.value.split("."), plan.output.split(".")
            shared = 0
            while value[shared] == output[shared]:
                shared += 1
            x = self.torch.zeros(1, n, plan.geometry.d_model, dtype=first.dtype)
            module = self.model.get_submodule(".".join(value[:shared]))
            modules.append((module, x.to(first.device)))
        return lambda: [module(x) for module, x in modules]

    # -- hooks -----------------------------------------------------------------------------------

    def _module(self, weight: str) -> Any:
        return self.model.get_submodule(weight.removesuffix(".weight"))

    @contextmanager
    def _replace(self, weight: str, probe: Float[np.ndarray, "d"]) -> Iterator[None]:
        def hook(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
            x = args[0]
            row = self.torch.tensor(probe, dtype=x.dtype, device=x.device)
            return (row.expand_as(x), *args[1:])

        handle = self._module(weight).register_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def _capture(self, weight: str, into: list[Any], *, output: bool) -> Iterator[None]:
        def hook(module: Any, args: tuple[Any, ...], result: Any) -> None:
            x = _numpy(result if output else args[0])
            into.append(x.reshape(-1, x.shape[-1]))

        handle = self._module(weight).register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()


def _identity_error(
    circuit: OVCircuit,
    probes: Float[np.ndarray, "2 d"],
    outputs: Sequence[Sequence[Float[np.ndarray, "n d"]]],
) -> float:
    """Worst relative error over calls and positions, of `F (x1 - x2)` and of `F x1 + b`."""
    difference = circuit.matvec(probes[0] - probes[1])
    affine = circuit.matvec(probes[0]) + circuit.bias
    if not outputs[0] or not outputs[1]:
        return float("inf")  # the layer never ran: nothing was verified
    errors = [0.0]
    for y1, y2 in zip(*outputs, strict=True):
        errors.append(_relative(y1 - y2, np.broadcast_to(difference, y1.shape)))
        errors.append(_relative(y1, np.broadcast_to(affine, y1.shape)))
    return max(errors)


def _heads_error(
    circuit: OVCircuit,
    plan: LayerPlan,
    inputs: Sequence[Float[np.ndarray, "n d"]],
    outputs: Sequence[Float[np.ndarray, "n d"]],
    attentions: Sequence[Float[np.ndarray, "heads n n"]] | None,
) -> float | None:
    """Relative error of `sum_h A^h X F_h^T + b` over the calls of a layer."""
    if attentions is None or len(inputs) != plan.steps or max(plan.calls) >= len(attentions):
        return None
    heads = [circuit.head(h) for h in range(circuit.n_heads)]
    errors = [0.0]
    for call, X, y in zip(plan.calls, inputs, outputs, strict=True):
        A = attentions[call]
        expected = circuit.bias + sum(A[h] @ head.matvec(X.T).T for h, head in enumerate(heads))
        errors.append(_relative(y, np.asarray(expected)))
    return max(errors)


def _relative(found: Float[np.ndarray, "n d"], expected: Float[np.ndarray, "n d"]) -> float:
    """Worst relative error over positions; a NaN is an infinite error, never a pass."""
    size = np.linalg.norm(expected, axis=-1)
    error = np.linalg.norm(found - expected, axis=-1) / np.maximum(size, np.finfo(float).tiny)
    return float(np.nan_to_num(error, nan=np.inf).max())


def _numpy(x: Any) -> Float[np.ndarray, "..."]:
    return np.asarray(x.detach().double().cpu().numpy())


def _keep_double(torch: Any) -> Any:
    """While active, models that drop to float32 inside attention stay in float64.

    Many models take the softmax in float32 whatever their dtype; rows of attention then sum to 1
    only to 1e-7, which would hide errors of F below that.
    """
    from torch.overrides import TorchFunctionMode

    functional = torch.nn.functional
    softmaxes = {functional.softmax, torch.softmax, torch.Tensor.softmax}

    class KeepDouble(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            double = bool(args) and getattr(args[0], "dtype", None) == torch.float64
            if double:
                if func in softmaxes and kwargs.get("dtype") == torch.float32:
                    kwargs["dtype"] = torch.float64
                elif func is torch.Tensor.float:
                    return args[0]
                elif func is torch.Tensor.to:
                    narrow = torch.float32
                    args = tuple(torch.float64 if a is narrow else a for a in args)
                    if kwargs.get("dtype") is narrow:
                        kwargs["dtype"] = torch.float64
            return func(*args, **kwargs)

    return KeepDouble()
