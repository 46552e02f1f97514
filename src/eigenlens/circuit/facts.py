"""Facts that a config decides: a truthy key, the value of a key, nested as needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Switch(Generic[T]):
    """A fact that the config decides: `yes` where its key is truthy, else `no` (rules again)."""

    key: str
    default: bool
    yes: Rule[T]
    no: Rule[T]


@dataclass(frozen=True)
class Cases(Generic[T]):
    """A fact that a config key's value decides; `other` where no case names it."""

    key: str
    cases: Mapping[Any, Rule[T]]
    other: Rule[T]


Rule: TypeAlias = T | Switch[T] | Cases[T]


def flag(key: str, default: bool) -> Switch[bool]:
    """A boolean config key with its default."""
    return Switch(key, default, True, False)


def decide(rule: Rule[T], config: Mapping[str, Any]) -> T:
    """What a rule says under a config; a key that is present decides, None counts as false."""
    while isinstance(rule, (Switch, Cases)):
        if isinstance(rule, Switch):
            rule = rule.yes if config.get(rule.key, rule.default) else rule.no
        else:
            value = config.get(rule.key)
            known = isinstance(value, (str, int, float, bool)) and value in rule.cases
            rule = rule.cases[value] if known else rule.other
    return rule
