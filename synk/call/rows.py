"""The rows of a call: one selection, one cut into parts, and where each input lies.

The master selects and cuts (`gather_rows`) and describes the rows to the other ranks
(`stage`); a rank takes its own part (`take_share`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Variable

from ..memory.arena import Arena
from ..memory.partition import Selection, count, cuts, part, select
from ..memory.segment import Window
from ..ranks.context import RankContext
from ..variables.data import Data
from .inputs import check_arguments


class Source(NamedTuple):
    """Where the rows of one input lie.

    ``array`` is the array itself in the master and a window for the other ranks.
    Row i of the batch is row ``i - offset`` of it if it holds batch rows alone, in
    their order, and row ``selection[i]`` if not. ``state`` tells the values from all
    others, where ranks are to keep what follows from them; see `Plans.with_kept`.
    """

    array: Any
    offset: int
    is_batch: bool
    state: Any = None


class Rows(NamedTuple):
    """The rows of a call: one selection and one cut into parts, for all inputs.

    To the ranks it travels as a plain tuple: the selection as (start, stop) or the
    window of an index array, and every source as a plain tuple, too. Ranks of other
    nodes may get (window, first), of an array of the row numbers from ``first`` on.
    """

    selection: Any
    bounds: list[int]
    sources: list

    @property
    def total(self) -> int:
        """The number of rows on all ranks."""
        return self.bounds[-1]


class Given(NamedTuple):
    """The values of one call, beside what is bound.

    Attributes
    ----------
    values : sequence of Data or array_like
        The arguments, scattered inputs first.
    sources : list of numpy.ndarray
        What their rows are taken from.
    constants : list of numpy.ndarray
        The broadcast inputs.
    """

    values: Sequence[Any]
    sources: list[np.ndarray]
    constants: list[np.ndarray]

    @property
    def arrays(self) -> list[np.ndarray]:
        """All of them, in their order."""
        return [*self.sources, *self.constants]


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
    locate : callable
        Returns an array that may be described by a window.
    selection, bounds, sources
        See `Rows`.
    """
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
    locate: Callable[[Any], np.ndarray],
    selection: Any,
    bounds: list[int],
    source: Sequence,
) -> np.ndarray:
    """Return the rows of an input that all ranks have together, in their order.

    Parameters
    ----------
    locate, selection, bounds
        As of `take_share`.
    source : Source
        It holds the rows of rank 0 as well.
    """
    array, offset, is_batch, *_ = source
    start, stop = bounds[0], bounds[-1]
    chosen: Selection = slice(start - offset, stop - offset)
    if not is_batch:
        chosen = _part_of(locate, selection, start, stop)
    assert offset <= start, "rank 0's rows were not staged"
    return locate(array)[chosen]


def rows_of_node(context: RankContext, rows: tuple) -> tuple:
    """Return `Rows` of which the ranks of other machines than this one have none.

    The first of them is that of this machine then, and need not be 0.
    """
    selection, bounds, sources = rows
    first = context.rank - context.local_rank
    start, stop = bounds[first], bounds[first + context.local.size]
    return selection, [min(max(end, start), stop) for end in bounds], sources


def _part_of(
    locate: Callable[[Any], np.ndarray], selection: Any, start: int, stop: int
) -> Selection:
    """Return some rows of a selection that may be described as it travels."""
    first = 0
    if isinstance(selection, tuple) and isinstance(selection[0], tuple):
        selection, first = selection
    return part(located(locate, selection), start - first, stop - first)


def located(locate: Callable[[Any], np.ndarray], selection: Any) -> Selection:
    """Return a selection that may be described as it travels."""
    if not isinstance(selection, tuple):
        return selection
    return slice(*selection) if len(selection) == 2 else locate(selection)


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


def stage(
    rows: Rows,
    given: Given,
    arena: Arena,
    whole: Container[int] = (),
    described: tuple | None = None,
) -> tuple[tuple, list[Window]]:
    """Describe a call's arguments to ranks 1 and up, in plain tuples.

    `Data` is described where it lies. Of other arrays the rows that go to those ranks
    are copied to the arena, selected already: rank 0 uses the user's own memory.

    Parameters
    ----------
    rows : Rows
        Of sources that need hold no arrays.
    whole : container of int
        The inputs, by their numbers, of which these ranks read rank 0's rows as well.
    described : tuple, optional
        The rows as they were described before, if nothing was copied for them.

    Returns
    -------
    described : tuple
        The rows.
    windows : list of Window
        The broadcast inputs.
    """
    selection, bounds, sources = rows
    values, arrays, constants = given
    if not values or len(bounds) == 2:  # nothing to tell, or nobody
        return described or ((0, 0), bounds, ()), []
    n = len(sources)
    firsts: list[int] = []
    copies = []  # what goes into the arena, in the order in which it is taken out below
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
    staged = iter(arena.put(copies) if copies else arena.put_nothing())
    if described is None:
        told = [
            (value._window(), *source[1:])
            if isinstance(value, Data)
            else tuple(Source(next(staged), first, True))
            for source, value, first in zip(sources, values, firsts, strict=False)
        ]
        described = describe_selection(selection, staged), bounds, told
    return described, windows_of(values[n:], staged) if constants else []


def windows_of(values: Sequence[Any], staged: Iterator[Window]) -> list[Window]:
    """Describe values to other ranks: `Data` where it lies, others as they were staged.

    Parameters
    ----------
    staged : iterator of Window
        Those of the values that are no `Data`, in their order.
    """
    return [
        value._window() if isinstance(value, Data) else next(staged) for value in values
    ]


def describe_selection(selection: Selection, staged: Iterator[Window]) -> tuple:
    """Describe a selection to other ranks: a slice as (start, stop), an array staged.

    Parameters
    ----------
    staged : iterator of Window
        The next window is that of the selection, if it is an array.
    """
    if isinstance(selection, slice):
        return selection.start, selection.stop
    return next(staged)
