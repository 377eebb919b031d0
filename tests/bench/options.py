"""What a run measures, known to the driver and to all peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Options:
    """Sizes and repeats.

    Attributes
    ----------
    ranks : int
        Processes of what is data-parallel.
    cores : int
        Threads of what is not.
    repeats : int
        Rounds.
    pause : float
        Seconds before every turn, for what the last one has left running: BLAS and
        OpenMP threads look out for more work for some time after a call.
    look : float
        Seconds of a look at whether peers are idle; there are some at the start.
    turn : float
        Seconds of calls in one turn, about; one call at least.
    layers, activation, rows, batches, alone : tuple, str, int, tuple, int
        The network, the rows of its data, its batch sizes, and that of a rank alone.
    nbytes : tuple of int
        Sizes of all-reduces, in bytes.
    shape : tuple of int
        The array that tasks are called with.
    start_limit, ask_limit, end_limit : float
        Seconds that a peer may take to start (compiling included), to answer, to end.
    oversubscribe : bool
        Let mpirun start more processes than it finds cores.
    """

    ranks: int
    cores: int
    repeats: int = 11
    pause: float = 0.2
    look: float = 1
    turn: float = 0.2
    layers: tuple[int, ...] = (784, 800, 800, 10)
    activation: str = "relu"
    rows: int = 8192
    batches: tuple[int, ...] = (512, 4096)
    alone: int = 256
    nbytes: tuple[int, ...] = (4, 65_536, 5_000_000, 100_000_000)
    shape: tuple[int, int] = (512, 784)
    start_limit: float = 240
    ask_limit: float = 120
    end_limit: float = 10
    oversubscribe: bool = False


class Place(NamedTuple):
    """Which process of a peer this is."""

    rank: int
    size: int
    folder: str
