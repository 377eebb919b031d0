"""Homes: where shared variables that are reduced lie in shared memory.

A home is a segment with a row for each rank, and every row has a slot for each variable
of the list that was first reduced together::

    rank 0   | weights | bias |  ...  |      a variable's value on rank r
    rank 1   | weights | bias |  ...  |      is a view of its slot in row r

As adjacent slots of one dtype are reduced as one array, a whole network's gradients
cost one pass. A value leaves its slot when a function replaces it by a new array, and
is copied back at the next reduction; an update in place never leaves.

The results go to the slots that the values were copied to. Where a value lives in its
slot on some rank, it would be lost if the reduction is stopped on its way: then the
results go to a second side of the home, rows like the first, and the variables live
there from then on, until the next such reduction.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.divided import DividedAllReduce
from ..comm.kernels import warm
from ..comm.shm import SharedMemoryComm
from ..engines import host, jax
from ..memory.segment import (
    ALIGNMENT,
    Attachments,
    Segment,
    Window,
    key_of,
    layout,
)
from ..reduce_ops import ReduceOp, check_shapes
from .registry import Registry

DETAILS, DWELLS = 1, 2
"""Bits of what a rank says: some values do not fit; some live in their slots."""


class Slot(NamedTuple):
    """The place of one variable in a home."""

    home: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    def holds(self, value: np.ndarray) -> bool:
        """Tell whether a value fits the slot."""
        return value.shape == self.shape and value.dtype == self.dtype


class NewHome(NamedTuple):
    """A home, as the ranks are told of it."""

    number: int
    window: Window
    slots: dict[int, Slot]


@dataclass
class Run:
    """Adjacent slots of one dtype, which are reduced as one array.

    Attributes
    ----------
    all_reduce : DividedAllReduce
    buffers, results : numpy.ndarray
        The ranks' rows, and the rows that receive the results; of this node.
    home : int
    columns : slice
        The bytes of its rows, in the home's.
    members : list of (int, int)
        Number of each variable, and where in the run it begins.
    spans : list of (int, tuple of float)
        Where a span of elements ends, and the weights of the ranks there.
    movers : list of int
        Variables whose values come from elsewhere on this rank.
    misfits : dict of int to tuple
        Shapes of values that do not fit their slots.
    dwellers : list of int
        Variables whose values lie in their slots on this rank.
    """

    all_reduce: DividedAllReduce
    buffers: np.ndarray
    results: np.ndarray
    home: int
    columns: slice
    members: list[tuple[int, int]]
    spans: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    movers: list[int] = field(default_factory=list)
    misfits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    dwellers: list[int] = field(default_factory=list)

    def divide(self, weights: Sequence[tuple[float, ...]]) -> None:
        """Make spans of the variables that have the same weights."""
        starts = [start for _, start in self.members]
        ends = [*starts[1:], self.all_reduce.elements]
        for end, of_member in zip(ends, weights, strict=True):
            if self.spans and self.spans[-1][1] == of_member:
                self.spans.pop()
            self.spans.append((end, of_member))


class Homes:
    """The homes that one rank knows.

    Parameters
    ----------
    rank, size : int
        Of its node.
    sends_rows : callable, optional
        Tells by op, dtype and bytes whether other nodes get the ranks' own rows.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        sends_rows: Callable[[ReduceOp, np.dtype, int], bool] | None = None,
    ) -> None:
        self._rank, self._size, self._sends_rows = rank, size, sends_rows
        # The sides of each home, the second as soon as it is needed: (ranks, bytes)
        self._rows: dict[int, list[np.ndarray]] = {}
        self._slots: dict[int, Slot] = {}
        self._sides: dict[int, int] = {}  # where a variable lives, on all ranks
        self._views: dict[int, np.ndarray] = {}
        self._segments: dict[int, list[Segment]] = {}  # in the master
        self._next = itertools.count()

    # -- in the master

    def house(
        self, numbers: Sequence[int], variables: Sequence[SharedVariable], op: ReduceOp
    ) -> NewHome | None:
        """Make a home for the variables that have none for their present value."""
        homeless = {}
        for number, var in zip(numbers, variables, strict=True):
            value = host.get_value(var)
            slot = self._slots.get(number)
            if slot is None or not slot.holds(value):
                homeless[number] = value
        if not homeless:
            return None
        offsets, nbytes = layout([value.nbytes for value in homeless.values()])
        home = next(self._next)
        slots = {
            number: Slot(home, offset, value.dtype.str, value.shape, value.nbytes)
            for (number, value), offset in zip(homeless.items(), offsets, strict=True)
        }
        for dtype in {value.dtype for value in homeless.values()}:
            warm(op, dtype)  # compiled here once; the ranks find it in numba's cache
        return self.house_as(home, nbytes, slots)

    def house_as(self, number: int, nbytes: int, slots: dict[int, Slot]) -> NewHome:
        """Make a home of known slots for the ranks of this node; all have the same."""
        segment = Segment(nbytes * self._size)
        self._segments[number] = [segment]
        rows = segment.array(np.uint8, (self._size, nbytes))
        # The master lives there from now on, the ranks from the next command on. Where
        # that fails, the caller has all forget the variables: see `_master_reduce`.
        self._move_in(number, rows, slots)
        return NewHome(number, segment.window(rows), slots)

    # -- on every rank

    def attach(self, new: NewHome | None, attachments: Attachments) -> None:
        """Learn of a home that the master has made."""
        if new is not None and self._rank:
            self._move_in(new.number, _rows(new.window, attachments), new.slots)

    def _move_in(self, home: int, rows: np.ndarray, slots: dict[int, Slot]) -> None:
        self._rows[home] = [rows]
        self._slots.update(slots)
        for number in slots:
            self._sides[number] = 0
            self._views[number] = self._view(number, 0)
        self._vacate()

    def _view(self, number: int, side: int) -> np.ndarray:
        slot = self._slots[number]
        row = self._rows[slot.home][side][self._rank]
        place = row[slot.offset : slot.offset + slot.nbytes]
        return place.view(slot.dtype).reshape(slot.shape)

    def forget(self, number: int) -> None:
        """Drop the slot of a variable that is gone."""
        if self._slots.pop(number, None) is not None:
            self._views.pop(number, None)
            self._sides.pop(number, None)
            self._vacate()

    def _vacate(self) -> None:
        """Give back the homes that nobody lives in any more."""
        lived_in = {slot.home for slot in self._slots.values()}
        for home in (self._rows.keys() | self._segments.keys()) - lived_in:
            self._rows.pop(home, None)
            self._segments.pop(home, None)

    def enter(
        self,
        comm: SharedMemoryComm,
        op: ReduceOp,
        targets: int,
        numbers: Sequence[int],
        everybody: Mapping[int, SharedVariable],
        moved: list[tuple[np.ndarray, np.ndarray]],
    ) -> list[Run]:
        """Put this rank's values into their slots, where they are elsewhere.

        Parameters
        ----------
        comm : SharedMemoryComm
        op : str
        targets : int
            How many ranks, from 0 on, get the results.
        numbers : sequence of int
            The variables that are to be reduced.
        everybody : mapping of int to shared variable
            All variables of this rank.
        moved : list of (numpy.ndarray, numpy.ndarray)
            Takes values of other variables that lay in the slots, and the copies.

        Returns
        -------
        list of Run
            What is to be reduced, in as few arrays as possible.
        """
        runs = [
            self._run(comm, op, targets, group) for group in self._adjacent(numbers)
        ]
        outside = {
            number
            for number in numbers
            if self._is_outside(number, host.get_value(everybody[number]))
        }
        # Before anything is written to the slots: a squatter would change under its
        # owner.
        if outside:
            self._evict_squatters(everybody, moved)
        for run in runs:
            values = []
            for number, start in run.members:
                if number not in outside:
                    run.dwellers.append(number)
                    continue
                value = host.get_value(everybody[number])
                if self._slots[number].holds(value):
                    run.movers.append(number)
                    values.append((start, value))
                else:
                    run.misfits[number] = value.shape
            whole = False
            if self._sends_rows is not None:
                nbytes = run.columns.stop - run.columns.start
                whole = self._sends_rows(op, run.buffers.dtype, nbytes)
            run.all_reduce.put(values, whole)
        return runs

    def _is_outside(self, number: int, value: Any) -> bool:
        view = self._views[number]
        return value is not view and not (
            self._slots[number].holds(value) and _is_same_memory(value, view)
        )

    def use_other_side(
        self,
        comm: SharedMemoryComm,
        attachments: Attachments,
        runs: Sequence[Run],
        targets: int,
    ) -> None:
        """Have the results of runs go to the side where no variable of them lives."""
        for home in dict.fromkeys(run.home for run in runs):
            if len(self._rows[home]) == 1:
                self._rows[home].append(self._second_side(comm, attachments, home))
        for run in runs:
            rows = self._rows[run.home][self._other_side(run.members[0][0])]
            run.results = rows[:targets, run.columns].view(self._dtype(run))
            run.all_reduce.redirect(run.results)

    def _second_side(
        self, comm: SharedMemoryComm, attachments: Attachments, home: int
    ) -> np.ndarray:
        window, shape = None, self._rows[home][0].shape
        if not self._rank:
            segment = Segment(math.prod(shape))
            self._segments[home].append(segment)
            window = segment.window(segment.array(np.uint8, shape))
        return _rows(comm.exchange(window)[0], attachments)

    def _other_side(self, number: int) -> int:
        return 1 - self._sides[number]

    def _dtype(self, run: Run) -> str:
        return self._slots[run.members[0][0]].dtype

    def results(
        self, runs: Sequence[Run], *, are_aside: bool, move: bool
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Return where a rank has the results: variables, by number, and their slots.

        Parameters
        ----------
        runs : sequence of Run
        are_aside : bool
            They are on the side where the variables did not live.
        move : bool
            The variables of all ranks live there from now on.
        """
        for run in runs:
            for number, _ in run.members:
                if are_aside:
                    side = self._other_side(number)
                    view = self._view(number, side)
                    if move:
                        self._sides[number], self._views[number] = side, view
                    yield number, view
                elif number in run.movers:
                    yield number, self._views[number]

    def _evict_squatters(
        self,
        everybody: Mapping[int, SharedVariable],
        moved: list[tuple[np.ndarray, np.ndarray]],
    ) -> None:
        """Copy values that lie in a slot of another variable.

        With ``updates=[(previous, g), (g, new)]`` PyTensor hands g's old array, the
        slot, to `previous`: writing the next g there would change both.
        """
        spans = [
            _span(rows[self._rank]) for sides in self._rows.values() for rows in sides
        ]
        for number, var in list(everybody.items()):
            if jax.has_value(var):  # a copy, which would first come from the device
                continue
            value = host.get_value(var)
            if not isinstance(value, np.ndarray) or value.base is None:
                continue
            start, stop = _span(value)
            if any(start < end and begin < stop for begin, end in spans):
                view = self._views.get(number)
                if view is None or not _is_same_memory(value, view):
                    moved.append((value, value.copy()))
                    host.set_value(var, moved[-1][1])

    def agree(
        self,
        comm: SharedMemoryComm,
        registry: Registry,
        op: ReduceOp,
        runs: Sequence[Run],
        weights: Mapping[int, tuple[int, ...]],
    ) -> bool:
        """Wait for all ranks, and learn whether their values fit together.

        Parameters
        ----------
        comm : SharedMemoryComm
        registry : Registry
        op : str
        runs : sequence of Run
        weights : mapping of int to tuple of int
            What ranks weigh in each variable; where there are none, all are alike.

        Returns
        -------
        bool
            Whether a value lives in its slot on any rank.

        Raises
        ------
        ShapeMismatch
            On every rank, if the shapes of any variable differ.
        """
        numbers = [number for run in runs for number, _ in run.members]
        misfits: dict[int, tuple[int, ...]] = {}
        alike = (1,) * comm.size
        for run in runs:
            misfits.update(run.misfits)
            run.divide([weights.get(number, alike) for number, _ in run.members])
        dwells = any(run.dwellers for run in runs)
        own = DETAILS * bool(misfits) + DWELLS * dwells
        said = self._meet(comm, op, runs, own)
        if said & DETAILS:
            self._check_shapes(op, numbers, comm.exchange(misfits), registry)
        return bool(said & DWELLS)

    def _meet(self, comm: Any, op: ReduceOp, runs: Sequence[Run], word: int) -> int:
        """Wait for all ranks; return the bits that are in the word of any of them."""
        return any_of(comm.agree(word))

    def reduce(self, comm: Any, op: ReduceOp, runs: Sequence[Run]) -> None:
        """Reduce runs, whose values all ranks have put into their slots."""
        for run in runs:
            run.all_reduce.run(run.spans)
        comm.barrier()

    def _check_shapes(
        self,
        op: ReduceOp,
        numbers: Sequence[int],
        misfits: Sequence[dict[int, tuple[int, ...]]],
        registry: Registry,
    ) -> None:
        for number in numbers:
            usual = self._slots[number].shape
            shapes = [of_rank.get(number, usual) for of_rank in misfits]
            var = registry.variables[number]
            check_shapes(f"reduce by {op!r}", var, shapes)

    def _adjacent(self, numbers: Sequence[int]) -> list[list[tuple[Slot, int]]]:
        """Return slots and numbers in groups that can be reduced as one array."""
        # An empty slot begins where the next one does, and must come before it.
        slots = sorted(
            ((self._slots[number], number) for number in dict.fromkeys(numbers)),
            key=lambda pair: (pair[0].home, pair[0].offset, pair[0].nbytes, pair[1]),
        )
        groups: list[list[tuple[Slot, int]]] = []
        for slot, number in slots:
            if groups:
                first, last = groups[-1][0][0], groups[-1][-1][0]
                gap = slot.offset - last.offset - last.nbytes
                same = slot.home == first.home and slot.dtype == first.dtype
                same &= self._sides[number] == self._sides[groups[-1][0][1]]
                if same and gap < ALIGNMENT:  # padding, which may be reduced too
                    groups[-1].append((slot, number))
                    continue
            groups.append([(slot, number)])
        return groups

    def _run(
        self,
        comm: SharedMemoryComm,
        op: ReduceOp,
        targets: int,
        group: list[tuple[Slot, int]],
    ) -> Run:
        first, last = group[0][0], group[-1][0]
        columns = slice(first.offset, last.offset + last.nbytes)
        rows = self._rows[first.home][self._sides[group[0][1]]]
        buffers = rows[:, columns].view(first.dtype)
        members = [
            (number, (slot.offset - first.offset) // buffers.itemsize)
            for slot, number in group
        ]
        results = buffers[:targets]
        all_reduce = DividedAllReduce(comm, op, buffers, results)
        return Run(all_reduce, buffers, results, first.home, columns, members)


def any_of(words: Iterable[int]) -> int:
    """Return the bits that are in any of the words."""
    return functools.reduce(operator.or_, words)


def _rows(window: Window, attachments: Attachments) -> np.ndarray:
    """Return a side of a home that rank 0 has made."""
    rows = attachments.array(window)
    # The array alone is to keep the memory, until nobody lives there any more.
    attachments.forget(key_of(window))
    return rows


def _span(array: np.ndarray) -> tuple[int, int]:
    """Return the addresses that an array lies between."""
    return np.lib.array_utils.byte_bounds(array)


def _is_same_memory(value: np.ndarray, view: np.ndarray) -> bool:
    """Tell whether a value lies in its slot: compiled code makes new array objects."""
    return (
        value.flags.c_contiguous
        and value.__array_interface__["data"] == view.__array_interface__["data"]
    )
