"""The control segment: the few words and bytes through which ranks coordinate.

::

    int64 words   command number | message length | aborted command
                  then for each rank, on cache lines of its own:
                  reply number | reply length | two words to agree on
                  number of the last meeting | asleep there
    bytes         the message (MESSAGE_ROOM), then a reply of each rank (REPLY_ROOM)

Everything is decided by these words; semaphores only wake a sleeper, so that a post too
many or a wait cut short by a signal does no harm. Numbers only grow: a word that is
left over from an interrupted command can never be taken for the present one.
"""

from __future__ import annotations

import numpy as np

from ..memory.segment import Segment
from .waiting import LOOKS, SPINS, make_semaphore

MESSAGE_ROOM = 64 * 1024
REPLY_ROOM = 16 * 1024
_WORDS = _RANK_WORDS = 16  # two cache lines, which are often fetched together

COMMAND, LENGTH, ABORTED = range(3)
REPLY, REPLY_LENGTH, WORD, _, BARRIER, ASLEEP = range(6)


class Control:
    """Shared words, message room and semaphores of one session, made before it forks.

    Parameters
    ----------
    size : int
        The number of ranks.
    spin : bool
        Whether ranks may watch for a message before they sleep.
    """

    def __init__(self, size: int, spin: bool) -> None:
        self.size = size
        self.spins = SPINS if spin else 0
        self.looks = LOOKS if spin else 0
        words = _WORDS + _RANK_WORDS * size
        self._segment = Segment(8 * words + MESSAGE_ROOM + REPLY_ROOM * size)
        memory = self._segment.memory()
        self.words = memory[: 8 * words].cast("q")
        self.array = np.frombuffer(self.words, np.int64)  # the same, for compiled code
        self.message = memory[8 * words :][:MESSAGE_ROOM]
        rooms = memory[8 * words + MESSAGE_ROOM :]
        self.replies = [
            rooms[rank * REPLY_ROOM : (rank + 1) * REPLY_ROOM] for rank in range(size)
        ]
        # Made before the fork, and without names: who has no copy cannot reach them.
        self._semaphores = [make_semaphore() for _ in range(2 * size + 1)]
        self.joined = self._semaphores[0]
        self.launched = self._semaphores[1 : 1 + size]
        self.met = self._semaphores[1 + size :]

    def rank_word(self, rank: int, word: int) -> int:
        """Return the index in `words` of a word of `rank`."""
        return _WORDS + _RANK_WORDS * rank + word

    @property
    def command(self) -> int:
        """The number of the command that was launched last."""
        return self.words[COMMAND]

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

    def close(self) -> None:
        """Give the semaphores and the memory back; nothing must use them any more."""
        for semaphore in self._semaphores:
            semaphore.close()
        self._semaphores = []
        self._segment.close()

    def __del__(self) -> None:
        # posix_ipc leaves an open semaphore mapped for the life of the process.
        if getattr(self, "_semaphores", None):
            self.close()
