"""Registering a user's Op: its entry in the table, derived from its shardings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from ...reduce_ops import ReduceOp
from ...user_frames import entry
from ..domain import (
    REPLICATED,
    Partial,
    Refused,
    Replicated,
    Sharded,
    Value,
    align,
    describe,
    independent,
    is_replicated,
    product,
    times,
    unlisted,
)
from ..lengths import Length, inferred, size
from ..padded import Made, Padder, is_padded, plain
from ..rules.base import any_function, name, takes_streams
from ..rules.reductions import fold
from ..table import entry_of, known, known_classes
from .sharding import Sharding, check_registrable, classes, registered, shardings_of

_NOTHING: Any = object()


@entry
def register_sharding(op: Any, sharding: Any = _NOTHING) -> Any:
    """Tell synk how to compute an Op of yours on parts of the rows.

    An Op that is not registered is computed from all rows on every rank, with a
    :class:`synk.SplitWarning`. See :doc:`own_ops`. synk does not check the sharding;
    :func:`synk.check_sharding` compares it with what the Op computes.

    Parameters
    ----------
    op : class of Ops, or Op
        A class, which includes classes derived from it; or one Op, which includes equal
        Ops, such as ``pytensor.wrap_py`` makes of a function.
    sharding : str, Sharding, list of these, None or callable; optional
        A word, "rowwise", "sum", "prod", "min" or "max", if all operands with axes have
        rows along axis 0, and all results are computed row by row, or reduced over the
        rows by this op; else a :class:`synk.Sharding`. Of a list, synk takes the first
        that fits the operands' rows. None: the Op needs all rows at once. A function
        takes the ``Apply`` node and returns one of these, for Ops whose sharding
        depends on properties or operands. Without `sharding`, this is a decorator for
        such a function.

    Returns
    -------
    callable
        The decorator, which returns the function; None if `sharding` is given.

    Raises
    ------
    TypeError, ValueError
        If `op` is no Op, or `sharding` is none of these; if synk has a rule for the Op,
        or it is registered otherwise already. When a function is made: if the sharding
        does not fit the Op's operands there.

    Examples
    --------
    An Op that sorts along an axis of its own:

    >>> import numpy as np, synk
    >>> from pytensor.graph import Apply, Op
    >>> class Ranked(Op):
    ...     __props__ = ("axis",)
    ...     def __init__(self, axis):
    ...         self.axis = axis
    ...     def make_node(self, x):
    ...         return Apply(self, [x], [x.type()])
    ...     def perform(self, node, inputs, outputs):
    ...         outputs[0][0] = np.sort(inputs[0], axis=self.axis)
    >>> @synk.register_sharding(Ranked)
    ... def ranked(node):
    ...     axis = node.op.axis % node.inputs[0].ndim
    ...     return [
    ...         synk.Sharding([i], [i])
    ...         for i in range(node.inputs[0].ndim)
    ...         if i != axis
    ...     ]
    >>> synk.check_sharding(Ranked(1), np.random.default_rng(0).normal(size=(9, 4)))
    """
    if sharding is _NOTHING:
        return lambda function: _registered(op, function)
    _registered(op, sharding)
    return None


def _registered(op: Any, said: Any) -> Callable:
    cls = op if isinstance(op, type) else type(op)
    if not issubclass(cls, Op):
        raise TypeError(f"register_sharding: an Op, or a class of Ops; got {op!r}")
    for other in known_classes() - classes:
        if issubclass(other, cls):
            raise ValueError(f"register_sharding: synk has a rule for {other.__name__}")
        if op is not cls and issubclass(cls, other):
            raise ValueError(
                f"register_sharding: {op} is of {cls.__name__}, which has a rule, that"
                f" of {other.__name__}: register the class"
            )
    check_registrable(said)
    if op in registered and not _are_same(registered[op], said):
        raise ValueError(
            f"register_sharding: {op} is registered already, as {registered[op]!r}; to"
            " correct that, define the Op anew"
        )
    register_all([(op, said)])
    return said


def _are_same(first: Any, second: Any) -> bool:
    """Return whether two shardings are equal, or two functions of equal code.

    So a cell of a notebook may run twice.
    """
    functions = [
        (one.__code__, one.__defaults__)
        for one in (first, second)
        if isinstance(one, FunctionType) and not one.__closure__
    ]
    return first == second or (len(functions) == 2 and functions[0] == functions[1])


def register_all(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Register pairs of an Op, or class of Ops, and its sharding, in this process.

    A rank does so with what the master has registered, also after the fork.
    """
    for op, said in pairs:
        cls = op if isinstance(op, type) else type(op)
        registered[op] = said
        classes.add(cls)
        known(cls, placement=own_op, padded=own_padded, length=own_length)


def own_op(node: Apply, values: list[Value]) -> list[Value]:
    """Return the values of the results, by the first sharding that fits."""
    ways = shardings_of(node)
    if ways is None or takes_streams(node):
        return any_function(node, values)
    values = [unlisted(value) for value in values]
    if all(map(is_replicated, values)):
        return [Replicated() for _ in node.outputs]
    if any(isinstance(value, Sharded) for value in values):
        return _first(ways, lambda way: _of_rows(way, node.inputs, values))
    return [_first(ways, lambda way: _linear(way, values))] * len(node.outputs)


def _first(ways: Sequence[Sharding], of_way: Callable[[Sharding], Any]) -> Any:
    """Return the result of `of_way` for the first sharding that it accepts."""
    why = "takes all rows at once, as it is registered"
    for way in ways:
        try:
            return of_way(way)
        except Refused as refused:
            why = str(refused)
    raise Refused(why)


def advice(node: Apply) -> str:
    """Return advice on a node that takes all rows at once; "" if there is none."""
    ways = shardings_of(node)
    if ways:
        shown = " or ".join(map(str, ways))
        return f" It is registered as {shown}: its operands are not so here."
    if ways is None and entry_of(node.op).placement in (None, own_op):
        return " If it is your Op, synk.register_sharding tells how it goes by parts."
    return ""


def _linear(way: Sharding, values: Sequence[Value]) -> Value:
    """Return the value of results without rows: linear in partial operands, if any."""
    _check_others(way, values)
    factors = [values[i] for i in way.linear]
    for value in factors:
        if isinstance(value, Partial) and value.op != "sum":
            raise Refused(f"takes {describe(value)}")  # linear, but not monotonic
    return product(factors)


def _of_rows(
    way: Sharding, operands: Sequence[Variable], values: Sequence[Value]
) -> list[Value]:
    """Return the values of results of rows; raise unless rows are as registered."""
    moved: list[Value] = []
    for var, axis, value in zip(operands, way.inputs, values, strict=True):
        if isinstance(value, Sharded):
            if value.axis != axis:
                where = "whole" if axis is None else f"with rows along axis {axis}"
                raise Refused(f"is registered to take {name(var)} {where}")
            value = replace(value, axis=0)
        elif axis is not None:
            raise Refused(f"is registered to take rows of {name(var)}, which has none")
        moved.append(value)
    _check_others(way, moved)
    rows = align(moved)
    assert rows is not None
    factors = [moved[i] for i in way.linear]
    found = product([replace(rows, power=0), *factors])
    assert isinstance(found, Sharded)
    return [_result(output, found) for output in way.outputs]


def _check_others(way: Sharding, values: Sequence[Value]) -> None:
    """Raise unless the operands that are not linear may enter any function."""
    independent([value for i, value in enumerate(values) if i not in way.linear])


def _result(output: int | ReduceOp | None, rows: Sharded) -> Value:
    """Return the value of one result; `rows` has its power of the number of rows."""
    if isinstance(output, int):
        return replace(rows, axis=output)
    if output is None:
        if rows.power:
            raise Refused("is registered to give something that is not of the rows")
        return Replicated()
    if output == "avg":  # a sum, divided by the number of rows
        return fold("sum", replace(rows, power=times(rows.power, -1)))
    return fold(output, rows)


# -- padded rows


def own_padded(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Pad a node: copies stay in sharded results, and are neutral in reduced ones."""
    ways = shardings_of(node)
    if ways is None or not any(map(is_padded, values)):
        return None
    padder.check_no_sizes(node.inputs)
    values = [plain(value) for value in values]
    return _first(ways, lambda way: _by(way, padder, node, values))


def _by(way: Sharding, padder: Padder, node: Apply, values: list[Value]) -> Made:
    found = _of_rows(way, node.inputs, values)
    inputs = [padder.new[var] for var in node.inputs]
    if any(isinstance(value, Partial) for value in found):
        inputs = _without_copies(way, padder, node, values)
    exact: list[Value] = [REPLICATED if isinstance(v, Partial) else v for v in found]
    return Made(padder.made(node, inputs), exact)


def _without_copies(
    way: Sharding, padder: Padder, node: Apply, values: list[Value]
) -> list[Variable]:
    """Return operands whose copies do not change reduced results.

    Copies become equal to the last real row, so that they cannot overflow if it does
    not, and change no maximum or minimum. A sum must be linear in an operand with rows,
    which is set to zero. For other ops no neutral value is known.
    """
    for value in values:
        if isinstance(value, Sharded) and not (value.length == "n" and value.in_order):
            raise Refused("combines rows of several entries each")
    ops = {output for output in way.outputs if isinstance(output, str)}
    zeroed = [i for i in way.linear if i in way.rows]
    if not ops <= {"min", "max"} and not (ops == {"sum"} and zeroed):
        raise Refused(
            f"combines rows by {sorted(ops)}, and is not registered as linear in any"
        )
    inputs: list[Any] = [padder.new[var] for var in node.inputs]
    for i in way.rows:
        rows, axis = inputs[i], way.inputs[i]
        if i in zeroed:
            inputs[i] = padder.masked(node.inputs[i], 0)
        else:
            last: Any = padder.real - 1  # type: ignore[operator]
            places = pt.minimum(pt.arange(rows.shape[axis]), last)
            inputs[i] = pt.take(rows, places, axis=axis)
    return inputs


# -- lengths


def own_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Return the length of an axis, by a sharding or by PyTensor; None if unknown."""
    place = node.outputs.index(var)
    for way in shardings_of(node) or ():
        if way.outputs[place] == axis:  # an entry for each row
            first = way.rows[0]
            of_rows: Any = way.inputs[first]
            return size(node.inputs[first], of_rows)
    return inferred(node, var, axis)
