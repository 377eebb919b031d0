"""The control segment: the few words and bytes through which ranks coordinate.

::

    int64 words   command number | message length | aborted command
                  number of ranks | looks of Python and compiled code before sleeping
                  launch of a function
                  then for each rank, on cache lines of its own:
                  reply number | reply length | two words to agree on
                  number of the last meeting | asleep there | two words of values
    semaphores    joined, on which the master sleeps, then two for each rank:
                  launched, for a command, and met, for the others to come
    bytes         the message (MESSAGE_ROOM), then a reply of each rank (REPLY_ROOM)

Everything is decided by these words; semaphores only wake a sleeper, so that a post too
many or a wait cut short by a signal does no harm. Numbers only grow: a word that is
left over from an interrupted command can never be taken for the present one.

All that a rank needs of the others to begin with is here, or, for what they make later,
told by them. So it need not have been forked with a copy: see `Control.attach`.
"""

from __future__ import annotations

import numpy as np

from ..memory.segment import Place, Segment
from .waiting import LOOKS, ROOM, SPINS, Semaphore

MESSAGE_ROOM = 64 * 1024
REPLY_ROOM = 16 * 1024
_WORDS = _RANK_WORDS = 16  # two cache lines, which are often fetched together

# Who writes to a word: the master alone to COMMAND, LENGTH and LAUNCH, a rank alone to
# those of its own lines, and anybody to ABORTED, see `abort`. So none needs a lock.
COMMAND, LENGTH, ABORTED, _SIZE, _SPINS, _LOOKS, LAUNCH = range(7)
REPLY, REPLY_LENGTH, WORD, _, BARRIER, ASLEEP, VALUES = range(7)


class Control:
    """Shared words, message room and semaphores of one session of `size` ranks.

    They watch for a message before they sleep if `spin`.
    """

    def __init__(self, size: int, spin: bool) -> None:
        words = _WORDS + _RANK_WORDS * size
        semaphores = ROOM * (2 * size + 1)
        rooms = MESSAGE_ROOM + REPLY_ROOM * size
        segment = Segment(8 * words + semaphores + rooms)
        header = segment.memory().cast("q")
        header[_SIZE] = size
        header[_SPINS], header[_LOOKS] = (SPINS, LOOKS) if spin else (0, 0)
        self._use(segment, is_new=True)

    @classmethod
    def attach(cls, place: Place) -> Control:
        """Return the control segment that another process has made, by its `place`.

        Raises OSError if that is gone, or this user may not open it.
        """
        self = cls.__new__(cls)
        self._use(Segment.attach(*place), is_new=False)
        return self

    def _use(self, segment: Segment, is_new: bool) -> None:
        """Find everything in a segment whose first words are written."""
        self._segment = segment
        self.place = segment.place
        memory = segment.memory()
        header = memory.cast("q")
        self.size, self.spins, self.looks = header[_SIZE : _LOOKS + 1].tolist()
        size = self.size
        start = 8 * (_WORDS + _RANK_WORDS * size)
        self.words = memory[:start].cast("q")
        self.array = np.frombuffer(self.words, np.int64)  # for compiled code
        semaphores = [
            Semaphore(memory[start + i * ROOM :][:ROOM], is_new)
            for i in range(2 * size + 1)
        ]
        # Posted by each rank that has replied; by the master when there is a command;
        # and by who comes to a meeting last.
        self.joined = semaphores[0]
        self.launched = semaphores[1 : 1 + size]
        self.met = semaphores[1 + size :]
        start += ROOM * len(semaphores)
        self.message = memory[start:][:MESSAGE_ROOM]
        start += MESSAGE_ROOM
        self.replies = [
            memory[start + rank * REPLY_ROOM :][:REPLY_ROOM] for rank in range(size)
        ]

    @property
    def slots(self) -> np.ndarray:
        """Two words of each rank for values: uint8, of shape (2, ranks, bytes)."""
        # They are on the cache line that the rank's meetings are told by: who has seen
        # it come has got its values as well, and waits for one line, not for two.
        by_rank = self.array[_WORDS:].reshape(-1, _RANK_WORDS)
        two = by_rank[:, VALUES : VALUES + 2].view(np.uint8)
        return two.reshape(self.size, 2, 8).transpose(1, 0, 2)

    def rank_word(self, rank: int, word: int) -> int:
        """Return the index in `words` of a word of `rank`."""
        return _WORDS + _RANK_WORDS * rank + word

    def abort(self) -> None:
        """Tell every rank that the present command cannot succeed any more."""
        # Any rank may write here, more than one at a time: all write the same number.
        # The master alone changes COMMAND, and not before every rank has replied to
        # this one.
        self.words[ABORTED] = self.words[COMMAND]

    @property
    def aborted(self) -> bool:
        """Whether the present command was aborted."""
        return self.words[ABORTED] == self.words[COMMAND] != 0
