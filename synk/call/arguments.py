"""The arguments of a call: the master checks, cuts and sends them; ranks take shares.

All inputs have one selection of rows and one cut of it. The master selects and cuts
(`gather`) and describes the rows to the workers (`stage`); each rank takes its own part
(`take_share`).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from ..compiler.spec import FunctionSpec
from ..errors import SplitError
from ..memory.arena import Arena
from ..memory.partition import Selection, count, cuts, part, select
from ..memory.segment import Window
from ..ranks.context import RankContext
from ..variables.array_like import convert
from ..variables.data import Data, data

_OPTIONS = ("batch", "batch_s", "num_slices", "output_subset", "check", "progress")
"""Keywords of calls and runs, which cannot name an input."""

_EXACT = {int: np.dtype("int64"), float: np.dtype("float64")}
"""The dtypes that hold Python's numbers exactly."""


def bind(what: object, inputs: Sequence[Variable], args: tuple, kwargs: dict) -> list:
    """Put a call's arguments into the order of the inputs; TypeError if they misfit."""
    if not kwargs and len(args) == len(inputs):
        return list(args)
    if len(args) > len(inputs):
        raise TypeError(f"{what!r} takes {len(inputs)} arguments, got {len(args)}")
    names = [var.name for var in inputs]
    values: dict[int, Any] = dict(enumerate(args))
    for name, value in kwargs.items():
        if names.count(name) != 1:
            many = "several inputs" if name in names else "no input"
            raise TypeError(f"{what!r} has {many} named {name!r}")
        if names.index(name) in values:
            raise TypeError(f"{what!r} got two values for input {name!r}")
        values[names.index(name)] = value
    missing = [str(var) for i, var in enumerate(inputs) if i not in values]
    if missing:
        hint = "".join(
            f"; as {name}= is an option of calls, pass it by position"
            for name in missing
            if name in _OPTIONS
        )
        raise TypeError(f"{what!r} misses a value for {', '.join(missing)}{hint}")
    return [values[i] for i in range(len(inputs))]


def build(
    inputs: Sequence[Variable], values: Sequence[Any], **options: Any
) -> Data | tuple[Data, ...]:
    """Make `Data` of values for inputs; see `Function.build_inputs` for the options."""
    n = len(inputs)
    for name, option in options.items():
        if not isinstance(option, (list, tuple)):
            options[name] = [option] * n
        elif len(option) != n:
            raise ValueError(
                f"{name} has {len(option)} entries for {n} inputs: {option}"
            )
    built = tuple(
        data(value, var, **{name: of_each[i] for name, of_each in options.items()})
        for i, (value, var) in enumerate(zip(values, inputs, strict=True))
    )
    return built[0] if len(built) == 1 else built


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
    # The common case of `filter`, faster. The type is exact: a masked array must not
    # pass.
    if type(value) is np.ndarray and value.dtype == var.type.numpy_dtype:
        array = value
        if array.ndim == var.type.ndim:
            _check_static_shape(var, array)
            return array
    elif var.type.ndim == 0 and _EXACT.get(type(value)) == var.type.numpy_dtype:
        with contextlib.suppress(OverflowError):  # `convert` raises a better error
            return np.array(value, var.type.numpy_dtype)
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
    """Return `num_slices` as an int; raise if the function cannot have that many."""
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
    """Return `batch_s` as a list with one entry for each rank.

    Rank 0's entry is checked here; each worker checks its own, as only it knows the
    length of its variable.
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


# -- rows


class InputSource(NamedTuple):
    """Where the rows of one input lie.

    If `is_batch`, the array holds rows of the batch alone, and row i of the batch is
    row ``i - offset`` of it; otherwise it is row ``selection[i]``. In messages this is
    a plain tuple, with a window for the array.
    """

    array: Any  # None in the master, where the arrays are in `CallValues`
    offset: int
    is_batch: bool
    state: Any = None
    """Identifies the values, if ranks are to keep terms of them: `Plans.with_kept`."""


class CallRows(NamedTuple):
    """The rows of a call: one selection for all inputs, and the cut between ranks.

    Rank r has rows ``bounds[r]`` to ``bounds[r + 1]`` of the selection. In messages
    this is a plain tuple, and the selection is (start, stop) or the window of an index
    array; on other nodes it may be (window, first), of an array that has the row
    numbers from ``first`` on.
    """

    selection: Any
    bounds: list[int]
    sources: list
    batch_s: list | None = None

    @property
    def total(self) -> int:
        """The number of rows on all ranks."""
        return self.bounds[-1]

    @property
    def of_all(self) -> list[Selection]:
        """The rows that the call takes of each input's array, in the master."""
        batch = slice(0, self.total)
        return [batch if each.is_batch else self.selection for each in self.sources]


class CallValues(NamedTuple):
    """The values of one call, as the script gave them and as arrays."""

    values: Sequence[Any]
    sources: list[np.ndarray]
    """The scattered inputs: the arrays that rows are taken from."""
    constants: list[np.ndarray]
    """The broadcast inputs."""

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays of all inputs, scattered ones first."""
        return [*self.sources, *self.constants]


def take_share(
    rank: int, locate: Callable[[Any], np.ndarray], rows: tuple
) -> tuple[list[np.ndarray], list[Selection]]:
    """Return the arrays that a rank takes rows from, and its selection of each.

    `rows` are `CallRows` as in a message; `locate` returns the array of a window.
    """
    selection, bounds, sources, *_ = rows
    if not sources:
        return [], []
    start, stop = bounds[rank], bounds[rank + 1]
    mine = _part_of(locate, selection, start, stop)
    arrays: list[np.ndarray] = []
    selections: list[Selection] = []
    for array, offset, is_batch, *_ in sources:
        arrays.append(locate(array))
        selections.append(slice(start - offset, stop - offset) if is_batch else mine)
    return arrays, selections


def take_all(
    locate: Callable[[Any], np.ndarray], rows: tuple, i: int, array: np.ndarray
) -> np.ndarray:
    """Return all ranks' rows of input `i`, in order.

    `array` is the source of that input; it must hold rank 0's rows as well.
    """
    selection, bounds, sources, *_ = rows
    _, offset, is_batch, *_ = sources[i]
    start, stop = bounds[0], bounds[-1]
    assert offset <= start, "rank 0's rows were not staged"
    if is_batch:
        return array[start - offset : stop - offset]
    return array[_part_of(locate, selection, start, stop)]


def rows_of_node(context: RankContext, rows: tuple) -> tuple:
    """Return `rows` with other bounds: only ranks of this machine have rows."""
    selection, bounds, *others = rows
    first = context.rank - context.local_rank
    start, stop = bounds[first], bounds[first + context.local.size]
    return selection, [min(max(end, start), stop) for end in bounds], *others


def _part_of(
    locate: Callable[[Any], np.ndarray], selection: Any, start: int, stop: int
) -> Selection:
    """Return rows `start` to `stop` of a selection, which may be as in a message."""
    first = 0
    if isinstance(selection, tuple) and isinstance(selection[0], tuple):
        selection, first = selection
    return part(located(locate, selection), start - first, stop - first)


def located(locate: Callable[[Any], np.ndarray], selection: Any) -> Selection:
    """Return a selection as a slice or an array, if it is as in a message."""
    if not isinstance(selection, tuple):
        return selection
    return slice(*selection) if len(selection) == 2 else locate(selection)


def gather(
    spec: FunctionSpec, values: Sequence[Any], batch: Any, size: int
) -> tuple[CallRows, CallValues]:
    """Check the arguments of a call, and cut its rows between `size` ranks."""
    n = len(spec.inputs)
    arrays = check_arguments(spec.inputs, values[:n], spec.options)
    rows = _rows(spec, values[:n], arrays, batch, size)
    constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
    return rows, CallValues(values, arrays, constants)


def _rows(
    spec: FunctionSpec,
    values: Sequence[Any],
    arrays: Sequence[np.ndarray],
    batch: Any,
    size: int,
) -> CallRows:
    """Select rows of the scattered inputs and cut them."""
    if not arrays:
        if batch is not None:
            raise ValueError("batch was given, and there are no scattered inputs")
        return CallRows(slice(0, 0), [0] * (size + 1), [])
    are_batches = [isinstance(value, Data) and value.minibatch for value in values]
    lengths = [
        len(array)
        for array, is_batch in zip(arrays, are_batches, strict=True)
        if not is_batch or batch is None
    ]
    if any(length != lengths[0] for length in lengths):
        named = dict(zip(map(str, spec.inputs), map(len, arrays), strict=True))
        raise ValueError(f"the scattered inputs have different lengths: {named}")
    selection = select(batch, lengths[0] if lengths else _length_for(batch))
    total = count(selection)
    for var, array, is_batch in zip(spec.inputs, arrays, are_batches, strict=True):
        if is_batch and len(array) < total:
            raise IndexError(
                f"the minibatch for input {var} has {len(array)} rows, and the batch"
                f" has {total}: row i of it belongs to the i-th row of the batch"
            )
    sources = [InputSource(None, 0, is_batch) for is_batch in are_batches]
    return CallRows(selection, cuts(total, size), sources)


def _length_for(batch: Any) -> int:
    """Return a length that `batch` fits, if all inputs are minibatches.

    The number of rows that they were taken from is not known.
    """
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


def stage(
    rows: CallRows,
    given: CallValues,
    arena: Arena,
    whole: Container[int] = (),
    described: tuple | None = None,
) -> tuple[tuple, list[Window]]:
    """Return the rows of a call, and windows of its broadcast inputs, for the message.

    `Data` stays where it lies. Of other arrays the workers' rows are copied to the
    `arena`, selected already; rank 0 uses the script's own memory. Inputs whose numbers
    are in `whole` are copied with rank 0's rows, as all ranks read these. `described`
    is the last call's description of the rows, if it can be used again.
    """
    selection, bounds, sources, batch_s = rows
    values, arrays, constants = given
    if not values or len(bounds) == 2:  # no inputs, or no workers
        return described or ((0, 0), bounds, (), batch_s), []
    n = len(sources)
    firsts: list[int] = []
    copies = []  # for the arena, in the order in which `staged` is read below
    if described is None:
        firsts = [0 if i in whole else bounds[1] for i in range(n)]
        for array, value, first in zip(arrays, values, firsts, strict=False):
            if not isinstance(value, Data):
                copies.append(array[part(selection, first, bounds[-1])])
        if isinstance(selection, np.ndarray):
            copies.append(selection)
    for array, value in zip(constants, values[n:], strict=True):
        if not isinstance(value, Data):
            copies.append(array)
    staged = iter(arena.put(copies))
    if described is None:
        where = [
            (value._window(), *source[1:])
            if isinstance(value, Data)
            else tuple(InputSource(next(staged), first, True))
            for source, value, first in zip(sources, values, firsts, strict=False)
        ]
        described = describe_selection(selection, staged), bounds, where, batch_s
    return described, windows_of(values[n:], staged) if constants else []


def stage_all(
    calls: Sequence[CallRows], given: CallValues, arena: Arena
) -> tuple[list[tuple], list[Window]]:
    """Return the rows of many calls, and windows of the broadcast inputs; see `stage`.

    Arrays that are no `Data` are copied whole, as calls may take any rows of them.
    """
    pairs = zip(given.arrays, given.values, strict=True)
    copies = [array for array, value in pairs if not isinstance(value, Data)]
    copies += [c.selection for c in calls if isinstance(c.selection, np.ndarray)]
    staged = iter(arena.put(copies))
    windows, n = windows_of(given.values, staged), len(given.sources)
    sources = [tuple(InputSource(window, 0, False)) for window in windows[:n]]
    described = [
        (describe_selection(call.selection, staged), call.bounds, sources, call.batch_s)
        for call in calls
    ]
    return described, windows[n:]


def windows_of(values: Sequence[Any], staged: Iterator[Window]) -> list[Window]:
    """Return windows of values: `Data` where it lies, the next staged one of others."""
    return [
        value._window() if isinstance(value, Data) else next(staged) for value in values
    ]


def describe_selection(selection: Selection, staged: Iterator[Window]) -> tuple:
    """Return a selection for a message: (start, stop), or the next staged window."""
    if isinstance(selection, slice):
        return selection.start, selection.stop
    return next(staged)
