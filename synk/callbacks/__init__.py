"""What a `Trainer` does between epochs: stop early, save, change rates, write logs.

A callback is called in the script's process, with all ranks between two epochs, so what
it decides holds for all of them at the same step. Any function ``f(trainer, numbers)``
will do; what it returns says whether to stop.

What a callback keeps from epoch to epoch `Callback.state_dict` returns, and files of
the trainer hold it: so training that goes on from one is that which never stopped.
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
