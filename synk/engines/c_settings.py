"""PyTensor's settings while synk compiles a graph to C; afterwards they are as before.

* ``gcc__cxxflags``: vector functions, see ``c_compiler.py``.
* ``blas__ldflags``: SciPy's OpenBLAS, see ``c_blas.py``. As it is set, PyTensor need
  not look for a BLAS, which takes 0.3 s and ends in a warning.
* ``mode``: C, for graphs within the graph. PyTensor 3.0 compiles those in the default
  mode, numba's, in their first call; so they are compiled here, too.

What the user has set stays: in ``PYTENSOR_FLAGS``, in ``.pytensorrc``, or by
assignment, each setting by itself. Every rank comes to the same settings, whatever it
has compiled before: with another BLAS its values would drift apart from the others'.

PyTensor's cache of compiled C tells flags apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec

from pytensor import config
from pytensor.compile import Function
from pytensor.compile.builders import OpFromGraph
from pytensor.scan.op import Scan

from . import c_blas
from .c_compiler import makes_c, vector_flags
from .c_loops import with_vector_loops

_P = ParamSpec("_P")
_Before = list[tuple[str, Any]]

_UNSET = object()
"""Stands for the value of a setting that nobody has read: it would be looked for."""


def compile_in_c(
    mode: Any, make: Callable[_P, Function], /, *args: _P.args, **kwargs: _P.kwargs
) -> Function:
    """Call `make`, which compiles a graph, with settings for C if that is in C mode.

    Graphs within the graph are compiled as well. Wherever an interrupt comes, the
    settings are as before in the end: one that comes in the inner ``finally`` is
    followed by the outer.
    """
    if not makes_c(mode):
        return make(*args, **kwargs)
    wanted, before = settings(), _Before()
    try:
        try:
            _change(wanted, before)
            made = with_vector_loops(make, *args, **kwargs)
            if not makes_c(None):  # not before: `make` may have the default mode
                _change({"mode": "CVM"}, before)
            with_vector_loops(_compile_within, made)
            return made
        finally:
            _put_back(before)
    finally:
        _put_back(before)


def settings() -> dict[str, str]:
    """Return those of the compiler that the user has not made."""
    wanted = {}
    flags = vector_flags()
    if flags and not _is_users("gcc__cxxflags"):
        wanted["gcc__cxxflags"] = flags
    blas = c_blas.ldflags(c_blas.scipy_folder())
    if blas and not _is_users("blas__ldflags"):
        wanted["blas__ldflags"] = blas
    return wanted


def _compile_within(made: Function) -> None:
    """Compile graphs within a graph now, which PyTensor 3.0 does in the first call."""
    for node in made.maker.fgraph.toposort():
        if isinstance(node.op, (OpFromGraph, Scan)):
            _compile_within(node.op.fn)


# -- PyTensor's settings


def _parameter(name: str) -> Any:
    """Return PyTensor's object for a setting.

    Its `val` is missing as long as nobody has read or set it, and `is_default` is false
    if the value comes from a file or the environment.
    """
    return getattr(type(config), name)


def _is_users(name: str) -> bool:
    """Tell whether a setting has a value that is not PyTensor's own.

    An empty string that was assigned cannot be told from a search for BLAS that has
    found none, and counts as that.
    """
    parameter = _parameter(name)
    if not parameter.is_default:
        return True
    value = getattr(parameter, "val", "")
    return value != "" and value != _default(name)


@cache
def _default(name: str) -> str:
    """Return PyTensor's own value of a setting, if need be the result of a search."""
    default = _parameter(name).default
    if not callable(default):
        return default
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return default()


def _change(wanted: dict[str, str], before: _Before) -> None:
    for name, value in wanted.items():
        before.append((name, getattr(_parameter(name), "val", _UNSET)))
        setattr(config, name, value)


def _put_back(before: _Before) -> None:
    """Give settings the values that they had; again, that changes nothing."""
    for name, value in before:
        if value is _UNSET:
            vars(_parameter(name)).pop("val", None)
        else:
            setattr(config, name, value)
