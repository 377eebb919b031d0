"""What may be passed as an array; and what to write instead, of what may not.

PyTensor's types convert what they are given, and say why they cannot in terms of numpy,
or print the value. Here it is one line that names the argument and what to pass.

pandas has dtypes of its own for numbers of which some may be missing (``Float64``,
``Int64``, ``boolean``, and those of Arrow). numpy makes objects of a table of them, and
NaN, silently, of what is missing in a column. Where nothing is missing they are numbers
like others.
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

    `what` is the argument, as in "input x", and `name` what the user's code may call
    the value, for what is to be written.
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
    """Return a value as a PyTensor type takes it; raise TypeError if it does not fit.

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
    """Say why a value cannot become an array of numbers, and what to write.

    None where it can, and where nothing is known to advise.
    """
    problem = _no_array(value, name)
    if problem is not None or dtype.kind not in _NUMBERS:
        return problem
    given = table_as_array(value)
    return _misfit(value, given, dtype, name)


def _describe(kind: Any) -> str:
    """Return a type as in "float32 matrix", with the lengths that it fixes."""
    text = f"{kind.dtype} {_SHAPES.get(kind.ndim, f'tensor of {kind.ndim} dimensions')}"
    if any(length is not None for length in kind.shape):
        lengths = ["?" if length is None else str(length) for length in kind.shape]
        text += f" of shape ({', '.join(lengths)}{',' * (kind.ndim == 1)})"
    return text


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


# -- what is no array


def _no_array(value: Any, name: str) -> str | None:
    """Say of what numpy would make an object of, or text, that it is that."""
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


# -- what is an array of something else


def _misfit(value: Any, given: Any, dtype: np.dtype, name: str) -> str | None:
    """Say of what values an array, a table or a list is that are not `dtype`'s."""
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
    """Say what lies in an array of Python objects; numbers among them can be cast."""
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


# -- what has another shape


def _shape(given: Any, kind: Any, name: str) -> str | None:
    """Say of an array of numbers that its shape does not fit."""
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
    """Return a table or a column as an array, and what is none as it is."""
    if not hasattr(value, "to_numpy"):
        return value
    kinds = _kinds(value)
    if not any(map(_is_nullable, kinds)):
        return value.to_numpy()
    numbers = [np.dtype(getattr(kind, "numpy_dtype", kind)) for kind in kinds]
    are_bools = {kind.kind == "b" for kind in numbers}
    if len(are_bools) > 1 or any(kind.kind not in _NUMBERS for kind in numbers):
        return value.to_numpy()  # of objects, as pandas has it of other dtypes too
    return value.to_numpy(dtype=np.result_type(*numbers))


def has_missing(value: Any) -> bool:
    """Tell whether a nullable column, or one of a table's, has a missing value.

    NaN in a column of numpy's dtypes is a number like others.
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
    """Tell whether a dtype is pandas' own, of values that numpy has a dtype for."""
    return not isinstance(kind, np.dtype) and hasattr(kind, "numpy_dtype")
