"""Gathering rows that lie far apart, faster than ``numpy.take``.

Shuffled rows of a large array come from main memory, and a core that copies them one
after the other waits for the start of each. The kernel asks for the start of a row
while it copies the ones before; the hardware fetches the rest of a row by itself. For
512 rows of 3 kB that took 0.84 of the time of ``numpy.take``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ..compiled import compile_kernel, pointer

_AHEAD = 2  # rows; 1 to 4 make no difference
_LINES = 16  # of 64 bytes; fetching whole rows was slower
_WORTHWHILE = 1024  # bytes in a row; shorter ones are left to numpy


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> tuple:
    """Ask for the cache line of an array's element; LLVM's ``llvm.prefetch``."""

    def generate(context, builder, signature, arguments):
        line, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [line], kind)
        place = pointer(context, builder, signature, arguments)
        place = builder.bitcast(place, line)
        # for reading, to be kept in all caches, data
        builder.call(function, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@compile_kernel
def _gather(data, width, rows, out):
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            next_row = rows[i + _AHEAD] * width
            for line in range(min(_LINES, width // 64)):
                _prefetch(data, next_row + line * 64)
        source = data[rows[i] * width : rows[i] * width + width]
        target = out[i * width : i * width + width]
        for j in range(source.size):
            target[j] = source[j]


def gather(array: np.ndarray, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Take rows of an array; like ``numpy.take(array, rows, 0, out, "clip")``.

    Parameters
    ----------
    array : numpy.ndarray
    rows : numpy.ndarray of int64, shape (n,)
        From 0 on, and within the array: nothing is checked.
    out : numpy.ndarray, shape (n, ...)
        C-contiguous, of the array's dtype.
    """
    width = out.strides[0] if len(out) else 0
    if width < _WORTHWHILE or not array.flags.c_contiguous or not rows.flags.carray:
        # mode="clip" is what lets `out` be written directly.
        return np.take(array, rows, 0, out, "clip")
    data = array.reshape(-1).view(np.uint8)
    _gather(data, width, rows, out.reshape(-1).view(np.uint8))
    return out
