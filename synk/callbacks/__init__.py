"""Callbacks of a `Trainer` between epochs: stop early, save, change rates, write logs.

A callback is called in the script's process, while all ranks are between two epochs, so
its decisions hold for all of them at the same step. A function ``f(trainer, numbers)``
is a callback, too; it returns whether to stop.

`Callback.state_dict` returns a callback's state, and the trainer's files have it, so
that training which goes on from a file is the same as if it had not stopped.
"""

from __future__ import annotations

from .base import Callback, Checkpoint, Patience, Target
from .logs import CSVLog, JSONLog, TensorBoard
from .rates import LearningRate, Plateau, cosine, step_decay, warm_up

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoint",
    "JSONLog",
    "LearningRate",
    "Patience",
    "Plateau",
    "Target",
    "TensorBoard",
    "cosine",
    "step_decay",
    "warm_up",
]
