"""What a rule computes, as graphs of PyTensor, and these as text for numba.

A graph that computes element by element is written as lines of Python. In a loop over
these every array is read once, and what is new goes where it is to be. That is what
PyTensor's compiled functions do not offer: they return new arrays, which must then be
copied. The loop is a file beside what PyTensor has compiled, named by its text: numba
keeps its machine code there as well.
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
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import TensorType

from ..compiled import compile_kernel
from .rule import Group, Rule

Arrays = dict[str, np.ndarray]


class SweepKind(NamedTuple):
    """What a worker does with each block of the centre that it sweeps through.

    It computes these functions of the rule. The centre moves by what the worker gives,
    or if it does not, by the sum of what all have left in ``given``; and what it gives
    it leaves there, if the centre does not move.
    """

    gives: bool = False
    moves: bool = False
    takes: bool = False
    locks: bool = False  # it takes the lock of each block


KINDS = {
    "exchange": SweepKind(gives=True, moves=True, takes=True, locks=True),
    "send": SweepKind(gives=True, moves=True, locks=True),
    "fetch": SweepKind(takes=True, locks=True),
    "give": SweepKind(gives=True),
    "move": SweepKind(moves=True),
    "take": SweepKind(takes=True),
}
"""One after the other, an exchange is whole, or is sent now and fetched later. Where
all meet they give, the centre moves, and they take: nobody writes what others read."""


class RuleGraphs:
    """The graphs of a rule, for vectors of one dtype.

    Their variables have names: ``n``, ``share`` and ``given``, and those of the states
    of a worker and of the centre with a ``w`` or a ``c`` before, such as ``ww``.
    Constants of the rule are of the parameters' dtype, too. Without a `mode` of
    PyTensor's all is computed in loops, see `sweeps`.

    `kept` are those of what a worker keeps besides its parameters, `sides` the
    centre's; of these `scalars` are no vectors, such as an optimiser's step number.
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
        """Return the states of a worker and of the centre, of arrays of their own."""
        w = np.asarray(w, self.dtype)
        worker, centre = self.rule.start(w)
        of_worker, of_centre = {"w": w, **worker}, {"c": w, **centre}
        return (
            {name: np.array(value) for name, value in of_worker.items()},
            {name: np.array(value) for name, value in of_centre.items()},
        )

    def outputs(self, kind: SweepKind) -> dict[str, Variable]:
        """Return the new values that a sweep writes, of the dtypes of the old ones."""
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


# -- as text

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


def written(
    inputs: Mapping[str, Variable], outputs: Mapping[str, Variable]
) -> tuple[list[str], list[str], dict[str, str]]:
    """Write a graph of vectors of one length, and of scalars, as Python.

    It reads the input ``a`` as ``a_``. Returned are the lines that compute scalars,
    once, those for each element, and by the name of an output what is to be written
    there. It raises NotImplementedError if there is an Op that is not known here.
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
