"""Classes of Ops that ranks are forked with, and could not import.

What a script defines, cloudpickle sends by value: on a rank it is another class. But
numba and JAX know how to compile an Op by its class, and what a script has told them
before the fork, ranks know of the class that they have. So graphs name that one.
"""

from __future__ import annotations

from pytensor.graph.op import Op

_numbers: dict[type, int] = {}
"""Those that there were when the zygote was forked; ranks have inherited it."""


def note_classes(are_forked: bool) -> None:
    """Take note of the classes that the ranks will have; before they are forked.

    A new interpreter has none of them, and is sent all by value.
    """
    _numbers.clear()
    if not are_forked:
        return
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


def class_of(number: int) -> type:
    """Return the class of a number, on a rank."""
    return list(_numbers)[number]
