"""Shapes in JAX mode: any that JAX knows when it compiles, and helpful errors.

JAX must know every shape when it compiles. It then knows the shapes of inputs and what
is computed from them. A shape that depends on values raises an error that says what to
write instead.
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


def static(what: str, value: Any) -> Any:
    """Return a size, or a tuple of sizes, as ints; raise if one depends on values.

    `what` names the size in the error. None stays None.
    """
    import jax

    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        return tuple(static(what, size) for size in value)
    if isinstance(value, jax.core.Tracer):
        raise NotImplementedError(f"JAX needs {what} when it compiles: {INSTEAD}")
    return np.asarray(value).tolist()


def arange(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert ``arange(n)``, as in ``x[arange(n), y]``, for n that follows from shapes.

    Until PyTensor 3.3 the start and step are constants of the smallest dtype, int8, to
    which JAX converts n: "Python integer 300 out of bounds for int8". PyTensor also
    raises for a number that is computed from shapes, though JAX knows it.
    """
    import jax.numpy as jnp

    def call(*values: Any) -> Any:
        start, stop, step = (
            var.data.item()
            if isinstance(var, Constant)
            else static("the length of arange", value)
            for value, var in zip(values, node.inputs, strict=True)
        )
        return jnp.arange(start, stop, step, dtype=op.dtype)

    return call


def reshape(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert a reshape to any shape that JAX knows; PyTensor takes few forms of it."""
    import jax.numpy as jnp

    def call(x: Any, shape: Any) -> Any:
        sizes = static("the shape of reshape", shape)
        return jnp.reshape(x, tuple(map(operator.index, sizes)))

    return call


def split(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert a split into lengths from shapes, as in gradients of ``concatenate``."""
    import jax.numpy as jnp

    def call(x: Any, *rest: Any) -> Any:
        # Before PyTensor 3.3 the axis is an input.
        axis, lengths = rest if len(rest) == 2 else (op.axis, *rest)
        axis = static("the axis of split", axis)
        sizes = static("the lengths of split", lengths)
        if sum(sizes) != x.shape[axis]:
            raise ValueError(f"splits {x.shape[axis]} into parts of {sizes}")
        return jnp.split(x, np.cumsum(sizes[:-1]).tolist(), axis=axis)

    return call


def scan(original: Callable, op: Scan, node: Apply) -> Callable:
    """Give a scan its numbers of steps as ints, as PyTensor uses them in an ``if``."""
    places = range(len(node.inputs))
    numbers = [places[0], *op.outer_nitsot(places)]
    return _with_static("the number of steps of scan", numbers, original(op, node))


SIZES = {
    Alloc: ("the shape of alloc, zeros or ones", slice(1, None)),
    AllocEmpty: ("the shape of empty arrays", slice(0, None)),
    Eye: ("the shape of eye", slice(0, None)),
    Repeat: ("the number of repeats", slice(1, None)),
}
"""By class of Op: the name of its sizes in errors, and which inputs are sizes."""


def with_sizes(original: Callable, op: Any, node: Apply) -> Callable:
    """Give an Op of `SIZES` its sizes as ints; PyTensor passes arrays on."""
    what, part = SIZES[next(kind for kind in type(op).__mro__ if kind in SIZES)]
    return _with_static(what, range(len(node.inputs))[part], original(op, node))


def _with_static(what: str, places: Any, function: Callable) -> Callable:
    """Return `function`, called with the arguments at `places` made ints."""

    def call(*values: Any) -> Any:
        inputs = list(values)
        for i in places:
            inputs[i] = static(what, inputs[i])
        return function(*inputs)

    return call


def random(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert random numbers of any shape that JAX knows, and for a rank's rows."""
    from pytensor.link.jax.dispatch.shape import JAXShapeTuple

    rng, size, *parameters = node.inputs
    if size.owner is not None:
        # PyTensor only accepts a size that certain Ops have made.
        lengths = [pt.lscalar() for _ in range(pt.get_vector_length(size))]
        as_tuple: Any = JAXShapeTuple()(*lengths)
        outputs = [var.clone() for var in node.outputs]
        node = Apply(op, [rng, as_tuple, *parameters], outputs)
    draw = _with_static("the shape of random numbers", [1], original(op, node))
    return drawn(node, draw)


REFUSED: dict[type, str] = {
    Nonzero: MASK,
    Unique: (
        "JAX cannot list different values: how many there are is not known when it"
        " compiles. Compare with all that may occur: eq(x[:, None], arange(n))"
    ),
}
"""Errors for Ops that PyTensor cannot convert to JAX, or converts to removed names."""


def refuse(original: Callable, op: Any, node: Apply) -> Callable:
    """Raise NotImplementedError, which says what to write instead."""
    raise NotImplementedError(REFUSED[type(op)])


def explained(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert indexing, with errors that say what to write instead."""
    import jax

    function = original(op, node)

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
