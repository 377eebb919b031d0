"""Saying of an Op how it may be computed part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from pytensor.graph.op import Op

from ...user_frames import entry
from ..table import known, known_classes
from .entry import own_length, own_op, own_padded
from .registry import classes, said_of, say
from .sharding import check_said

_NOTHING: Any = object()


@entry
def register_sharding(op: Any, sharding: Any = _NOTHING) -> Any:
    """Tell synk how an Op of yours can be computed part by part.

    What is not registered is computed from all rows on every rank, with a
    :class:`synk.SplitWarning`. See :doc:`own_ops`. What is said is believed;
    :func:`synk.check_sharding` compares it with what the Op computes.

    Parameters
    ----------
    op : class of Ops, or Op
        A class, for the classes derived from it too; or one Op, for those equal to it:
        such as ``pytensor.wrap_py`` makes of a function.
    sharding : str, Sharding, list of these, None or callable; optional
        "rowwise", "sum", "prod", "min" or "max" if all operands with axes have rows
        along axis 0, and all results are computed row by row, or by this op over the
        rows; a :class:`synk.Sharding` says more. A list has several ways, the first
        that suits is taken. None says that the Op takes all rows at once. A function
        takes the ``Apply`` node and returns one of these, for Ops whose properties or
        operands decide. Left out, this is a decorator for such a function.

    Returns
    -------
    callable
        The decorator, which returns the function; None if `sharding` is given.

    Raises
    ------
    TypeError, ValueError
        If this is no Op, or nothing that can be said of one; if synk knows the Op, or
        it is registered as something else already. When a function is made, if what is
        said does not fit the operands that the Op has there.

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
    _check_op(op)
    check_said(said)
    if op in said_of and not _are_same(said_of[op], said):
        raise ValueError(
            f"register_sharding: {op} is registered already, as {said_of[op]!r}; to"
            " correct that, define the Op anew"
        )
    take(op, said)
    return said


def _are_same(first: Any, second: Any) -> bool:
    """Tell whether the same is said again, be it by a cell of a notebook run twice."""
    if first == second:
        return True
    functions = [one for one in (first, second) if isinstance(one, FunctionType)]
    if len(functions) < 2 or any(one.__closure__ for one in functions):
        return False
    return (
        first.__code__ == second.__code__ and first.__defaults__ == second.__defaults__
    )


def _check_op(op: Any) -> None:
    is_class = isinstance(op, type)
    cls = op if is_class else type(op)
    if not issubclass(cls, Op):
        raise TypeError(f"register_sharding: an Op, or a class of Ops; got {op!r}")
    own = classes()
    for other in known_classes() - own:
        if issubclass(other, cls):
            raise ValueError(f"register_sharding: synk has a rule for {other.__name__}")
        if not is_class and issubclass(cls, other):
            raise ValueError(
                f"register_sharding: {op} is of {cls.__name__}, which has a rule, that"
                f" of {other.__name__}: register the class"
            )


def take(op: Any, said: Any) -> None:
    """Have the rules of this process apply to an Op, or to a class of Ops."""
    cls = op if isinstance(op, type) else type(op)
    say(op, said)
    known(cls, placement=own_op, padded=own_padded, length=own_length)


def take_all(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Take what the master has registered, be it after this rank was forked."""
    for op, said in pairs:
        take(op, said)
