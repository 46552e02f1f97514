"""Verdicts at the border: which of them a draw or two of their null would turn."""

from __future__ import annotations

from collections.abc import Sequence

from eigenlens.measure.significance import holm


def draws_to_turn(
    p_values: Sequence[float | None], draws: Sequence[int | None], level: float, most: int = 2
) -> list[int | None]:
    """How few draws of its null turn each verdict ``holm(p) < level``: 1 to `most`, else None.

    A rank p-value is ``(r + 1) / (m + 1)``: of a test below `level` it is taken with r + 1, ... as
    extreme draws, of another with r - 1, ..., the other tests as they are. A verdict that one draw
    turns would often have been another with another seed.

    Parameters
    ----------
    p_values, draws
        Rank p-values before the correction, and how many draws m each null has; None is no test.
    level
        Of the verdict after Holm's correction.
    most
        The number of draws from which a verdict counts as firm.

    Raises
    ------
    OptionError
        As `holm`.

    Examples
    --------
    >>> draws_to_turn([2 / 1201, 1.0], [1200, 1200], 0.0035)
    [1, None]
    """
    before = holm(p_values)
    out: list[int | None] = [None] * len(p_values)
    for i, (p, m, corrected) in enumerate(zip(p_values, draws, before, strict=True)):
        if p is None or m is None or corrected is None:
            continue
        way = 1 if corrected < level else -1
        extreme = round(p * (m + 1)) - 1
        for few in range(1, most + 1):
            if not 0 <= extreme + way * few <= m:
                break
            tried = (extreme + way * few + 1) / (m + 1)
            after = holm([*p_values[:i], tried, *p_values[i + 1 :]])[i]
            if after is not None and (after < level) != (corrected < level):
                out[i] = few
                break
    return out
