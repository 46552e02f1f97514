"""What steering is asked for, checked before any weight is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from eigenlens.errors import OptionError
from eigenlens.steering.edit import SITES, STEPS
from eigenlens.steering.probes import PROBES

AUTO = "auto"
FURTHEST = 1e100
"""Strengths are at most this large and at least its inverse: their squares fit a float64."""
NOISE = 1e-6
"""A KL below this, in nats per token, is rounding."""


@dataclass(frozen=True)
class SteerOptions:
    """How to steer, checked once.

    Attributes
    ----------
    token
        Texts (or ids) of the tokens that make the direction.
    direction
        A vector, or a file that holds one.
    contrast
        Two files of texts, or two lists of texts: positive, negative.
    from_layer
        The layer whose leading eigenvector is the direction.
    layer, stack
        The layer that is edited; -1 is the last.
    site
        ``attention`` or ``ffn``.
    steps_edited
        ``last`` or ``all``, for a layer that a pass runs several times.
    probe
        A name of `PROBES`; None for ``calibrated`` with text, ``eigen`` without.
    strength
        ``auto``, or a number; a negative one suppresses.
    target_cosine
        In place of a strength: the mean signed cosine to reach right after the sub-layer.
    max_kl
        Bound of ``auto``, in nats per token.
    sweep
        Whether to measure a curve over strengths.
    weights_only
        Without a running model: no text, no torch.
    batch_size, seed
        Prompts a batch; of random tokens, where a model has no tokenizer.
    """

    token: tuple[str | int, ...] = ()
    direction: Any = None
    contrast: tuple[Any, Any] | None = None
    from_layer: int | None = None
    layer: int = -1
    stack: str | None = None
    site: str = "attention"
    steps_edited: str = "last"
    probe: str | None = None
    strength: str | float = AUTO
    target_cosine: float | None = None
    max_kl: float = 0.5
    sweep: bool = False
    weights_only: bool = False
    batch_size: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        given = [
            name
            for name, is_given in (
                ("--token", bool(self.token)),
                ("--direction", self.direction is not None),
                ("--contrast", self.contrast is not None),
                ("--from-layer", self.from_layer is not None),
            )
            if is_given
        ]
        if len(given) != 1:
            found = " and ".join(given) if given else "no direction"
            raise OptionError(
                f"{found} given: say what to steer towards by one of --token, --direction, "
                "--contrast, --from-layer"
            )
        if self.stack is not None and not isinstance(self.stack, str):
            raise OptionError(f"stack is {self.stack!r}: it is a name, as decoder")
        for name, value, known in (
            ("site", self.site, SITES),
            ("steps-edited", self.steps_edited, STEPS),
            ("probe", self.probe or next(iter(PROBES)), tuple(PROBES)),
        ):
            if value not in known:
                raise OptionError(f"{name} is {value!r}: allowed are {', '.join(known)}")
        self._check_numbers()
        if self.weights_only:
            self._check_weights_only()
        elif self.site == "ffn" and self.probe in ("eigen", "placement"):
            raise OptionError(
                f"the probe {self.probe} makes an eigenvector of F, and the feed-forward part has "
                "no F: use --probe calibrated with --site ffn"
            )

    def _check_numbers(self) -> None:
        for name in ("layer", "from_layer", "batch_size", "seed"):
            value = getattr(self, name)
            if value is None and name == "from_layer":
                continue
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise OptionError(f"{name} is {value!r}: it is a whole number")
            object.__setattr__(self, name, int(value))
        for name in ("target_cosine", "max_kl"):
            value = getattr(self, name)
            if value is None and name == "target_cosine":
                continue
            if isinstance(value, bool) or not isinstance(value, Real):
                raise OptionError(f"{name} is {value!r}: it is a number")
            object.__setattr__(self, name, _float(value))
        if self.strength != AUTO:
            number = isinstance(self.strength, Real) and not isinstance(self.strength, bool)
            size = abs(_float(self.strength)) if number else math.nan
            if not math.isfinite(size) or not size:
                raise OptionError(
                    f"strength is {self.strength!r}: it is auto, or a number that is not 0 (a "
                    "negative one suppresses)"
                )
            if not 1 / FURTHEST <= size <= FURTHEST:
                raise OptionError(
                    f"strength is {self.strength!r}: its size lies between {1 / FURTHEST:g} and "
                    f"{FURTHEST:g}"
                )
            object.__setattr__(self, "strength", _float(self.strength))
            if self.target_cosine is not None:
                raise OptionError("--strength and --target-cosine exclude each other: give one")
        if self.target_cosine is not None and not 0 < self.target_cosine < 1:
            raise OptionError(
                f"target cosine is {self.target_cosine}; it lies between 0 and 1, both excluded"
            )
        if not (math.isfinite(self.max_kl) and self.max_kl > 0):
            raise OptionError(f"max-kl is {self.max_kl}: it is a positive number of nats per token")
        if self.max_kl < NOISE:
            raise OptionError(f"max-kl is {self.max_kl}: a KL below {NOISE:g} is rounding noise")
        if self.batch_size < 1:
            raise OptionError(f"batch size is {self.batch_size}: it must be at least 1")
        if self.seed < 0:
            raise OptionError(f"seed is {self.seed}: seeds are not negative")

    def _check_weights_only(self) -> None:
        faults = {
            "--contrast needs the model to read texts": self.contrast is not None,
            "--target-cosine is measured on text": self.target_cosine is not None,
            "--sweep is measured on text": self.sweep,
            "--probe calibrated is fitted to text": self.probe == "calibrated",
            "--site ffn has no spectrum, so that weights alone say nothing": self.site == "ffn",
        }
        for what, is_so in faults.items():
            if is_so:
                raise OptionError(f"{what}: leave out --weights-only")
        if self.strength == AUTO:
            raise OptionError(
                "--strength auto is measured on text: with --weights-only give a number, such as "
                "5 (the output shows strength x q.u, about the new eigenvalue)"
            )

    @property
    def probe_name(self) -> str:
        """The probe that is used."""
        return self.probe or ("eigen" if self.weights_only else "calibrated")

    @property
    def needs_head(self) -> bool:
        """Whether the strength is searched under a bound on the KL, for which a model predicts."""
        return self.strength == AUTO and self.target_cosine is None

    def record(self) -> dict[str, Any]:
        """For the JSON: plain values only."""
        shown: dict[str, Any] = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("token", "direction", "contrast", "probe")
        }
        direction = self.direction
        return {
            "token": list(self.token) or None,
            "direction": str(direction)
            if isinstance(direction, (str, Path))
            else None
            if direction is None
            else "array",
            "contrast": None if self.contrast is None else [_shown(x) for x in self.contrast],
            "probe": self.probe_name,
            **shown,
        }


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of many digits
        return math.inf


def _shown(texts: Any) -> str:
    return str(texts) if isinstance(texts, (str, Path)) else f"{len(texts)} texts"


def token_list(token: str | int | Sequence[str | int] | None) -> tuple[str | int, ...]:
    """One token or several, as a tuple.

    Raises
    ------
    OptionError
        One is neither a text nor a whole number.
    """
    if token is None:
        return ()
    several = isinstance(token, Iterable) and not isinstance(token, (str, bytes))
    found: tuple[Any, ...] = tuple(token) if several else (token,)  # type: ignore[arg-type]
    for one in found:
        if isinstance(one, bool) or not isinstance(one, (str, Integral)):
            raise OptionError(f"token is {one!r}: it is a text or a token's number, or several")
    return tuple(one if isinstance(one, str) else int(one) for one in found)


def two_texts(contrast: Any) -> tuple[Any, Any] | None:
    """The two sides of a contrast.

    Raises
    ------
    OptionError
        They are not two, or a side is neither a file nor a list of texts.
    """
    if contrast is None:
        return None
    sides = contrast if isinstance(contrast, (tuple, list)) and len(contrast) == 2 else ()
    if not sides or not all(_is_texts(side) for side in sides):
        raise OptionError(
            "contrast is no pair of texts: give two files, or two lists of texts, positive first"
        )
    return sides[0], sides[1]


def _is_texts(side: Any) -> bool:
    if isinstance(side, (str, Path)):
        return True
    return isinstance(side, (tuple, list)) and all(isinstance(text, str) for text in side)
