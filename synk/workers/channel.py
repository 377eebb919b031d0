"""The channel: one message to all ranks, one reply from each.

A message is a module-level function and its arguments; every rank calls it as
``work(context, *args)``. The master is a rank like the others: see `ranks.session`.
What another rank does all its life is `serve`: wait for a command, run it, reply, until
its process is ended.
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
from .control import (
    COMMAND,
    LENGTH,
    MESSAGE_ROOM,
    REPLY,
    REPLY_LENGTH,
    REPLY_ROOM,
    Control,
)
from .failure import Failure
from .forks import flush_streams
from .recorder import REPLYING, RUNNING
from .waiting import IDLE_TICK, PATIENCE, Limit, wait

AGAIN = 0
"""In place of a length: the message is that of the last command."""

KEPT = 4096
"""Bytes of a message up to which both ends keep it, as it may come again."""

IN_SEGMENT = 1 << 40
"""Added to a length: the control segment holds the address of a larger segment."""


class Ready:
    """A reply that is pickled already, as it is given again and again."""

    def __init__(self, value: object) -> None:
        self.data = dumps(value)


class MasterChannel:
    """The master's end; `watch`, called in every wait, raises when a rank has died."""

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
        # Where `args` is the very tuple of the last command, they are told to do the
        # same again. An interrupt at any point leaves a state that `join` can finish:
        # before the command number is written nothing was sent; afterwards `_pending`
        # is right.
        control, words = self._control, self._control.words
        last, self._last = self._last, None  # nothing that an interrupt leaves unsent
        if last is not None and last[1] is args and last[0] is work and not notices:
            words[LENGTH] = AGAIN
        else:
            name = work.__module__, work.__name__
            data = dumps((name, args, notices))
            # No rank reads the message yet: all have replied to the last command, and
            # look at it again only when the command number has changed.
            words[LENGTH] = length = self._place(data)
            last = (work, args) if length <= KEPT and not notices else None
        self._pending = list(range(1, control.size))
        # From here on the command runs. `_pending` comes first: an interrupt right
        # after the next line finds in it whom to wait for.
        words[COMMAND] += 1
        self._last = last
        # Ranks that watch have seen the word by now; the others are woken. Should an
        # interrupt come between two posts, `post_again` makes up for it.
        for rank in self._pending:
            control.launched[rank].post()

    def _place(self, data: bytes) -> int:
        if len(data) <= MESSAGE_ROOM:
            self._control.message[: len(data)] = data
            return len(data)
        # Kept until all have replied, and so have read it: see `join`. What an
        # interrupt leaves here is replaced by the next one.
        self._large = Segment(len(data))
        self._large.memory()[: len(data)] = data
        place = pickle.dumps(self._large.place)
        self._control.message[: len(place)] = place
        return len(data) + IN_SEGMENT

    def join(self) -> list[Any]:
        """Wait for all ranks and return their replies, in the order of ranks."""
        # A reply is what `work` returned, or a `Failure`. After an interrupt this can
        # be called once more.
        control, pending = self._control, self._pending
        command = control.words[COMMAND]
        look_about = functools.partial(self._look_about, self._limit.deadline())
        while pending:
            # One semaphore counts the posts of all ranks, in any order; the words say
            # who it was. So a post may be consumed while another rank is waited for:
            # its word is looked at before the next sleep.
            reply = control.rank_word(pending[0], REPLY)
            words, joined, spins = control.words, control.joined, control.spins
            wait(words, reply, command, joined, spins, look_about)
            del pending[0]
        # Every rank has read the message, so a large one may go.
        self._large = None
        return list(map(self._read, range(1, control.size)))

    @property
    def busy(self) -> bool:
        """Whether a command was launched and not joined."""
        return bool(self._pending)

    def post_again(self) -> None:
        """Wake all ranks, in case an interrupt came between two posts."""
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
        self._watch()
        self._limit.check(deadline, f"ranks {self.pending()} did not answer")

    def _read(self, rank: int) -> Any:
        control = self._control
        length = control.words[control.rank_word(rank, REPLY_LENGTH)]
        try:
            data = _fetch(control.replies[rank], length)
        except OSError:
            self._watch(PATIENCE)  # the rank's segment is gone if the rank is
            raise
        before, reply = self._replies[rank]
        # Compared as bytes: unpickling costs more, and `reply` is never written to.
        if data != before:  # ranks mostly say the same thing again
            reply = pickle.loads(data)
            if length < IN_SEGMENT:
                self._replies[rank] = data, reply
        return reply


class WorkerChannel:
    """A rank's end; `done` is the number of the command that was begun last."""

    def __init__(self, control: Control, rank: int) -> None:
        self._control = control
        self._rank = rank
        # Not the present command: the master may have launched one before we came here.
        self.done = control.words[control.rank_word(rank, REPLY)]
        self._large: Segment | None = None
        self._last: tuple[Callable, tuple, tuple] | None = None

    def wait(self, look_about: Callable[[], object]) -> None:
        """Return when there is a new command."""
        control = self._control
        # A post too many, left over from `post_again`, costs one more look.
        words, launched = control.words, control.launched[self._rank]
        number, spins = self.done + 1, control.spins
        wait(words, COMMAND, number, launched, spins, look_about, IDLE_TICK)
        self.done = control.words[COMMAND]
        # The master has read the last reply: it launches nothing before that.
        self._large = None

    def read(self) -> tuple[Callable, tuple, tuple]:
        """Return the command: a function, its arguments, and notices."""
        # The arguments are the same objects if it is the last one again.
        control = self._control
        length = control.words[LENGTH]
        if length == AGAIN:
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

        Raises if the value cannot be pickled, or there is no memory for a large one;
        nothing was said then, and another reply can be given.
        """
        control, rank = self._control, self._rank
        data = value.data if type(value) is Ready else dumps(value)
        length = len(data)
        if length <= REPLY_ROOM:
            control.replies[rank][:length] = data
        else:
            # Kept until the next command: the master reads it after we return.
            self._large = Segment(length)
            self._large.memory()[:length] = data
            place = pickle.dumps(self._large.place)
            control.replies[rank][: len(place)] = place
            length += IN_SEGMENT
        # The order counts: the master reads room and length as soon as it sees the
        # number in REPLY. x86-64 keeps stores in order; other processors may not.
        control.words[control.rank_word(rank, REPLY_LENGTH)] = length
        control.words[control.rank_word(rank, REPLY)] = self.done
        control.joined.post()


class Interruptible:
    """SIGINT raises KeyboardInterrupt in a command that the master has aborted.

    Elsewhere it does nothing: neither between two commands nor in the next one, which
    the signal may come into when it goes to another thread of this process.
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
    """Run the master's commands for ever; `rank` is a `ranks.context.RankContext`."""
    assert threading.current_thread() is threading.main_thread()
    # A freshly forked process has the script's terminal, which is the master's alone.
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
                # The signal may have come before: the master aborts, then signals.
                if rank.control.aborted:
                    raise Aborted
                reply = rank.execute(work, args)
            finally:
                interruptible.armed = False
                # What the command printed: a rank is killed at the end, and what it has
                # buffered would be lost.
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
    """Pickle, by value what the other end cannot import."""
    # A class of the user's script is such a thing: ranks were forked before the script
    # came to define it, or have a copy that came with a graph. cloudpickle keeps track
    # of what it sent, so that the copy of a class is the class itself when it returns.
    try:
        data = by_name(message)
    except (pickle.PicklingError, AttributeError, TypeError):
        return by_value(message)
    return by_value(message) if b"__main__" in data else data


@functools.cache
def find(module: str, name: str) -> Callable:
    """Return the function of a command."""
    return getattr(importlib.import_module(module), name)


def _fetch(room: memoryview, length: int) -> bytes:
    if length < IN_SEGMENT:
        return bytes(room[:length])
    segment = Segment.attach(*pickle.loads(room))
    return bytes(segment.memory()[: length - IN_SEGMENT])
