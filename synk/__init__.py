"""synk: Theano functions, data-parallel on every core, from a serial script."""

from typing import Any

from . import callbacks, files, finders, nn, ops, pymc, rules, train, updates
from .call.function import Function
from .call.make import function
from .call.tune import tune
from .cluster.launcher import Node
from .compiler.own_ops.check import check_sharding
from .compiler.own_ops.register import register_sharding
from .compiler.own_ops.sharding import Sharding
from .errors import (
    CheckpointError,
    NotFinite,
    OversubscriptionWarning,
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
from .ops import grad
from .parallel.script import parallel_functions
from .ranks.forking import (
    close,
    fork,
    is_forked,
    nodes,
    rank,
    recover,
    session,
    size,
)
from .ranks.groups import Group, groups
from .ranks.replication import distribute
from .report.explanation import Explanation
from .report.timeline import trace
from .times.compile_notice import compile_notice
from .train.history import History
from .train.loss_scaling import LossScale
from .train.repeated import CrossValidation, cross_validate, sweep
from .train.trainer import Trainer
from .train.training import train_function
from .variables.checkpoints import load, save
from .variables.collectives import (
    all_gather,
    all_reduce,
    broadcast,
    gather,
    reduce,
    scatter,
)
from .variables.data import Data, data
from .variables.one_rank import (
    get_lengths,
    get_shapes,
    get_value,
    set_value,
    state,
)

finders.register()

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "CrossValidation",
    "Data",
    "Explanation",
    "Function",
    "Group",
    "History",
    "LossScale",
    "Node",
    "NotFinite",
    "OversubscriptionWarning",
    "RankTimeout",
    "RemoteError",
    "RemoteTraceback",
    "SerialMismatch",
    "ShapeMismatch",
    "Sharding",
    "SharedMemoryFull",
    "SplitError",
    "SplitWarning",
    "StateError",
    "SynkError",
    "Trainer",
    "WorkerDied",
    "all_gather",
    "all_reduce",
    "broadcast",
    "callbacks",
    "check_sharding",
    "close",
    "compile_notice",
    "cross_validate",
    "data",
    "distribute",
    "files",
    "fork",
    "function",
    "gather",
    "get_lengths",
    "get_shapes",
    "get_value",
    "grad",
    "groups",
    "is_forked",
    "load",
    "nn",
    "nodes",
    "ops",
    "parallel_functions",
    "pymc",
    "rank",
    "recover",
    "reduce",
    "register_sharding",
    "rules",
    "save",
    "scatter",
    "session",
    "set_value",
    "size",
    "state",
    "sweep",
    "trace",
    "train",
    "train_function",
    "tune",
    "updates",
]


def __getattr__(name: str) -> Any:
    """Import what needs a library that not everybody has, when it is asked for."""
    if name in ("keras", "torch"):
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
