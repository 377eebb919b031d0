"""synk: Theano functions, data-parallel on every core, from a serial script."""

from . import nn, ops, theano_finder, updates
from .checkpoints import load, save
from .collectives import (
    all_gather,
    all_reduce,
    broadcast,
    gather,
    get_lengths,
    get_shapes,
    get_value,
    reduce,
    scatter,
    set_value,
)
from .data import Data, data
from .errors import (
    CheckpointError,
    RankTimeout,
    RemoteError,
    RemoteTraceback,
    SerialMismatch,
    ShapeMismatch,
    SharedMemoryFull,
    SplitError,
    SplitWarning,
    StateError,
    SynkError,
    WorkerDied,
)
from .explain import Explanation
from .forking import close, fork, is_forked, rank, session, size
from .function import Function, function
from .loss_scaling import LossScale
from .ops import grad
from .replication import distribute
from .timeline import trace
from .training import train_function

theano_finder.register()

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "Data",
    "Explanation",
    "Function",
    "LossScale",
    "RankTimeout",
    "RemoteError",
    "RemoteTraceback",
    "SerialMismatch",
    "ShapeMismatch",
    "SharedMemoryFull",
    "SplitError",
    "SplitWarning",
    "StateError",
    "SynkError",
    "WorkerDied",
    "all_gather",
    "all_reduce",
    "broadcast",
    "close",
    "data",
    "distribute",
    "fork",
    "function",
    "gather",
    "get_lengths",
    "get_shapes",
    "get_value",
    "grad",
    "is_forked",
    "load",
    "nn",
    "ops",
    "rank",
    "reduce",
    "save",
    "scatter",
    "session",
    "set_value",
    "size",
    "trace",
    "train_function",
    "updates",
]
