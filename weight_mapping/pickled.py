"""What a pickle describes, without unpickling it: nothing is imported or called, whatever it asks for.

Only what torch.save writes for tensors by name is understood: texts, numbers, lists, tuples, dicts, references to storages,
and calls, which are given back as `Made`. All else raises ValueError, which says what it was.
"""

import pickletools
from collections.abc import Hashable
from dataclasses import dataclass
from mmap import mmap
from typing import Any

MOST_STEPS = 600_000
"""Of a pickle; a tensor takes 28."""

_LITERALS = frozenset(
    "INT LONG FLOAT BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "STRING BINSTRING SHORT_BINSTRING".split()
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_TENSORS = ("torch._utils._rebuild_", "torch._tensor._rebuild_", "torch.serialization._get_layout", "torch.Size")
"""What makes tensors, of any kind: the names begin so."""
_NOTHING = frozenset(("PROTO", "FRAME"))


@dataclass(frozen=True)
class Name:
    """Something that the pickle would import."""

    name: str


@dataclass(frozen=True, eq=False)
class Made:
    """What a call would return."""

    by: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Stored:
    """What lies outside of the pickle."""

    key: tuple[Any, ...]


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def step(self, op: str, argument: Any) -> None:
        push, pop = self.stack.append, self.stack.pop
        if op in _LITERALS:
            push(argument)
        elif op in _CONSTANTS:
            push(_CONSTANTS[op])
        elif op in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif op in ("BINGET", "LONG_BINGET", "GET"):
            push(self.memo[int(argument)])
        elif op == "GLOBAL":
            push(Name(argument.replace(" ", ".")))
        elif op == "STACK_GLOBAL":
            name, module = pop(), pop()
            push(Name(f"{module}.{name}"))
        elif op == "MARK":
            self.below.append(self.stack)
            self.stack = []
        elif op in _TUPLES:
            push(tuple([pop() for _ in range(_TUPLES[op])][::-1]))
        elif op in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            push({"D": dict, "L": list, "T": tuple}[op[6]]())
        elif op == "BINPERSID":
            push(Stored(_is(tuple, pop())))
        elif op in ("REDUCE", "NEWOBJ"):
            arguments, function = pop(), pop()
            push(_call(_is(Name, function).name, _is(tuple, arguments)))
        elif op == "BUILD":
            pop()  # an attribute of a dict, as _metadata
            _is(dict, self.stack[-1])
        elif op in ("SETITEM", "APPEND"):
            items = [pop()] if op == "APPEND" else [pop(), pop()][::-1]
            _extend(self.stack[-1], items)
        elif op in ("SETITEMS", "APPENDS", "TUPLE", "LIST", "DICT"):
            self._to_mark(op)
        else:
            raise ValueError(f"its pickle has {op}, which no file of tensors needs")

    def _to_mark(self, op: str) -> None:
        items, self.stack = self.stack, self.below.pop()
        if op in ("SETITEMS", "APPENDS"):
            _extend(self.stack[-1], items)
        elif op in ("TUPLE", "LIST"):
            self.stack.append(tuple(items) if op == "TUPLE" else items)
        else:
            self.stack.append({})
            _extend(self.stack[-1], items)


def _is(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError("its pickle is damaged")
    return value


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    if name == "collections.OrderedDict":
        made: dict[Hashable, Any] = {}
        for pair in arguments[0] if arguments and isinstance(arguments[0], list) else []:
            _extend(made, pair)
        return made
    if not name.startswith(_TENSORS):
        raise ValueError(f"it would call {name}")
    return Made(name.rpartition(".")[2], arguments)


def _extend(target: Any, items: Any) -> None:
    if isinstance(target, list):
        target.extend(items)
        return
    for key, value in zip(_is(list | tuple, items)[::2], items[1::2], strict=True):  # pyright: ignore[reportArgumentType]
        if type(key) not in (str, int):  # the hash of a tuple of tuples can take for ever
            raise ValueError("it holds more than tensors by name")
        _is(dict, target)[key] = value


def described(stream: mmap) -> Any:
    """What the pickle that begins where the file stands describes; it then stands behind. Raises ValueError, also when it ends
    early.

    stream: mapped, so that a text said to be longer than the file is no memory asked for.
    """
    machine = _Machine()
    for n, (opcode, argument, _) in enumerate(pickletools.genops(stream)):  # pyright: ignore[reportArgumentType]
        if n > MOST_STEPS:
            raise ValueError("its pickle is longer than any file of tensors needs")
        if opcode.name == "STOP":
            break
        if opcode.name not in _NOTHING:
            try:
                machine.step(opcode.name, argument)
            except (IndexError, KeyError) as error:  # from the stack, or the memo
                raise ValueError("its pickle is damaged") from error
    if len(machine.stack) != 1 or machine.below:
        raise ValueError("its pickle is damaged")
    return machine.stack[0]
