"""Whether what the splitting proof says of a value is so, by numbers."""

import numpy as np
import pytensor.tensor as pt
from in_process import output_of

from synk.compiler.domain import Layout, Position, Replicated, Sharded
from synk.compiler.lengths import ONE, Length, cached_lengths
from synk.compiler.proof import rows_of
from synk.compiler.walk import infer
from synk.errors import ShapeMismatch

UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def examine(inputs, graph, asserted=None) -> dict:
    """Return what each variable of a graph is, of inputs that are cut into rows."""
    with cached_lengths(inputs):
        return infer(list(graph), rows_of(inputs, []), asserted or {})


def blocks_of(value) -> Length:
    """Return how many blocks there are of a value's rows."""
    layout = value.layout if isinstance(value, Sharded) else None
    return layout.blocks if layout else ONE


def claimed_size(var, value):
    """Return what computes by how much the length is wrong that a value tells."""
    if isinstance(value, Position) and value.count is not None:
        return as_graph(value.count) - var.shape[value.axis]
    layout = value.layout if isinstance(value, Sharded) else None
    if layout is None or layout.block is None:
        return pt.constant(0)
    whole = as_graph(layout.blocks) * as_graph(layout.block)
    return whole - var.shape[value.axis]


def as_graph(length: Length):
    """Return what computes a length."""
    found = pt.constant(length.number)
    for (var, which), many in length.symbols:
        size = var if which == "value" else var.shape[which]
        found = found * size**many
    return found


def close(got, expected, scale, before=0) -> bool:
    """Compare to rounding.

    Numbers were as large as `scale` in the parts, and `before` in what they were
    computed from, and may have cancelled.
    """
    if np.shape(got) != np.shape(expected):
        return False
    if np.asarray(expected).dtype.kind == "b":
        return bool(np.all(got == expected))
    with np.errstate(all="ignore"):
        bound = 1e-6 * np.maximum(np.abs(expected), scale)
        if np.isfinite(before):
            bound = bound + 1e-12 * before
        near = np.abs(np.subtract(got, expected)) <= bound
    same = near | (got == expected) | (np.isnan(got) & np.isnan(expected))
    return bool(np.all(same))


def largest(arrays) -> float:
    """Return the largest magnitude."""
    with np.errstate(all="ignore"):
        return float(np.max([np.abs(array).max(initial=0) for array in arrays]))


def fulfils(value, whole, parts, sizes, before, counts) -> bool:
    """Tell whether a variable's values fulfil the equation of the proof's domain.

    They are computed from all rows and from each part's, of so many rows; `before` is
    how large the numbers were that they were computed from.
    """
    n = sum(sizes)
    scale = largest([whole, *parts])
    of_size = list(zip([whole, *parts], [n, *sizes], strict=True))
    if isinstance(value, Position):
        shape = [1] * whole.ndim
        shape[value.axis] = -1
        k = whole.size / n
        return (value.length != "n" or k == 1) and all(
            np.array_equal(v, np.arange(round(k * size)).reshape(shape))
            for v, size in of_size
        )
    if value.power is None and scale:
        return False
    power = value.power or 0
    parts = [part / size**power for part, size in zip(parts, sizes, strict=True)]
    whole = whole / n**power
    most = 1 / min(1, *(size**power for size in sizes))
    scale, before = scale * most, before * most
    if isinstance(value, Replicated):
        told = [1] * value.exact + [value.number] * (value.number is not None)
        return all(np.all(whole == number) for number in told) and all(
            close(part, whole, scale, before) for part in parts
        )
    if isinstance(value, Sharded):
        lengths = [part.shape[value.axis] for part in parts]
        if value.length == "n" and lengths != sizes:
            return False
        if value.layout is None and not all(map(_is_alike, parts, [value.axis] * n)):
            return False
        return close(_concatenated(value, parts, counts), whole, scale, before)
    total = UFUNCS[value.op].reduce(parts)
    return close(total, whole, scale * len(parts), before)


def _is_alike(array, axis) -> bool:
    first = np.take(array, [0], axis) if array.shape[axis] else array
    return bool(np.all((array == first) | (np.isnan(array) & np.isnan(first))))


def _concatenated(value: Sharded, parts, counts):
    """Put the parts together, in the order and the blocks of their layout."""
    layout = value.layout or Layout()
    blocks = counts[layout.blocks]
    split = []
    for part in parts[::-1] if layout.reverse else parts:
        axis = part.shape[value.axis]
        if axis % blocks:
            raise ValueError("blocks of unequal length")
        shape = list(part.shape)
        shape[value.axis : value.axis + 1] = [blocks, axis // blocks]
        split.append(part.reshape(shape))
    whole = np.concatenate(split, value.axis + 1)
    shape = list(whole.shape)
    shape[value.axis : value.axis + 2] = [shape[value.axis] * shape[value.axis + 1]]
    return whole.reshape(shape)


def is_true(claim, whole, parts, sizes, before, counts) -> bool:
    """Check an equation, or that an op combines the parts to the whole."""
    scale = largest([whole, *parts])
    if not np.isfinite(scale) or scale > 1e9:
        return True  # rounding may be anything
    try:
        if claim is None or isinstance(claim, str):
            result = output_of(claim, parts, sizes)
            return close(result, whole, scale * len(parts), before)
        return fulfils(claim, whole, parts, sizes, before, counts)
    except (ValueError, IndexError, ShapeMismatch):
        return False  # shapes are not what they should be
