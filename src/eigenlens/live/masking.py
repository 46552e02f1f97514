"""Run a layer's own attention under another mask: who sees whom is changed, nothing else."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np

from eigenlens.errors import OptionError
from eigenlens.live.recipe import Recipe
from eigenlens.live.replay import attention_output
from eigenlens.live.session import Session
from eigenlens.live.states import AttentionCall


def with_mask(session: Session, call: AttentionCall, pattern: Any) -> AttentionCall:
    """The same call where tokens see what `pattern` says instead.

    Parameters
    ----------
    session
        The model.
    call
        A captured call.
    pattern
        (n, n) or (b, 1, n, n) booleans as numpy: True where the row's token sees the column's.

    Raises
    ------
    OptionError
        If the layer was given no mask, or its own code hides more than the mask says.
    """
    torch, old = session.torch, call.recipe.mask
    recipe, block = call.recipe, call.block_recipe
    seen = torch.as_tensor(np.asarray(pattern, dtype=bool), device=call.before.device)
    seen = seen.expand(call.before.shape[0], 1, *seen.shape[-2:])
    low = torch.finfo(call.before.dtype).min
    mask = torch.zeros(seen.shape, dtype=call.before.dtype, device=seen.device)
    mask = mask.masked_fill(~seen, low)
    if old is None:
        recipe, block = _put_mask(recipe, mask), _put_mask(block, mask)
    else:
        recipe, block = recipe.with_mask(mask), block.with_mask(mask)
    changed = replace(call, recipe=recipe, block_recipe=block)
    _, A = attention_output(session, changed, call.before, weights=True)
    hidden = A is not None and bool(((A.sum(dim=1, keepdim=True) > 0) != seen).any())
    if hidden:
        raise OptionError(
            f"{call.label}: its own code decides what a token sees, so the mask cannot be changed: "
            "leave it as it is"
        )
    return changed


def _put_mask(recipe: Recipe, mask: Any) -> Recipe:
    """A mask where none was given: in the argument that would hold it."""
    names = list(inspect.signature(recipe.module.forward).parameters)
    position = names.index("attention_mask") if "attention_mask" in names else -1
    if 0 <= position < len(recipe.args):
        args = (*recipe.args[:position], mask, *recipe.args[position + 1 :])
        return Recipe(recipe.module, args, recipe.kwargs)
    return Recipe(recipe.module, recipe.args, {**recipe.kwargs, "attention_mask": mask})
