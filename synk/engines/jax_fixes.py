"""What PyTensor's JAX mode gets wrong and networks need; each goes when it can.

Found with PyTensor 3.0.7 and JAX 0.10.2, the same in PyTensor 2.38.3.
``test_nn_jax_fixes.py`` has for each a test that fails once PyTensor does it
right by itself: then the fix can go.

JAX has to know every shape when it compiles. The shapes of inputs are known then, and
so is what is computed from them; what depends on values is refused with an error that
says what to write instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.scalar as scalar
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.compile.ops import DeepCopyOp
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Eye, Nonzero, Split
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.extra_ops import Repeat, Unique
from pytensor.tensor.math import Dot, ProdWithoutZeros
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    IncSubtensor,
    indices_from_subtensor,
)

from . import jax_elemwise, jax_known, jax_vectors
from .jax_dtypes import of_its_dtype
from .passed_draws import drawn

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


def register() -> None:
    """Replace PyTensor's own conversions."""
    from pytensor.link.jax.dispatch import jax_funcify
    from pytensor.link.jax.dispatch.random import jax_sample_fn

    jax_funcify.register(ARange)(arange)
    jax_funcify.register(CountedNonzero)(counted_nonzero)
    jax_funcify.register(Nonzero)(refuse_nonzero)
    jax_funcify.register(Reshape)(reshape)
    jax_funcify.register(Split)(split)
    jax_funcify.register(Scan)(scan(jax_funcify.dispatch(Scan)))
    for cls, sizes in SIZES.items():
        jax_funcify.register(cls)(with_sizes(jax_funcify.dispatch(cls), sizes))
    jax_funcify.register(IncSubtensor)(of_all(jax_funcify.dispatch(IncSubtensor)))
    jax_funcify.register(Alloc)(with_arrays(jax_funcify.dispatch(Alloc)))
    jax_funcify.register(ProdWithoutZeros)(prod_without_zeros)
    jax_funcify.register(Unique)(refuse_unique)
    for cls, funcify in list(jax_funcify.registry.items()):
        if cls.__module__ == IncSubtensor.__module__:
            jax_funcify.register(cls)(explained(with_arrays(funcify)))
    jax_funcify.register(scalar.Softplus)(
        jax_elemwise.softplus(jax_funcify.dispatch(scalar.Softplus))
    )
    jax_funcify.register(scalar.Pow)(
        jax_elemwise.power(jax_funcify.dispatch(scalar.Pow))
    )
    jax_funcify.register(Dot)(jax_vectors.by_rows(jax_funcify.dispatch(Dot)))
    for cls in (CAReduce, Elemwise):
        jax_funcify.register(cls)(of_its_dtype(jax_funcify.dispatch(cls)))
    jax_known.register()
    jax_funcify.register(DeepCopyOp)(copied_stream(jax_funcify.dispatch(DeepCopyOp)))
    jax_funcify.register(RandomVariable)(random(jax_funcify.dispatch(RandomVariable)))
    jax_sample_fn.register(ptr.BinomialRV)(binomial)


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


def arange(op: Any, node: Apply, **kwargs: Any) -> Callable:
    """``arange(n)``, and so ``x[arange(n), y]``, for any n that follows from shapes.

    PyTensor keeps the start and step as constants of the smallest dtype, int8, and JAX
    converts n to that: "Python integer 300 out of bounds for int8". It also refuses to
    look at numbers that are computed from shapes, though they are known.
    """
    import jax.numpy as jnp

    def convert(*values: Any) -> Any:
        pairs = zip(values, node.inputs, strict=True)
        start, stop, step = (
            var.data.item()
            if isinstance(var, Constant)
            else known("the length of arange", value)
            for value, var in pairs
        )
        return jnp.arange(start, stop, step, dtype=op.dtype)

    return convert


def reshape(op: Any, **kwargs: Any) -> Callable:
    """Reshaping to whatever shape JAX knows, and not to ``x.shape`` alone."""
    import jax.numpy as jnp

    def convert(x: Any, shape: Any) -> Any:
        sizes = known("the shape of reshape", shape)
        return jnp.reshape(x, tuple(map(operator.index, sizes)))

    return convert


def split(op: Any, node: Apply, **kwargs: Any) -> Callable:
    """Parts of lengths that follow from shapes: gradients of ``concatenate``."""
    import jax.numpy as jnp

    def convert(x: Any, *rest: Any) -> Any:
        # Before PyTensor 3.3 the axis is an input.
        axis, lengths = rest if len(rest) == 2 else (op.axis, *rest)
        axis = known("the axis of split", axis)
        sizes = known("the lengths of split", lengths)
        if sum(sizes) != x.shape[axis]:
            raise ValueError(f"splits {x.shape[axis]} into parts of {sizes}")
        return jnp.split(x, np.cumsum(sizes[:-1]).tolist(), axis=axis)

    return convert


def scan(funcify: Callable) -> Callable:
    """Loops of a number of steps that was computed from shapes.

    PyTensor compares these numbers by ``if``, which JAX refuses even for known arrays.
    """

    def convert(op: Scan, node: Apply, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)
        places = range(len(node.inputs))
        numbers = [places[0], *op.outer_nitsot(places)]

        def call(*values: Any) -> Any:
            inputs = list(values)
            for i in numbers:
                inputs[i] = known("the number of steps of scan", inputs[i])
            return function(*inputs)

        return call

    return convert


SIZES = {
    Alloc: ("the shape of alloc, zeros or ones", slice(1, None)),
    AllocEmpty: ("the shape of empty arrays", slice(0, None)),
    Eye: ("the shape of eye", slice(0, None)),
    Repeat: ("the number of repeats", slice(1, None)),
}
"""Which inputs are sizes, and what to call them."""


def with_sizes(funcify: Callable, sizes: tuple[str, slice]) -> Callable:
    """Sizes given as ints, which PyTensor passes on as it finds them."""
    what, part = sizes

    def convert(op: Any, node: Apply, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)

        def call(*values: Any) -> Any:
            inputs = list(values)
            inputs[part] = [known(what, value) for value in inputs[part]]
            return function(*inputs)

        return call

    return convert


def with_arrays(funcify: Callable) -> Callable:
    """Float constants as arrays of their own dtype.

    PyTensor gives JAX Python's floats in their place: ``alloc`` of one has the dtype of
    those, and adding one to rows is an AttributeError.
    """
    import jax.numpy as jnp

    def convert(op: Any, node: Apply, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)
        dtypes = [getattr(var.type, "dtype", None) for var in node.inputs]

        def call(*values: Any) -> Any:
            return function(
                *(
                    jnp.asarray(value, dtype) if isinstance(value, float) else value
                    for value, dtype in zip(values, dtypes, strict=True)
                )
            )

        return call

    return convert


def prod_without_zeros(op: ProdWithoutZeros, **kwargs: Any) -> Callable:
    """Gradients of ``prod``, for which PyTensor calls what JAX has not."""
    import jax.numpy as jnp

    def convert(x: Any) -> Any:
        some = x != 0
        product = jnp.prod(x, axis=op.axis, dtype=op.acc_dtype, where=some)
        return jnp.where(some.any(axis=op.axis), product, 0).astype(op.dtype)

    return convert


def refuse_unique(op: Unique, **kwargs: Any) -> Callable:
    """Different values, for which PyTensor calls what JAX has no more."""
    raise NotImplementedError(
        "JAX cannot list different values: how many there are is not known when it"
        " compiles. Compare with all that may occur: eq(x[:, None], arange(n))"
    )


def explained(funcify: Callable) -> Callable:
    """Indexing whose refusals say what to write instead."""
    import jax

    def convert(op: Any, node: Apply, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)

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

    return convert


def of_all(funcify: Callable) -> Callable:
    """Set all of an array, or add to all of it.

    XLA (jaxlib 0.10.2, on the CPU) ends the process when it compiles
    ``x.at[:].add(y)[::-1]``, as gradients of recurrent layers have it: "Invalid binary
    instruction opcode map".
    """
    import jax.numpy as jnp

    def convert(op: Any, node: Apply, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)

        out: Any = node.outputs[0]

        def call(x: Any, y: Any, *indices: Any) -> Any:
            places = indices_from_subtensor(indices, op.idx_list)
            if not all(map(_is_all, places, jnp.shape(x))):
                return function(x, y, *indices)
            if op.set_instead_of_inc:
                return jnp.broadcast_to(y, jnp.shape(x)).astype(out.dtype)
            return jnp.add(x, y).astype(out.dtype)

        return call

    return convert


def _is_all(place: Any, length: int) -> bool:
    import jax

    if not isinstance(place, slice):
        return False
    ends = (place.start, place.stop, place.step)
    if any(isinstance(end, jax.core.Tracer) for end in ends):
        return False
    start, stop, step = (None if end is None else operator.index(end) for end in ends)
    return slice(start, stop, step).indices(length) == (0, length, 1)


def refuse_nonzero(op: Nonzero, **kwargs: Any) -> Callable:
    """``nonzero`` in general, of which PyTensor says that it is not there."""
    raise NotImplementedError(MASK)


def copied_stream(funcify: Callable) -> Callable:
    """Streams, which are dicts, where a graph gives one as it is."""

    def convert(op: Any, node: Any = None, **kwargs: Any) -> Callable:
        is_stream = node is not None and isinstance(node.inputs[0].type, RandomType)
        return dict if is_stream else funcify(op, node=node, **kwargs)

    return convert


def random(funcify: Callable) -> Callable:
    """Random numbers of any shape that JAX knows, and not of ``x.shape`` alone."""
    from pytensor.link.jax.dispatch.shape import JAXShapeTuple

    def convert(op: Any, node: Apply, **kwargs: Any) -> Callable:
        rng, size, *parameters = node.inputs
        if size.owner is not None:
            # PyTensor looks at the Op that makes the size, and at nothing else.
            lengths = [pt.lscalar() for _ in range(pt.get_vector_length(size))]
            as_tuple: Any = JAXShapeTuple()(*lengths)
            outputs = [var.clone() for var in node.outputs]
            node = Apply(op, [rng, as_tuple, *parameters], outputs)
        function = funcify(op, node=node, **kwargs)

        def draw(rng: Any, size: Any, *parameters: Any) -> Any:
            return function(
                rng, known("the shape of random numbers", size), *parameters
            )

        return drawn(node, draw, known)

    return convert


def binomial(op: Any, node: Apply) -> Callable:
    """Binomial numbers, so dropout; PyTensor needs NumPyro for them."""
    import jax
    import jax.numpy as jnp

    once = _value(node.inputs[2]) == 1

    def sample(key: Any, size: Any, dtype: Any, n: Any, p: Any) -> Any:
        if size is None:
            size = jnp.broadcast_shapes(jnp.shape(n), jnp.shape(p))
        if once:
            return (jax.random.uniform(key, size) < p).astype(dtype)
        drawn = jax.random.binomial(key, n, p, size)
        return drawn.astype(dtype)

    return sample


class CountedNonzero(Op):
    """Where a matrix is not 0, as rows and columns; how many there are is given."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a matrix and a number."""
        mask, count = map(pt.as_tensor_variable, inputs)
        return Apply(self, [mask, count], [pt.lvector(), pt.lvector()])

    def infer_shape(self, *args: Any) -> Any:
        """Return the number, for both. PyTensor before 3.3 gives the graph, too."""
        *_, node, _shapes = args
        return [(node.inputs[1],)] * 2

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute what JAX does."""
        for storage, indices in zip(output_storage, np.nonzero(inputs[0]), strict=True):
            storage[0] = indices


def counted_nonzero(op: CountedNonzero, **kwargs: Any) -> Callable:
    """Return the Op's function in JAX."""
    import jax.numpy as jnp

    def convert(mask: Any, count: Any) -> Any:
        return jnp.nonzero(mask, size=operator.index(count))

    return convert


def count_nonzero(fgraph: Any) -> None:
    """``x[to_one_hot(y, n).nonzero()]``, and of one minus it: a multi-class hinge loss.

    PyTensor has no ``nonzero`` for JAX, which would have to know how many elements it
    finds. Here they are known: one of each row, or all others.
    """
    for node in fgraph.toposort():
        if not isinstance(node.op, Nonzero) or len(node.outputs) != 2:
            continue
        (mask,) = node.inputs
        if (classes := _classes(mask)) is not None:
            count = classes.shape[0]
        elif (classes := _classes(_one_minus(mask))) is not None:
            count = classes.shape[0] * (mask.shape[1] - 1)
        else:
            continue
        found: Any = CountedNonzero()(mask, count)
        fgraph.replace_all(list(zip(node.outputs, found, strict=True)))


def _classes(mask: Any) -> Any:
    """Return y where a matrix is ``to_one_hot(y, n)``; None where it is not."""
    node = None if mask is None else mask.owner
    if node is None or not isinstance(node.op, AdvancedIncSubtensor):
        return None
    if not node.op.set_instead_of_inc or len(node.inputs) != 4:
        return None
    zeros, one, rows, classes = node.inputs
    made = all(var.owner for var in (zeros, rows)) and _value(one) == 1
    if not (made and isinstance(zeros.owner.op, Alloc)):
        return None
    if _value(zeros.owner.inputs[0]) != 0 or not isinstance(rows.owner.op, ARange):
        return None
    return classes


def _one_minus(mask: Any) -> Any:
    """Return x where a matrix is 1 - x; None where it is not."""
    node = mask.owner
    if node is None or getattr(node.op, "scalar_op", None) != scalar.sub:
        return None
    return node.inputs[1] if _value(node.inputs[0]) == 1 else None


def _value(var: Any) -> Any:
    """Return the number that a variable is; None if it is none, or not known."""
    try:
        return pt.get_underlying_scalar_constant_value(var).item()
    except NotScalarConstantError:
        return None
