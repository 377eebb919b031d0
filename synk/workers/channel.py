"""The channel: one message to all ranks, one reply from each.

A message is a command: a module-level function and its arguments. Every rank calls it
as ``work(context, *args)``; the master does its own share in `ranks.session`. A worker
runs `serve`: it waits for a command, runs it and replies, until its process is killed.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import cloudpickle

from ..errors import Aborted
from ..memory.descriptors import opened
from ..memory.segment import Segment
from .control import COMMAND, LENGTH, REPLY, REPLY_LENGTH, Control
from .failure import Failure
from .forks import flush_streams
from .recorder import REPLYING, RUNNING
from .waiting import IDLE_TICK, PATIENCE, Limit, wait

REPEAT = 0
"""Sent as the message's length: the command is the last one again."""

KEPT = 4096
"""Up to so many bytes, both ends keep a message, as it may be repeated."""

IN_SEGMENT = 1 << 40
"""Added to a length: the room has the place of a larger segment with the bytes."""


class MasterChannel:
    """The master's end. `watch` is called in every wait, and raises if a rank died."""

    def __init__(
        self, control: Control, watch: Callable[..., object], limit: Limit
    ) -> None:
        self._control = control
        self._watch = watch
        self._limit = limit
        self._replies: list[tuple[bytes, Any]] = [(b"", None)] * control.size
        self._pending: list[int] = []
        self._large: Segment | None = None
        self._last: tuple[Callable, tuple] | None = None

    def launch(self, work: Callable, args: tuple, notices: tuple) -> None:
        """Send ``work(context, *args)`` to ranks 1 and up."""
        # If `args` is the same tuple object as in the last command, the ranks only get
        # the flag REPEAT. An interrupt at any point leaves a state that `join` can
        # finish: before the command number is written nothing was sent; afterwards
        # `_pending` has the ranks that were sent it.
        control, words = self._control, self._control.words
        # None until the message is sent: after an interrupt there is nothing to repeat.
        last, self._last = self._last, None
        if last is not None and last[1] is args and last[0] is work and not notices:
            words[LENGTH] = REPEAT
        else:
            name = work.__module__, work.__name__
            data = dumps((name, args, notices))
            # No rank reads the room meanwhile: all have replied to the last command,
            # and read again only when the command number has changed. A large message
            # is dropped by `join`, when all ranks have replied, and so have read it.
            length, self._large = _placed(control.message, data)
            words[LENGTH] = length
            last = (work, args) if length <= KEPT and not notices else None
        self._pending = list(range(1, control.size))
        # The next line starts the command. `_pending` is set before: after an interrupt
        # right behind that line, it says whom to wait for.
        words[COMMAND] += 1
        self._last = last
        # Ranks that watch the word have seen it by now; this wakes those that sleep. If
        # an interrupt comes between two posts, `post_again` posts all once more.
        for rank in self._pending:
            control.launched[rank].post()

    def join(self) -> list[Any]:
        """Wait for all ranks and return their replies, in the order of ranks."""
        # A reply is the return value of `work`, or a `Failure`. After an interrupt,
        # `join` can be called again.
        control, pending = self._control, self._pending
        command = control.words[COMMAND]
        look_about = functools.partial(self._look_about, self._limit.deadline())
        while pending:
            # All ranks post one semaphore, in any order; their words say who has
            # replied. So the post of another rank may be taken here: `wait` looks at
            # that rank's word before it sleeps.
            reply = control.rank_word(pending[0], REPLY)
            words, joined, spins = control.words, control.joined, control.spins
            wait(words, reply, command, joined, spins, look_about)
            del pending[0]
        # Every rank has read the message, so a large one may be freed.
        self._large = None
        return list(map(self._read, range(1, control.size)))

    @property
    def busy(self) -> bool:
        """Whether a command was launched and is not joined yet."""
        return bool(self._pending)

    def post_again(self) -> None:
        """Wake all ranks again, as an interrupt may have come between two posts."""
        for rank in self._pending:
            self._control.launched[rank].post()

    def pending(self) -> list[int]:
        """Return the ranks that have not replied."""
        command = self._control.words[COMMAND]
        return [
            rank
            for rank in self._pending
            if self._control.words[self._control.rank_word(rank, REPLY)] != command
        ]

    def _look_about(self, deadline: float) -> None:
        """Raise if a rank has died, or Expired after the deadline."""
        self._watch()
        self._limit.check(deadline, f"ranks {self.pending()} did not answer")

    def _read(self, rank: int) -> Any:
        """Return the reply of a rank, unpickled."""
        control = self._control
        length = control.words[control.rank_word(rank, REPLY_LENGTH)]
        try:
            data = _fetch(control.replies[rank], length)
        except OSError:
            self._watch(PATIENCE)  # a dead rank's segment is gone, too
            raise
        before, reply = self._replies[rank]
        # A rank mostly replies the same as before. To compare bytes costs less than to
        # unpickle them, and nobody writes to `reply`.
        if data != before:
            reply = pickle.loads(data)
            if length < IN_SEGMENT:
                self._replies[rank] = data, reply
        return reply


class WorkerChannel:
    """A worker's end; `done` is the number of the last command that it has begun."""

    def __init__(self, control: Control, rank: int) -> None:
        self._control = control
        self._rank = rank
        # Not COMMAND: the master may have launched one before this rank gets here.
        self.done = control.words[control.rank_word(rank, REPLY)]
        self._large: Segment | None = None
        self._last: tuple[Callable, tuple, tuple] | None = None

    def wait(self, look_about: Callable[[], object]) -> None:
        """Return when there is a new command."""
        control = self._control
        # A post left over from `post_again` costs one more look at the word.
        words, launched = control.words, control.launched[self._rank]
        number, spins = self.done + 1, control.spins
        wait(words, COMMAND, number, launched, spins, look_about, IDLE_TICK)
        self.done = control.words[COMMAND]
        # The master has read the last reply, as it has launched another command.
        self._large = None

    def read(self) -> tuple[Callable, tuple, tuple]:
        """Return the command: function, arguments and notices (see `Pool.notices`)."""
        # If the command is repeated, these are the same objects as before.
        control = self._control
        length = control.words[LENGTH]
        if length == REPEAT:
            assert self._last is not None, "the last message was not kept"
            return self._last
        self._last = None
        name, args, notices = pickle.loads(_fetch(control.message, length))
        message = find(*name), args, notices
        if length <= KEPT:
            self._last = message
        return message

    def reply(self, value: Any) -> None:
        """Answer the command that was read last.

        Raises if the value cannot be pickled, or there is no memory for a large one.
        Nothing was sent then, and another reply can be given.
        """
        control, rank = self._control, self._rank
        data = dumps(value)
        # A large one is kept until the next command, as the master may read it later.
        length, self._large = _placed(control.replies[rank], data)
        # REPLY comes last: as soon as the master sees the number there, it reads the
        # length and the room. x86-64 keeps stores in order; other processors may not.
        control.words[control.rank_word(rank, REPLY_LENGTH)] = length
        control.words[control.rank_word(rank, REPLY)] = self.done
        control.joined.post()


class Interruptible:
    """SIGINT raises KeyboardInterrupt in a command that the master has aborted.

    Between two commands SIGINT does nothing, nor in the next command, which may have
    begun if another thread of this process took the signal.
    """

    def __init__(self, control: Control) -> None:
        self.armed = False
        self._control = control
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *_: Any) -> None:
        if self.armed and self._control.aborted:
            self.armed = False
            raise KeyboardInterrupt


def serve(rank: Any, channel: WorkerChannel, look_about: Callable[[], object]) -> None:
    """Run the master's commands for ever, as the rank of the `RankContext` `rank`."""
    assert threading.current_thread() is threading.main_thread()
    # The forked process has the script's terminal, from which the master alone reads.
    nothing = opened(os.open, os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(nothing))
    interruptible = Interruptible(rank.control)
    recorder = rank.recorder
    phase, times = recorder.phase, recorder.times
    while True:
        begun = recorder.wait(channel.done)
        channel.wait(look_about)
        work, reply = None, None
        try:
            work, args, notices = channel.read()
            phase[0], times[begun] = RUNNING, monotonic_ns()
            if notices:
                rank.forget(notices)
            rank.activity = ""
            try:
                interruptible.armed = True
                # SIGINT may have come before `armed`: the master aborts, then signals.
                if rank.control.aborted:
                    raise Aborted
                reply = rank.execute(work, args)
            finally:
                interruptible.armed = False
                # A rank is killed at the end, and text in its buffers would be lost.
                flush_streams()
        except BaseException as error:
            rank.abort()
            reply = Failure(error, rank.where(work), rank.rank)
        phase[0] = REPLYING
        try:
            channel.reply(reply)
        except Exception as error:
            channel.reply(Failure(error, rank.where(work), rank.rank))


# -- messages


def dumps(
    message: object,
    by_name: Callable[[object], bytes] = pickle.dumps,
    by_value: Callable[[object], bytes] = cloudpickle.dumps,
) -> bytes:
    """Pickle a message; what the other end cannot import is sent by value."""
    # Such as a class of the user's script: ranks were forked before the script came to
    # define it, or have a copy that came with a graph. cloudpickle keeps track of the
    # classes that it sent, so a copy that returns becomes the class itself again.
    try:
        data = by_name(message)
    except (pickle.PicklingError, AttributeError, TypeError):
        return by_value(message)
    return by_value(message) if b"__main__" in data else data


@functools.cache
def find(module: str, name: str) -> Callable:
    """Return the function `name` of a `module`, which a command names."""
    return getattr(importlib.import_module(module), name)


def _placed(room: memoryview, data: bytes) -> tuple[int, Segment | None]:
    """Write bytes to a room or to a new segment; return their length for `_fetch`."""
    if len(data) <= len(room):
        room[: len(data)] = data
        return len(data), None
    segment = Segment(len(data))
    segment.memory()[: len(data)] = data
    place = pickle.dumps(segment.place)
    room[: len(place)] = place
    return len(data) + IN_SEGMENT, segment


def _fetch(room: memoryview, length: int) -> bytes:
    """Return the bytes in a room, or in the segment whose place the room has."""
    if length < IN_SEGMENT:
        return bytes(room[:length])
    segment = Segment.attach(*pickle.loads(room))
    return bytes(segment.memory()[: length - IN_SEGMENT])
