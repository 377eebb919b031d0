"""What the tests compare with: the serial arithmetic."""

import numpy as np
import pytensor
from pytensor.compile.mode import Mode

import synk

PY = Mode("py", None)
"""Compiles at once: for tests in which the numbers matter and the speed does not."""

FLOATS = ("float16", "float32", "float64")
INTEGERS = *(f"int{n}" for n in (8, 16, 32, 64)), *(f"uint{n}" for n in (8, 16, 32, 64))
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)

KINDS = {"floats": FLOATS, "integers": INTEGERS, "others": ("bool", *COMPLEX)}
"""The dtypes in groups: one session for each group, as many sessions take long."""

SHAPES = [
    *[(), (4,), (0,), (3, 2), (5, 5), (2, 0, 3), (2, 3, 2)],
    *[(1, 2, 3, 2), (2, 1, 3, 1, 2), (1500,)],
]
"""0 to 5 dimensions; as many rows as ranks, fewer, more; more than a kernel's block."""

REDUCE_OPS = ("avg", "sum", "prod", "min", "max")


def ops_of(dtype: str) -> list[str]:
    """Return the reduce ops that mean something for a dtype."""
    if dtype == "bool":
        return ["sum", "prod", "min", "max"]
    if dtype in COMPLEX:
        return ["avg", "sum", "prod"]
    return list(REDUCE_OPS)


def values_of(dtype: str, shape: tuple[int, ...], *seed: int) -> np.ndarray:
    """Return reproducible values that fill the range of a dtype; floats near 1."""
    rng = np.random.default_rng([3, *seed])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = rng.uniform(0.5, 1.5, shape)
    if kind == "c":
        values = values + 1j * rng.uniform(-0.5, 0.5, shape)
    return np.asarray(values).astype(dtype)


def shared_of(dtype: str, shape: tuple, name: str | None = None):
    """Return a shared variable of a dtype and of as many dimensions as `shape`."""
    return pytensor.shared(np.zeros((1,) * len(shape), dtype), name=name)


def give(variables, ranks: int, dtype: str, shapes, seed: int) -> list[list]:
    """Give every rank values of its own; return them by variable and rank."""
    values = [
        [values_of(dtype, shape, seed, i, rank) for rank in range(ranks)]
        for i, shape in enumerate(shapes)
    ]
    for rank in range(ranks):
        synk.set_value(rank, variables, [of_var[rank] for of_var in values])
    return values


def reduced(op: str, values, weights=None) -> np.ndarray:
    """Combine arrays by an op, in extended precision; the result has their dtype.

    Sums and products of integers wrap around as numpy's do. Averages of integers are
    left in extended precision: how they are rounded is for the test to say.
    """
    stack = np.stack(values)
    dtype = stack.dtype
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(dtype.kind, dtype)
    if op == "avg":
        weights = [1] * len(stack) if weights is None else weights
        used = [i for i, weight in enumerate(weights) if weight]
        wide = np.clongdouble if dtype.kind == "c" else np.longdouble
        total = sum(stack[i].astype(wide) * weights[i] for i in used)
        average = total / sum(weights)
        return average if dtype.kind in "iu" else np.asarray(average).astype(dtype)
    ufunc = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}[op]
    with np.errstate(over="ignore"):
        return np.asarray(getattr(np, ufunc).reduce(stack, axis=0, dtype=wide)).astype(
            dtype
        )


def assert_same(
    got, expected, ulps: float = 2, scale: float = 0, err_msg: str = ""
) -> None:
    """Assert equality of dtype, shape and values; inexact ones to a few roundings.

    Roundings are counted in units of the result, or of `scale` where what was added up
    is larger than the result.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, f"{got.dtype}, not {expected.dtype} {err_msg}"
    assert got.shape == expected.shape, f"{got.shape}, not {expected.shape} {err_msg}"
    if expected.dtype.kind in "fc":
        rtol = ulps * float(np.finfo(expected.dtype).eps)
        np.testing.assert_allclose(got, expected, rtol, rtol * scale, err_msg=err_msg)
    else:
        np.testing.assert_array_equal(got, expected, err_msg=err_msg)


def cut(rows: np.ndarray, n: int) -> list[np.ndarray]:
    """Return the rows of each rank: contiguous, the longer parts first."""
    return np.array_split(rows, n)
