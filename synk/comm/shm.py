"""Meetings of the ranks of one machine: barriers, and exchanges of words and values.

All ranks make the same calls in the same order, within one command. `divided`, `small`
and `trees` are built on this.

At a meeting, every rank stores the meeting's number in a word of its own, and has met
the others when all words have reached that number. Compiled code watches the words.
Numbers only grow, so no word is ever reset. A rank that has watched for some time goes
to sleep, and the last rank to come wakes it. The words are accessed with sequential
consistency: of two ranks that each store a word and then load the other's, at least one
sees the other's store.
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
"""States that `meet` returns: not all came; all came; all came, and some sleep."""

OWN, RANK, SPINS, FIRST = range(4)
"""Indices into `SharedMemoryComm.places`; from FIRST on, one for each rank."""

_SLEEPS = ASLEEP - BARRIER

_COUNTS = 1 << 24
"""Most meetings of a command; the number of a meeting is command * this + count."""


class SharedMemoryComm:
    """One rank's meetings with the other ranks of its machine.

    `watch` raises if a rank has died. `limit` is how long the master waits at a
    meeting; the other ranks wait until the command is aborted.
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
        # For compiled code: the control segment's words, and the indices of the
        # meetings' numbers among them.
        every = [control.rank_word(r, BARRIER) for r in range(control.size)]
        self._own = every[rank]
        self.words = control.array
        self.places = np.array([self._own, rank, control.looks, *every])
        # Slots for a few bytes of values, in two sets that meetings use in turn.
        self.slots = control.slots
        # The last argument of `fractions`, and its result.
        self.weights: list[float] = []
        self.shares = np.empty(control.size)

    @property
    def local(self) -> SharedMemoryComm:
        """The communicator of this machine's ranks: this object."""
        return self

    def barrier(self) -> None:
        """Return when every rank has come here.

        Raises Aborted if a rank has failed in this command, and in the master
        WorkerDied or Expired if a rank died or did not come in time.
        """
        # An interrupt from here on leaves ranks at different numbers. The command is
        # aborted then, and the next command's meetings have larger numbers.
        number = self.next_meeting()
        self.arrive(meet(self.words, self.places, number), number)

    def arrive(self, state: int, number: int) -> None:
        """Return when every rank has come to a meeting; `state` is what `meet` said."""
        if state == MET:
            return
        control = self._control
        asleep = [control.rank_word(rank, ASLEEP) for rank in range(self.size)]
        # A rank that goes to sleep sets ASLEEP before its last look at the words. The
        # last rank to come reads ASLEEP after it has stored its word. So one of the two
        # sees the other. A post too many does no harm.
        if state == WAKE:
            for rank, word in enumerate(asleep):
                if control.words[word]:
                    control.met[rank].post()
            return
        self._recorder.note(MEETING)  # there is time, as this rank has to wait
        look_about = self.patience()
        try:
            while must_sleep(self.words, self.places, number):
                if not control.met[self.rank].sleep(TICK):
                    look_about()
        finally:
            # Also after an interrupt, so that nobody posts for this rank later.
            control.words[asleep[self.rank]] = 0

    def look_about(self, deadline: float | None = None) -> None:
        """Raise if a rank has failed or died, or if `deadline` is over."""
        if self._control.aborted:
            raise Aborted
        self._watch()
        if deadline is not None:
            self._limit.check(deadline, "not all ranks came to a meeting")

    def patience(self) -> Callable[[], None]:
        """Return `look_about` for one wait, with a deadline in the master."""
        if self.rank == 0:
            return partial(self.look_about, self._limit.deadline())
        return self.look_about

    def agree(self, word: int) -> list[int]:
        """Meet all ranks with a word; return the words of all, in their order."""
        control = self._control
        # Two agreements in a row use two words: a fast rank may store its word for the
        # second one while a slow rank still reads those of the first.
        number = self.next_meeting()
        place = WORD + number % 2
        control.words[control.rank_word(self.rank, place)] = word
        self.arrive(meet(self.words, self.places, number), number)
        return [
            control.words[control.rank_word(rank, place)] for rank in range(self.size)
        ]

    @property
    def number(self) -> int:
        """The number of the last meeting that this rank has come to."""
        return self._control.words[self._own]

    def next_number(self) -> int:
        """Return the number of the next meeting, which is equal on all ranks."""
        words = self._control.words
        return _number_after(words[self._own], words[COMMAND])

    def next_meeting(self) -> int:
        """Set the phase to MEETING; return the number of the next meeting."""
        self.phase[0] = MEETING
        return self.next_number()

    def fractions(self, weights: Sequence[float]) -> np.ndarray:
        """Return weights as fractions of their sum, in an array that is used again."""
        weights = list(weights)
        if weights != self.weights:
            self.weights = []  # so that after an interrupt here they are written again
            self.shares[:] = shares(weights)
            self.weights = weights
        return self.shares

    def exchange(self, value: Any) -> list:
        """Meet all ranks with a value; return the values of all, pickled, in order."""
        data = pickle.dumps(value)
        # The rooms for replies are free within a command: a rank that has replied
        # already has failed.
        rooms = self._control.replies
        lengths = self.agree(len(data))
        whole = [bytearray() for _ in rooms]
        for start in range(0, max(lengths), REPLY_ROOM):
            piece = data[start : start + REPLY_ROOM]
            rooms[self.rank][: len(piece)] = piece
            self.barrier()
            for of_rank, room, length in zip(whole, rooms, lengths, strict=True):
                of_rank += room[: max(0, min(length - start, REPLY_ROOM))]
            self.barrier()  # now the rooms may be written to again
        # A rank may be interrupted after it has come to the barrier, and overwrite its
        # room by its reply before others have read it. The command is aborted then.
        if self._control.aborted:
            raise Aborted
        return [pickle.loads(of_rank) for of_rank in whole]


# -- meetings, in compiled code


@intrinsic
def load(typing_context: Any, words: Any, index: Any) -> tuple:
    """Load a word atomically."""

    def generate(context, builder, signature, arguments):
        place = pointer(context, builder, signature, arguments)
        return builder.load_atomic(place, "seq_cst", 8, typ=ir.IntType(64))

    return types.int64(words, index), generate


@intrinsic
def store(typing_context: Any, words: Any, index: Any, value: Any) -> tuple:
    """Store a word atomically; who sees it also sees all that was stored before."""

    def generate(context, builder, signature, arguments):
        place = pointer(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], place, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(words, index, types.int64), generate


def _number_after(last, command):
    """Return the number of the next meeting, after a rank's last one, in a command."""
    # An aborted command leaves ranks at different numbers. The next command begins with
    # a number that none has reached.
    first = command * _COUNTS
    return (last if last > first else first) + 1


_compiled_number_after = compile_kernel(_number_after)


@compile_kernel
def next_number(words, places):
    """Return the number of this rank's next meeting."""
    return _compiled_number_after(words[places[OWN]], words[COMMAND])


@compile_kernel
def meet(words, places, number):
    """Come to a meeting, and watch for the others; return WAIT, MET or WAKE."""
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
    """Return whether all ranks have come to a meeting."""
    came = True
    for k in range(FIRST, places.size):
        came &= load(words, places[k]) >= number
    return came


@compile_kernel
def must_sleep(words, places, number):
    """Set this rank's ASLEEP; return whether some rank has not come yet."""
    store(words, places[OWN] + _SLEEPS, 1)
    return not all_came(words, places, number)
