"""How ranks meet: compiled code that watches the ranks' words in the control segment.

Every rank stores the number of the meeting in a word of its own, and has met the others
when all words have come that far. Numbers only grow, so nothing is ever reset.

A rank that has watched in vain for some time goes to sleep (see `shm`). The rank that
comes last wakes the sleepers. For that each rank first stores its number and then looks
for sleepers, and each sleeper first says that it sleeps and then looks at the numbers:
these accesses have one order for all ranks (they are sequentially consistent), and in
it the last to store sees every sleeper that has not seen its number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ..compiled import compile_kernel, pointer
from ..workers.control import ASLEEP, BARRIER, COMMAND, Control

WAIT, MET, WAKE = range(3)
"""What `meet` returns: not all came, all came, and all came but some of them sleep."""

OWN, RANK, SPINS, FIRST = range(4)
"""Places in the array that `find_places` returns; from FIRST on, one for each rank."""

_SLEEPS = ASLEEP - BARRIER

_COUNTS = 1 << 24
"""Meetings that one command may have; a meeting's number is command * this + count."""


def find_places(control: Control, rank: int) -> np.ndarray:
    """Return where in the control segment this rank's and all ranks' numbers are."""
    every = [control.rank_word(r, BARRIER) for r in range(control.size)]
    return np.array([every[rank], rank, control.looks, *every])


@intrinsic
def load(typing_context: Any, words: Any, index: Any) -> tuple:
    """Return a word, as it is in memory now."""

    def generate(context, builder, signature, arguments):
        place = pointer(context, builder, signature, arguments)
        return builder.load_atomic(place, "seq_cst", 8, typ=ir.IntType(64))

    return types.int64(words, index), generate


@intrinsic
def store(typing_context: Any, words: Any, index: Any, value: Any) -> tuple:
    """Store a word after everything that was stored before, for all ranks to see."""

    def generate(context, builder, signature, arguments):
        place = pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], place, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(words, index, types.int64), generate


def number_after(last, command):
    """Return the number of the meeting that comes after a rank's last one."""
    # A command that was aborted leaves the ranks at different numbers. Each begins
    # the next one from a number that none has reached.
    first = command * _COUNTS
    return (last if last > first else first) + 1


_number_after = compile_kernel(number_after)


@compile_kernel
def next_number(words, places):
    """Return the number of the meeting that this rank comes to next."""
    return _number_after(words[places[OWN]], words[COMMAND])


@compile_kernel
def meet(words, places, number):
    """Say that this rank has come to a meeting, and watch for the others."""
    store(words, places[OWN], number)
    if all_came(words, places, number):
        for k in range(FIRST, places.size):
            if load(words, places[k] + _SLEEPS):
                return WAKE
        return MET
    left = places[SPINS]
    for k in range(FIRST, places.size):
        while load(words, places[k]) < number:
            left -= 1
            if left < 0:
                return WAIT
    return MET


@compile_kernel
def all_came(words, places, number):
    """Tell whether all ranks have come to a meeting."""
    came = True
    for k in range(FIRST, places.size):
        came &= load(words, places[k]) >= number
    return came


@compile_kernel
def must_sleep(words, places, number):
    """Say that this rank is going to sleep, unless all have come."""
    store(words, places[OWN] + _SLEEPS, 1)
    return not all_came(words, places, number)
