"""Symbolic collectives: Ops that combine values of all ranks within a graph.

Plain PyTensor compiles the Ops to the identity, as on one rank. `synk.function` cuts
the graph at them (see `compiler.stages`). `AllRows`, `OwnRows` and `Local` are only
marks: the compiler puts collectives in place of the first two.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytensor
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.gradient import DisconnectedType, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.rewriting.basic import register_canonicalize
from pytensor.tensor.type import DenseTensorType

from .reduce_ops import REDUCE_OPS, OutputOp, ReduceOp, check_dtype, check_op

__all__ = ["all_gather", "all_reduce", "local"]


class _Identity(Op):
    """An Op that returns its first input on one rank, and in plain PyTensor."""

    __props__: tuple[str, ...] = ()
    view_map = {0: [0]}  # noqa: RUF012  as PyTensor declares it

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        x, *others = inputs
        return Apply(self, [x, *others], [x.type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Return the input, as on one rank."""
        output_storage[0][0] = inputs[0]


class AllReduce(_Identity):
    """Combines a tensor over all ranks, element by element; every rank gets the result.

    `gradient` is the name of the variable by which the value is a gradient, if `grad`
    has placed the Op: the proof then checks `op`. It does not check what the script has
    placed. `of_gather`: the Op adds the cotangents of gathered rows.
    """

    __props__ = ("op",)

    def __init__(
        self, op: ReduceOp, gradient: str | None = None, of_gather: bool = False
    ) -> None:
        check_op(op, REDUCE_OPS, "all_reduce")
        self.op = op
        self.gradient = gradient
        self.of_gather = of_gather

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        (x,) = map(pt.as_tensor_variable, inputs)
        check_dtype(self.op, x.type.numpy_dtype, f"all_reduce of {x}")
        return super().make_node(x)

    def infer_shape(self, *args: Any) -> Sequence:
        """Return the shape of the input, which comes last of PyTensor's arguments."""
        return args[-1]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradient: the cotangents of all ranks, combined by the same op.

        A rank's value enters the result of every rank.
        """
        if self.op in ("avg", "sum"):
            return [_reduced(cotangents[0], self.op, str(inputs[0]))]
        return [grad_not_implemented(self, 0, inputs[0], f"op {self.op!r}")]

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3

    def __str__(self) -> str:
        return f"AllReduce{{{self.op}}}"


class AllGather(_Identity):
    """Concatenates the rows of all ranks; every rank gets the result."""

    op: OutputOp = "gather"
    gradient: str | None = None


class AllStack(Op):
    """Stacks the ranks' values along a new first axis; zeros of ranks without rows."""

    __props__ = ()
    op = "stack"
    gradient: str | None = None

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        (x,) = inputs
        return Apply(self, [x], [x.type.clone(shape=(None, *x.type.shape))()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Return the input with one more axis, as on one rank."""
        output_storage[0][0] = inputs[0][None]


COLLECTIVES = (AllReduce, AllGather, AllStack)
"""The Ops at which a graph is cut: ranks meet, and every rank gets the same result."""


def is_collective(node: Apply) -> bool:
    """Return whether a node is a collective, at which ranks meet.

    It is called often. `isinstance` would take three times as long, as PyTensor's
    classes are abstract.
    """
    of: Any = type(node.op)
    return _is_collective(of)


@functools.cache
def _is_collective(cls: type) -> bool:
    return issubclass(cls, COLLECTIVES)


class Local(ViewOp):
    """Marks a value as each rank's own; the compiler does not reduce it."""

    __props__ = ()

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradient, which is the rank's own as well."""
        return [local(cotangents[0])]

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3


class AllRows(ViewOp):
    """Marks a value whose rows of all ranks every rank should have.

    The rules of the proof take it for the identity, as in the serial run. The compiler
    puts an `AllGather` there (`compiler.placement.placer`, `compiler.as_written`).
    """

    __props__ = ()

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradient: this rank's rows of the sum of all ranks' cotangents."""
        return list(OwnRows().make_node(cotangents[0], inputs[0]).outputs)

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3

    def __str__(self) -> str:
        return "all_gather"


class OwnRows(_Identity):
    """Marks a value of all rows; each rank should get its rows of the sum over ranks.

    This is a reduce-scatter, the transpose of `AllRows`. The rules of the proof take it
    for the identity, as in the serial run. The second input has a rank's own rows.
    """

    def infer_shape(self, *args: Any) -> Sequence:
        """Return the shape of the first input; shapes come last of the arguments."""
        return args[-1][:1]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Return that only the number of rows of the second input counts."""
        return [[True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradient: the cotangents of all ranks' rows."""
        return [all_gather(cotangents[0]), DisconnectedType()()]

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3

    def __str__(self) -> str:
        return "reduce_scatter"


@register_canonicalize("fast_compile")
@node_rewriter([AllReduce, AllGather, Local, AllRows, OwnRows])
def remove_collective(fgraph: Any, node: Apply) -> list[Variable]:
    """Replace the Op by its input; `synk.function` cuts graphs before this rewrite."""
    return [node.inputs[0]]


def all_reduce(x: Any, op: ReduceOp = "avg") -> Any:
    """Combine tensors over all ranks, in a graph.

    :func:`synk.function` does so by itself wherever the serial run's values need it.
    It does not check an all-reduce of the script, and does not change the graph under
    it. So the graph can have a rank's own statistics, for example, and all ranks
    combine the gradients.

    Parameters
    ----------
    x : tensor_like, or list of these
        Of any shape, which must be the same on all ranks that have rows. The tensors of
        a list are combined one by one, but travel in one exchange if possible.
    op : {"avg", "sum", "prod", "min", "max"}
        "avg" weighs a rank by its rows in the call.

    Returns
    -------
    TensorVariable, or list of these
        Same shape and dtype; the same value on every rank. Plain PyTensor returns `x`.
        A list if `x` is a list or a tuple.

    Raises
    ------
    TypeError, ValueError
        If the op is unknown, or has no meaning for the dtype.

    Notes
    -----
    The gradient of "avg" and "sum" is the all-reduce of the cotangents by the same op.
    So use "avg" in costs that are means over the rows, and "sum" in sums.

    Examples
    --------
    The average of the ranks' own maxima, beside the maximum of all rows:

    >>> import numpy as np, pytensor.tensor as pt, synk
    >>> x = pt.vector("x")
    >>> f = synk.function([x], [synk.ops.all_reduce(x.max()), x.max()])
    >>> with synk.session(2):
    ...     own, of_all = f(np.array([0.0, 1.0, 2.0, 3.0]))
    >>> float(own), float(of_all)
    (2.0, 3.0)
    """
    check_op(op, REDUCE_OPS, "all_reduce")
    if isinstance(x, (list, tuple)):
        return [all_reduce(each, op) for each in x]
    x = pt.as_tensor_variable(x)
    if op == "avg" and x.type.numpy_dtype.kind in "iu":
        x = pt.cast(x, "float64")  # the dtype of a mean of integers
    return AllReduce(op).make_node(x).outputs[0]


def all_gather(x: Any) -> Any:
    """Concatenate the rows of all ranks, in a graph.

    :func:`synk.function` does so by itself wherever the serial run's values need it.
    With this function the script asks for all rows on every rank. A rank can then pair
    its own rows with all, as in ``x @ synk.ops.all_gather(y).T``.

    Parameters
    ----------
    x : tensor_like, or list of these
        Of one dimension or more, with the rows along axis 0. The tensors of a list are
        gathered one by one, but travel in one exchange if possible.

    Returns
    -------
    TensorVariable, or list of these
        Same dtype, and the rows of all ranks, in the serial run's order; the same value
        on every rank. Plain PyTensor returns `x`. A list if `x` is a list or a tuple.

    Raises
    ------
    ValueError
        If `x` has no axis.
    SplitError
        From :func:`synk.function`, if `x` is in a part of the graph that synk does not
        change (under a named op or :func:`synk.ops.all_reduce`, or with
        ``local=True``), and its length is not the number of rows, or it is in a loop.

    Notes
    -----
    In the serial run it is the identity, and :func:`synk.function` gives the serial
    run's values. In a part of the graph that synk does not change, each rank computes
    its rows from its own, and the gradient is a reduce-scatter of the cotangents. If
    the proof finds that costs are means over the rows, cotangents are weighed by the
    numbers of rows, so that the average of gradients is that of all rows.

    Examples
    --------
    A contrastive loss, which compares every row with those of all ranks:

    >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
    >>> x, y = pt.matrices("x", "y")
    >>> scores = x @ synk.ops.all_gather(y).T
    >>> loss = (pt.logsumexp(scores, axis=1) - (x * y).sum(axis=1)).mean()
    >>> f = synk.function([x, y], [loss, pytensor.grad(loss, y)])
    >>> a, b = np.random.default_rng(0).normal(size=(2, 5, 3))
    >>> with synk.session(2):
    ...     results = f(a, b)
    >>> all(map(np.allclose, results, f.as_theano(a, b)))
    True
    """
    if isinstance(x, (list, tuple)):
        return [all_gather(each) for each in x]
    x = pt.as_tensor_variable(x)
    if not x.type.ndim:
        raise ValueError(f"all_gather of {x}: a scalar has no rows; it takes axis 0")
    return AllRows()(x)


def local(x: Any) -> Any:
    """Mark a statistic of the rows as each rank's own.

    If an operation needs a statistic of all rows, :func:`synk.function` combines it
    over the ranks. It does not combine a marked value, nor values computed from that
    before they meet rows again. The gradient is the rank's own, too. Outputs and
    updates use the ranks' mean of the value, weighted by their rows.

    Values from which `x` is computed are not marked. For example, the variance of a
    rank's own rows contains a mean, which is that of all rows unless it is marked as
    well. ``statistics="local"`` in :func:`synk.function` marks all statistics that meet
    rows again.

    Parameters
    ----------
    x : tensor_like, or list of these

    Returns
    -------
    TensorVariable, or list of these
        The same value. Plain PyTensor returns `x`.

    Examples
    --------
    Rows minus the mean of all rows, and minus the mean of the rank's own:

    >>> import numpy as np, pytensor.tensor as pt, synk
    >>> x = pt.vector("x")
    >>> f = synk.function([x], [x - x.mean(), x - synk.ops.local(x.mean())])
    >>> with synk.session(2):
    ...     of_all, own = f(np.array([0.0, 1.0, 2.0, 3.0]))
    >>> of_all, own
    (array([-1.5, -0.5,  0.5,  1.5]), array([-0.5,  0.5, -0.5,  0.5]))
    """
    if isinstance(x, (list, tuple)):
        return [local(each) for each in x]
    return Local()(pt.as_tensor_variable(x))


def is_reduced(variable: Variable) -> bool:
    """Return whether a variable is the result of a collective."""
    return variable.owner is not None and is_collective(variable.owner)


def grad(
    cost: Variable,
    wrt: Any,
    consider_constant: Any = None,
    *,
    op: ReduceOp = "avg",
    **pytensor_kwargs: Any,
) -> Any:
    """Return gradients of a cost, combined over all ranks.

    In :func:`synk.function` they equal those of ``pytensor.grad``; this function also
    fixes the place in the graph where the ranks combine.

    Parameters
    ----------
    cost : scalar variable
        Any function of the rows.
    wrt : variable, or list of these
        Usually shared variables, with the same value on all ranks.
    consider_constant : list of variables, optional
        Variables through which no gradient passes.
    op : {"avg", "sum"}
        Whether the cost is a mean over the rows or a sum. The gradient is that of the
        cost over all rows in any case. With ``local=True`` in :func:`synk.function` the
        ranks' gradients are combined by this op.
    **pytensor_kwargs
        Further arguments of ``pytensor.grad``.

    Returns
    -------
    TensorVariable, or list of these
        A list if `wrt` is one.

    Raises
    ------
    ValueError
        If the op is neither "avg" nor "sum".
    """
    check_op(op, ("avg", "sum"), "grad")
    many = isinstance(wrt, (list, tuple))
    grads: Any = pytensor.grad(
        cost,
        list(wrt) if many else wrt,
        consider_constant=consider_constant,
        **pytensor_kwargs,
    )
    if not many:
        return _reduced(grads, op, str(wrt))
    return [_reduced(grad, op, str(var)) for grad, var in zip(grads, wrt, strict=True)]


def _reduced(gradient: Any, op: ReduceOp, wrt: str) -> Any:
    if gradient is None or not isinstance(gradient.type, DenseTensorType):
        return gradient  # disconnected, which the caller has allowed
    return AllReduce(op, gradient=wrt).make_node(gradient).outputs[0]
