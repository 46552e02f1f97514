"""Slots of a model whose stages have different widths (Swin and its like)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eigenlens.circuit.layouts import Geometry
from eigenlens.circuit.slots import LARGEST, Slot
from eigenlens.errors import FormatError


@dataclass(frozen=True)
class Stages:
    """Slots of a model with stages of different widths (Swin and its like).

    Names have the fields `{stage}` and `{block}`; `{layer}` counts through all stages.

    Attributes
    ----------
    depths, width, heads
        Config keys. A list is one number a stage; a single width grows by `growth` from stage to
        stage, a single number of heads stays.
    growth
        See above: the factor, or the config key that states it.
    first
        Number of the first stage in names.
    widens
        Whether a stage's first block reads the states of the stage before, so that it takes their
        width in and gives its own out (Hiera).
    """

    depths: str = "depths"
    width: str = "hidden_sizes"
    heads: str = "num_attention_heads"
    growth: int | str = 2
    first: int = 0
    widens: bool = False

    def __call__(self, g: Geometry, config: Mapping[str, Any]) -> list[Slot]:
        """The slots, stage by stage."""
        found: list[Slot] = []
        for stage, depth in enumerate(config[self.depths]):
            d, n = self._sizes(config, stage)
            sizes = {"d_model": d, "n_heads": n, "n_kv_heads": n, "head_dim": d // n}
            wider = {**sizes, "d_in": self._sizes(config, stage - 1)[0]} if stage else sizes
            for block in range(depth):
                at = len(found)
                fields = {"stage": stage + self.first, "block": block, "layer": at}
                own = wider if self.widens and block == 0 else sizes
                found.append(Slot(at, fields, (at,), own))
        return found

    def geometry(self, config: Mapping[str, Any]) -> Geometry:
        """Sizes of the first stage, and the number of layers of all.

        Raises
        ------
        FormatError
            If a number is not positive and whole.
        """
        try:
            depths = list(config[self.depths])
            sizes = [self._sizes(config, i) for i in range(min(len(depths), 64))]
        except (KeyError, TypeError, IndexError) as error:
            raise FormatError(
                f"the config's stages make no sense: {self.depths}, {self.width} and {self.heads} "
                "must give a number for each stage"
            ) from error
        numbers = [n for pair in sizes for n in pair] + depths
        if not depths or not all(type(n) is int and 0 < n < LARGEST for n in numbers):
            raise FormatError(
                f"the config's stages make no sense: {self.depths}, {self.width} and {self.heads} "
                "must be positive whole numbers"
            )
        d, n = sizes[0]
        named = (("d_model", self.width), ("n_heads", self.heads), ("n_layers", self.depths))
        return Geometry(d, sum(depths), n, n, d // n, named)

    def _sizes(self, config: Mapping[str, Any], stage: int) -> tuple[int, int]:
        width, heads = config[self.width], config[self.heads]
        growth = config[self.growth] if isinstance(self.growth, str) else self.growth
        d = int(width * growth**stage) if isinstance(width, int) else width[stage]
        return d, heads if isinstance(heads, int) else heads[stage]
