"""Keep float64 models in float64: many of them drop to float32 inside attention and norms."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from eigenlens.live.load import need_transformers

# How far a sum or a product that the model took itself may be from the same one taken here.
TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-2}


def dtype_name(x: Any) -> str:
    """`float32` of a torch tensor or dtype."""
    return str(getattr(x, "dtype", x)).removeprefix("torch.")


def tolerance(dtype: Any) -> float:
    """The relative tolerance that belongs to a torch dtype."""
    return TOLERANCES.get(dtype_name(dtype), 5e-2)


def keep_double(dtype: Any) -> AbstractContextManager[Any]:
    """While active, a float64 model stays in float64; for other dtypes nothing is changed.

    Models take softmaxes and norms in float32 whatever their dtype. Rows of attention then sum to 1
    only to 1e-7, which would hide errors below that.
    """
    if dtype_name(dtype) != "float64":
        return nullcontext()
    torch, _ = need_transformers()
    from torch.overrides import TorchFunctionMode

    functional = torch.nn.functional
    softmaxes = {functional.softmax, torch.softmax, torch.Tensor.softmax}
    narrow, wide = torch.float32, torch.float64

    class KeepDouble(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if args and getattr(args[0], "dtype", None) == wide:
                if func is torch.Tensor.float:
                    return args[0]
                if func is torch.Tensor.to:
                    args = tuple(wide if a is narrow else a for a in args)
                if (func is torch.Tensor.to or func in softmaxes) and kwargs.get("dtype") is narrow:
                    kwargs["dtype"] = wide
            return func(*args, **kwargs)

    mode: AbstractContextManager[Any] = KeepDouble()
    return mode
