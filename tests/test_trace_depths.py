"""Collapse measures of many states together: as of each prompt alone, whatever its length."""

from __future__ import annotations

import numpy as np
import pytest

from eigenlens.measure.collapse import collapse
from eigenlens.tracing import depths
from eigenlens.tracing.depths import Masks


@pytest.mark.parametrize("shape", [(5, 30, 12), (5, 9, 12), (1, 4, 6), (4, 7, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uneven_prompts_are_measured_as_each_alone(
    shape: tuple[int, int, int], dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that do not count, in the middle too, change no measure of the others."""
    b, n, d = shape
    rng = np.random.default_rng(0)
    states = [rng.standard_normal(shape).astype(dtype) for _ in range(3)]
    counted = np.zeros((b, n), dtype=bool)
    for i in range(b):  # from all tokens down to none, with holes
        counted[i, rng.permutation(n)[: max(0, n - i * n // max(1, b - 1))]] = True
    counted[0] = True
    for even in (0.0, 0.8, 2.0):  # all prompts in one call, or one by one
        monkeypatch.setattr(depths, "_EVEN", even)
        found = depths.read_depths(states, [np.zeros((d, 0))] * 3, Masks(counted, counted.copy()))
        for depth, X in zip(found, states, strict=True):
            for i in range(b):
                own = X[i][counted[i]]
                if not len(own):
                    continue
                expected = list(collapse(own).values())
                assert np.allclose(depth.values[:, i], expected, rtol=1e-9, equal_nan=True)
