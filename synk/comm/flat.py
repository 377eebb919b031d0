"""Flat buffers: all values that a stage reduces, side by side in one piece of memory.

Every rank has a row of the buffer. It puts its values there, waits for the others,
reduces its part of all rows, and waits again; then its own row holds the results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ShapeMismatch
from ..memory.segment import Attachments, Segment, layout
from .kernels import warm
from .shm import SharedMemoryComm

Kind = tuple[str, tuple[int, ...]]
"""Dtype and shape of a value."""


class FlatBuffers:
    """The flat buffers of one rank, by a key that all ranks use for the same one.

    Parameters
    ----------
    comm : SharedMemoryComm
    attachments : Attachments
    """

    def __init__(self, comm: SharedMemoryComm, attachments: Attachments) -> None:
        self._comm = comm
        self._attachments = attachments
        self._buffers: dict[tuple, _Flat] = {}

    def reduce(
        self,
        key: tuple,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[str],
        weights: Sequence[float],
    ) -> list[np.ndarray]:
        """Combine the ranks' values.

        Parameters
        ----------
        key : tuple
        values : sequence of numpy.ndarray or None
            None from a rank that has no rows and therefore no values.
        ops : sequence of str
            One of `REDUCE_OPS` for each value.
        weights : sequence of float
            The rows of each rank. A rank without any is left out, unless all are.

        Returns
        -------
        list of numpy.ndarray
            Views of the buffer, valid until the next reduction with this key.

        Raises
        ------
        ShapeMismatch
            On every rank, if the shapes of any value differ.
        """
        comm = self._comm
        if comm.size == 1:
            return ALONE.reduce(key, values, ops, weights)
        values = None if values is None else [np.asarray(value) for value in values]
        flat = self._buffers.get(key)
        fits = flat is not None and flat.fits(values)
        late: list[list] = [[]]
        if flat is not None and fits:
            late = flat.put(comm, values)
        # The buffer's own number: after an interrupted change of buffers, two ranks may
        # hold different ones that both fit.
        words = comm.agree(flat.serial if flat is not None and fits else -1)
        if words[0] < 0 or any(word != words[0] for word in words):
            self._drop(key)
            flat = self._buffers[key] = self._renew(values, ops)
            late = flat.put(comm, values)
            comm.barrier()
        assert flat is not None
        for (op, rows), pieces in zip(flat.runs, late, strict=True):
            comm.reduce(op, rows, weights, late=pieces)
        comm.barrier()
        return flat.views

    def forget(self, function: int) -> None:
        """Drop the buffers of a function that is gone."""
        for key in [key for key in self._buffers if key[0] == function]:
            self._drop(key)

    def _drop(self, key: tuple) -> None:
        flat = self._buffers.pop(key, None)
        if flat is not None:
            self._attachments.forget(flat.place)

    def _renew(self, values: Sequence[np.ndarray] | None, ops: Sequence[str]) -> _Flat:
        """Make a buffer for values of other shapes, together with all ranks."""
        comm = self._comm
        kinds = comm.exchange(None if values is None else _kinds(values))
        given = [kind for kind in kinds if kind is not None]
        for i, first in enumerate(given[0]):
            if any(kind[i] != first for kind in given):
                shapes = [None if kind is None else kind[i][1] for kind in kinds]
                raise ShapeMismatch(
                    f"cannot all-reduce by {ops[i]!r}: the ranks' shapes are {shapes}"
                )
        plan = _Plan(given[0], ops)
        window, segment = None, None
        if comm.rank == 0:
            for dtype, op in {(dtype, op) for dtype, op, *_ in plan.runs}:
                warm(op, np.dtype(dtype))
            segment = Segment(comm.size * plan.nbytes)
            rows = segment.array(np.uint8, (comm.size, plan.nbytes))
            window = segment.window(rows)
        window = comm.exchange(window)[0]
        if comm.rank:
            rows = self._attachments.array(window)
        return _Flat(plan, rows, comm.rank, segment, (window[0], window[2]))


class Alone:
    """What takes the place of flat buffers where there is one rank only."""

    def reduce(
        self,
        key: tuple,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[str],
        weights: Sequence[float],
    ) -> list[np.ndarray]:
        """Return the values."""
        assert values is not None
        return list(values)


ALONE = Alone()


class _Plan:
    """Where in a row each value lies, ordered so that values of one op are adjacent."""

    def __init__(self, kinds: Sequence[Kind], ops: Sequence[str]) -> None:
        self.kinds = list(kinds)
        order = sorted(range(len(kinds)), key=lambda i: (kinds[i][0], ops[i]))
        sizes = [
            np.dtype(kinds[i][0]).itemsize * int(np.prod(kinds[i][1], dtype=np.int64))
            for i in order
        ]
        offsets, self.nbytes = layout(sizes)
        self.offsets = dict(zip(order, offsets, strict=True))
        self.runs: list[list] = []  # dtype, op, start and end in bytes
        self.places = []  # position of a value, its run, and where in that it begins
        for i, offset, size in zip(order, offsets, sizes, strict=True):
            kind = [kinds[i][0], ops[i]]
            if self.runs and self.runs[-1][:2] == kind:
                self.runs[-1][3] = offset + size  # padding between them is reduced, too
            else:
                self.runs.append([*kind, offset, offset + size])
            start = (offset - self.runs[-1][2]) // np.dtype(kind[0]).itemsize
            self.places.append((i, len(self.runs) - 1, start))


class _Flat:
    """One flat buffer, as one rank sees it."""

    def __init__(
        self,
        plan: _Plan,
        rows: np.ndarray,
        rank: int,
        segment: Segment | None,
        place: tuple[int, int],
    ) -> None:
        self.place = place
        self.serial = place[1]
        self._kinds = plan.kinds
        self._segment = segment  # the owner's; it lives as long as this
        self.runs = [
            (op, rows[:, start:end].view(dtype)) for dtype, op, start, end in plan.runs
        ]
        self.views = []
        self._places = plan.places
        for i, (dtype, shape) in enumerate(plan.kinds):
            offset = plan.offsets[i]
            count = int(np.prod(shape, dtype=np.int64))
            end = offset + count * np.dtype(dtype).itemsize
            self.views.append(rows[rank, offset:end].view(dtype).reshape(shape))

    def fits(self, values: Sequence[np.ndarray] | None) -> bool:
        """Tell whether values of these shapes belong here; no values always do."""
        return values is None or _kinds(values) == self._kinds

    def put(
        self, comm: SharedMemoryComm, values: Sequence[np.ndarray] | None
    ) -> list[list[tuple[int, np.ndarray]]]:
        """Put values into this rank's row, and return what is left to copy in each run.

        See `SharedMemoryComm.put`.
        """
        late: list[list] = [[] for _ in self.runs]
        if values is not None:
            for i, run, start in self._places:
                left = comm.put(self.runs[run][1], start, values[i])
                if left is not None:
                    late[run].append(left)
        return late


def _kinds(values: Sequence[np.ndarray]) -> list[Kind]:
    return [(value.dtype.str, value.shape) for value in values]
