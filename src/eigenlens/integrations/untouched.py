"""Look at a model in the middle of its training and leave no trace: modes, random states, casts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from eigenlens.errors import OptionError


def bare(torch: Any, model: Any) -> Any:
    """The model itself, out of the wrappers of torch.compile and of data parallel training.

    Raises
    ------
    OptionError
        It is no module, or the weights are sharded over processes (FSDP, DeepSpeed ZeRO-3), so
        none of them has F.
    """
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"a {type(model).__name__} is no live model: give a torch module")
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, parallel):
            model = model.module
        else:
            break
    _need_whole(model)
    return model


def _need_whole(model: Any) -> None:
    sharded = any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())
    for name, p in model.named_parameters():
        if sharded or hasattr(p, "ds_id") or hasattr(p, "device_mesh"):
            raise OptionError(
                f"the weights are sharded over processes (FSDP, tensor parallel or ZeRO-3; the "
                f"first is '{name}'), so no process holds a whole W_O or W_V: watch a model that "
                "every process holds in full (DDP), or run `eigenlens survey` on its checkpoints"
            )


def is_first_process(torch: Any) -> bool:
    """Whether this is process zero, or the only one."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return True
    return bool(distributed.get_rank() == 0)


@contextmanager
def untouched(torch: Any, model: Any) -> Iterator[None]:
    """Evaluation inside, and everything as it was behind it, also after an error.

    Put back: the training mode of every single module (a part may be frozen in evaluation), the
    random states of torch on the CPU and on CUDA devices, of numpy and of Python. Inside,
    autocast is off, nothing has a gradient, and compiled modules run as they were written.
    """
    modes = [(m, m.training) for m in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type != "cpu"}
    cuda = sorted(d.index or 0 for d in devices if d.type == "cuda")
    legacy, python = np.random.get_state(), random.getstate()  # noqa: NPY002 - others' state
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, legacy)
        stack.callback(_restore, modes)
        stack.enter_context(torch.no_grad())
        for kind in {"cpu", *(d.type for d in devices)}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6
        if stance is not None:
            stack.enter_context(stance("force_eager"))
        model.eval()
        yield


def _restore(modes: list[tuple[Any, bool]]) -> None:
    for module, training in modes:
        module.training = training
