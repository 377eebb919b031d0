"""Symbolic collectives: combining ranks in the middle of a graph.

Plain PyTensor compiles the Ops to the identity, which is what they are on one rank.
`synk.function` cuts the graph at them (see `compiler.stages`). `AllRows` and `OwnRows`
are words of the user's, for which the compiler puts collectives.
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
    """What on one rank, or compiled by plain PyTensor, hands on its first input."""

    __props__: tuple[str, ...] = ()
    view_map = {0: [0]}  # noqa: RUF012  as PyTensor declares it

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        x, *others = inputs
        return Apply(self, [x, *others], [x.type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Do nothing: this is what a rank alone computes."""
        output_storage[0][0] = inputs[0]


class AllReduce(_Identity):
    """Combines a tensor over all ranks, element by element; every rank gets the result.

    `gradient` is what the value is the gradient of, where `grad` has placed the Op. The
    proof then looks at whether `op` fits; what the user has placed is meant so. With
    `of_gather` it adds the cotangents of rows that were gathered.
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
    """Concatenates the rows of all ranks, where an operation needs all at once."""

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
        """Add an axis: this is what a rank alone computes."""
        output_storage[0][0] = inputs[0][None]


COLLECTIVES = (AllReduce, AllGather, AllStack)
"""The Ops at which a graph is cut: ranks meet, and all get the same."""


def is_collective(node: Apply) -> bool:
    """Tell whether ranks meet at a node: it is asked of every node, and often.

    `isinstance` takes three times as long, as PyTensor's classes are abstract ones.
    """
    of: Any = type(node.op)
    return _is_collective(of)


@functools.cache
def _is_collective(cls: type) -> bool:
    return issubclass(cls, COLLECTIVES)


class Local(ViewOp):
    """Marks a value as the rank's own; the compiler then leaves it as it is."""

    __props__ = ()

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradient, which is the rank's own as well."""
        return [local(cotangents[0])]

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3


class AllRows(ViewOp):
    """Says that all ranks are to have the rows of all.

    In the serial run it is the identity, and so the rules take it. The compiler puts an
    `AllGather` there (see `compiler.placement.placer` and `compiler.as_written`).
    """

    __props__ = ()

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradient: this rank's rows of the sum of all ranks' cotangents."""
        return list(OwnRows().make_node(cotangents[0], inputs[0]).outputs)

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3

    def __str__(self) -> str:
        return "all_gather"


class OwnRows(_Identity):
    """Says that of a value for all rows, added over the ranks, each is to have its own.

    The transpose of `AllRows`, a reduce-scatter. In the serial run it is the identity,
    and so the rules take it. The second input is what the ranks have rows of.
    """

    def infer_shape(self, *args: Any) -> Sequence:
        """Return the shape of the first input; shapes come last of the arguments."""
        return args[-1][:1]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Tell that the second input is there for its rows' number alone."""
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
    """Replace the Op by its input; `synk.function` has cut the graph by then."""
    return [node.inputs[0]]


def all_reduce(x: Any, op: ReduceOp = "avg") -> Any:
    """Combine tensors over all ranks, in a graph.

    :func:`synk.function` does so by itself wherever the serial run's values need it.
    What is written is believed, and what stands under it is left as it is: a rank's
    own statistics, say, by whose gradients all ranks are to make one step.

    Parameters
    ----------
    x : tensor_like, or list of these
        Of any shape, which must be the same on all ranks that have rows. What a list
        holds is combined one by one, in one exchange where nothing else is between.
    op : {"avg", "sum", "prod", "min", "max"}
        "avg" weighs a rank by its rows in the call.

    Returns
    -------
    TensorVariable, or list of these
        Same shape and dtype; the same value on every rank. Compiled by plain PyTensor
        it is `x`. A list if `x` is a list or a tuple.

    Raises
    ------
    TypeError, ValueError
        If the op is unknown, or has no meaning for the dtype.

    Notes
    -----
    The gradient, of "avg" and "sum", is the all-reduce of the cotangents by the same
    op. So "avg" belongs into costs that are means over the rows, and "sum" into sums.

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
        x = pt.cast(x, "float64")  # as the mean of integers is
    return AllReduce(op).make_node(x).outputs[0]


def all_gather(x: Any) -> Any:
    """Concatenate the rows of all ranks, in a graph.

    :func:`synk.function` does so by itself wherever the serial run's values need it.
    The word says that all ranks are to have these rows: each can then pair its own with
    all, as in ``x @ synk.ops.all_gather(y).T``.

    Parameters
    ----------
    x : tensor_like, or list of these
        Of one dimension or more, with the rows along axis 0. The rows of what a list
        holds are exchanged one by one, at once where nothing else is between.

    Returns
    -------
    TensorVariable, or list of these
        Same dtype, and as many rows as all ranks have, in the serial run's order; the
        same value on every rank. Compiled by plain PyTensor it is `x`. A list if `x` is
        a list or a tuple.

    Raises
    ------
    ValueError
        If `x` has no axis.
    SplitError
        By :func:`synk.function`, if `x` stands where a graph is left as it is written
        (under a named op or :func:`synk.ops.all_reduce`, or with ``local=True``), and
        its length is not the number of rows; or if it is inside a loop there.

    Notes
    -----
    It is the identity in the serial run, and in :func:`synk.function` it means what it
    is there. In a graph that is left as it is written, the rows are those that the
    ranks have computed, each from its own, and the gradient is a reduce-scatter of the
    cotangents. Where costs are shown to be means over the rows, cotangents are weighed
    by the numbers of rows, so that the average of gradients is that of all rows.

    Examples
    --------
    A contrastive loss, in which every row is told from those of all ranks:

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
    """Say that a statistic of the rows is meant to be each rank's own.

    :func:`synk.function` makes whole what an operation needs of all rows, by a meeting
    of the ranks. A value so marked is left as it is, and so is what is computed from it
    before rows come in again; its gradient is the rank's own, too. Outputs and updates
    take the ranks' mean of it, weighted by their rows.

    What the value is computed from is not marked: the variance of a rank's own rows
    has a mean in it, which is marked as well or is that of all. With
    ``statistics="local"``, :func:`synk.function` means all that meet rows again.

    Parameters
    ----------
    x : tensor_like, or list of these

    Returns
    -------
    TensorVariable, or list of these
        The same value. Compiled by plain PyTensor it is `x`.

    Examples
    --------
    Rows centred by the mean of all, and of the rank's own:

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
    """Tell whether a variable is the result of an all-reduce, or of an all-gather."""
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

    In :func:`synk.function` they are what ``pytensor.grad`` gives there; the name says
    where the ranks are to combine.

    Parameters
    ----------
    cost : scalar variable
        Any function of the rows.
    wrt : variable, or list of these
        Usually shared variables, with the same value on all ranks.
    consider_constant : list of variables, optional
        What the gradient does not go through.
    op : {"avg", "sum"}
        What the cost is meant to be, a mean over the rows or a sum. The gradient is
        that of the cost over all rows, be it the one, the other or both. With
        ``local=True`` in :func:`synk.function` the ranks' gradients are combined by it.
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
        return gradient  # disconnected, where the caller allowed that
    return AllReduce(op, gradient=wrt).make_node(gradient).outputs[0]
