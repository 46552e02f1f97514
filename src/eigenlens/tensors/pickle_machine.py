"""A pickle reader that runs no code: plain data and descriptions of tensors come out, no more.

A pickle is a program for a stack machine. Python's `pickle.Unpickler` imports and calls what the
program names; this machine knows only a fixed list of names, each of which becomes a plain value
here, and refuses every other one before anything could happen. It is driven by
`pickletools.genops`, which decodes opcodes without executing them; with the memo a dict and every
string bounded by what is left of the file, the size of memory follows the size of the file.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from eigenlens.errors import FormatError
from eigenlens.inert import inert

_STRING_LIMIT = 16 * 1024 * 1024
_MARK = object()


@dataclass(frozen=True, eq=False)
class Global:
    """A name that the pickle refers to, not what the name stands for."""

    name: str


@dataclass(frozen=True, eq=False)
class Opaque:
    """The result of an allowed call whose value does not matter (a device)."""

    name: str


class OrderedMap(dict[Any, Any]):
    """Stands for `collections.OrderedDict`: attributes that a pickle gives it are dropped."""


class _Bounded:
    """The file as `genops` sees it: no single read is longer than a genuine pickle needs."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, n: int) -> bytes:
        if n > _STRING_LIMIT:
            raise ValueError("a string of the pickle is longer than any tensor name")
        return self._file.read(n)

    def readline(self) -> bytes:
        line = self._file.readline(65536)
        if b"\\" in line:  # genops would decode escapes; names of globals have none
            raise ValueError("a backslash in a name")
        return line

    def tell(self) -> int:
        return self._file.tell()


class Machine:
    """Run one pickle program over plain data.

    Parameters
    ----------
    calls
        What an allowed global does when called: full name to a function of the arguments.
    constants
        Allowed globals that are never called (storage types, dtypes).
    persistent
        Meaning of a persistent id (torch: a reference to a storage).
    """

    def __init__(
        self,
        calls: dict[str, Callable[..., Any]],
        constants: frozenset[str],
        persistent: Callable[[Any], Any],
    ) -> None:
        self._calls = {"collections.OrderedDict": _ordered, **calls}
        self._constants = constants
        self._persistent = persistent

    def load(self, file: BinaryIO, where: str) -> Any:
        """The object of the pickle that starts at the file's position; stops right behind it.

        Raises
        ------
        FormatError
            The pickle is damaged, uses a construct that weight files do not have, or names code.
        """
        stack: list[Any] = []
        memo: dict[int, Any] = {}
        try:
            for opcode, arg, _ in pickletools.genops(cast("IO[bytes]", _Bounded(file))):
                if opcode.name == "STOP":
                    return stack.pop()
                self._step(opcode.name, arg, stack, memo, where)
        except FormatError:
            raise
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise FormatError(
                f"{where}: not a readable torch file (damaged pickle: {inert(str(error))[:120]}); "
                "get the file again"
            ) from error
        raise FormatError(f"{where}: the pickle has no end; the file is truncated, get it again")

    def _step(self, op: str, arg: Any, stack: list[Any], memo: dict[int, Any], where: str) -> None:
        if op in _IGNORED:
            return
        if op in _PUSH_ARGUMENT:
            stack.append(arg)
        elif op in _PUSH_VALUE:
            stack.append(_PUSH_VALUE[op]())
        elif op in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(arg)] = stack[-1]
        elif op == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif op in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(arg)])
        elif op in _TUPLES:
            n = _TUPLES[op]
            items = tuple(stack[len(stack) - n :]) if len(stack) >= n else _short()
            del stack[len(stack) - n :]
            stack.append(items)
        elif op in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS", "POP_MARK"):
            _collect(op, _since_mark(stack), stack)
        elif op == "APPEND":
            item = stack.pop()
            _expect(stack[-1], list).append(item)
        elif op == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _expect(stack[-1], dict)[_key(key)] = value
        elif op == "POP":
            stack.pop()
        elif op == "GLOBAL":
            stack.append(self._global(".".join(arg.split(" ", 1)), where))
        elif op == "STACK_GLOBAL":
            name, module = stack.pop(), stack.pop()
            stack.append(self._global(f"{_expect(module, str)}.{_expect(name, str)}", where))
        elif op == "REDUCE":
            args, function = stack.pop(), stack.pop()
            stack.append(self._call(function, _expect(args, tuple), where))
        elif op == "BUILD":
            stack.pop()
            if not isinstance(stack[-1], OrderedMap):
                raise FormatError(
                    f"{where}: the pickle sets the state of a {type(stack[-1]).__name__}; that is "
                    "refused, as no code of a model file is run"
                )
        elif op == "BINPERSID":
            stack.append(self._persistent(stack.pop()))
        else:
            raise FormatError(
                f"{where}: pickle opcode {op} is not used by weight files and is refused; no code "
                "of a model file is run: use a safetensors version"
            )

    def _global(self, name: str, where: str) -> Global:
        if name not in self._calls and name not in self._constants:
            raise FormatError(
                f"{where}: refers to '{inert(name)}', which is not among the names that rebuild "
                "tensors; code in a model file is not run: use a safetensors version of the model"
            )
        return Global(name)

    def _call(self, function: Any, args: tuple[Any, ...], where: str) -> Any:
        if not isinstance(function, Global) or function.name not in self._calls:
            shown = function.name if isinstance(function, Global) else type(function).__name__
            raise FormatError(f"{where}: calls '{inert(shown)}'; code in a model file is not run")
        return self._calls[function.name](*args)


def _ordered(pairs: Any = (), *rest: Any) -> OrderedMap:
    if rest:
        raise TypeError("an ordered dict of several arguments")
    return OrderedMap((_key(key), value) for key, value in pairs)


def _key(key: Any) -> Any:
    # Hashing a tuple nested a million deep overflows the C stack, so keys are plain.
    if not isinstance(key, (str, int, float, bytes, type(None))):
        raise TypeError(f"a {type(key).__name__} as dictionary key")
    return key


def _short() -> tuple[Any, ...]:
    raise IndexError("stack is too short")


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"found {type(value).__name__} where {kind.__name__} must be")
    return value


def _since_mark(stack: list[Any]) -> list[Any]:
    for index in range(len(stack) - 1, -1, -1):
        if stack[index] is _MARK:
            items = stack[index + 1 :]
            del stack[index:]
            return items
    raise IndexError("no mark on the stack")


def _collect(op: str, items: list[Any], stack: list[Any]) -> None:
    pairs: dict[Any, Any] = {}
    if op in ("DICT", "SETITEMS"):
        pairs = dict(zip(map(_key, items[::2]), items[1::2], strict=True))
    if op == "TUPLE":
        stack.append(tuple(items))
    elif op == "LIST":
        stack.append(items)
    elif op == "DICT":
        stack.append(pairs)
    elif op == "APPENDS":
        _expect(stack[-1], list).extend(items)
    elif op == "SETITEMS":
        _expect(stack[-1], dict).update(pairs)


_IGNORED = frozenset({"PROTO", "FRAME"})
_PUSH_ARGUMENT = frozenset(
    {
        "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "BINFLOAT", "FLOAT",
        "BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "STRING",
        "BINBYTES", "SHORT_BINBYTES",
    }
)  # fmt: skip
_PUSH_VALUE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
