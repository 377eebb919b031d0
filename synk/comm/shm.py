"""Ranks of one machine: how they wait for one another and exchange a few words.

All ranks run the same calls in the same order, within one command. What is built on it:
`divided`, all-reduces of many values, `small`, of few, and `trees`.

Every rank stores the number of the meeting in a word of its own, and has met the others
when all words have come that far: compiled code watches them. Numbers only grow, so
nothing is ever reset. A rank that has watched in vain for some time goes to sleep, and
the last to come wakes it. Who stores first and looks then cannot miss the other: these
accesses have one order for all ranks (they are sequentially consistent).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ..compiled import compile_kernel, pointer
from ..errors import Aborted
from ..reduce_ops import shares
from ..workers.control import ASLEEP, BARRIER, COMMAND, REPLY_ROOM, WORD, Control
from ..workers.recorder import MEETING, Recorder
from ..workers.waiting import TICK, Limit

WAIT, MET, WAKE = range(3)
"""What `meet` returns: not all came, all came, and all came but some of them sleep."""

OWN, RANK, SPINS, FIRST = range(4)
"""Places in the array that `find_places` returns; from FIRST on, one for each rank."""

_SLEEPS = ASLEEP - BARRIER

_COUNTS = 1 << 24
"""Meetings that one command may have; a meeting's number is command * this + count."""


class SharedMemoryComm:
    """One rank's end of the shared-memory transport.

    `watch` raises when a rank has died. The `limit` is how long the master waits in a
    barrier; the others wait for its word.
    """

    def __init__(
        self,
        control: Control,
        rank: int,
        watch: Callable[[], object],
        limit: Limit,
        recorder: Recorder,
    ) -> None:
        self.rank, self.size = rank, control.size
        self._control = control
        self._watch = watch
        self._limit, self._recorder, self.phase = limit, recorder, recorder.phase
        # The control segment's, and where in it the meetings' numbers are.
        self.words, self.places = control.array, find_places(control, rank)
        # Where ranks have values on the way that fit; two sets for meetings in turn.
        self.slots, self._own = control.slots, control.rank_word(rank, BARRIER)
        # Those of which `fractions` was asked last, and what it has returned.
        self.weights: list[float] = []
        self.shares = np.empty(control.size)

    @property
    def local(self) -> SharedMemoryComm:
        """What meets the ranks of this machine: this."""
        return self

    def barrier(self) -> None:
        """Return when every rank has come here.

        Raises Aborted if a rank failed on its way, and in the master WorkerDied or
        Expired if one died or did not come in time.
        """
        # An interrupt from here on leaves ranks at different numbers: the command is
        # aborted then, and the next one's meetings have numbers that none has reached.
        number = self.next_meeting()
        self.come(meet(self.words, self.places, number), number)

    def come(self, state: int, number: int) -> None:
        """Return when every rank has come to a meeting of which `meet` said so much."""
        if state == MET:
            return
        control = self._control
        asleep = [control.rank_word(rank, ASLEEP) for rank in range(self.size)]
        # Who sleeps has said so before it looked at the words for the last time, and
        # the last to come looks at ASLEEP after it has written its word: one of the two
        # sees the other. A post for somebody who is about to look anyway does no harm.
        if state == WAKE:
            for rank, word in enumerate(asleep):
                if control.words[word]:
                    control.met[rank].post()
            return
        self._recorder.note(MEETING)  # there is time
        look_about = self.patience()
        try:
            while must_sleep(self.words, self.places, number):
                if not control.met[self.rank].sleep(TICK):
                    look_about()
        finally:
            # After an interrupt, too: nobody is to post for a sleeper that is gone.
            control.words[asleep[self.rank]] = 0

    def look_about(self, deadline: float | None = None) -> None:
        """Raise if what this rank waits for will not come, or not in time."""
        if self._control.aborted:
            raise Aborted
        self._watch()
        if deadline is not None:
            self._limit.check(deadline, "not all ranks came to a meeting")

    def patience(self) -> Callable[[], None]:
        """Return what raises if one wait that begins now is in vain, or too long."""
        if self.rank == 0:
            return partial(self.look_about, self._limit.deadline())
        return self.look_about

    def agree(self, word: int) -> list[int]:
        """Return the words that the ranks gave, after waiting for all of them."""
        control = self._control
        # Two agreements in a row use two words: a fast rank may give its word for the
        # second one while a slow rank still reads those of the first.
        number = self.next_meeting()
        place = WORD + number % 2
        control.words[control.rank_word(self.rank, place)] = word
        self.come(meet(self.words, self.places, number), number)
        return [
            control.words[control.rank_word(rank, place)] for rank in range(self.size)
        ]

    @property
    def number(self) -> int:
        """The number of the meeting that this rank has come to last."""
        return self._control.words[self._own]

    def next_number(self) -> int:
        """Return the number of the next meeting, the same on every rank."""
        words = self._control.words
        return _number_after(words[self._own], words[COMMAND])

    def next_meeting(self) -> int:
        """Go on to the next meeting, and return its number."""
        self.phase[0] = MEETING
        return self.next_number()

    def fractions(self, weights: Sequence[float]) -> np.ndarray:
        """Return weights as fractions of their sum: in `shares`, until the next."""
        weights = list(weights)
        if weights != self.weights:
            self.weights = []  # so that they are written anew after an interrupt here
            self.shares[:] = shares(weights)
            self.weights = weights
        return self.shares

    def exchange(self, value: Any) -> list:
        """Return the values that the ranks gave, in their order; pickled on the way."""
        data = pickle.dumps(value)
        # The rooms for replies are free in a command: who replies early has failed.
        rooms = self._control.replies
        lengths = self.agree(len(data))
        whole = [bytearray() for _ in rooms]
        for start in range(0, max(lengths), REPLY_ROOM):
            piece = data[start : start + REPLY_ROOM]
            rooms[self.rank][: len(piece)] = piece
            self.barrier()
            for of_rank, room, length in zip(whole, rooms, lengths, strict=True):
                of_rank += room[: max(0, min(length - start, REPLY_ROOM))]
            self.barrier()  # the rooms are free for the next use
        # A rank may be interrupted after it was counted at the barrier, and leave its
        # reply in its room before others have read there: what they have is no value.
        if self._control.aborted:
            raise Aborted
        return [pickle.loads(of_rank) for of_rank in whole]


# -- meetings, in compiled code


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


def _number_after(last, command):
    """Return the number of the meeting that comes after a rank's last one."""
    # A command that was aborted leaves the ranks at different numbers. Each begins
    # the next one from a number that none has reached.
    first = command * _COUNTS
    return (last if last > first else first) + 1


_compiled_number_after = compile_kernel(_number_after)


@compile_kernel
def next_number(words, places):
    """Return the number of the meeting that this rank comes to next."""
    return _compiled_number_after(words[places[OWN]], words[COMMAND])


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
