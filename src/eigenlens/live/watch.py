"""See the products with given weights while a model runs, and put probes in front of them.

A weight is recognised in the call that uses it (`linear`, `addmm`, a convolution, `matmul`,
`einsum`, `multi_head_attention_forward`), by its memory: which module calls it does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

NARROW = "float32"  # the type that models drop to, and that is kept from a float64 model


@dataclass
class Call:
    """One use of an attention layer: what its values read, what it wrote, softmaxes between.

    `biased` is false where the product that was seen took no bias: the model adds it afterwards.
    """

    X: Float[np.ndarray, "*m d_in"]
    softmaxes: list[Float[np.ndarray, "*m"]] = field(default_factory=list)
    y: Float[np.ndarray, "*m d_out"] | None = None
    biased: bool = True


def watch(
    torch: Any,
    values: Mapping[int, list[int]],
    outputs: Mapping[int, list[int]],
    calls: list[list[Call]],
    probes: list[Float[np.ndarray, "d_in"]] | None,
    gated: frozenset[int] = frozenset(),
) -> Any:
    """A context in which the products with the watched weights are recorded.

    While active, models that drop to float32 inside attention stay in float64: many take the
    softmax in float32 whatever their dtype; rows of attention then sum to 1 only to 1e-7, which
    would hide errors of F below that.

    Parameters
    ----------
    torch
        The module.
    values, outputs
        Memory address of a value or output projection's weight -> which layers it belongs to.
    calls
        A list a layer, which is filled.
    probes
        What to put in place of every token that a layer's values read; None changes nothing.
    gated
        Layers whose gate is held at 1: between their values and their output the functions that
        make gates (sigmoid, softplus) give 1, which leaves the linear part.
    """
    from torch.overrides import TorchFunctionMode

    F = torch.nn.functional
    narrow = getattr(torch, NARROW, None)
    softmaxes = {F.softmax, torch.softmax, torch.Tensor.softmax}
    scatters = {torch.Tensor.index_add_, torch.Tensor.scatter_reduce}
    made = (torch.zeros, torch.ones, torch.empty, torch.full)
    like = (torch.zeros_like, torch.empty_like, torch.ones_like, torch.full_like)
    bare = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}
    gates = {torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid, F.softplus}
    # Where a call has its input and its weight, and which axis of the input is the width.
    products: dict[Any, tuple[int, int, int]] = {
        F.linear: (0, 1, -1),
        torch.addmm: (1, 2, -1),
        F.conv1d: (0, 1, 1),
        F.conv2d: (0, 1, 1),
        torch.conv1d: (0, 1, 1),
        torch.conv2d: (0, 1, 1),
        torch.matmul: (0, 1, -1),
        torch.Tensor.matmul: (0, 1, -1),
        torch.Tensor.__matmul__: (0, 1, -1),
    }

    class Watch(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if func is F.linear and "weight" in kwargs:
                args = (*args, kwargs.pop("weight"))
            if func in products and len(args) > products[func][1]:
                return self._product(func, args, kwargs)
            if func is F.multi_head_attention_forward:
                return self._whole(func, args, kwargs)
            if func is torch.einsum and len(args) == 3 and isinstance(args[0], str):
                return self._einsum(func, args, kwargs)
            if func in scatters:
                if "src" in kwargs:
                    kwargs["src"] = kwargs["src"].to(args[0].dtype)
                elif len(args) > 3 and hasattr(args[3], "dtype"):
                    args = (*args[:3], args[3].to(args[0].dtype), *args[4:])
            if func in made and narrow is not None and kwargs.get("dtype") is narrow:
                kwargs["dtype"] = torch.get_default_dtype()
            double = bool(args) and getattr(args[0], "dtype", None) == torch.float64
            if double and narrow is not None:
                if func in (*softmaxes, *like) and kwargs.get("dtype") is narrow:
                    kwargs["dtype"] = torch.float64
                elif func is torch.Tensor.float:
                    return args[0]
                elif func is torch.Tensor.to:
                    args = tuple(torch.float64 if a is narrow else a for a in args)
                    if kwargs.get("dtype") is narrow:
                        kwargs["dtype"] = torch.float64
            result = func(*args, **kwargs)
            if func in gates and any(calls[i] and calls[i][-1].y is None for i in gated):
                return torch.ones_like(result)
            if func in softmaxes:
                for layer in calls:
                    for call in layer:
                        if call.y is None:
                            call.softmaxes.append(_numpy(result))
            return result

        def _product(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            at, weight, axis = products[func]
            if not hasattr(args[weight], "data_ptr"):
                return func(*args, **kwargs)
            other = getattr(args[at], "dtype", None)
            if narrow is not None and {other, args[weight].dtype} == {narrow, torch.float64}:
                # One of the two was kept in float64 above, the other was made in float32.
                args = tuple(a.double() if getattr(a, "dtype", 0) is narrow else a for a in args)
            address = args[weight].data_ptr()
            reads, writes = values.get(address, ()), outputs.get(address, ())
            if reads:
                x = args[at]
                if probes is not None:
                    x = _filled(x, probes[reads[0]], axis)
                    args = (*args[:at], x, *args[at + 1 :])
                for i in reads:
                    calls[i].append(Call(_numpy(x.movedim(axis, -1))))
            result = func(*args, **kwargs)
            after = args[2] if len(args) > 2 else kwargs.get("bias")
            biased = func is torch.addmm or (func not in bare and after is not None)
            for i in writes:
                self._wrote(i, result.movedim(axis, -1), biased=biased)
            return result

        def _einsum(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            equation, x, weight = args
            address = weight.data_ptr()
            reads, writes = values.get(address, ()), outputs.get(address, ())
            if not reads and not writes:
                return func(*args, **kwargs)
            operands, out = equation.replace(" ", "").split("->")
            letters, of_weight = operands.split(",")
            if reads:
                # The width is the one letter that the sum runs over.
                axis = next(i for i, name in enumerate(letters) if name not in out)
                if probes is not None:
                    x = _filled(x, probes[reads[0]], axis)
                for i in reads:
                    calls[i].append(Call(_numpy(x.movedim(axis, -1))))
            result = func(equation, x, weight, **kwargs)
            for i in writes:
                axis = next(i for i, name in enumerate(out) if name in of_weight)
                self._wrote(i, result.movedim(axis, -1))
            return result

        def _whole(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            weight = kwargs.get("out_proj_weight", args[11] if len(args) > 11 else None)
            writes = outputs.get(weight.data_ptr(), ()) if weight is not None else ()
            if writes:
                x = args[2]
                if probes is not None:
                    x = _filled(x, probes[writes[0]], -1)
                    args = (*args[:2], x, *args[3:])
                for i in writes:
                    calls[i].append(Call(_numpy(x)))
            result = func(*args, **kwargs)
            for i in writes:
                self._wrote(i, result[0])
            return result

        def _wrote(self, i: int, y: Any, *, biased: bool = True) -> None:
            for call in calls[i]:
                if call.y is None:
                    call.y, call.biased = _numpy(y), biased

    def _filled(x: Any, probe: Float[np.ndarray, "d_in"], axis: int) -> Any:
        row = torch.tensor(probe, dtype=x.dtype, device=x.device)
        return row.expand(*x.movedim(axis, -1).shape).movedim(-1, axis)

    return Watch()


@contextmanager
def plain_attention(torch: Any) -> Any:
    """Without the fused kernel of `nn.MultiheadAttention`, in which no product can be seen."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def _numpy(x: Any) -> Float[np.ndarray, "..."]:
    return np.asarray(x.detach().cpu().double().numpy())
