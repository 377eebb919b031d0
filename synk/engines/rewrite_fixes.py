"""What PyTensor's rewriting gets wrong for networks, in any mode; it goes when it can.

``test_modes_mended.py`` tells when.
"""

from __future__ import annotations

from contextlib import suppress

import pytensor
from pytensor.compile.mode import optdb


def register() -> None:
    """Take the rewrites out of PyTensor's that are wrong.

    * ``local_add_of_sparse_write`` (PyTensor 3.0.7; not in 2.38.3, right in 3.3.7)
      makes ``set_subtensor(zeros[::2], x) + b`` an addition into b, which it takes to
      have the shape of the zeros. Where it has not, as a bias, the result has b's
      shape, or the shapes are refused.
    """
    if not (3, 0) <= _version() < (3, 3):
        return
    for stage in "canonicalize", "stabilize", "specialize":
        for tag in stage, "fast_run", "fast_compile":
            with suppress(KeyError):  # not every stage has every tag
                optdb[stage].remove_tags("local_add_of_sparse_write", tag)


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in pytensor.__version__.split(".")[:2])
