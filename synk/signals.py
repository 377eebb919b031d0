"""Holding signals back from what no interrupt may come into."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from typing import Any


def with_signals_held_back(function: Callable[..., object], *args: Any) -> None:
    """Call a function with all signals held back in this thread.

    Another thread of the process may take one (one of OpenBLAS's), and its handler runs
    in the main thread all the same, between any two calls. So the mask is set back by a
    `finally` whose first call does it, with arguments that were made before. A context
    manager would not do: Python looks for handlers as it enters `__exit__`.
    """
    before = ctypes.byref(_SignalMask())
    _set_mask(_SIG_SETMASK, None, before)
    try:
        _set_mask(_SIG_SETMASK, _ALL_SIGNALS, None)
        function(*args)
    finally:
        _set_mask(_SIG_SETMASK, before, None)


# Not signal.pthread_sigmask, which runs handlers itself, and builds sets of enumeration
# members: 8 to 120 us, not 1.
_SignalMask = ctypes.c_byte * 128
_ALL_SIGNALS = ctypes.byref(_SignalMask(*[-1] * 128))
_SIG_SETMASK = int(signal.SIG_SETMASK)
_set_mask = ctypes.PyDLL(None).pthread_sigmask
