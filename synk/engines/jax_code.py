"""What XLA compiles is kept on disk, and found by the next run of a script.

JAX has such a cache, which is off until it is told a folder. If the script has told it
none, it gets one beside what PyTensor compiles (``config.base_compiledir``).

XLA makes code for the processor, and for as many threads as it has: what was compiled
with one runs on one. JAX looks at neither when it reads the cache (0.10.2), so the
folder's name tells both.

JAX 0.9.2 and 0.10.1 print errors as they read code of the same processor: "Target
machine feature +prefer-no-gather is not supported on the host machine" (JAX's issue
38445). Before 0.10.2 the cache is left to the script.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import pytensor

from ..workers.affinity import allowed_cores

_FOLDER = "synk-xla"
_LEAST = 0.1
"""Seconds that it takes to compile what is kept; JAX keeps nothing under 1.0."""
_READS_ITS_OWN = 0, 10, 2
"""The first version of JAX that has nothing to say against code of its own."""


@functools.cache
def keep_code() -> None:
    """Have JAX keep what XLA compiles, unless it has been told.

    Called with the cores that XLA has, or is to have. Does nothing if no folder can be
    made or written to.
    """
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    if jax.__version_info__ < _READS_ITS_OWN:
        return
    folder = folder_for(threads=len(allowed_cores()))
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*-cache"):
            # Of a process that was ended before it could write: JAX would warn of it,
            # each time, and never write it anew.
            if not path.stat().st_size:
                path.unlink()
        if os.access(folder, os.W_OK):
            config.update("jax_compilation_cache_dir", str(folder))
            config.update("jax_persistent_cache_min_compile_time_secs", _LEAST)


def folder_for(threads: int) -> Path:
    """Return the folder of code for this processor and so many threads."""
    about = hashlib.sha256(_processor().encode()).hexdigest()[:12]
    return Path(pytensor.config.base_compiledir, _FOLDER, f"{about}-{threads}")


def _processor() -> str:
    """Return what the system says of the processor: its model, and what it can do."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    names = "model name", "flags", "CPU part", "Features"  # the last two on ARM
    return "\n".join(found.get(name, "") for name in names)
