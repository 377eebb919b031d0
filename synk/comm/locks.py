"""Locks between ranks, as words in shared memory, and words that are counted up.

A lock is an int64: 0, or the number of its owner plus 1. A rank that dies keeps those
that it has; who waits for one looks about, and learns of the death. Whoever starts
ranks on something anew first gives all its locks back.
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
"""Seconds asleep between two looks at a lock that is taken."""

_WORD = ir.IntType(64)


@intrinsic
def _exchange_if_zero(typing_context: Any, words: Any, index: Any, value: Any) -> tuple:
    """Store a value where there is 0; return what there was before."""

    def generate(context, builder, signature, arguments):
        place = pointer(context, builder, signature, arguments)
        zero = ir.Constant(_WORD, 0)
        both = builder.cmpxchg(place, zero, arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(both, 0)

    return types.int64(words, index, types.int64), generate


@compile_kernel
def take(words, index, owner, looks):
    """Take a lock, if it becomes free within so many looks; return if it did."""
    # A look first: an exchange takes the cache line away from the lock's owner.
    for _ in range(looks + 1):
        if load(words, index) == 0 and _exchange_if_zero(words, index, owner) == 0:
            return True
    return False


@compile_kernel
def give_back(words, index):
    """Let others have a lock, and see what was written before."""
    store(words, index, 0)


@compile_kernel
def _has_come(words, index, number, looks):
    while load(words, index) < number and looks > 0:
        looks -= 1
    return load(words, index) >= number


@compile_kernel
def write(words, index, value):
    """Store a word after everything that was stored before, for all ranks to see."""
    store(words, index, value)


class Locks:
    """One rank's way to locks and counters, among int64 words in shared memory.

    `looks` is how often to look at a word before sleeping; 0 if ranks share cores. What
    `patience` returns for a wait raises if a rank has died, or it takes too long.
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
        """Take a lock, when it is free."""
        # An interrupt may come after it was taken and before this returns:
        # `release_all` gives back what is this rank's, however it came to it.
        self._until(take, index, self._owner)

    def release(self, index: int) -> None:
        """Give a lock back: what was written before is there for who takes it next."""
        give_back(self._words, index)

    def release_all(self, first: int, last: int) -> None:
        """Give back those among some words that this rank has."""
        # Nobody else writes this rank's number, so all that it finds is its own.
        for index in first + np.flatnonzero(self._words[first:last] == self._owner):
            give_back(self._words, index)

    def wait_for(self, index: int, number: int) -> None:
        """Return when a word has come to a number."""
        self._until(_has_come, index, number)

    def acquire_when(self, index: int, may_have: Callable[[], bool]) -> None:
        """Take a lock when it is free, and `may_have` is so while it is this rank's."""
        look_about = None
        while True:
            # What `may_have` looks at changes under this lock, so not meanwhile.
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
