"""What one rank computes in one call: the rows, the outputs, and whom it meets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..memory.partition import Selection
from ..reduce_ops import ReduceOp
from ..reduce_tree import BlockCut
from ..times.timing import UNCOUNTED, Times
from .kept import Key
from .padding import UNPADDED, PaddedSize
from .programs import CallKind, Programs, Subset
from .transaction import Transaction


class Reducer(Protocol):
    """What a stage needs of the transport."""

    def reduce(
        self,
        key: tuple,
        values: list[np.ndarray] | None,
        ops: list[ReduceOp],
        weights: Sequence[int],
        times: Times,
    ) -> list[np.ndarray]:
        """Combine the ranks' values; a rank without rows has None."""


@dataclass(slots=True)
class Task:
    """What one rank computes in one call.

    Attributes
    ----------
    programs : Programs
    kind : str
        What of the function is run; see `programs`.
    subset : tuple of int
        The outputs.
    sources : list of numpy.ndarray
        For each row input, the array that its rows are taken from.
    selections : sequence of Selection
        For each row input, which rows.
    constants : sequence of numpy.ndarray
        The broadcast inputs.
    reducer : Reducer
    weights : sequence of int
        The rows of each rank.
    rank : int
        Whose task it is.
    num_slices : int
        Of the kind "slice".
    block : int
        Rows of a block, where parts are run for one after the other; 0: in one go.
    tree : BlockCut, optional
        The blocks of all ranks, where what they make comes together in a tree; without
        it each rank adds up its own.
    padded_size : PaddedSize
        If the selections are padded. Slices are padded as they come.
    taken : list of numpy.ndarray, optional
        The rows, if they have been taken already; in one go only.
    all_rows : callable, optional
        Returns all rows of the call, of an input by its number. Without it ranks gather
        the rows of inputs as they do others.
    transaction : Transaction, optional
        Which updates are made by, if there are any. On one rank, what is run in one go
        makes its updates itself.
    kept : tuple, optional
        Tells these rows from others, if what follows from them alone is to be kept.
    times : Times
        Where the time that it takes is counted.
    """

    programs: Programs
    kind: CallKind
    subset: Subset
    sources: list[Any]
    selections: Sequence[Selection]
    constants: Sequence[Any]
    reducer: Reducer
    weights: Sequence[int]
    rank: int = 0
    num_slices: int = 1
    block: int = 0
    tree: BlockCut | None = None
    padded_size: PaddedSize = UNPADDED
    taken: list[np.ndarray] | None = None
    all_rows: Callable[[int], np.ndarray] | None = None
    transaction: Transaction | None = None
    kept: Key | None = None
    times: Times = UNCOUNTED
