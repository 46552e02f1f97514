"""A model's config as the model itself reads it: stated keys first, then its class's defaults.

transformers leaves out of config.json what equals the default of the config class, always so in
the nested sections of composite models. `defaults.json` holds those defaults for every model type;
tools/write_config_defaults.py writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from eigenlens.errors import ArchitectureError, FormatError
from eigenlens.inert import inert

ABSENT = object()
LONGEST_LITERAL = 64


@cache
def _all_defaults() -> Mapping[str, Mapping[str, Any]]:
    text = files("eigenlens.circuit").joinpath("defaults.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, Any]] = MappingProxyType(json.loads(text))
    return found


def class_defaults(model_type: Any) -> Mapping[str, Any]:
    """What transformers' config class of a model type assumes; empty if there is none."""
    if not isinstance(model_type, str):
        return {}
    return _all_defaults().get(model_type, {})


def literal(key: str) -> Any:
    """What a key that starts with `=` says itself.

    Raises
    ------
    FormatError
        If it is not JSON, or longer than any number.
    """
    try:
        if len(key) > LONGEST_LITERAL:
            raise ValueError(f"{len(key)} characters")
        return json.loads(key[1:])
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"'{inert(key[:40])}' is no literal: expected '=' and a number, as in '=4'"
        ) from error


class Config(Mapping[str, Any]):
    """One config, or one section of it; a mapping of what holds, stated or by default.

    Parameters
    ----------
    stated
        What config.json says.
    model_type
        Whose defaults hold; by default the one that is stated.
    root
        The whole config, for keys that start with `/`.
    """

    def __init__(
        self, stated: Mapping[str, Any], model_type: Any = None, root: Config | None = None
    ) -> None:
        self.stated = stated
        self.model_type = model_type or stated.get("model_type")
        self.root: Config = self if root is None else root
        self.defaults = class_defaults(self.model_type)
        renamed: Mapping[str, str] = self.defaults.get("@map", {})
        self._other = dict(renamed) | {own: alias for alias, own in renamed.items()}

    def __getitem__(self, key: str) -> Any:
        """A key's value; `/a.b` is looked up from the root, `a.b` in a section, `=4` is 4.

        `#a` is the length of a list, `+a` its sum, `a//b` a quotient rounded down.
        """
        found = self.look_up(key)
        if found is ABSENT:
            found = self.default(key)
        if found is ABSENT:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        """Stated keys and those with a default."""
        names = [key for key in self.defaults if not key.startswith("@")]
        return iter(dict.fromkeys([*self.stated, *names]))

    def __len__(self) -> int:
        """How many keys hold."""
        return sum(1 for _ in self)

    def look_up(self, key: str) -> Any:
        """What is stated for a key (or a literal, or made of several keys), or `ABSENT`.

        Raises
        ------
        FormatError
            If a sum or quotient is asked of what is no number, or a literal is not JSON.
        """
        if key.startswith("="):
            return literal(key)
        if key.startswith("#"):
            listed = self.get(key[1:])
            return len(listed) if isinstance(listed, (list, tuple)) else ABSENT
        if key.startswith("+") or "//" in key:
            return self._made(key)
        here, name = self._place(key)
        return ABSENT if here is None else here._among(here.stated, name)

    def _among(self, values: Mapping[str, Any], name: str) -> Any:
        """The value of a key under either of its names, or `ABSENT`."""
        for known in (name, self._other.get(name)):
            if known is not None and known in values:
                return values[known]
        return ABSENT

    def _made(self, key: str) -> Any:
        parts = key.removeprefix("+").split("//")
        values = [self.get(part, ABSENT) for part in parts]
        if any(value is ABSENT for value in values):
            return ABSENT
        if len(parts) > 2:
            raise FormatError(f"'{inert(key)[:80]}' has {len(parts)} parts: a quotient has two")
        numbers = values[0] if key.startswith("+") else values
        if not isinstance(numbers, (list, tuple)) or not all(
            type(n) is int and 0 < n < 2**31 for n in numbers
        ):
            raise FormatError(
                f"config keys {', '.join(parts)} are {inert(repr(values))[:80]}: expected positive "
                "whole numbers"
            )
        return sum(numbers) if key.startswith("+") else numbers[0] // numbers[1]

    def default(self, key: str) -> Any:
        """What the config class assumes for a key, or `ABSENT`."""
        if key.startswith(("+", "=", "#")) or "//" in key:
            return ABSENT
        here, name = self._place(key)
        return ABSENT if here is None else here._among(here.defaults, name)

    def _place(self, key: str) -> tuple[Config | None, str]:
        here: Config = self.root if key.startswith("/") else self
        *path, name = key.removeprefix("/").split(".")
        for part in path:
            found = here.find_section(part)
            if found is None:
                return None, name
            here = found
        return here, name

    def find_section(self, key: str) -> Config | None:
        """A section, with the defaults of its own model type; None if there is none."""
        found = self.stated.get(key)
        known: Mapping[str, str] = self.defaults.get("@sections", {})
        if isinstance(found, Mapping):
            own = found.get("model_type")
            if own is None or not class_defaults(own):
                own = known.get(key, own)
            return Config(found, own, self.root)
        if found is None and key in known:
            return Config({}, known[key], self.root)
        return None

    def section(self, path: tuple[str, ...]) -> Config:
        """A section of a section.

        Raises
        ------
        ArchitectureError
            If there is none.
        """
        here = self
        for key in path:
            found = here.find_section(key)
            if found is None:
                raise ArchitectureError(
                    f"the config has no section {key!r}, which describes a stack: add it"
                )
            here = found
        return here
