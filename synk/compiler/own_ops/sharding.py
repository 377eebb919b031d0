"""Shardings of users' Ops, and the registry of this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import io_toposort

from ...reduce_ops import REDUCE_OPS, ReduceOp, check_dtype
from ..cloning import with_inner
from ..rules.base import op_name
from ..table import UsersMistake


@dataclass(frozen=True)
class Sharding:
    """A way to compute an Op on parts of the rows, and to combine the parts' results.

    Let the operands' rows be cut into parts. The Op is computed from each part, and its
    result for all rows follows from the parts' results as the sharding says. As a part
    may be a single row, a result along an axis has an entry for each row that depends
    on no other row.

    Parameters
    ----------
    inputs : sequence of (int or None)
        For each operand, the axis along which its rows are; None if it has no rows, and
        each part is computed from the whole operand.
    outputs : sequence of (int, {"sum", "avg", "prod", "min", "max"} or None)
        For each result, the axis along which the parts' results are concatenated, with
        an entry for each row; or the op that combines them, "avg" for a mean over the
        rows; or None if the result does not depend on the rows.
    linear : sequence of int, optional
        The indices of operands in which all results are linear, with the others held
        fixed: twice the operand gives twice the results, and a sum of two operands the
        sum of their results. Then gradients and sums over rows may pass through the Op.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong type, no operand has rows or is linear, or a result
        depends on rows that no operand has.

    Examples
    --------
    A sum over the rows, along axis 0 of the first two operands, with parameters:

    >>> import synk
    >>> synk.Sharding([0, 0, None], ["sum"])
    Sharding([0, 0, None], ['sum'])
    """

    inputs: Sequence[int | None]
    outputs: Sequence[int | ReduceOp | None]
    linear: Sequence[int] = ()

    def __post_init__(self) -> None:
        for what in ("inputs", "outputs", "linear"):
            given = getattr(self, what)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise TypeError(f"Sharding: {what} must be a list; got {given!r}")
            object.__setattr__(self, what, tuple(given))
        for axis in self.inputs:
            if not (axis is None or _is_int(axis)):
                raise TypeError(f"Sharding: inputs are axes or None; got {axis!r}")
        for output in self.outputs:
            if not (output is None or _is_int(output) or output in REDUCE_OPS):
                raise TypeError(
                    "Sharding: outputs are axes, None, or one of"
                    f" {', '.join(map(repr, REDUCE_OPS))}; got {output!r}"
                )
        for i in self.linear:
            if not _is_int(i) or not 0 <= i < len(self.inputs):
                raise ValueError(
                    f"Sharding: linear are positions among {len(self.inputs)} inputs;"
                    f" got {i!r}"
                )
        if not self.rows and any(output is not None for output in self.outputs):
            raise ValueError(
                f"Sharding: no input has rows, so that no output has; got {self}"
            )
        if not self.rows and not self.linear:
            raise ValueError(f"Sharding: says nothing of the rows; got {self}")

    def __repr__(self) -> str:
        linear = f", linear={list(self.linear)}" if self.linear else ""
        return f"Sharding({list(self.inputs)}, {list(self.outputs)}{linear})"

    @property
    def rows(self) -> list[int]:
        """The positions of the operands that have rows."""
        return [i for i, axis in enumerate(self.inputs) if axis is not None]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


WORDS = ("rowwise", "sum", "prod", "min", "max")
"""Shardings of Ops whose operands all have rows along axis 0; scalars have none."""


class WrongSharding(UsersMistake, TypeError):
    """The registered sharding of an Op does not fit a node of it."""


def check_registrable(said: Any) -> None:
    """Raise unless `said` can be registered as a sharding."""
    if callable(said) or said is None:
        return
    for each in said if isinstance(said, (list, tuple)) else [said]:
        if isinstance(each, str):
            if each not in WORDS:
                words = ", ".join(map(repr, WORDS))
                raise ValueError(
                    f"a sharding is one of {words}, or a Sharding; got {each!r}"
                )
        elif not isinstance(each, Sharding):
            raise TypeError(
                "a sharding is a word, a Sharding, a list of these, None, or a function"
                f" that returns one; got {each!r}"
            )


def _shardings_for(said: Any, node: Apply) -> tuple[Sharding, ...]:
    """Return the shardings of a node; an empty tuple if it takes all rows at once.

    `said` is what the user has registered: a word, a sharding, several, None, or a
    function that returns one of these.
    """
    shown = f"{op_name(node.op)}({', '.join(str(var.type) for var in node.inputs)})"
    if callable(said):
        rule = getattr(said, "__name__", said)
        try:
            said = said(node)
        except Exception as error:
            raise WrongSharding(
                f"register_sharding: {rule} fails for {shown}: {error!r}"
            ) from error
    several = said if isinstance(said, (list, tuple)) else [said]
    try:
        check_registrable(said)
        return tuple(_fitting(each, node) for each in several if each is not None)
    except (TypeError, ValueError) as error:
        raise WrongSharding(f"{error}; {said!r} is registered for {shown}") from error


def _fitting(said: Any, node: Apply) -> Sharding:
    """Return a word or sharding with nonnegative axes; raise if it does not fit."""
    if isinstance(said, str):
        axes = [0 if _ndim(var) else None for var in node.inputs]
        if 0 not in axes:
            raise TypeError("no operand has an axis")
        output: Any = 0 if said == "rowwise" else said
        said = Sharding(axes, [output] * len(node.outputs))

    def fitted(what: str, places: Sequence, variables: Sequence) -> list:
        if len(places) != len(variables):
            raise TypeError(
                f"the sharding is for {len(places)} {what}, and {op_name(node.op)} has"
                f" {len(variables)}"
            )
        return list(map(_place, places, variables))

    inputs = fitted("inputs", said.inputs, node.inputs)
    return Sharding(inputs, fitted("outputs", said.outputs, node.outputs), said.linear)


def _place(place: Any, var: Variable) -> Any:
    """Return an axis as a nonnegative number, or an op; raise if it does not fit."""
    if isinstance(place, int):
        ndim = _ndim(var)
        if not -ndim <= place < ndim:
            raise TypeError(
                f"the sharding wants axis {place} of {var}, which has {ndim}"
            )
        return place % ndim
    dtype = getattr(var.type, "numpy_dtype", np.dtype(object))
    check_dtype(place, dtype, str(var))
    if (place in ("sum", "prod") and dtype.kind == "b") or (
        place == "avg" and dtype.kind in "iu"
    ):
        raise TypeError(f"the sharding gives {place!r} of {dtype}, as {var}")
    return place


def _ndim(var: Variable) -> int:
    return getattr(var.type, "ndim", 0)


# -- the registry of this process

registered: dict[type[Op] | Op, Any] = {}
"""Registered shardings, by class (and those derived from it) or by Op (equal ones)."""

classes: set[type[Op]] = set()
"""The registered classes, and the classes of registered Ops."""


def is_registered(op: Op) -> bool:
    """Return whether an Op, or a class that it is of, is registered."""
    return _key_of(op) is not None


def shardings_of(node: Apply) -> tuple[Sharding, ...] | None:
    """Return the shardings of a node; None if its Op is not registered.

    An empty tuple if it is registered to take all rows at once.
    """
    key = _key_of(node.op)
    return None if key is None else _shardings_for(registered[key], node)


def registered_in(graph: Iterable[Variable]) -> list[tuple[Any, Any]]:
    """Return the registered Ops, also of graphs within Ops, with their shardings."""
    keys = (_key_of(node.op) for node in with_inner(io_toposort([], list(graph))))
    return [(key, registered[key]) for key in dict.fromkeys(keys) if key is not None]


def _key_of(op: Op) -> type[Op] | Op | None:
    # To hash an Op takes long, so only one of a registered class is looked up.
    if type(op) in classes and op in registered:
        return op
    return next((cls for cls in type(op).__mro__ if cls in registered), None)
