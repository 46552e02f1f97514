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


@pytest.mark.parametrize("spread", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tokens_that_all_but_agree_are_measured_as_exactly(spread: float, dtype: type) -> None:
    """Where a difference of squares would lose the deviation from the mean."""
    rng = np.random.default_rng(1)
    states = [(rng.standard_normal(12) + spread * rng.standard_normal((3, 9, 12))).astype(dtype)]
    counted = np.ones((3, 9), dtype=bool)
    counted[1, 6:] = counted[2, 3:5] = False
    (depth,) = depths.read_depths(states, [np.zeros((12, 0))], Masks(counted, counted.copy()))
    names = list(collapse(states[0][0]))
    for i in range(3):
        expected = collapse(states[0][i][counted[i]])
        for j in (names.index("frobenius_residual"), names.index("high_low_ratio")):
            assert depth.values[j, i] == pytest.approx(expected[names[j]], rel=1e-8), names[j]
