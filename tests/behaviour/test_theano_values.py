"""403 expressions have the dtypes, shapes and numbers that Theano 1.0.5 printed.

``theano_values.json`` was printed by Theano itself, on Python 3.8, in its mode without
C. It holds the inputs, too, and what its notation means.
"""

import contextlib
import functools
import json
import sys

import numpy as np
import pytest
import theano
import theano.sparse
import theano.tensor as T
import theano.tensor.fft
from places import SUPPORT

PRINTED = json.loads((SUPPORT / "theano_values.json").read_text())
EXPRESSIONS = list(PRINTED["values"])
KINDS = {
    "x": "matrix",
    "v": "vector",
    "i": "imatrix",
    "l": "lmatrix",
    "b": "bmatrix",
    "fx": "fmatrix",
    "x3": "tensor3",
    "x4": "tensor4",
    "k4": "tensor4",
    "iv": "ivector",
    "lv": "lvector",
    "s": "scalar",
    "fs": "fscalar",
    "ls": "lscalar",
    "u8": "matrix",
}
GROUP = 50
"""How many expressions are compiled as one function, which takes far less time."""


def array(dtype, shape, printed):
    """Return numbers that were printed: "nan", "inf", pairs of complex ones."""
    number = np.array(printed, dtype="O")
    if dtype.startswith("complex"):
        pairs = np.array(printed, dtype="float64")
        return (pairs[..., 0] + 1j * pairs[..., 1]).astype(dtype).reshape(shape)
    if (number.size and isinstance(number.flat[0], str)) or "float" in dtype:
        number = number.astype("float64")
    return number.astype(dtype).reshape(shape)


@functools.cache
def variables():
    return {
        name: getattr(T, kind)(name, **({"dtype": "uint8"} if name == "u8" else {}))
        for name, kind in KINDS.items()
    }


@functools.cache
def given():
    return {
        name: np.array(printed, dtype)
        for name, (dtype, printed) in PRINTED["inputs"].items()
    }


def outputs_of(expression):
    """Return the variables of an expression, and how many it has."""
    names = {"T": T, "theano": theano, "np": np, "sys": sys, **given(), **variables()}
    made = eval(expression, names)
    return list(made) if isinstance(made, list | tuple) else [made]


@functools.cache
def group(first):
    """Return what `GROUP` expressions give, from one function."""
    made = {}
    for e in EXPRESSIONS[first : first + GROUP]:
        with contextlib.suppress(Exception):  # that of one is raised in its own test
            made[e] = outputs_of(e)
    f = theano.function(
        list(variables().values()),
        [output for outputs in made.values() for output in outputs],
        on_unused_input="ignore",
        mode="FAST_COMPILE",
    )
    results = iter(f(**{name: given()[name] for name in variables()}))
    return {e: [next(results) for _ in outputs] for e, outputs in made.items()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("number", range(len(EXPRESSIONS)), ids=EXPRESSIONS)
def test_an_expression_has_the_value_that_theano_printed(number):
    expression = EXPRESSIONS[number]
    results = group(number - number % GROUP).get(expression)
    if results is None:
        outputs_of(expression)
    if len(results) == 1 and isinstance(results[0], list):
        (results,) = results  # a shared variable that holds a list
    for printed, result in zip(PRINTED["values"][expression], results, strict=True):
        expected = array(*printed)
        found = np.asarray(result.toarray() if hasattr(result, "toarray") else result)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        bound = 1e-5 if found.dtype in ("float32", "complex64") else 1e-9
        np.testing.assert_allclose(found, expected, rtol=bound, atol=bound)
