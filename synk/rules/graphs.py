"""The graphs of a rule, and their translation into Python source for numba.

A graph that computes element by element becomes lines of Python in a loop over the
elements. The loop reads every array once, and writes results to their final places;
PyTensor's compiled functions return new arrays, which would have to be copied. The
source is a file in PyTensor's compilation folder, named by a hash of its text; numba
caches the machine code there, too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import TensorType

from ..compiled import compile_kernel
from .rule import Group, Rule

Arrays = dict[str, np.ndarray]


class SweepKind(NamedTuple):
    """The functions of the rule that a worker computes on each block of a sweep.

    If a sweep gives and moves, the centre moves by the worker's own vector. If it only
    gives, the vector is left in ``Centre.given``; if it only moves, the centre moves by
    the sum of all vectors there.
    """

    gives: bool = False
    moves: bool = False
    takes: bool = False
    locks: bool = False  # whether the sweep takes the lock of each block


KINDS = {
    "exchange": SweepKind(gives=True, moves=True, takes=True, locks=True),
    "send": SweepKind(gives=True, moves=True, locks=True),
    "fetch": SweepKind(takes=True, locks=True),
    "give": SweepKind(gives=True),
    "move": SweepKind(moves=True),
    "take": SweepKind(takes=True),
}
"""By name. In the orders "turns" and "free" a worker makes an ``exchange``, or with a
delay a ``send`` and later a ``fetch``. In "together" each worker makes a ``give``, a
``move`` and a ``take``, between which all meet: nobody writes what others read."""


class RuleGraphs:
    """The graphs of a rule, for vectors of one dtype.

    The inputs' names are ``n``, ``share`` and ``given``, and the names in a worker's
    and the centre's state after a ``w`` or a ``c``, such as ``ww``. Constants of the
    rule have the parameters' dtype, too. `mode` is the PyTensor mode that computes the
    graphs; with None they are compiled as loops, see `sweeps`.

    `kept` has the names of a worker's state besides its parameters, `sides` those of
    the centre's state, and `scalars` those of `sides` that are scalars, such as an
    optimiser's step number.
    """

    def __init__(self, rule: Rule, dtype: Any, mode: Any = None) -> None:
        self.rule, self.mode, self.dtype = rule, mode, np.dtype(dtype).name
        worker, centre = self.start(np.zeros(2))
        self.kept = [f"w{name}" for name in worker if name != "w"]
        self.sides = [f"c{name}" for name in centre]
        self.scalars = [f"c{name}" for name in centre if not np.ndim(centre[name])]
        self._worker = {name: _variable(name, worker[name]) for name in worker}
        self._centre = {name: _variable(name, centre[name]) for name in centre}
        self._group = Group(*[pt.scalar(k, dtype=self.dtype) for k in ("n", "share")])
        self._given = pt.vector("given", dtype=self.dtype)
        self.sweeps: dict[str, Any] = {}
        self.inputs: dict[str, Variable] = {
            **dict(zip(Group._fields, self._group, strict=True)),
            "given": self._given,
            **{f"w{name}": var for name, var in self._worker.items()},
            **{f"c{name}": var for name, var in self._centre.items()},
        }

    def start(self, w: np.ndarray) -> tuple[Arrays, Arrays]:
        """Return the first states of a worker and of the centre, as new arrays."""
        w = np.asarray(w, self.dtype)
        worker, centre = self.rule.start(w)
        of_worker, of_centre = {"w": w, **worker}, {"c": w, **centre}
        return (
            {name: np.array(value) for name, value in of_worker.items()},
            {name: np.array(value) for name, value in of_centre.items()},
        )

    def outputs(self, kind: SweepKind) -> dict[str, Variable]:
        """Return the graphs of a sweep's new values, by name, in the old dtypes."""
        rule, worker, centre = self.rule, dict(self._worker), dict(self._centre)
        new: dict[str, Any] = {}
        moved: dict[str, Any] = {}
        given: Any = self._given
        # The constants of a rule are numbers of the parameters' dtype.
        with pytensor.config.change_flags(floatX=self.dtype):
            if kind.gives:
                of_worker, given = rule.give(worker, centre, self._group)
                new.update(of_worker)
            if kind.moves:
                moved.update(rule.move(centre, given))
            if kind.takes:
                new.update(rule.take({**worker, **new}, {**centre, **moved}))
            found = {f"w{name}": value for name, value in new.items()}
            found |= {f"c{name}": value for name, value in moved.items()}
            if kind.gives and not kind.moves:
                found["given"] = given
            return {
                name: pt.cast(value, self.inputs[name].type.dtype)
                for name, value in found.items()
            }


def _variable(name: str, value: np.ndarray) -> Any:
    # Not by `pt.tensor`, which takes names such as "half" for dtypes.
    return TensorType(value.dtype, (None,) * np.ndim(value))(name)


# -- as Python source

_EXPRESSIONS = {
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
"""Expressions by the class of a scalar Op; they propagate NaN, as numpy does."""

_BETWEEN = {"Add": " + ", "Mul": " * "}
"""The operators between operands, for Ops with any number of them."""


def translate(
    inputs: Mapping[str, Variable], outputs: Mapping[str, Variable]
) -> tuple[list[str], list[str], dict[str, str]]:
    """Translate a graph of scalars and of vectors of one length to Python.

    Return the lines that compute scalars (run once), the lines for each element, and
    for each output, by name, the expression of its value. The source reads the input
    ``a`` as ``a_``. Raises NotImplementedError for an Op that is not known here.
    """
    names: dict[Variable, str] = {var: f"{name}_" for name, var in inputs.items()}
    scalars: list[str] = []
    vectors: list[str] = []
    for node in io_toposort(list(inputs.values()), list(outputs.values())):
        (out,) = node.outputs
        given = [_name(var, names) for var in node.inputs]
        if isinstance(node.op, DimShuffle):
            names[out] = given[0]
            continue
        names[out] = f"t{len(names)}"
        lines = vectors if out.type.ndim else scalars
        lines.append(f"{names[out]} = {_term(node, given)}")
    return scalars, vectors, {name: _name(var, names) for name, var in outputs.items()}


def _name(var: Variable, names: Mapping[Variable, str]) -> str:
    """Return a variable's name in the source, or the source of a constant."""
    if isinstance(var, Constant):
        value = np.asarray(var.data)
        if value.size != 1 or not np.isfinite(value).all():
            raise NotImplementedError(f"{var} is no single, finite number")
        return f"np.{value.dtype.name}({value.ravel()[0].item()!r})"
    return names[var]


def _term(node: Any, given: Sequence[str]) -> str:
    """Return the expression of one Op."""
    (out,) = node.outputs
    kind = type(getattr(node.op, "scalar_op", None)).__name__
    if not isinstance(node.op, Elemwise) or kind not in (*_EXPRESSIONS, "Cast"):
        raise NotImplementedError(f"{node.op} is not known in loops of training rules")
    if kind == "Cast":
        return f"np.{out.type.dtype}({given[0]})"
    if kind == "Pow":
        if _is_two(node.inputs[1]):
            return f"({given[0]} * {given[0]})"
        return f"np.{out.type.dtype}({_EXPRESSIONS[kind].format(*given)})"
    if kind in _BETWEEN:
        return _EXPRESSIONS[kind].format(_BETWEEN[kind].join(given))
    return _EXPRESSIONS[kind].format(*given)


def _is_two(var: Variable) -> bool:
    while var.owner is not None and isinstance(var.owner.op, DimShuffle):
        var = var.owner.inputs[0]
    return isinstance(var, Constant) and bool(np.all(np.asarray(var.data) == 2))


@cache
def compile_source(text: str) -> Callable:
    """Return the function `sweep` in source; numba compiles it at the first call."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    path = Path(pytensor.config.compiledir, "synk_rules", f"rule_{digest}.py")
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        # Ranks may write at the same time. The first complete file stays: numba takes
        # a file of another time for another function.
        own = path.with_suffix(f".{secrets.token_hex(4)}")
        own.write_text(text)
        try:
            os.link(own, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(own, path)
        own.unlink(missing_ok=True)
    spec = importlib.util.spec_from_file_location(f"synk_rule_{digest}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # numba's cache needs to find the module there
    spec.loader.exec_module(module)
    return compile_kernel(module.sweep)
