"""The arguments of a call: checked in the master, and described to the ranks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from ..compiler.spec import FunctionSpec
from ..errors import SplitError
from ..memory.partition import select
from ..variables.array_like import convert
from ..variables.data import Data, data


def bind(what: object, inputs: Sequence[Variable], args: tuple, kwargs: dict) -> list:
    """Put a call's arguments into the order of the inputs.

    Raises
    ------
    TypeError
        If there are too many, too few, two for one input, or some for none.
    """
    if not kwargs and len(args) == len(inputs):
        return list(args)
    if len(args) > len(inputs):
        raise TypeError(f"{what!r} takes {len(inputs)} arguments, got {len(args)}")
    names = [var.name for var in inputs]
    values: list[Any] = [*args, *[_MISSING] * (len(inputs) - len(args))]
    for name, value in kwargs.items():
        if names.count(name) != 1:
            many = "several inputs" if name in names else "no input"
            raise TypeError(f"{what!r} has {many} named {name!r}")
        place = names.index(name)
        if values[place] is not _MISSING:
            raise TypeError(f"{what!r} got two values for input {name!r}")
        values[place] = value
    missing = [
        str(var) for var, value in zip(inputs, values, strict=True) if value is _MISSING
    ]
    if missing:
        hint = "".join(
            f"; as {name}= is an option of calls, pass it by position"
            for name in missing
            if name in _OPTIONS
        )
        raise TypeError(f"{what!r} misses a value for {', '.join(missing)}{hint}")
    return values


_MISSING = object()
_OPTIONS = ("batch", "batch_s", "num_slices", "output_subset", "check", "progress")
"""What a call takes by these names is no input."""


def build(
    inputs: Sequence[Variable],
    values: Sequence[Any],
    minibatch: Any,
    force_cast: Any,
    oversize: Any,
) -> Data | tuple[Data, ...]:
    """Make data of values for inputs; see `Function.build_inputs`."""
    n = len(inputs)
    each = zip(
        values,
        inputs,
        _one_for_each("minibatch", minibatch, n),
        _one_for_each("force_cast", force_cast, n),
        _one_for_each("oversize", oversize, n),
        strict=True,
    )
    built = tuple(
        data(value, var, minibatch=alone, force_cast=forced, oversize=factor)
        for value, var, alone, forced, factor in each
    )
    return built[0] if len(built) == 1 else built


def _one_for_each(name: str, option: Any, n: int) -> list:
    """Return an option, given as one value or as a list, as a list of `n`."""
    if not isinstance(option, (list, tuple)):
        return [option] * n
    if len(option) != n:
        raise ValueError(f"{name} has {len(option)} entries for {n} inputs: {option}")
    return list(option)


def check_arguments(
    variables: Sequence[Variable], values: Sequence[Any], options: dict[str, Any]
) -> list[np.ndarray]:
    """Return the values as arrays of exactly the variables' types."""
    if not variables:
        return []
    downcast = options.get("allow_input_downcast")
    return [
        _check_data(var, value)
        if isinstance(value, Data)
        else _check_value(var, value, downcast)
        for var, value in zip(variables, values, strict=True)
    ]


def _check_data(var: Variable, value: Data) -> np.ndarray:
    array = value._held()
    kind = var.type
    if array.dtype != kind.numpy_dtype or array.ndim != kind.ndim:
        raise TypeError(
            f"input {var} is {kind.dtype} with {kind.ndim} dimensions, got {value!r};"
            f" make it with synk.data(values, var={var})"
        )
    _check_static_shape(var, array)
    return array


def _check_value(var: Variable, value: Any, downcast: bool | None) -> np.ndarray:
    # What `filter` would return, without its cost; a masked array is no plain one.
    if type(value) is np.ndarray and value.dtype == var.type.numpy_dtype:
        array = value
        if array.ndim == var.type.ndim:
            _check_static_shape(var, array)
            return array
    name = var.name if var.name and var.name.isidentifier() else "value"
    return convert(f"input {var}", var.type, value, downcast, name)


def _check_static_shape(var: Variable, array: np.ndarray) -> None:
    for axis, (fixed, length) in enumerate(
        zip(var.type.shape, array.shape, strict=True)
    ):
        if fixed is not None and fixed != length:
            raise TypeError(
                f"input {var} ({var.type}) has length {fixed} along axis {axis},"
                f" got shape {array.shape}"
            )


def check_num_slices(num_slices: int, spec: FunctionSpec) -> int:
    """Return `num_slices` as an int of at least 1, if a function goes in so many."""
    slices = operator.index(num_slices)
    if slices < 1:
        raise ValueError(f"num_slices must be at least 1, got {num_slices}")
    if slices > 1 and not spec.row_inputs:
        raise ValueError(
            f"num_slices={num_slices} needs scattered inputs or sliceable_shareds"
        )
    if slices > 1 and spec.not_in_slices:
        raise SplitError(
            f"num_slices={num_slices}: {spec.not_in_slices[0]}. Name an op for the"
            " update if one of them is meant: (shared, new, op)"
        )
    return slices


def check_shared_rows(
    batch_s: Any, variables: Sequence[SharedVariable], size: int
) -> list[Any] | None:
    """Bring `batch_s` into the form of one entry for each rank.

    Rank 0's entry is checked against the master's variables; only the other ranks know
    the lengths of theirs.
    """
    if batch_s is None:
        return None
    if not variables:
        raise ValueError("batch_s was given, and there are no sliceable_shareds")
    is_list = isinstance(batch_s, (list, tuple)) and any(
        entry is None or isinstance(entry, (slice, list, tuple, np.ndarray))
        for entry in batch_s
    )
    if not is_list:
        batch_s = [batch_s] * size
    if len(batch_s) != size:
        raise ValueError(f"batch_s has {len(batch_s)} entries for {size} ranks")
    for var in variables:
        select(batch_s[0], len(var.get_value(borrow=True)))
    return list(batch_s)
