"""Locks and counters between ranks, as words in shared memory.

A lock is an int64: 0, or the owner's rank plus 1. A rank that dies keeps its locks. A
rank that waits for such a lock notices the death. Whoever starts new work with some
locks first resets them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ..compiled import compile_kernel, pointer
from .shm import load, store

_NAP = 50e-6
"""Seconds of sleep between two looks at a lock that is taken."""

_WORD = ir.IntType(64)


@intrinsic
def _exchange_if_zero(typing_context: Any, words: Any, index: Any, value: Any) -> tuple:
    """Store a value if the word is 0; return the word from before."""

    def generate(context, builder, signature, arguments):
        place = pointer(context, builder, signature, arguments)
        zero = ir.Constant(_WORD, 0)
        both = builder.cmpxchg(place, zero, arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(both, 0)

    return types.int64(words, index, types.int64), generate


@compile_kernel
def take(words, index, owner, looks):
    """Take a lock if it becomes free within `looks` looks; return whether it did."""
    # Load first, as an exchange takes the cache line away from the lock's owner.
    for _ in range(looks + 1):
        if load(words, index) == 0 and _exchange_if_zero(words, index, owner) == 0:
            return True
    return False


@compile_kernel
def give_back(words, index):
    """Release a lock; its next owner sees all that was written before."""
    store(words, index, 0)


@compile_kernel
def _has_come(words, index, number, looks):
    while load(words, index) < number and looks > 0:
        looks -= 1
    return load(words, index) >= number


@compile_kernel
def write(words, index, value):
    """Store a word; a rank that sees it also sees all that was stored before."""
    store(words, index, value)


class Locks:
    """One rank's operations on locks and counters, among int64 words in shared memory.

    `looks` is how often to look at a word before sleeping; 0 if ranks share cores.
    ``patience()`` returns a function for one wait. That raises if a rank has died, or
    if the wait takes too long.
    """

    def __init__(
        self,
        words: np.ndarray,
        rank: int,
        looks: int,
        patience: Callable[[], Callable[[], object]],
    ) -> None:
        self._words, self._owner = words, rank + 1
        self._looks, self._patience = looks, patience

    def acquire(self, index: int) -> None:
        """Wait until a lock is free, and take it."""
        # An interrupt may come between the taking and the return of this. `release_all`
        # releases all locks of this rank, also such a one.
        self._until(take, index, self._owner)

    def release(self, index: int) -> None:
        """Release a lock; its next owner sees all that was written before."""
        give_back(self._words, index)

    def release_all(self, first: int, last: int) -> None:
        """Release this rank's locks among the words `first` to `last` - 1."""
        # Only this rank writes its number, so these locks are all its own.
        for index in first + np.flatnonzero(self._words[first:last] == self._owner):
            give_back(self._words, index)

    def wait_for(self, index: int, number: int) -> None:
        """Return when a counter has reached `number`."""
        self._until(_has_come, index, number)

    def acquire_when(self, index: int, may_have: Callable[[], bool]) -> None:
        """Take a lock as soon as ``may_have()`` is true while this rank holds it."""
        look_about = None
        while True:
            # The result cannot change meanwhile, as it depends on data under this lock.
            self.acquire(index)
            if may_have():
                return
            self.release(index)
            look_about = look_about or self._patience()
            look_about()
            time.sleep(_NAP)

    def _until(self, look: Callable, index: int, value: int) -> None:
        if look(self._words, index, value, self._looks):
            return
        look_about, naps = self._patience(), 0
        while not look(self._words, index, value, 0):
            naps += 1
            if naps % 64 == 0:
                look_about()
            time.sleep(_NAP)
