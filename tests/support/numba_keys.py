"""Keys of PyTensor's cache of what numba compiles."""

from __future__ import annotations

from collections.abc import Callable

from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS


def keys_of(compile_it: Callable[[], object]) -> set[str]:
    """Return the keys of PyTensor's cache on disk under which code was compiled."""
    before = dict(CACHED_SRC_FUNCTIONS)
    made = compile_it()  # the functions are known as long as this lives
    keys = {key for f, key in CACHED_SRC_FUNCTIONS.items() if f not in before}
    del made
    return keys
