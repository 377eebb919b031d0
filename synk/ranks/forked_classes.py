"""Classes of Ops that ranks are forked with and could not import; Ops of functions.

What a script defines, cloudpickle sends by value: on a rank it is another class. But
numba and JAX know how to compile an Op by its class, and what a script has told them
before the fork, ranks know of the class that they have. So graphs name that one.
Likewise of Ops that ``wrap_py`` has made of functions of the script: these read its
global variables, which ranks have too, and which would be sent along.
"""

from __future__ import annotations

import sys

from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.op import Op

_numbers: dict[type, int] = {}
"""Those that there were when the zygote was forked; ranks have inherited it."""

_ops: list[FromFunctionOp] = []
"""Likewise, those that the script has a global name for."""


def note_classes(are_forked: bool) -> None:
    """Take note of the classes that the ranks will have; before they are forked.

    A new interpreter has none of them, and is sent all by value.
    """
    _numbers.clear()
    _ops.clear()
    if not are_forked:
        return
    names = vars(sys.modules["__main__"]).values()
    _ops.extend(value for value in names if isinstance(value, FromFunctionOp))
    todo: list[type] = [Op]
    while todo:
        derived: list[type] = todo.pop().__subclasses__()
        for cls in filter(_is_scripts, derived):
            _numbers.setdefault(cls, len(_numbers))
        todo += derived


def _is_scripts(cls: type) -> bool:
    """Tell whether cloudpickle sends a class by value."""
    return cls.__module__ == "__main__" or "<locals>" in cls.__qualname__


def number_of(cls: type) -> int | None:
    """Return by which number ranks know a class; None if they do not have it."""
    return _numbers.get(cls)


def number_of_op(op: Op) -> int | None:
    """Return by which number ranks know an Op of a function; None if they do not."""
    return next((i for i, known in enumerate(_ops) if known is op), None)


def op_of(number: int) -> FromFunctionOp:
    """Return the Op of a number, on a rank."""
    return _ops[number]


def class_of(number: int) -> type:
    """Return the class of a number, on a rank."""
    return list(_numbers)[number]
