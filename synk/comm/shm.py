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
from ..workers.control import ASLEEP, COMMAND, REPLY_ROOM, WORD, Control
from ..workers.limit import Limit
from ..workers.recorder import MEETING, Recorder, Unrecorded
from .sync import MET, WAKE, find_places, meet, must_sleep

_COUNTS = 1 << 24
"""Barriers that one command may have; a barrier's number is command * this + count."""


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
        self._limit, self._recorder, self._phase = limit, recorder, recorder.phase
        self._number = 0
        self.words, self.places = control.array, find_places(control, rank)
        self._weights: tuple[float, ...] = ()
        self._fractions = np.empty(0)

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
        look_about = self.look_about
        if self.rank == 0:
            look_about = partial(look_about, self._limit.deadline())
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

    def next_meeting(self) -> int:
        """Go on to the next barrier, and return its number, the same on every rank."""
        # A command that was aborted leaves the ranks at different numbers. Each begins
        # the next one from a number that none has reached.
        first = self._control.words[COMMAND] * _COUNTS
        number = self._number = max(self._number, first) + 1
        self._phase[0] = MEETING
        return number

    def fractions(self, weights: Sequence[float]) -> np.ndarray:
        """Return weights as fractions of their sum; not to be written to."""
        weights = tuple(weights)
        if weights != self._weights:  # they are the same call after call
            self._weights, self._fractions = weights, np.array(shares(weights))
        return self._fractions

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
