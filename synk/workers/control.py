"""The control segment: shared words and bytes through which a node's ranks coordinate.

::

    int64 words   command number | message length | aborted command's number
                  number of ranks | looks of Python and compiled code before sleeping
                  number of the launch of a function
                  then for each rank, on cache lines of its own:
                  replied command's number | reply length | two words for `agree`
                  number of the last meeting | asleep there | two words of values
    semaphores    joined, on which the master sleeps, then two for each rank:
                  launched, for a command, and met, for the others at a meeting
    bytes         the message (MESSAGE_ROOM), then a reply of each rank (REPLY_ROOM)

The words alone decide; a semaphore only wakes a sleeper, which then reads the word. So
a post too many, or a wait cut short by a signal, does no harm. Numbers only grow: a
word left over from an interrupted command is never taken for the present one.

A rank that has the segment's `place` finds all others through it (`Control.attach`), so
the segment may be newer than the zygote from which the rank was forked.
"""

from __future__ import annotations

import numpy as np

from ..memory.segment import Place, Segment
from .waiting import LOOKS, ROOM, SPINS, Semaphore

MESSAGE_ROOM = 64 * 1024
REPLY_ROOM = 16 * 1024
_WORDS = _RANK_WORDS = 16  # two cache lines, which are often fetched together

# No word needs a lock: only the master writes COMMAND, LENGTH and LAUNCH, only the rank
# itself the words of its lines, and any rank ABORTED (see `abort`).
COMMAND, LENGTH, ABORTED, _SIZE, _SPINS, _LOOKS, LAUNCH = range(7)
REPLY, REPLY_LENGTH, WORD, _, BARRIER, ASLEEP, VALUES = range(7)


class Control:
    """Shared words, message room and semaphores of one session of `size` ranks.

    With `spin`, ranks watch a word for some time before they sleep on a semaphore.
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

        Raises OSError if that process is gone, or this user may not open its segment.
        """
        self = cls.__new__(cls)
        self._use(Segment.attach(*place), is_new=False)
        return self

    def _use(self, segment: Segment, is_new: bool) -> None:
        """Set the attributes from `segment`, which has size and looks already."""
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
        # Who posts: `joined` each rank that has replied, `launched` the master with a
        # command, `met` the rank that comes to a meeting last.
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
        # They are on the cache line of the rank's word BARRIER: a rank that has seen
        # another come to a meeting has that rank's values, too, and waits for one line.
        by_rank = self.array[_WORDS:].reshape(-1, _RANK_WORDS)
        two = by_rank[:, VALUES : VALUES + 2].view(np.uint8)
        return two.reshape(self.size, 2, 8).transpose(1, 0, 2)

    def rank_word(self, rank: int, word: int) -> int:
        """Return the index in `words` of `word` (such as REPLY) of `rank`."""
        return _WORDS + _RANK_WORDS * rank + word

    def abort(self) -> None:
        """Mark the present command as failed: ranks that wait in it stop."""
        # Several ranks may write this at a time, as all write the same number: only the
        # master changes COMMAND, and not before every rank has replied.
        self.words[ABORTED] = self.words[COMMAND]

    @property
    def aborted(self) -> bool:
        """Whether the present command was aborted."""
        return self.words[ABORTED] == self.words[COMMAND] != 0
