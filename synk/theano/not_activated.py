"""Modules of Theano's GPU backends: they can be imported, and raise in use.

So it was in a Theano without a GPU, and scripts rest on it: they import ``dnn_conv``
at their top and ask ``dnn_available()`` later, or test for ``GpuArrayType``. Classes of
Ops could be made there, too; what made a graph of them raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_INSTEAD = (
    "Theano's GPU backend is not activated here. theano.tensor has the same on the CPU"
    ' (nnet.conv2d, signal.pool), and whole graphs run on GPUs through mode="JAX"'
)


class Answer:
    """`dnn_available` and its like: False, and `msg` says why.

    Parameters
    ----------
    name : str
        The function's.
    msg : str
        What Theano said of the reason.
    """

    avail = False

    def __init__(self, name: str, msg: str) -> None:
        self.__name__ = name
        self.msg = msg

    def __call__(self, context_name: Any = None) -> bool:
        """Return False: there is no cuDNN for the names of this module."""
        return False


def give(
    module: str, names: str, error: type[Exception], said: str
) -> tuple[Callable, Callable]:
    """Make ``__getattr__`` and ``__dir__`` of a module whose names raise when used.

    Parameters
    ----------
    module : str
        The module's ``__name__``.
    names : str
        Its names, separated by blanks.
    error : type
        What is raised.
    said : str
        What Theano said then.
    """
    known = names.split()

    def __getattr__(name: str) -> Any:
        full_name = f"{module.removeprefix('synk.')}.{name}"
        if name not in known:
            raise AttributeError(f"no {full_name}: {_INSTEAD}", name=name)
        made = _make(module, name, error, f"{full_name}: {said}. {_INSTEAD}")
        # One object for each name: classes are compared, and pickled by name.
        return vars(sys.modules[module]).setdefault(name, made)

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[module]), *known})

    return __getattr__, __dir__


def _make(module: str, name: str, error: type[Exception], message: str) -> Any:
    def used(*_: Any, **__: Any) -> Any:
        raise error(message)

    if name[0].islower():
        used.__name__, used.__qualname__, used.__module__ = name, name, module
        return used
    body: dict[str, Any] = {"__module__": module, "__doc__": message}
    if name.endswith(("Type", "Variable", "Constant", "Block", "RandomStreams")):
        return type(name, (), {**body, "__init__": used})

    def __init__(self: Any, *_: Any, **__: Any) -> None:
        pass

    return type(name, (), {**body, "__init__": __init__, "__call__": used})


def make_modules(
    package: str, tables: dict[str, str], error: type[Exception], said: str
) -> dict[str, ModuleType]:
    """Make the modules of `tables` that have no file in `package`; return all."""
    parent = sys.modules[package]
    for short, names in tables.items():
        name = f"{package}.{short}"
        if name in sys.modules:
            continue
        module = ModuleType(name, f"`{name.removeprefix('synk.')}`, not activated.")
        module.__spec__ = ModuleSpec(name, None, origin=parent.__file__)
        module.__package__ = package
        lookups = give(name, names, error, said)
        module.__getattr__, module.__dir__ = lookups  # type: ignore[method-assign]
        sys.modules[name] = module
        setattr(parent, short, module)
    return {short: sys.modules[f"{package}.{short}"] for short in tables}


def names_in(module: ModuleType, names: str) -> dict[str, Any]:
    """Return those names of a module, for the package that has them as well."""
    return {name: getattr(module, name) for name in names.split()}
