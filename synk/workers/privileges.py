"""Processes that have changed their user id, and what the kernel makes of them."""

from __future__ import annotations

import ctypes
import os

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


def let_ranks_in() -> None:
    """Let processes of this user open descriptors of this one and of its children.

    They may anyway, unless it has changed its user id, as what was started by root does
    by ``os.setuid``. It may then know what only its former user is to know, and so the
    kernel closes it to the user that it has become. But ranks are that user's, and open
    each other's memory. So it is opened, to a debugger of the user's too, and the
    kernel writes core dumps of it.
    """
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 1:
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def user() -> tuple:
    """Return whose process this is: its user and group ids, and its other groups."""
    return os.getresuid(), os.getresgid(), sorted(os.getgroups())
