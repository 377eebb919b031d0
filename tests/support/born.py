"""What a process is born with; a module of its own, which it imports quickly."""

from __future__ import annotations

import os
from typing import Any

NAMES = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "JAX_PLATFORMS"


def state() -> list[Any]:
    """Return the cores and the variables of this process."""
    return [sorted(os.sched_getaffinity(0)), [*map(os.environ.get, NAMES)]]


def put_state(queue: Any) -> None:
    """Put them into a queue."""
    queue.put(state())
