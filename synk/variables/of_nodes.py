"""Values of shared variables on their way to other nodes: to those that need them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..cluster.inbox import Copy
from ..cluster.message import Here, OfEach
from ..cluster.translate import Bounds
from ..memory.partition import part
from ..ranks.to_nodes import Parted, Parting

# -- a part for each rank; see `collectives.worker_scatter`


def leaving_scatter(args: tuple, parting: Parting) -> tuple:
    """Return a command to scatter, with the rows that each node gets."""
    launch, numbers, values, selection, bounds = args
    total = bounds[-1]
    sent = []
    for value in values:
        array = parting.context.array(value)

        def of_node(here: Here, array: np.ndarray = array) -> list[np.ndarray]:
            return [array[part(selection, *here.rows((total, 1)))]]

        kind = OfEach(array.dtype, array.shape[1:], ((total, 1),))
        sent.append(parting.send(kind, of_node))
    return launch, numbers, sent, None, Bounds(total, len(bounds) - 1)


def arriving_scatter(args: tuple, here: Here, copies: Mapping[int, Copy]) -> tuple:
    """Return a command to scatter, for ranks of a node that has these rows."""
    launch, numbers, values, _, bounds = args
    first, stop = here.rows((bounds[-1], 1))
    return launch, numbers, values, slice(-first, stop - first), bounds


# -- values for one rank


def leaving_to_one(args: tuple, parting: Parting) -> tuple:
    """Return a command to store values on one rank, or on all for None."""
    launch, rank, numbers, values = args
    if rank is not None:
        values = [parting.to_one(rank, value) for value in values]
    return launch, rank, numbers, values


def arriving_to_one(args: tuple, here: Here, copies: Mapping[int, Copy]) -> tuple:
    """Return the command as it is; who is not meant has None for values."""
    return args


TO_ONE = Parted(leaving_to_one, arriving_to_one)
"""Of commands whose arguments are launch, rank, numbers and values."""
