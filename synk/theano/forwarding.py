"""A module's names that PyTensor has: looked up there when they are asked for.

`forward` makes the ``__getattr__`` and ``__dir__`` of a module (PEP 562). What it does
not find is an error that says what to use, from the table in `names`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

_MISSING = object()


def forward(module: str, *sources: str) -> tuple[Callable, Callable]:
    """Make ``__getattr__`` and ``__dir__`` for `module`.

    Parameters
    ----------
    module : str
        The module's ``__name__``.
    *sources : str
        Modules to look in, in this order. Those that the installed PyTensor does not
        have are passed over.

    Returns
    -------
    tuple of callable
    """

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = _look_up(module, sources, name)
        if found is _MISSING:
            raise AttributeError(hint(f"{_theano_name(module)}.{name}"), name=name)
        return found

    def __dir__() -> list[str]:
        names = set(vars(importlib.import_module(module)))
        for source in sources:
            there = _import(source)
            if there is not None:
                names |= {n for n in vars(there) if _is_ours(there, n)}
        return sorted(names)

    return __getattr__, __dir__


def _look_up(module: str, sources: tuple[str, ...], name: str) -> Any:
    own = importlib.import_module(module)
    if hasattr(own, "__path__") and importlib.util.find_spec(f"{module}.{name}"):
        return importlib.import_module(f"{module}.{name}")
    for source in sources:
        there = _import(source)
        if there is not None and _is_ours(there, name):
            return getattr(there, name)
    return _MISSING


def _is_ours(there: ModuleType, name: str) -> bool:
    """Tell whether `name` may be passed on: no module, nothing private."""
    if name.startswith("_"):
        return False
    found = getattr(there, name, _MISSING)
    return found is not _MISSING and not isinstance(found, ModuleType)


def _import(source: str) -> ModuleType | None:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name and source.startswith(error.name):
            return None
        raise


def _theano_name(module: str) -> str:
    return module.removeprefix("synk.")


def hint(name: str) -> str:
    """Return what to say of a name of Theano's that is not here."""
    from .names import absent

    reason = absent().get(name)
    if reason:
        return f"{name} is not part of synk's Theano: {reason}"
    place = name.rpartition(".")[0].replace("theano", "pytensor", 1)
    return (
        f"{name} is neither a name of Theano's that synk knows nor one of PyTensor's; "
        f"see {place} for what PyTensor has, and synk's page 'Theano's names'"
    )
