"""Shapes in JAX mode: all that JAX knows when it compiles, and refusals that help.

JAX has to know every shape when it compiles. The shapes of inputs are known then, and
so is what is computed from them; what depends on values is refused with an error that
says what to write instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, AllocEmpty, Eye, Nonzero
from pytensor.tensor.extra_ops import Repeat, Unique

from ..passed_draws import drawn

INSTEAD = (
    "give constants, or what follows from the shapes of variables; or compile for"
    " another mode"
)
MASK = (
    "JAX cannot select elements by a mask: how many there are depends on values. Keep"
    " all and give the others no weight: (mask * x).sum() / mask.sum() for the mean of"
    " x[mask.nonzero()], switch(mask, new, x) for"
    " set_subtensor(x[mask.nonzero()], new)"
)
SLICE = (
    f"JAX needs the bounds of slices when it compiles: {INSTEAD}. For a slice of known"
    " length n that begins anywhere, write x[start + arange(n)]"
)


def known(what: str, value: Any) -> Any:
    """Return a size, or several, as ints; refuse what depends on values."""
    import jax

    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        return tuple(known(what, size) for size in value)
    if isinstance(value, jax.core.Tracer):
        raise NotImplementedError(f"JAX needs {what} when it compiles: {INSTEAD}")
    return np.asarray(value).tolist()


def arange(theirs: Callable, op: Any, node: Apply) -> Callable:
    """``arange(n)``, and so ``x[arange(n), y]``, for any n that follows from shapes.

    PyTensor keeps the start and step as constants of the smallest dtype, int8, and JAX
    converts n to that: "Python integer 300 out of bounds for int8" (until PyTensor
    3.3). It also refuses to look at numbers that are computed from shapes, though they
    are known.
    """
    import jax.numpy as jnp

    def call(*values: Any) -> Any:
        start, stop, step = (
            var.data.item()
            if isinstance(var, Constant)
            else known("the length of arange", value)
            for value, var in zip(values, node.inputs, strict=True)
        )
        return jnp.arange(start, stop, step, dtype=op.dtype)

    return call


def reshape(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Reshaping to whatever shape JAX knows, and not to ``x.shape`` alone."""
    import jax.numpy as jnp

    def call(x: Any, shape: Any) -> Any:
        sizes = known("the shape of reshape", shape)
        return jnp.reshape(x, tuple(map(operator.index, sizes)))

    return call


def split(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Parts of lengths that follow from shapes: gradients of ``concatenate``."""
    import jax.numpy as jnp

    def call(x: Any, *rest: Any) -> Any:
        # Before PyTensor 3.3 the axis is an input.
        axis, lengths = rest if len(rest) == 2 else (op.axis, *rest)
        axis = known("the axis of split", axis)
        sizes = known("the lengths of split", lengths)
        if sum(sizes) != x.shape[axis]:
            raise ValueError(f"splits {x.shape[axis]} into parts of {sizes}")
        return jnp.split(x, np.cumsum(sizes[:-1]).tolist(), axis=axis)

    return call


def scan(theirs: Callable, op: Scan, node: Apply) -> Callable:
    """Loops of a number of steps from shapes, which PyTensor compares by ``if``."""
    places = range(len(node.inputs))
    numbers = [places[0], *op.outer_nitsot(places)]
    return _with_known("the number of steps of scan", numbers, theirs(op, node))


SIZES = {
    Alloc: ("the shape of alloc, zeros or ones", slice(1, None)),
    AllocEmpty: ("the shape of empty arrays", slice(0, None)),
    Eye: ("the shape of eye", slice(0, None)),
    Repeat: ("the number of repeats", slice(1, None)),
}
"""Which inputs are sizes, and what to call them."""


def with_sizes(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Sizes given as ints, which PyTensor passes on as it finds them."""
    what, part = SIZES[next(kind for kind in type(op).__mro__ if kind in SIZES)]
    return _with_known(what, range(len(node.inputs))[part], theirs(op, node))


def _with_known(what: str, places: Any, function: Callable) -> Callable:
    """Return a function some of whose arguments are sizes, and are given as ints."""

    def call(*values: Any) -> Any:
        inputs = list(values)
        for i in places:
            inputs[i] = known(what, inputs[i])
        return function(*inputs)

    return call


def random(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Random numbers of any shape that JAX knows, and not of ``x.shape`` alone."""
    from pytensor.link.jax.dispatch.shape import JAXShapeTuple

    rng, size, *parameters = node.inputs
    if size.owner is not None:
        # PyTensor looks at the Op that makes the size, and at nothing else.
        lengths = [pt.lscalar() for _ in range(pt.get_vector_length(size))]
        as_tuple: Any = JAXShapeTuple()(*lengths)
        outputs = [var.clone() for var in node.outputs]
        node = Apply(op, [rng, as_tuple, *parameters], outputs)
    draw = _with_known("the shape of random numbers", [1], theirs(op, node))
    return drawn(node, draw)


REFUSED: dict[type, str] = {
    Nonzero: MASK,
    Unique: (
        "JAX cannot list different values: how many there are is not known when it"
        " compiles. Compare with all that may occur: eq(x[:, None], arange(n))"
    ),
}
"""What PyTensor does not have for JAX, or calls what JAX has no more for."""


def refuse(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Say what to write instead."""
    raise NotImplementedError(REFUSED[type(op)])


def explained(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Indexing whose refusals say what to write instead."""
    import jax

    function = theirs(op, node)

    def call(*values: Any) -> Any:
        try:
            return function(*values)
        except jax.errors.NonConcreteBooleanIndexError as error:
            raise NotImplementedError(MASK) from error
        except IndexError as error:
            if not any(isinstance(value, jax.core.Tracer) for value in values[1:]):
                raise
            raise NotImplementedError(SLICE) from error

    return call
