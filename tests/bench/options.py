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
    follow : float
        Seconds from the first call on that synk is watched for, as it comes: until
        its fast engine runs.
    mode : str, optional
        PyTensor's; by default the one that comes.
    points : int
        Rows of the likelihoods.
    layers, rows, steps, alone : tuple, int, tuple, int
        The network, the rows of its data, the training steps, as `networks` names
        them, and the batch of a rank alone.
    filters, units, side, images : tuple, tuple, int, tuple
        Of the convolutional network: filters by layer, units of the dense layers,
        pixels of an image in a row, and its training steps.
    columns : tuple of str
        The training steps that a peer is asked for.
    nbytes : tuple of int
        Sizes of all-reduces, in bytes.
    shape : tuple of int
        The array that tasks are called with.
    start_limit, ask_limit, end_limit : float
        Seconds that a peer may take to start, to answer (compiling included), to end.
    oversubscribe : bool
        Let mpirun start more processes than it finds cores.
    """

    ranks: int
    cores: int
    repeats: int = 11
    pause: float = 0.2
    look: float = 1
    turn: float = 0.2
    follow: float = 60
    mode: str | None = None
    points: int = 1_000_000
    layers: tuple[int, ...] = (784, 800, 800, 10)
    rows: int = 8192
    steps: tuple[str, ...] = ("relu 512", "relu 4096", "tanh 512")
    alone: int = 256
    filters: tuple[int, ...] = (32, 64)
    units: tuple[int, ...] = (800, 10)
    side: int = 28
    images: tuple[str, ...] = ("cnn 64",)
    columns: tuple[str, ...] = ()
    nbytes: tuple[int, ...] = (4, 65_536, 5_000_000, 100_000_000)
    shape: tuple[int, int] = (512, 784)
    start_limit: float = 240
    ask_limit: float = 600
    end_limit: float = 10
    oversubscribe: bool = False


class Place(NamedTuple):
    """Which process of a peer this is."""

    rank: int
    size: int
    folder: str
