"""Intervals and p-values: enumeration, scipy, coverage by Monte Carlo, too few prompts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from eigenlens.errors import EigenlensError, OptionError, ShapeError
from eigenlens.measure import bootstrap
from eigenlens.measure.bootstrap import MIN_PROMPTS, bootstrap_ratios, cluster_intervals
from eigenlens.measure.significance import (
    binomial_p,
    holm,
    rank_p_value,
    ranks,
    sign_test,
    spearman,
    summarise,
    wilson,
)
from eigenlens.measure.sums import AlignmentSums


def slow_bootstrap(sums: np.ndarray, counts: np.ndarray, n: int, seed: int) -> np.ndarray:
    """One resample at a time, from the same multinomial counts, prompt by prompt."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        times = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)))
        total, tokens = np.zeros(sums.shape[1]), 0.0
        for p, k in enumerate(times):
            for _ in range(k):
                total += sums[p]
                tokens += counts[p]
        out.append(total / tokens)
    return np.array(out)


def test_bootstrap_is_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sums, counts = rng.random((6, 2)), rng.integers(1, 9, 6).astype(float)
    slow = slow_bootstrap(sums, counts, 40, seed=5)
    np.testing.assert_allclose(bootstrap_ratios(sums, counts, resamples=40, seed=5), slow)
    monkeypatch.setattr(bootstrap, "_KEPT", 0)
    monkeypatch.setattr(bootstrap, "_BLOCK", 20)  # three resamples a block
    np.testing.assert_allclose(bootstrap_ratios(sums, counts, resamples=40, seed=5), slow)
    # Planted: means of prompt means, and totals that are not divided by the drawn tokens.
    share = sums / counts[:, None]
    assert np.abs(bootstrap_ratios(share, np.ones(6), resamples=40, seed=5) - slow).max() > 1e-2
    assert not np.allclose(bootstrap_ratios(sums, counts, resamples=40, seed=6), slow)


def test_bootstrap_leaves_empty_prompts_out() -> None:
    sums, counts = np.array([[1.0], [0.0], [3.0]]), np.array([2.0, 0.0, 4.0])
    found = bootstrap_ratios(sums, counts, resamples=50, seed=1)
    np.testing.assert_array_equal(
        found, bootstrap_ratios(sums[[0, 2]], counts[[0, 2]], resamples=50, seed=1)
    )


def coverage(prompts: int, *, by_token: bool = False, trials: int = 3000) -> float:
    """Share of 95 % intervals that hold the truth, 0; 10 tokens a prompt that share a part."""
    rng = np.random.default_rng(11)
    shared = rng.standard_normal((prompts, 1, trials))
    tokens = shared + rng.standard_normal((prompts, 10, trials))
    if by_token:
        sums, counts = tokens.reshape(prompts * 10, trials), np.ones(prompts * 10)
    else:
        sums, counts = tokens.sum(axis=1), np.full(prompts, 10.0)
    # Every trial is a column; all share the resamples, which costs one matrix product.
    found = cluster_intervals(sums, counts, resamples=2000, minimum=1)
    return float(
        np.mean([i.low is not None and i.high is not None and i.low <= 0 <= i.high for i in found])
    )


@pytest.mark.parametrize(("prompts", "expected"), [(4, 0.78), (8, 0.90), (16, 0.93)])
def test_coverage_of_the_cluster_bootstrap(prompts: int, expected: float) -> None:
    # Four standard errors of a share of 3000, and half a unit of the last digit given.
    error = 4 * math.sqrt(expected * (1 - expected) / 3000) + 0.005
    assert abs(coverage(prompts) - expected) < error


def test_a_bootstrap_over_tokens_covers_far_too_little() -> None:
    assert coverage(16, by_token=True, trials=400) < 0.7


@pytest.mark.parametrize("prompts", [1, 4, MIN_PROMPTS - 1])
def test_too_few_prompts_give_no_interval_and_no_p(prompts: int) -> None:
    (interval,) = cluster_intervals(np.ones((prompts, 1)), np.ones(prompts))
    sign = sign_test(np.ones(prompts))
    rank = rank_p_value(0.9, np.zeros(200), n_prompts=prompts)
    assert (interval.low, interval.high, sign.p_value, rank.value) == (None, None, None, None)
    for warning in (interval.warning, sign.warning, rank.warning):
        assert warning is not None
        told = "1 prompt is too few" if prompts == 1 else f"{prompts} prompts are too few"
        assert warning.startswith(told)
        assert "16" in warning


def test_sixteen_prompts_are_enough() -> None:
    rng = np.random.default_rng(2)
    (interval,) = cluster_intervals(rng.random((16, 1)), np.ones(16))
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < interval.high
    assert interval.warning is None
    assert sign_test(rng.standard_normal(16)).p_value is not None
    assert rank_p_value(0.9, np.zeros(200), n_prompts=16).value == pytest.approx(2 / 201)
    # Prompts without tokens are no prompts.
    (interval,) = cluster_intervals(np.ones((17, 1)), np.r_[np.ones(15), 0, 0])
    assert interval.low is None


def enumerated_p(k: int, n: int, alternative: str) -> float:
    """Over all 2^n outcomes of n fair coins."""
    heads = [sum(o) for o in itertools.product((0, 1), repeat=n)]
    above = sum(h >= k for h in heads) / len(heads)
    below = sum(h <= k for h in heads) / len(heads)
    if alternative == "two-sided":
        return min(1.0, 2 * min(above, below))
    return above if alternative == "greater" else below


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_binomial_p_by_enumeration(alternative: significance.Alternative) -> None:
    for n in range(1, 9):
        for k in range(n + 1):
            p = binomial_p(k, n, alternative)
            assert p == pytest.approx(enumerated_p(k, n, alternative), abs=1e-14)
            assert p == pytest.approx(scipy.stats.binomtest(k, n, 0.5, alternative).pvalue)
    assert binomial_p(0, 0, alternative) == 1.0
    # Planted: P(more than k), the usual slip, is another number.
    assert abs(scipy.stats.binom.sf(6, 8, 0.5) - binomial_p(6, 8, "greater")) > 0.05


def test_sign_test_drops_ties_and_says_so() -> None:
    found = sign_test(np.r_[np.ones(12), -np.ones(3), np.zeros(4), [np.nan]])
    assert (found.positive, found.negative, found.ties) == (12, 3, 4)
    assert found.p_value == pytest.approx(scipy.stats.binomtest(12, 15).pvalue)
    assert found.warning == "4 of 19 prompts are ties and were dropped from the sign test"
    assert sign_test(np.r_[np.ones(12), -np.ones(6)]).warning is None
    assert sign_test(np.zeros(20)).p_value == 1.0
    assert sign_test(-np.ones(20), alternative="greater").p_value == 1.0


def test_rank_p_value_by_hand() -> None:
    null = np.arange(1, 100) / 100  # 99 draws
    assert rank_p_value(0.995, null, alternative="greater").value == 1 / 100
    assert rank_p_value(0.99, null, alternative="greater").value == 2 / 100  # ties count
    assert rank_p_value(0.995, null).value == 2 / 100
    assert rank_p_value(0.5, null).value == 1.0
    assert rank_p_value(0.005, null, alternative="less").value == 1 / 100
    assert rank_p_value(0.005, null, alternative="greater").value == 1.0
    lost = rank_p_value(float("nan"), null)
    assert lost.value is None
    assert lost.warning is not None


def test_rank_p_value_is_uniform_under_the_null() -> None:
    rng = np.random.default_rng(3)
    p = np.array([rank_p_value(x[0], x[1:]).value for x in rng.standard_normal((4000, 40))])
    for level in (0.05, 0.1, 0.5):
        share = float((p <= level).mean())
        assert abs(share - level) < 4 * math.sqrt(level / 4000)  # 40 ranks: these are attained


def slow_holm(p: Sequence[float]) -> list[float]:
    """Smallest level at which the step-down procedure rejects each hypothesis."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    out = [0.0] * len(p)
    for place, i in enumerate(order):
        out[i] = max(min(1.0, (len(p) - j) * p[order[j]]) for j in range(place + 1))
    return out


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm(p: list[float]) -> None:
    found = holm(p)
    assert found == pytest.approx(slow_holm(p))
    assert all(a is not None and a >= b for a, b in zip(found, p, strict=True))


def test_holm_known_values() -> None:
    # Two rejected at 5 %, of four; a missing p is no test.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.02, None]) == [None, 0.02, None]
    assert holm([]) == []
    # Planted: Bonferroni is larger.
    assert holm([0.01, 0.04])[1] != pytest.approx(0.08)


def test_wilson_against_its_equation_and_scipy() -> None:
    for k, n in ((0, 10), (3, 10), (10, 10), (57, 64), (1, 1)):
        found = wilson(float(k), n)
        expected = scipy.stats.binomtest(k, n).proportion_ci(method="wilson")
        assert found.low == pytest.approx(expected.low, abs=1e-12)
        assert found.high == pytest.approx(expected.high, abs=1e-12)
    half = wilson(4.5, 10)
    assert half.low is not None
    z = scipy.stats.norm.ppf(0.975)
    assert (0.45 - half.low) ** 2 == pytest.approx(z * z * half.low * (1 - half.low) / 10)
    assert wilson(0.0, 0).low is None


def test_ranks_share_ties() -> None:
    x = np.random.default_rng(4).integers(0, 5, 40).astype(float)
    np.testing.assert_array_equal(ranks(x), scipy.stats.rankdata(x))
    np.testing.assert_array_equal(ranks(np.array([3.0, 1.0, 3.0])), [2.5, 1, 2.5])


def test_spearman_against_a_published_example() -> None:
    # The example of ci.spear in Bonett's R package statpsych.
    y = [21.0, 4.0, 9.0, 12.0, 35.0, 18.0, 10.0, 22.0, 24.0, 1.0, 6.0, 8.0, 13.0, 16.0, 19.0]
    x = [67.0, 28.0, 30.0, 28.0, 52.0, 40.0, 25.0, 37.0, 44.0, 10.0, 14.0, 20.0, 28.0, 40.0, 51.0]
    found = spearman(x, y)
    assert found.r == pytest.approx(0.8699639, abs=5e-8)
    assert found.interval.low == pytest.approx(0.5840951, abs=5e-8)
    assert found.interval.high == pytest.approx(0.9638297, abs=5e-8)
    assert (found.n, found.dropped, found.interval.warning) == (15, 0, None)
    # Planted: Fisher's 1/(n - 3), meant for Pearson's r, is narrower.
    assert math.tanh(math.atanh(0.8699639) - 1.96 / math.sqrt(12)) > 0.6


@given(st.integers(0, 2**32 - 1), st.integers(4, 40))
def test_spearman_is_that_of_scipy_and_of_ranks(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, n).astype(float), rng.standard_normal(n)
    x[:2] = 0.0, 1.0
    found = spearman(list(x), list(y))
    assert found.r == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    monotone = spearman(list(np.exp(x)), list(y**3))
    assert monotone.r == pytest.approx(found.r, abs=1e-12)
    i = found.interval
    if i.low is not None and i.high is not None and found.r is not None:
        assert -1 <= i.low <= found.r <= i.high <= 1
        assert (i.warning is not None) == (n < 10)


def test_spearman_coverage() -> None:
    rng = np.random.default_rng(5)
    trials, inside = 300, 0
    true = 6 / math.pi * math.asin(0.6 / 2)  # of a bivariate normal with correlation .6
    for _ in range(trials):
        x = rng.standard_normal(30)
        y = 0.6 * x + 0.8 * rng.standard_normal(30)
        i = spearman(list(x), list(y)).interval
        assert i.low is not None
        assert i.high is not None
        inside += i.low <= true <= i.high
    assert abs(inside / trials - 0.95) < 4 * math.sqrt(0.95 * 0.05 / trials)


def test_spearman_without_an_answer_says_why() -> None:
    missing = spearman([0.1, None, float("nan"), 0.4], [1.0, 2.0, 3.0, 4.0])
    assert (missing.n, missing.dropped, missing.r) == (2, 2, 1.0)
    assert missing.interval.low is None
    constant = spearman([1.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert constant.r is None
    assert "constant" in str(constant.interval.warning)
    full = spearman([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 9.0])
    assert full.r == 1.0
    assert full.interval.low is None
    assert "agree fully" in str(full.interval.warning)
    assert spearman([], []).r is None


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: holm([1.5]), OptionError, "between 0 and 1"),
        (lambda: holm([float("nan")]), OptionError, "between 0 and 1"),
        (lambda: wilson(5, 4), OptionError, "5 of 4"),
        (lambda: wilson(1, 2, level=95), OptionError, "0.95"),
        (lambda: binomial_p(3, 2), OptionError, "3 of 2"),
        (lambda: sign_test(np.ones(20), alternative="up"), OptionError, "two-sided, greater"),  # type: ignore[arg-type]
        (lambda: rank_p_value(0.5, np.zeros(0)), ShapeError, "at least one draw"),
        (lambda: rank_p_value(0.5, np.array([np.nan])), ShapeError, "finite"),
        (lambda: spearman([1.0], [1.0, 2.0]), ShapeError, "1 and 2"),
        (lambda: bootstrap_ratios(np.ones((2, 1)), np.zeros(2)), ShapeError, "no prompt"),
        (lambda: bootstrap_ratios(np.ones((2, 1)), np.ones(3)), ShapeError, "2 sums but 3"),
        (
            lambda: bootstrap_ratios(np.ones((2, 1)), np.ones(2), resamples=0),
            OptionError,
            "at least 1",
        ),
        (
            lambda: cluster_intervals(np.ones((20, 1)), np.ones(20), level=1.0),
            OptionError,
            "between 0 and 1",
        ),
    ],
)
def test_bad_input_says_why(
    call: Callable[[], object], kind: type[EigenlensError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_summary_of_sums() -> None:
    rng = np.random.default_rng(6)
    sums = AlignmentSums(2)
    for p in range(20):
        n = int(rng.integers(4, 9))
        before = rng.random((2, n))
        after = before + np.array([[0.2], [0.0]]) + 0.1 * rng.standard_normal((2, n))
        sums.add(before, after, p, signed=(before, after))
    pulled, idle = summarise(sums, 0), summarise(sums, 1)
    assert pulled.rho == sums.rho()[0]
    assert pulled.n_tokens == sums.n_tokens
    for s in (pulled, idle):
        pairs = [(s.gamma, s.gamma_ci), (s.gain, s.gain_ci), (s.rho, s.rho_ci)]
        assert s.signed_gain is not None
        assert s.signed_gain_ci is not None
        pairs.append((s.signed_gain, s.signed_gain_ci))
        for value, ci in pairs:
            assert ci.low is not None
            assert ci.high is not None
            assert ci.low <= value <= ci.high
        share = np.sign(sums.wins[:, 0 if s is pulled else 1] / sums.counts - 0.5)
        assert s.p_half.positive == int((share > 0).sum())
    assert pulled.p_half.p_value is not None
    assert pulled.p_half.p_value < 1e-4
    assert idle.p_half.p_value is not None
    assert idle.p_half.p_value > 1e-2
    assert idle.gain_ci.low is not None
    assert idle.gain_ci.high is not None
    assert idle.gain_ci.low < 0 < idle.gain_ci.high
    # The same statistic alone draws the same prompts.
    (alone,) = cluster_intervals(sums.wins[:, :1], sums.counts)
    assert pulled.rho_ci == alone


def test_summary_of_few_prompts_keeps_the_means() -> None:
    sums = AlignmentSums()
    sums.add(np.array([0.1, 0.2]), np.array([0.2, 0.3]), np.array([0, 1]))
    found = summarise(sums)
    assert found.rho == 1.0
    assert found.rho_ci.low is None
    assert found.p_half.p_value is None
    assert found.signed_gain is None
    assert np.isnan(summarise(AlignmentSums()).rho)
