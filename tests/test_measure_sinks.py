"""Which tokens count, and mean directions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from eigenlens.errors import EigenlensError, OptionError, ShapeError
from eigenlens.measure.sinks import SINK_THRESHOLD, MeanDirection, sink_mask, sinks, token_mask


def two_prompts() -> tuple[np.ndarray, np.ndarray]:
    """Norms at three depths; each prompt's first token is large at the second depth only."""
    norms = np.random.default_rng(0).uniform(0.5, 2.0, (3, 12))
    norms[:, 5:] *= 50  # the second prompt is larger throughout, which makes no sink
    norms[1, [0, 5]] *= 140
    return norms, np.repeat([0, 1], [5, 7])


def slow_sinks(norms: np.ndarray, prompts: np.ndarray, threshold: float) -> np.ndarray:
    out = np.zeros(norms.shape, dtype=bool)
    for depth in range(norms.shape[0]):
        for i in range(norms.shape[1]):
            own = sorted(norms[depth, j] for j in range(norms.shape[1]) if prompts[j] == prompts[i])
            middle = (own[(len(own) - 1) // 2] + own[len(own) // 2]) / 2
            out[depth, i] = norms[depth, i] > threshold * middle
    return out


def test_sinks_are_the_loops_per_prompt_and_depth() -> None:
    norms, prompts = two_prompts()
    for threshold in (1.5, 3.0, SINK_THRESHOLD):
        found = sink_mask(norms, prompts, threshold=threshold, at_any_depth=False)
        np.testing.assert_array_equal(found, slow_sinks(norms, prompts, threshold))
    assert found.sum() == 2
    # Planted: the median of the whole batch calls tokens of the larger prompt sinks.
    batch = sink_mask(norms, np.zeros(12, dtype=int), at_any_depth=False)
    assert not np.array_equal(batch, found)


def test_a_sink_is_one_at_every_depth_unless_asked() -> None:
    norms, prompts = two_prompts()
    found = sink_mask(norms, prompts)
    assert [list(np.flatnonzero(row)) for row in found] == [[0, 5]] * 3
    interleaved = np.random.default_rng(1).permutation(12)
    mixed = sink_mask(norms[:, interleaved], prompts[interleaved])
    np.testing.assert_array_equal(mixed, found[:, interleaved])


def test_the_first_token_by_option() -> None:
    norms, prompts = np.ones((2, 6)), np.array([0, 1, 1, 0, 2, 1])
    assert not sink_mask(norms, prompts).any()
    found = sink_mask(norms, prompts, first=True)
    assert list(np.flatnonzero(found[0])) == [0, 1, 4]


def test_scale_does_not_matter_and_short_prompts_have_none() -> None:
    X = np.random.default_rng(2).standard_normal((9, 4))
    X[3] *= 500
    np.testing.assert_array_equal(np.flatnonzero(sinks(X)), [3])
    np.testing.assert_array_equal(sinks(1e-4 * X), sinks(X))
    assert not sinks(np.array([[1e6, 0.0], [1.0, 0.0]])).any()


def test_padding_never_counts() -> None:
    attention = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    special = np.array([[1, 1, 1, 0, 1], [1, 0, 0, 1, 1]])
    np.testing.assert_array_equal(token_mask(attention), attention == 1)
    np.testing.assert_array_equal(token_mask(attention, special), attention == 1)
    dropped = token_mask(attention, special, special="drop")
    np.testing.assert_array_equal(dropped, [[0, 0, 0, 1, 0], [0, 1, 1, 0, 0]])
    # Planted: the special mask alone would let an unmarked pad count.
    unmarked = token_mask(attention, np.zeros_like(special), special="drop")
    assert not unmarked[0, :2].any()


def test_mean_direction_counts_every_token_once() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((10, 4)) + 1
    X[0] *= 1e4
    gathered = MeanDirection()
    gathered.add(X[:3])
    gathered.add(np.concatenate([X[3:], np.zeros((1, 4))]))
    mean = np.mean([x / np.linalg.norm(x) for x in X], axis=0)
    basis = gathered.basis()
    assert basis is not None
    np.testing.assert_allclose(basis[:, 0], mean / np.linalg.norm(mean))
    assert gathered.strength() == pytest.approx(float(np.linalg.norm(mean)))
    assert gathered.n_tokens == 10
    plain = X.mean(axis=0)
    assert abs(float(plain @ basis[:, 0])) / np.linalg.norm(plain) < 0.99


def test_no_direction_is_none() -> None:
    gathered = MeanDirection()
    assert gathered.basis() is None
    assert np.isnan(gathered.strength())
    gathered.add(np.array([[1.0, 2.0], [-1.0, -2.0]]))
    assert gathered.basis() is None


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: sinks(np.ones((2, 2)), threshold=1.0), OptionError, "above 1"),
        (lambda: sinks(np.ones((2, 2)), threshold=float("nan")), OptionError, "above 1"),
        (lambda: sink_mask(np.ones((1, 3)), np.zeros(2, dtype=int)), ShapeError, "3 norms"),
        (lambda: token_mask(np.ones((1, 2), dtype=int), special="no"), OptionError, "keep or drop"),
        (lambda: token_mask(np.ones((1, 2), dtype=int), special="drop"), OptionError, "use keep"),
        (
            lambda: token_mask(
                np.ones((1, 2), dtype=int), np.ones((1, 3), dtype=int), special="drop"
            ),
            ShapeError,
            "differ",
        ),
    ],
)
def test_bad_input_says_why(
    call: Callable[[], object], kind: type[EigenlensError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
