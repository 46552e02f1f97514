"""Groups of options: a dataclass in a command's signature stands for the options in it.

A group's fields are options as a command would write them, and its methods are what every command
does with them::

    @dataclass(frozen=True)
    class Talk(Group):
        quiet: Annotated[bool, typer.Option(help="Say less.")] = False

    @grouped
    def hello(name: str, *, talk: Talk) -> None: ...

typer then sees ``hello(name, quiet)``, and `hello` is called with ``talk=Talk(quiet=...)``. The
options stand in ``--help`` where the group stands in the signature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


@dataclass(frozen=True)
class Group:
    """Options that belong together."""

    def asked(self) -> dict[str, Any]:
        """The options as arguments of a library function.

        A choice is its word; an underscore that keeps a name apart from a builtin is gone.
        """
        values = {f.name.rstrip("_"): getattr(self, f.name) for f in fields(self)}
        return {k: v.value if isinstance(v, Enum) else v for k, v in values.items()}


def arguments(*groups: Group) -> dict[str, Any]:
    """What several groups ask for, as one set of arguments."""
    return {name: value for group in groups for name, value in group.asked().items()}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with every group in its signature replaced by the options of the group.

    Raises
    ------
    TypeError
        Two options have one name, when the command is defined.
    """
    hints = get_type_hints(command, include_extras=True)
    shown: dict[str, Parameter] = {}
    groups: dict[str, type[Group]] = {}
    for name, given in signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and issubclass(kind, Group):
            groups[name] = kind
            options = _options(hints[name])
        else:
            options = [given.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)]
        for option in options:
            if option.name in shown:
                raise TypeError(f"{command.__name__} has two options called {option.name}")
            shown[option.name] = option

    @wraps(command)
    def packed(**given: Any) -> None:
        made = {
            name: kind(**{f.name: given.pop(f.name) for f in fields(kind) if f.name in given})
            for name, kind in groups.items()
        }
        command(**given, **made)

    packed.__signature__ = Signature(list(shown.values()))  # type: ignore[attr-defined]
    packed.__annotations__ = {name: option.annotation for name, option in shown.items()}
    return packed


@cache
def _options(kind: Any) -> list[Parameter]:
    """The fields of a group as parameters of a command."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
