"""The control segment: the few words and bytes through which ranks coordinate.

::

    int64 words   command number | message length | aborted command
                  then for each rank:
                  reply number | reply length | barrier count | two words to agree on
    bytes         the message (MESSAGE_ROOM), then a reply of each rank (REPLY_ROOM)

Everything is decided by these words; semaphores only wake a sleeper, so that a post too
many or a wait cut short by a signal does no harm. Numbers only grow: a word that is
left over from an interrupted command can never be taken for the present one.
"""

from __future__ import annotations

from ..memory.segment import Segment
from .waiting import SPINS, make_semaphore

MESSAGE_ROOM = 64 * 1024
REPLY_ROOM = 16 * 1024
_WORDS = 4
_RANK_WORDS = 5

COMMAND, LENGTH, ABORTED = range(3)
REPLY, REPLY_LENGTH, BARRIER, WORD = range(4)  # two words to agree on


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
        words = _WORDS + _RANK_WORDS * size
        self._segment = Segment(8 * words + MESSAGE_ROOM + REPLY_ROOM * size)
        memory = self._segment.memory()
        self.words = memory[: 8 * words].cast("q")
        self.message = memory[8 * words :][:MESSAGE_ROOM]
        rooms = memory[8 * words + MESSAGE_ROOM :]
        self.replies = [
            rooms[rank * REPLY_ROOM : (rank + 1) * REPLY_ROOM] for rank in range(size)
        ]
        self._semaphores = [make_semaphore() for _ in range(2 * size + 2)]
        self.joined, self.arrived = self._semaphores[:2]
        self.launched = self._semaphores[2 : 2 + size]
        self.released = self._semaphores[2 + size :]

    def rank_word(self, rank: int, word: int) -> int:
        """Return the index in `words` of a word of `rank`."""
        return _WORDS + _RANK_WORDS * rank + word

    @property
    def command(self) -> int:
        """The number of the command that was launched last."""
        return self.words[COMMAND]

    def abort(self) -> None:
        """Tell every rank that the present command cannot succeed any more."""
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
