"""Ranks of one machine: how they wait for one another and exchange a few words.

All ranks run the same calls in the same order, within one command. What is built on it:
`divided`, all-reduces of many values, and `small`, of few.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import Aborted
from ..reduce_ops import shares
from ..workers import waiting
from ..workers.control import ASLEEP, BARRIER, COMMAND, REPLY_ROOM, WORD, Control
from ..workers.limit import Limit
from ..workers.recorder import MEETING, Recorder, Unrecorded
from .sync import MET, WAKE, find_places, meet, must_sleep, number_after


class SharedMemoryComm:
    """One rank's end of the shared-memory transport.

    Parameters
    ----------
    control : Control
    rank : int
    watch : callable
        Raises when a rank has died; on ranks other than the master it does nothing.
    limit : Limit
        How long the master waits in a barrier; the others wait for its word.
    recorder : Recorder
        Where the rank notes that it meets others.

    Attributes
    ----------
    words, places : numpy.ndarray of int64
        See `sync`.
    slots : numpy.ndarray of uint8, shape (2, size, 8)
        Where ranks have values on the way that fit; two sets for meetings in turn.
    phase : memoryview of int64
        The recorder's.
    weights : list of float
        Those of which `fractions` was asked last.
    shares : numpy.ndarray of float64, shape (size,)
        What it has returned.
    """

    def __init__(
        self,
        control: Control,
        rank: int,
        watch: Callable[[], object],
        limit: Limit,
        recorder: Recorder | Unrecorded,
    ) -> None:
        self.rank, self.size = rank, control.size
        self._control = control
        self._watch = watch
        self._limit, self._recorder, self.phase = limit, recorder, recorder.phase
        self.words, self.places = control.array, find_places(control, rank)
        self.slots, self._own = control.slots, control.rank_word(rank, BARRIER)
        self.weights: list[float] = []
        self.shares = np.empty(control.size)

    @property
    def local(self) -> SharedMemoryComm:
        """What meets the ranks of this machine: this."""
        return self

    def barrier(self) -> None:
        """Return when every rank has come here.

        Raises
        ------
        Aborted
            If a rank failed on its way.
        WorkerDied, Expired
            In the master, if a rank died or did not come in time.
        """
        number = self.next_meeting()
        self.come(meet(self.words, self.places, number), number)

    def come(self, state: int, number: int) -> None:
        """Return when every rank has come to a meeting; wake those that slept.

        Parameters
        ----------
        state : int
            What `sync.meet` has returned for the meeting.
        number : int
            The meeting's number.
        """
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
                if not control.met[self.rank].sleep(waiting.TICK):
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
        return number_after(words[self._own], words[COMMAND])

    def next_meeting(self) -> int:
        """Go on to the next meeting, and return its number."""
        words = self._control.words
        self.phase[0] = MEETING
        return number_after(words[self._own], words[COMMAND])

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
