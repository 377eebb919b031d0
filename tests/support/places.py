"""Where the repository's folders are, and where processes of the tests are born.

It imports next to nothing, so that such a process can import it quickly.
"""

import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
BENCH = TESTS / "bench"
DEMOS = ROOT / "demos"
DOCS = ROOT / "docs"

NAMES = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "JAX_PLATFORMS"


def state() -> list[Any]:
    """Return the cores and the variables of this process."""
    return [sorted(os.sched_getaffinity(0)), [*map(os.environ.get, NAMES)]]


def put_state(queue: Any) -> None:
    """Put them into a queue."""
    queue.put(state())
