"""Rounds and collectives of the masters of nodes, over MPI.

One thread of each master calls MPI at a time (``MPI_THREAD_SERIALIZED``). All calls are
non-blocking, and a master tests for their end. In between it can check whether its own
ranks are alive, and whether the user has interrupted.

An interrupt may come in any wait. A round that was begun then goes on: the next round
first waits for it, and makes the collectives that follow from it.
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
"""Called during a wait; raises to end it, as when a rank has died."""

nothing: Look = partial(int)
"""Checks nothing."""

SPIN = 1e-3
"""Seconds at the beginning of a wait in which a master does not sleep."""

LONG = 1.0
"""Seconds after which a wait is a long one."""

NAP, LONG_NAP = 50e-6, 1e-3
"""Seconds of sleep between two tests, in a wait and in a long one: the latter takes a
hundredth of a core."""

LOOK = 20e-3
"""Seconds between two calls of `look_about`."""

MOST_BYTES = 1 << 30
"""The most bytes of one MPI call, as MPI counts by 32 bits."""

FORWARDING = 0.2
"""Seconds before a job is ended, for the launcher to forward the message that says why.
MPICH's drops output that it has not read, and lost the message in one of six runs."""


class Link:
    """One master's connection to the masters of all nodes."""

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
        # Communicators of our own, as the script's Ops may use the world's.
        self._comm = comm = MPI.COMM_WORLD.Dup()
        self._alarms = MPI.COMM_WORLD.Dup()
        self._given: list[Any] = []
        self.node, self.size = comm.Get_rank(), comm.Get_size()
        self.library = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
        # The request of a round that has not ended; there is one at most.
        self._begun: list[Any] = []
        self._then: Callable[[Headers], object] | None = None
        self._then_is_short = False
        self._mine = np.zeros(NBYTES, np.uint8)
        self._all = np.zeros((self.size, NBYTES), np.uint8)
        self._headers = Headers(self._all)
        # The rounds begun; and on node 0 the bytes sent to all others with commands.
        self.rounds = self.bytes_sent = 0
        self.values_sent = 0  # bytes of values that ranks combine
        self.tracer: Tracer | None = None  # while a trace is on
        self._began = 0.0

    def close(self) -> None:
        """Finalise MPI; all masters do so together."""
        self._comm.Free()
        self._alarms.Free()
        self._mpi.Finalize()

    def end_job(self, status: int = 1) -> None:
        """End all processes of the job, including this one."""
        time.sleep(FORWARDING)
        self._mpi.COMM_WORLD.Abort(status)

    def note(self, what: str, start: float, **args: object) -> None:
        """Add an event that ends now to the trace, if one is on."""
        if self.tracer is not None:
            event = TraceEvent(f"nodes: {what}", "nodes", start, perf_counter(), args)
            self.tracer.keep(event)

    # -- alarms, which reach other masters without a round

    def give_alarm(self, number: int) -> None:
        """Tell all other masters that this node gives command `number` up."""
        told = np.array([number], np.int64)
        others = [node for node in range(self.size) if node != self.node]
        what = [told, self._byte]
        undisturbed(
            lambda: self._given.extend(
                self._alarms.Isend(what, dest=node) for node in others
            )
        )
        # MPI may read a message until it has arrived: requests that go on are kept.
        self._given[:] = [each for each in self._given if not each.Test()]

    def has_alarm(self, number: int) -> bool:
        """Return whether another master has given command `number` up."""
        if not self._alarms.Iprobe():
            return False
        told, found = np.zeros(1, np.int64), []

        def hear() -> None:
            while self._alarms.Iprobe():
                self._alarms.Recv([told, self._byte])
                found.append(int(told[0]))

        undisturbed(hear)
        return number in found  # other alarms are for commands that are over

    # -- rounds

    def make_round(
        self,
        own: Header,
        look_about: Look,
        then: Callable[[Headers], object] | None = None,
        is_short: bool = False,
    ) -> Headers:
        """Make a round: give the header `own`, and return those of all masters.

        ``then(headers)`` runs the collectives that follow, the same on all masters, and
        is not interrupted. `is_short` says that `then` makes none if the headers have
        all data, and may then be called again after an interrupt.
        """
        self.finish(look_about)
        self._mine[:] = np.frombuffer(own.packed(), np.uint8)
        mine, every = [self._mine, self._byte], [self._all, self._byte]
        self._then, self._then_is_short = then, is_short
        self._began = perf_counter()
        self.rounds = begun = self.rounds + 1
        # One call in compiled code: a signal handler runs before or after it.
        self._begun.extend(map(self._comm.Iallgather, (mine,), (every,)))
        headers = self.finish(look_about)
        if self.rounds != begun:  # a signal handler of the script has closed synk
            raise StateError("synk was closed during a call")
        return headers

    def finish(self, look_about: Look) -> Headers:
        """Wait for the round that was begun last, and for its collectives."""
        if self._begun:
            then, is_short = self._then, self._then_is_short
            self._wait(self._begun[0], look_about)
            # If an interrupt comes from here on, the next `finish` does this again.
            headers = self._headers = Headers(self._all.copy())
            self._note_round(headers[self.node].kind)
            if not headers.are_of_one_command:
                self.end_out_of_step()
            if then is None or (is_short and headers.data is not None):
                if then is not None:
                    then(headers)  # from the beginning, after an interrupt in it
                self._begun.clear()
            elif self.node:
                self._follow()  # no script runs here that could have signal handlers
            else:
                undisturbed(self._follow)
        return self._headers

    def _note_round(self, kind: int) -> None:
        """Add an event to the trace: a wait for a command, or for others' headers."""
        began, self._began = self._began, 0.0
        if began and kind == IDLE:
            self.note("idle", began)
        elif began:  # 0 if the event was noted before an interrupt
            self.note("heads", began, says=NAMES[kind])

    def _follow(self) -> None:
        """Run the collectives that follow from a round."""
        if self._begun and self._then is not None:
            # Cleared first, as to begin the same collectives twice would hang all.
            self._begun.clear()
            self._then(self._headers)

    def end_out_of_step(self) -> None:
        """End the job, as masters are not in the same command: an error in synk."""
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

    # -- collectives that follow from a round, without interrupts

    def _complete(self, request: Any) -> None:
        """Wait for a collective that all have begun, without sleep, which is slow."""
        while not request.Test():
            os.sched_yield()

    def _run(self, what: str, nbytes: int, begin: Callable, *args: Any) -> None:
        """Run a collective that sends `nbytes` from here; a trace calls it `what`."""
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
        """Return the data of one node, from its header or by a broadcast."""
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
        """On node 0, send a message, arrays for all nodes, and each node's rows."""
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
        """Receive arrays from node 0; the first `common` of them go to all nodes."""
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
        # All are begun before one is waited for, so the receivers' order is free.
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
        """Return the data of all nodes, on all nodes."""
        self.values_sent += len(mine) * (self.size - 1)
        return self._gathered("all-gather", mine, headers, self._comm.Iallgatherv)

    def gather(self, mine: bytes, headers: Headers) -> Sequence[Bytes]:
        """Return the data of all nodes on node 0; on others only if headers have it."""
        return self._gathered("replies", mine, headers, self._comm.Igatherv, 0)

    def _gathered(
        self, what: str, mine: bytes, headers: Headers, begin: Callable, *at: int
    ) -> Sequence[Bytes]:
        """Return the data of all nodes; with `at` a collective gives them to one."""
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
        """Send part i of `values` to node i; receive all nodes' parts for this one."""
        mine = parts[0][self.node]
        received = [into, ([mine] * self.size, None), self._byte]
        given = [values, parts, self._byte]
        sent = values.nbytes - mine
        self.values_sent += sent
        self._run("all-to-all", sent, self._comm.Ialltoallv, given, received)

    def gather_parts(self, part: np.ndarray, parts: tuple, into: np.ndarray) -> None:
        """Gather the parts of all nodes side by side, on all nodes."""
        received = [into, parts, self._byte]
        sent = part.nbytes * (self.size - 1)
        self.values_sent += sent
        given = [part, self._byte]
        self._run("all-gather", sent, self._comm.Iallgatherv, given, received)


def _pieces(data: Any) -> list[Any]:
    """Return a buffer in pieces of at most `MOST_BYTES` bytes."""
    whole = data
    if isinstance(data, np.ndarray):
        whole = data.reshape(-1).view(np.uint8)
    if len(whole) <= MOST_BYTES:
        return [whole]
    whole = memoryview(whole)
    return [whole[i : i + MOST_BYTES] for i in range(0, len(whole), MOST_BYTES)]


def _cut(whole: bytearray, lengths: Sequence[int]) -> list[memoryview]:
    found, start, view = [], 0, memoryview(whole)
    for length in lengths:
        found.append(view[start : start + length])
        start += length
    return found
