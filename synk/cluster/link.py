"""Rounds and collectives of the masters of nodes, over MPI.

One thread of each master calls MPI at a time (``MPI_THREAD_SERIALIZED``). Every call
returns at once and is asked for its end, so that a master can look about meanwhile:
whether its own ranks are alive, and whether the user wants an end.

An interrupt may come in any wait. What was begun stays begun: the next thing that is
asked for waits for its end first, and takes part in what follows from it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from ..errors import StateError, SynkError
from ..signals import undisturbed
from ..times.timing import TraceEvent, Tracer
from .rounds import IDLE, NAMES, NBYTES, Header, Headers

Bytes: TypeAlias = "bytes | memoryview"

Look = Callable[[], object]
"""Raises if what is waited for is in vain."""

nothing: Look = partial(int)
"""Looks about nowhere."""

SPIN = 1e-3
"""Seconds of a wait in which a master does nothing else."""

LONG = 1.0
"""Seconds after which a wait is a long one."""

NAP, LONG_NAP = 50e-6, 1e-3
"""Seconds of sleep between two looks, in a wait and in a long one: the latter takes a
hundredth of a core."""

LOOK = 20e-3
"""Seconds between two looks about."""

MOST = 1 << 30
"""Bytes that are sent at a time: MPI counts by 32 bits."""

SAID = 0.2
"""Seconds before a job is ended: a launcher has forwarded by then why that is. MPICH's
drops what it has not read, and lost the reason in one of six runs."""


class Link:
    """The end of a node of what connects the masters."""

    def __init__(self) -> None:
        try:
            import mpi4py
        except ImportError as error:
            raise SynkError(
                "several processes were launched, and mpi4py is missing:"
                " pip install 'synk[mpi]'"
            ) from error
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI

        MPI.Init_thread(MPI.THREAD_SERIALIZED)
        self._mpi, self._byte = MPI, MPI.BYTE
        # A communicator of our own: the script's Ops may use the world.
        self._comm = comm = MPI.COMM_WORLD.Dup()
        self._alarms = MPI.COMM_WORLD.Dup()
        self._given: list[Any] = []
        self.node, self.size = comm.Get_rank(), comm.Get_size()
        self.library = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
        # The round that was begun last, until its end was seen; there is one at most.
        self._begun: list[Any] = []
        self._then: Callable[[Headers], object] | None = None
        self._then_is_short = False
        self._mine = np.zeros(NBYTES, np.uint8)
        self._all = np.zeros((self.size, NBYTES), np.uint8)
        self._headers = Headers(self._all)
        # How many were begun, and what all others have got from node 0 with commands.
        self.rounds = self.bytes_sent = 0
        self.values_sent = 0  # bytes of values that ranks combine
        self.tracer: Tracer | None = None  # while a trace is on
        self._began = 0.0

    def close(self) -> None:
        """Say good-bye to the others, who do the same."""
        self._comm.Free()
        self._alarms.Free()
        self._mpi.Finalize()

    def end_job(self, status: int = 1) -> None:
        """End all processes of the job, this one too."""
        time.sleep(SAID)
        self._mpi.COMM_WORLD.Abort(status)

    def note(self, what: str, start: float, **args: object) -> None:
        """Leave an event that ends now in the trace that is on."""
        if self.tracer is not None:
            event = TraceEvent(f"nodes: {what}", "nodes", start, perf_counter(), args)
            self.tracer.keep(event)

    # -- alarms, of which a master learns without a round

    def give_alarm(self, number: int) -> None:
        """Say to all others that a command is given up; they may hear it or not."""
        told = np.array([number], np.int64)
        others = [node for node in range(self.size) if node != self.node]
        what = [told, self._byte]
        undisturbed(
            lambda: self._given.extend(
                self._alarms.Isend(what, dest=node) for node in others
            )
        )
        # MPI may read what it sends until the other end has it: those are kept.
        self._given[:] = [each for each in self._given if not each.Test()]

    def has_alarm(self, number: int) -> bool:
        """Tell whether some other has given this command up."""
        if not self._alarms.Iprobe():
            return False
        told, found = np.zeros(1, np.int64), []

        def hear() -> None:
            while self._alarms.Iprobe():
                self._alarms.Recv([told, self._byte])
                found.append(int(told[0]))

        undisturbed(hear)
        return number in found  # others were of commands that are over

    # -- rounds

    def go(
        self,
        own: Header,
        look_about: Look,
        then: Callable[[Headers], object] | None = None,
        is_short: bool = False,
    ) -> Headers:
        """Give a header in a round, and return those of all masters."""
        # `then` is called with the headers: the collectives that follow from them,
        # which no interrupt must come between, and the same for all masters. If it
        # `is_short`, there are none where the headers say all, and it does no harm to
        # call it again after an interrupt.
        self.finish(look_about)
        self._mine[:] = np.frombuffer(own.packed(), np.uint8)
        mine, every = [self._mine, self._byte], [self._all, self._byte]
        self._then, self._then_is_short = then, is_short
        self._began = perf_counter()
        self.rounds = begun = self.rounds + 1
        # One call, of compiled code alone: a signal handler comes before or after it.
        self._begun.extend(map(self._comm.Iallgather, (mine,), (every,)))
        headers = self.finish(look_about)
        if self.rounds != begun:  # a signal handler of the script has closed synk
            raise StateError("synk was closed during a call")
        return headers

    def finish(self, look_about: Look) -> Headers:
        """Wait for the round that was begun last, and for what follows from it."""
        if self._begun:
            then, is_short = self._then, self._then_is_short
            self._wait(self._begun[0], look_about)
            # From here on an interrupt finds the round ended, and does the rest again.
            headers = self._headers = Headers(self._all.copy())
            self._note_round(headers[self.node].kind)
            if not headers.are_of_one_command:
                self.fall_apart()
            if then is None or (is_short and headers.data is not None):
                if then is not None:
                    then(headers)  # from the beginning, after an interrupt in it
                self._begun.clear()
            elif self.node:
                self._follow()  # no script runs here, nor its handlers
            else:
                undisturbed(self._follow)
        return self._headers

    def _note_round(self, kind: int) -> None:
        """Leave an event of waiting for a command, or for the others' headers."""
        began, self._began = self._began, 0.0
        if began and kind == IDLE:
            self.note("idle", began)
        elif began:  # it is 0 where an interrupt has come behind this
            self.note("heads", began, says=NAMES[kind])

    def _follow(self) -> None:
        """Begin and end the collectives that follow from a round."""
        if self._begun and self._then is not None:
            # First: to begin the same collectives twice would hang all masters.
            self._begun.clear()
            self._then(self._headers)

    def fall_apart(self) -> None:
        """End the job: masters are not in the same command, which must not be."""
        said = ", ".join(f"{NAMES[h.kind]} in {h.number}" for h in self._headers)
        error = SynkError(f"the nodes are not in the same command: {said}")
        print(f"synk: {error}", file=sys.stderr, flush=True)
        self.end_job()
        raise error

    def _wait(self, request: Any, look_about: Look) -> None:
        began = time.monotonic()
        looked = began
        while not request.Test():
            now = time.monotonic()
            if now - looked > LOOK:
                looked = now
                look_about()
            if now - began > SPIN:
                time.sleep(NAP if now - began < LONG else LONG_NAP)
            else:
                os.sched_yield()

    # -- what follows from a round; no interrupt comes in between

    def _complete(self, request: Any) -> None:
        """Wait for a collective that all have begun; to sleep would make it slow."""
        while not request.Test():
            os.sched_yield()

    def _run(self, what: str, nbytes: int, begin: Callable, *args: Any) -> None:
        """Begin a collective that moves `nbytes` from here, and wait for its end."""
        start = perf_counter()
        self._complete(begin(*args))
        self.note(what, start, bytes=nbytes)

    def broadcast(self, data: Any, node: int = 0, what: str = "command") -> None:
        """Send a buffer's bytes from one node, or receive them."""
        for piece in _pieces(data):
            given = [piece, self._byte]
            self._run(what, len(piece), self._comm.Ibcast, given, node)

    def from_one(
        self, mine: bytes, headers: Headers, node: int, what: str = "command"
    ) -> bytes:
        """Return the bytes of one node, whose header has said how many they are."""
        told = headers[node]
        if told.data is not None:
            return told.data
        if node == self.node:
            self.broadcast(mine, node, what)
            return mine
        room = bytearray(told.length)
        self.broadcast(room, node, what)
        return bytes(room)

    def send(
        self,
        message: bytes,
        common: Sequence[np.ndarray],
        rows: Sequence[Sequence[np.ndarray]],
    ) -> None:
        """Send a message from node 0, if any, and arrays to all, and rows to each."""
        of_all = len(message) + sum(each.nbytes for each in common)
        nbytes = sum(each.nbytes for some in rows for each in some)
        self.bytes_sent += of_all * (self.size - 1) + nbytes
        if message:
            self.broadcast(message)
        for array in common:
            self.broadcast(array)
        pairs = [(node, array) for node, arrays in enumerate(rows) for array in arrays]
        self._complete_all(
            nbytes,
            (
                self._comm.Isend([piece, self._byte], dest=node)
                for node, array in pairs
                for piece in _pieces(array)
            ),
        )

    def receive_arrays(self, arrays: Sequence[np.ndarray], common: int) -> None:
        """Receive arrays from node 0, in their order; `common` of them all nodes do."""
        for array in arrays[:common]:
            self.broadcast(array)
        own = arrays[common:]
        self._complete_all(
            sum(each.nbytes for each in own),
            (
                self._comm.Irecv([piece, self._byte], source=0)
                for array in own
                for piece in _pieces(array)
            ),
        )

    def _complete_all(self, nbytes: int, requests: Iterable[Any]) -> None:
        start = perf_counter()
        # All are begun before one is waited for: who receives may do so in any order.
        for request in list(requests):
            self._complete(request)
        if nbytes:
            self.note("rows", start, bytes=nbytes)

    def send_to(self, array: np.ndarray, node: int) -> None:
        """Send an array to one node, which receives it."""
        self._complete(self._comm.Isend([array, self._byte], dest=node))

    def receive_from(self, array: np.ndarray, node: int) -> None:
        """Receive an array from one node."""
        self._complete(self._comm.Irecv([array, self._byte], source=node))

    def all_gather(self, mine: bytes, headers: Headers) -> Sequence[Bytes]:
        """Return the bytes of all nodes, whose headers have said how many they are."""
        self.values_sent += len(mine) * (self.size - 1)
        return self._gathered("all-gather", mine, headers, self._comm.Iallgatherv)

    def gather(self, mine: bytes, headers: Headers) -> Sequence[Bytes]:
        """Return the bytes of all nodes on node 0, and none on others."""
        return self._gathered("replies", mine, headers, self._comm.Igatherv, 0)

    def _gathered(
        self, what: str, mine: bytes, headers: Headers, begin: Callable, *at: int
    ) -> Sequence[Bytes]:
        """Return the bytes of all nodes, on all or `at` one."""
        found = headers.data
        if found is not None:
            return found
        lengths, into = headers.lengths, None
        receives = not at or self.node in at
        whole = bytearray(sum(lengths) if receives else 0)
        if receives:
            into = [whole, (lengths, None), self._byte]
        self._run(what, len(mine), begin, [mine, len(mine), self._byte], into, *at)
        return _cut(whole, lengths) if receives else []

    def all_to_all(self, values: np.ndarray, parts: tuple, into: np.ndarray) -> None:
        """Send part i of this node's values to node i, and receive its own of all."""
        mine = parts[0][self.node]
        received = [into, ([mine] * self.size, None), self._byte]
        given = [values, parts, self._byte]
        sent = values.nbytes - mine
        self.values_sent += sent
        self._run("all-to-all", sent, self._comm.Ialltoallv, given, received)

    def gather_parts(self, part: np.ndarray, parts: tuple, into: np.ndarray) -> None:
        """Have all nodes have the parts of all, side by side."""
        received = [into, parts, self._byte]
        sent = part.nbytes * (self.size - 1)
        self.values_sent += sent
        given = [part, self._byte]
        self._run("all-gather", sent, self._comm.Iallgatherv, given, received)


def _pieces(data: Any) -> list[Any]:
    """Return a buffer in pieces of which MPI can count the bytes."""
    whole = data
    if isinstance(data, np.ndarray):
        whole = data.reshape(-1).view(np.uint8)
    if len(whole) <= MOST:
        return [whole]
    whole = memoryview(whole)
    return [whole[i : i + MOST] for i in range(0, len(whole), MOST)]


def _cut(whole: bytearray, lengths: Sequence[int]) -> list[memoryview]:
    found, start, view = [], 0, memoryview(whole)
    for length in lengths:
        found.append(view[start : start + length])
        start += length
    return found
