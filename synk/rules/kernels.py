"""A graph that computes element by element, as lines of Python that numba compiles.

In a loop over these lines every array is read once, and what is new goes where it is to
be. That is what PyTensor's compiled functions do not offer: they return new arrays,
which must then be copied.

The loop is a file beside what PyTensor has compiled, named by its text: numba keeps
its machine code there as well.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from ..compiled import compile_kernel

_WORDS = {
    "Abs": "abs({})",
    "Add": "({})",
    "Clip": "({0} if {0} != {0} else min(max({0}, {1}), {2}))",
    "Maximum": "({0} if {0} > {1} or {0} != {0} else {1})",
    "Minimum": "({0} if {0} < {1} or {0} != {0} else {1})",
    "Mul": "({})",
    "Neg": "(-{})",
    "Pow": "({} ** {})",
    "Sqr": "({0} * {0})",
    "Sqrt": "np.sqrt({})",
    "Sub": "({} - {})",
    "TrueDiv": "({} / {})",
}
"""By the class of a scalar Op, how it is written; NaN is passed on, as by numpy."""

_BETWEEN = {"Add": " + ", "Mul": " * "}
"""Of those that take any number of operands."""


class Written(NamedTuple):
    """A graph as lines of Python, which read the input ``a`` as ``a_``.

    Attributes
    ----------
    scalars, vectors : list of str
        What is computed once, and what for each element.
    values : dict of str to str
        By the name of an output, what is to be written there.
    """

    scalars: list[str]
    vectors: list[str]
    values: dict[str, str]


def written(inputs: Mapping[str, Variable], outputs: Mapping[str, Variable]) -> Written:
    """Write a graph of vectors of one length, and of scalars, as Python.

    Parameters
    ----------
    inputs, outputs : dict of str to variable

    Raises
    ------
    NotImplementedError
        If there is an Op that is not known here.
    """
    names: dict[Variable, str] = {var: f"{name}_" for name, var in inputs.items()}
    found = Written([], [], {})
    for node in io_toposort(list(inputs.values()), list(outputs.values())):
        (out,) = node.outputs
        given = [_name(var, names) for var in node.inputs]
        if isinstance(node.op, DimShuffle):
            names[out] = given[0]
            continue
        names[out] = f"t{len(names)}"
        lines = found.vectors if is_vector(out) else found.scalars
        lines.append(f"{names[out]} = {_term(node, given)}")
    for name, var in outputs.items():
        found.values[name] = _name(var, names)
    return found


def is_vector(var: Variable) -> bool:
    """Tell a vector from a scalar."""
    return bool(var.type.ndim)  # type: ignore[attr-defined]


def _name(var: Variable, names: Mapping[Variable, str]) -> str:
    """Return a variable's name in the loop, or a constant as it is written."""
    if isinstance(var, Constant):
        value = np.asarray(var.data)
        if value.size != 1:
            raise NotImplementedError(f"{var} is no single number")
        if not np.isfinite(value).all():
            raise NotImplementedError(f"{var} is not finite")
        return f"np.{value.dtype.name}({value.ravel()[0].item()!r})"
    return names[var]


def _term(node: Any, given: Sequence[str]) -> str:
    """Return how one Op is written."""
    (out,) = node.outputs
    kind = type(getattr(node.op, "scalar_op", None)).__name__
    if not isinstance(node.op, Elemwise) or kind not in (*_WORDS, "Cast"):
        raise NotImplementedError(f"{node.op} is not known in loops of training rules")
    if kind == "Cast":
        return f"np.{out.type.dtype}({given[0]})"
    if kind == "Pow":
        if _is_two(node.inputs[1]):
            return f"({given[0]} * {given[0]})"
        return f"np.{out.type.dtype}({_WORDS[kind].format(*given)})"
    if kind in _BETWEEN:
        return _WORDS[kind].format(_BETWEEN[kind].join(given))
    return _WORDS[kind].format(*given)


def _is_two(var: Variable) -> bool:
    while var.owner is not None and isinstance(var.owner.op, DimShuffle):
        var = var.owner.inputs[0]
    return isinstance(var, Constant) and bool(np.all(np.asarray(var.data) == 2))


def compiled_text(lines: Sequence[str], function: str) -> Callable:
    """Return a function of a program, compiled by numba when it is first called."""
    text = "\n".join(['"""Of a training rule; made by synk."""', "", *lines, ""])
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    path = Path(pytensor.config.compiledir, "synk_rules", f"rule_{digest}.py")
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        # Ranks write at the same time; each has a whole file to put in place.
        own = path.with_suffix(f".{secrets.token_hex(4)}")
        own.write_text(text)
        os.replace(own, path)
    spec = importlib.util.spec_from_file_location(f"synk_rule_{digest}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # numba looks there for what it has kept
    spec.loader.exec_module(module)
    found = getattr(module, function)
    return compile_kernel(found)
