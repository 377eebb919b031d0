"""Names in ``/dev/shm`` that killed processes left behind.

Segments and semaphores have a name for some microseconds, between their making and
their unlinking. A process that is killed just then leaves the name of an empty segment,
or of a semaphore. No process ever opens one by its name, so whoever comes next may
remove it.
"""

from __future__ import annotations

import contextlib
import os
import re

FOLDER = "/dev/shm"

_NAME = re.compile(r"(?:sem\.)?synk-(\d+)-\d+")


def remove_leftovers() -> None:
    """Unlink the names of processes that are gone, as far as this user may."""
    with contextlib.suppress(OSError):
        for name in os.listdir(FOLDER):
            match = _NAME.fullmatch(name)
            if match and not os.path.exists(f"/proc/{match[1]}"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(FOLDER, name))
