"""A griffe extension: names that a docstring explains together keep their own type and default.

In numpy style several names may share one text ("k, order, operator"). The parser gives all of them
the type and the default of the first; here each gets its own, from the signature or the class.
"""

from __future__ import annotations

from typing import Any

import griffe


class OwnTypes(griffe.Extension):
    """Corrects the sections Parameters and Attributes of every docstring."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """After a package has been read."""
        _walk(pkg)


def _walk(found: griffe.Object) -> None:
    for member in found.members.values():
        if isinstance(member, griffe.Alias):
            continue
        if member.docstring is not None and (member.is_function or member.is_class):
            for section in member.docstring.parsed:
                _correct(section, member)
        if member.is_module or member.is_class:
            _walk(member)


def _correct(section: Any, owner: Any) -> None:
    if section.kind is griffe.DocstringSectionKind.parameters and owner.is_function:
        known = {parameter.name: parameter for parameter in owner.parameters}
        for item in section.value:
            own = known.get(item.name.lstrip("*"))
            if own is not None:
                item.annotation, item.value = own.annotation, own.default
    if section.kind is griffe.DocstringSectionKind.attributes:
        for item in section.value:
            own = owner.members.get(item.name)
            if own is not None and own.is_attribute:
                item.annotation = own.annotation
