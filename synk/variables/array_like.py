"""Conversion of arguments to arrays, and advice for those that cannot be converted.

PyTensor's types convert values too, but their errors speak of numpy, or print the
value. Here an error is one line, which names the argument and says what to pass.

pandas has nullable dtypes, whose values may be missing (``Float64``, ``Int64``,
``boolean``, and those of Arrow). numpy makes an array of objects of a table with such
columns, and silently NaN of a missing value in a column. Here they are converted if no
value is missing, and refused otherwise.
"""

from __future__ import annotations

import numbers
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.type import DenseTensorType

from ..errors import ORDINARY

_SHAPES = {0: "scalar", 1: "vector", 2: "matrix"}
_NUMBERS = "biufc"


def refuse_masked(what: object, value: Any, name: str = "value") -> None:
    """Raise TypeError for a masked array, or a list with one: numpy drops the mask.

    The message calls the argument `what`, as in "input x", and its advice calls the
    value `name`, as in "pass value.filled(0)".
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{what} got a masked array, whose mask would be lost: pass"
            f" {name}.filled(value), or give the mask as an input of its own"
        )
    if isinstance(value, (list, tuple)):
        for item in value:
            if type(item) is not float:
                refuse_masked(what, item, f"{name}[i]")


def convert(
    what: str, kind: Any, value: Any, downcast: bool | None, name: str = "value"
) -> Any:
    """Convert a value to the PyTensor type `kind`; raise TypeError if that fails.

    `what` and `name` are as for `refuse_masked`, and `downcast` as PyTensor's
    ``allow_input_downcast``. The message is one line, without the value.
    """
    if not isinstance(kind, DenseTensorType):
        try:
            return kind.filter(value, strict=False, allow_downcast=downcast)
        except ORDINARY as error:
            raise TypeError(f"{what} ({kind}): {_one_line(error)}") from None
    dtype = kind.numpy_dtype
    refuse_masked(what, value, name)
    if (problem := _no_array(value, name)) is None:
        given = table_as_array(value)
        try:
            return kind.filter(given, strict=False, allow_downcast=downcast)
        except ORDINARY as error:
            problem = _shape(given, kind, name) or _misfit(value, given, dtype, name)
            problem = problem or _one_line(error)
    raise TypeError(f"{what} ({_describe(kind)}) got {problem}") from None


def why_not(value: Any, dtype: np.dtype, name: str = "value") -> str | None:
    """Return why a value cannot become an array of numbers, and what to pass.

    None if it can, and if there is no advice for it.
    """
    problem = _no_array(value, name)
    if problem is not None or dtype.kind not in _NUMBERS:
        return problem
    given = table_as_array(value)
    return _misfit(value, given, dtype, name)


def _describe(kind: Any) -> str:
    """Return the name of a type, as "float32 matrix", with its fixed lengths."""
    text = f"{kind.dtype} {_SHAPES.get(kind.ndim, f'tensor of {kind.ndim} dimensions')}"
    if any(length is not None for length in kind.shape):
        lengths = ["?" if length is None else str(length) for length in kind.shape]
        text += f" of shape ({', '.join(lengths)}{',' * (kind.ndim == 1)})"
    return text


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


# -- values that are no arrays


def _no_array(value: Any, name: str) -> str | None:
    """Return a message for a value that numpy would turn into objects or text."""
    if isinstance(value, (np.ndarray, np.generic, int, float, complex, list, tuple)):
        return None
    if value is None:
        return "None: pass an array"
    if isinstance(value, (str, bytes)):
        return f"text: pass numbers, as float({name})"
    if has_missing(value):
        return _of_missing(value, name)
    if isinstance(value, SharedVariable):
        return f"the shared variable {value}: pass {name}.get_value()"
    if isinstance(value, Variable):
        return f"{value}, a symbolic variable: pass a value for it"
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        return f"a sparse matrix: pass {name}.toarray()"
    kind = type(value).__name__
    a_kind = f"a value of type {kind}"
    if isinstance(value, dict) and hasattr(value, "data"):  # of scikit-learn
        return f"a {kind}: pass {name}.data, or another array in it"
    if isinstance(value, dict):
        keys = ", ".join(map(repr, list(value)[:3]))
        return f"a {kind}: pass one of its values ({keys}{', ...' * (len(value) > 3)})"
    if hasattr(value, "files") and hasattr(value, "f"):  # of numpy.load
        return f"an .npz file: pass one of its arrays ({', '.join(value.files[:3])})"
    if isinstance(value, (Iterator, set, frozenset)):
        return f"{a_kind}: pass list({name})"
    is_code = callable(value) or isinstance(value, types.ModuleType)
    if is_code and not hasattr(value, "__array__"):
        return f"{a_kind}: pass an array"
    return None


# -- arrays of another dtype


def _misfit(value: Any, given: Any, dtype: np.dtype, name: str) -> str | None:
    """Return a message for a value that cannot be cast to `dtype`, None if it can."""
    try:
        array = np.asarray(given)
    except ORDINARY:
        return _ragged(given)
    if array.dtype.kind == "O":
        return _of_objects(value, array, dtype, name)
    if array.dtype == dtype:
        return None
    if array.dtype.kind in "USV":
        names = {"V": f"records ({array.dtype.names})"}
        got = names.get(array.dtype.kind, "text")
        fields = f"one field, as {name}[field]" if array.dtype.names else "numbers"
        return f"{got}: pass {fields}"
    if array.dtype.kind == "c" and dtype.kind != "c":
        return f"{array.dtype} values: pass {name}.real, or {name}.imag"
    if np.can_cast(array.dtype, dtype, "safe"):
        return None
    cast = f"{name}.astype('{dtype}')"
    if hasattr(value, "dtype") or hasattr(value, "to_numpy"):
        return f"{array.dtype} values: pass {cast}"
    if array.ndim == 0:
        return f"a number that {dtype} does not hold exactly: pass np.{dtype}({name})"
    return (
        f"values that {dtype} does not hold exactly: pass np.asarray({name}, '{dtype}')"
    )


def _ragged(given: Any) -> str | None:
    if not isinstance(given, Sequence):
        return None
    lengths = [len(row) if hasattr(row, "__len__") else 0 for row in given]
    if len(set(lengths)) > 1:
        few, many = min(lengths), max(lengths)
        return f"a ragged list, with rows of length {few} and {many}: pad them to one"
    return "a ragged list, with parts of different shapes: pad them to one"


def _of_objects(value: Any, array: np.ndarray, dtype: np.dtype, name: str) -> str:
    """Return a message for an array of Python objects: which, and how to convert."""
    if hasattr(value, "to_numpy"):
        return _of_pandas(value, dtype, name)
    known = (numbers.Number, np.bool_)
    odd = [item for item in array.flat if not isinstance(item, known)]
    if not odd:
        if hasattr(value, "dtype"):
            return f"Python objects: pass {name}.astype('{dtype}')"
        return f"numbers that {dtype} does not hold: pass others, as float"
    if odd[0] is None:
        return "None among its values: pass np.nan in its place"
    if isinstance(odd[0], (str, bytes)):
        return "text among its values: pass numbers"
    if isinstance(odd[0], (np.ndarray, list, tuple)):
        return f"an array of arrays: pass np.stack({name})"
    kind = type(odd[0]).__name__
    if array.ndim == 0:
        return f"a value of type {kind}: pass an array"
    return f"values of type {kind}: pass numbers"


def _of_pandas(value: Any, dtype: np.dtype, name: str) -> str:
    kind = type(value).__name__
    columns = dict(value.dtypes) if hasattr(value, "columns") else {"": value.dtype}
    others = {
        column: of
        for column, of in columns.items()
        if getattr(of, "kind", "O") not in _NUMBERS
    }
    if others and hasattr(value, "columns"):
        column, of = next(iter(others.items()))
        rest = f"{name}.select_dtypes('number').to_numpy('{dtype}')"
        advice = rest if len(others) < len(columns) else "numbers"
        bad = f"{column}: {of}"
        return f"a {kind} with columns that are not numbers ({bad}): pass {advice}"
    if others:
        return f"a {kind} of dtype {others['']}: pass numbers"
    if bool(np.any(np.asarray(value.isna()))):
        return _of_missing(value, name)
    return f"a {kind} with columns of several dtypes: pass {name}.to_numpy('{dtype}')"


def _of_missing(value: Any, name: str) -> str:
    kind = type(value).__name__
    return f"a {kind} with missing values: pass {name}.fillna(value), or drop them"


# -- arrays of another shape


def _shape(given: Any, kind: Any, name: str) -> str | None:
    """Return a message for an array of numbers whose shape does not fit, or None."""
    try:
        array = np.asarray(given)
    except ORDINARY:
        return None
    shape = array.shape
    if array.dtype.kind not in _NUMBERS:
        return None
    if len(shape) != kind.ndim:
        advice = {
            (1, 2): f": pass np.reshape({name}, (-1, 1)) for one column",
            (2, 1): f": pass np.ravel({name})" if 1 in shape else "",
        }.get((len(shape), kind.ndim), "")
        return f"shape {shape}, and {kind.ndim} dimensions are wanted{advice}"
    for axis, (fixed, length) in enumerate(zip(kind.shape, shape, strict=True)):
        if fixed is not None and fixed != length:
            return f"shape {shape}, of length {length} along axis {axis}"
    return None


# -- tables and columns of pandas


def table_as_array(value: Any) -> Any:
    """Return a table or column of pandas as an array, and any other value as it is."""
    if not hasattr(value, "to_numpy"):
        return value
    kinds = _kinds(value)
    if not any(map(_is_nullable, kinds)):
        return value.to_numpy()
    numbers = [np.dtype(getattr(kind, "numpy_dtype", kind)) for kind in kinds]
    are_bools = {kind.kind == "b" for kind in numbers}
    if len(are_bools) > 1 or any(kind.kind not in _NUMBERS for kind in numbers):
        return value.to_numpy()  # of objects, as for any columns of mixed dtypes
    return value.to_numpy(dtype=np.result_type(*numbers))


def has_missing(value: Any) -> bool:
    """Return whether a column of a nullable dtype has a missing value.

    NaN in a column of one of numpy's dtypes does not count as missing.
    """
    if not hasattr(value, "to_numpy"):
        return False
    places = [i for i, kind in enumerate(_kinds(value)) if _is_nullable(kind)]
    if not places:
        return False
    columns = value.iloc[:, places] if _is_table(value) else value
    return bool(np.any(np.asarray(columns.isna())))


def _is_table(value: Any) -> bool:
    return getattr(value, "ndim", 1) == 2 and hasattr(value, "dtypes")


def _kinds(value: Any) -> list[Any]:
    """Return the dtype of each column."""
    return list(value.dtypes) if _is_table(value) else [getattr(value, "dtype", None)]


def _is_nullable(kind: Any) -> bool:
    """Return whether a dtype is pandas' nullable form of one of numpy's dtypes."""
    return not isinstance(kind, np.dtype) and hasattr(kind, "numpy_dtype")
