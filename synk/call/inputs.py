"""The arguments of a call: checked in the master, and described to the ranks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from ..memory.partition import Selection, count, cuts, part, select
from ..memory.segment import Arena, Window
from ..state.array_like import convert
from ..state.data import Data


class Source(NamedTuple):
    """Where the rows of one input lie.

    ``array`` is the array itself in the master and a window for the other ranks.
    Row i of the batch is row ``i - offset`` of it if it holds batch rows alone, in
    their order, and row ``selection[i]`` if not.
    """

    array: Any
    offset: int
    is_batch: bool


class Rows(NamedTuple):
    """The rows of a call: one selection and one cut into parts, for all inputs.

    To the ranks it travels as a plain tuple: the selection as (start, stop) or the
    window of an index array, and every source as a plain tuple, too.
    """

    selection: Any
    bounds: list[int]
    sources: list

    @property
    def total(self) -> int:
        """The number of rows on all ranks."""
        return self.bounds[-1]


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
        raise TypeError(f"{what!r} misses a value for {', '.join(missing)}")
    return values


_MISSING = object()


def one_for_each(name: str, option: Any, n: int) -> list:
    """Return an option, given as one value or as a list, as a list of `n`."""
    if not isinstance(option, (list, tuple)):
        return [option] * n
    if len(option) != n:
        raise ValueError(f"{name} has {len(option)} entries for {n} inputs: {option}")
    return list(option)


def take_share(
    rank: int,
    locate: Callable[[Any], np.ndarray],
    selection: Any,
    bounds: list[int],
    sources: list,
) -> tuple[list[np.ndarray], list[Selection]]:
    """Return the arrays that a rank takes rows from, and which rows of each.

    Parameters
    ----------
    rank : int
    locate : callable
        Returns an array that may be described by a window.
    selection, bounds, sources
        See `Rows`.
    """
    if not sources:
        return [], []
    start, stop = bounds[rank], bounds[rank + 1]
    if isinstance(selection, tuple):
        is_slice = len(selection) == 2
        selection = slice(*selection) if is_slice else locate(selection)
    mine = part(selection, start, stop)
    arrays: list[np.ndarray] = []
    selections: list[Selection] = []
    for array, offset, is_batch in sources:
        arrays.append(locate(array))
        selections.append(slice(start - offset, stop - offset) if is_batch else mine)
    return arrays, selections


def gather_rows(
    variables: Sequence[Variable],
    values: Sequence[Any],
    batch: Any,
    size: int,
    options: dict[str, Any],
) -> Rows:
    """Check the scattered inputs of a call and cut their rows between the ranks.

    Raises
    ------
    TypeError, ValueError, IndexError
        If a value does not fit its variable, lengths differ, or the batch is wrong.
    """
    if not variables:
        if batch is not None:
            raise ValueError("batch was given, and there are no scattered inputs")
        return Rows(slice(0, 0), [0] * (size + 1), [])
    arrays = check_arguments(variables, values, options)
    are_batches = [isinstance(value, Data) and value.minibatch for value in values]
    lengths = [
        len(array)
        for array, is_batch in zip(arrays, are_batches, strict=True)
        if not is_batch or batch is None
    ]
    if any(length != lengths[0] for length in lengths):
        named = {
            str(var): len(array) for var, array in zip(variables, arrays, strict=True)
        }
        raise ValueError(f"the scattered inputs have different lengths: {named}")
    length = lengths[0] if lengths else _unbounded_length(batch, arrays)
    selection = select(batch, length)
    total = count(selection)
    sources = []
    for var, array, is_batch in zip(variables, arrays, are_batches, strict=True):
        if is_batch and len(array) < total:
            raise IndexError(
                f"the minibatch for input {var} has {len(array)} rows, and the batch"
                f" has {total}: row i of it belongs to the i-th row of the batch"
            )
        sources.append(Source(array, 0, is_batch))
    return Rows(selection, cuts(total, size), sources)


def _unbounded_length(batch: Any, arrays: Sequence[np.ndarray]) -> int:
    """Return a length that `batch` fits, where minibatches alone are given.

    Nothing says how many rows the whole has that they are taken from.
    """
    if batch is None:
        return len(arrays[0])
    if isinstance(batch, slice):
        forwards = batch.step is None or batch.step > 0
        last = batch.stop if forwards else batch.start
        if last is None or min(last, batch.start or 0, batch.stop or 0) < 0:
            raise ValueError(f"batch={batch} of minibatch data needs explicit bounds")
        return last if forwards else last + 1
    batch = np.asarray(batch)
    if batch.dtype == bool:
        return len(batch)
    if batch.size and int(batch.min()) < 0:
        raise IndexError(
            f"row {batch.min()} of minibatch data: negative rows mean none"
        )
    return int(batch.max()) + bool(batch.ndim) if batch.size else 0


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
    array = value.data
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


def check_num_slices(num_slices: int, has_rows: bool) -> int:
    """Return `num_slices` as an int of at least 1."""
    slices = operator.index(num_slices)
    if slices < 1:
        raise ValueError(f"num_slices must be at least 1, got {num_slices}")
    if slices > 1 and not has_rows:
        raise ValueError(
            f"num_slices={num_slices} needs scattered inputs or sliceable_shareds"
        )
    return slices


class Wanted:
    """The outputs that a call returns.

    Parameters
    ----------
    returns : {"one", "list", "none"}
        In which form.
    order : sequence of int
        Positions among the function's outputs, in the order asked for.

    Attributes
    ----------
    subset : tuple of int
        The positions, ascending: what is to be computed.
    """

    def __init__(self, returns: str, order: Sequence[int]) -> None:
        self._returns = returns
        self.subset = tuple(sorted(set(order)))
        self._places = [self.subset.index(i) for i in order]

    def of(self, output_subset: Sequence[int] | None) -> Wanted:
        """Return what a call with `output_subset` returns, of all these outputs.

        Raises
        ------
        IndexError
            If there is no such output.
        """
        if output_subset is None:
            return self
        outputs = len(self.subset)
        for i in output_subset:
            if not -outputs <= operator.index(i) < outputs:
                raise IndexError(
                    f"output_subset has {i}, out of range for {outputs} outputs"
                )
        return Wanted("list", [i % outputs for i in output_subset])

    def arrange(self, results: list) -> Any:
        """Put the results of the subset into the order and form asked for."""
        if self._returns == "list":
            return [results[place] for place in self._places]
        return results[0] if self._returns == "one" else None


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


def stage(
    rows: Rows, values: Sequence[Any], constants: list[np.ndarray], arena: Arena
) -> tuple[tuple, list[tuple]]:
    """Describe a call's arguments to ranks 1 and up, in plain tuples.

    `Data` is described where it lies. Of other arrays the rows that go to those ranks
    are copied to the arena, selected already: rank 0 uses the user's own memory.
    """
    selection, bounds, sources = rows
    if not values:
        return ((0, 0), bounds, ()), []
    copies = []  # what goes into the arena, in the order in which it is taken out below
    first, n = bounds[1], len(sources)
    for source, value in zip(sources, values, strict=False):
        if not isinstance(value, Data):
            copies.append(source.array[part(selection, first, bounds[-1])])
    for array, value in zip(constants, values[n:], strict=True):
        if not isinstance(value, Data):
            copies.append(array)
    if isinstance(selection, np.ndarray):
        copies.append(selection)
    staged = iter(arena.put(copies) if copies else ())
    described = [
        (value._window(), source.offset, source.is_batch)
        if isinstance(value, Data)
        else (next(staged), first, True)
        for source, value in zip(sources, values, strict=False)
    ]
    windows = [
        value._window() if isinstance(value, Data) else next(staged)
        for value in values[n:]
    ]
    return (describe_selection(selection, staged), bounds, described), windows


def describe_selection(selection: Selection, staged: Iterator[Window]) -> tuple:
    """Describe a selection to other ranks: a slice as (start, stop), an array staged.

    Parameters
    ----------
    selection : slice or numpy.ndarray
    staged : iterator of Window
        The next window is that of the selection, if it is an array.
    """
    if isinstance(selection, slice):
        return selection.start, selection.stop
    return next(staged)
