"""Tables and columns of pandas as arrays: of numpy's dtypes, and of pandas' own.

pandas has dtypes of its own for numbers of which some may be missing (``Float64``,
``Int64``, ``boolean``, and those of Arrow). numpy makes objects of a table of them, and
NaN, silently, of what is missing in a column. Where nothing is missing they are numbers
like others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_NUMBERS = "biufc"


def as_array(value: Any) -> Any:
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
