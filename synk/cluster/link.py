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
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..errors import StateError, SynkError
from .heads import INLINE, NAMES, NBYTES, Head, Rounds
from .meter import Meter
from .undisturbed import undisturbed

Look = Callable[[], object]
"""Raises if what is waited for is in vain."""

SPIN = 1e-3
"""Seconds of a wait in which a master does nothing else."""

LONG = 1.0
"""Seconds after which a wait is a long one."""

NAP, LONG_NAP = 50e-6, 1e-3
"""Seconds of sleep between two looks, in a wait and in a long one: the latter takes a
hundredth of a core."""

LOOK = 20e-3
"""Seconds between two looks about."""


class Link:
    """The end of a node of what connects the masters.

    Attributes
    ----------
    node, size : int
        Which node of how many it is.
    rounds : int
        How many have been begun.
    rows_sent : int
        Bytes of rows that node 0 has sent to others.
    meter : Meter
        What else this end has done.
    """

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
        self._mpi = MPI
        # A communicator of our own: the script's Ops may use the world.
        self._comm = comm = MPI.COMM_WORLD.Dup()
        self.node, self.size = comm.Get_rank(), comm.Get_size()
        self.library = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
        self._request: Any = None
        self._then: Callable[[list[Head]], object] | None = None
        self._mine = np.zeros(NBYTES, np.uint8)
        self._all = np.zeros((self.size, NBYTES), np.uint8)
        self._heads: list[Head] = []
        self.rounds = self.rows_sent = 0
        self.meter = Meter()

    def close(self) -> None:
        """Say good-bye to the others, who do the same."""
        self._comm.Free()
        self._mpi.Finalize()

    def end_job(self, status: int = 1) -> None:
        """End all processes of the job, this one too."""
        self._mpi.COMM_WORLD.Abort(status)

    # -- rounds

    def go(
        self,
        rounds: Rounds,
        look_about: Look,
        then: Callable[[list[Head]], object] | None = None,
    ) -> list[Head]:
        """Go through rounds.

        Parameters
        ----------
        rounds : generator
            See `heads`.
        look_about : callable
        then : callable, optional
            Called with the heads of every round: the collectives that follow from
            them, which no interrupt must come between. All masters begin the same.
        """
        self.finish(look_about)
        heads: list[Head] = []
        own = next(rounds)
        while True:
            undisturbed(self._begin, own, then)
            begun = self.rounds
            heads = self.finish(look_about)
            if self.rounds != begun:  # a signal handler of the script has closed synk
                raise StateError("synk was closed during a call")
            try:
                own = rounds.send(heads)
            except StopIteration as end:
                return list(end.value)

    def _begin(self, own: Head, then: Callable | None) -> None:
        self._mine[:] = np.frombuffer(own.packed(), np.uint8)
        byte = self._mpi.BYTE
        self.meter.round_begins()
        self._request = self._comm.Iallgather([self._mine, byte], [self._all, byte])
        self._then = then
        self.rounds += 1

    def finish(self, look_about: Look) -> list[Head]:
        """Wait for the round that was begun last, and for what follows from it."""
        if self._request is not None:
            self._wait(self._request, look_about)
            undisturbed(self._end)
        return self._heads

    def _end(self) -> None:
        if self._request is None:
            return
        self._heads = [Head.unpacked(each.tobytes()) for each in self._all]
        self._request, then, self._then = None, self._then, None
        self.meter.round_ends(self._heads[self.node].kind)
        numbers = {each.number for each in self._heads}
        if len(numbers) > 1:
            self.fall_apart()
        if then is not None:
            then(self._heads)

    def fall_apart(self) -> None:
        """End the job: masters are not in the same command, which must not be."""
        said = ", ".join(f"{NAMES[h.kind]} in {h.number}" for h in self._heads)
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
        """Begin a collective and wait for its end.

        Parameters
        ----------
        what : str
            What it is called in a trace.
        nbytes : int
            That this node sends in it, or receives.
        begin : callable
            Given the arguments, returns a request.
        """
        start = perf_counter()
        self._complete(begin(*args))
        self.meter.keep(what, start, bytes=nbytes)

    def broadcast(self, data: Any) -> None:
        """Send a buffer's bytes from node 0, or receive them."""
        self._run("command", len(data), self._comm.Ibcast, [data, self._mpi.BYTE], 0)

    def send_rows(self, to_nodes: Sequence[Sequence[np.ndarray]]) -> None:
        """Send arrays from node 0 to each other node, its own to each."""
        start = perf_counter()
        nbytes = sum(each.nbytes for some in to_nodes for each in some)
        for request in [
            self._comm.Isend([array, self._mpi.BYTE], dest=node)
            for node, arrays in enumerate(to_nodes)
            for array in arrays
        ]:
            self._complete(request)
        self.rows_sent += nbytes
        if nbytes:
            self.meter.keep("rows", start, bytes=nbytes)

    def receive_rows(self, arrays: Sequence[np.ndarray]) -> None:
        """Receive arrays from node 0, in their order."""
        byte, start = self._mpi.BYTE, perf_counter()
        for request in [self._comm.Irecv([each, byte], source=0) for each in arrays]:
            self._complete(request)
        if arrays:
            nbytes = sum(each.nbytes for each in arrays)
            self.meter.keep("rows", start, bytes=nbytes)

    def send(self, array: np.ndarray, node: int) -> None:
        """Send an array to one node, which receives it."""
        self._complete(self._comm.Isend([array, self._mpi.BYTE], dest=node))

    def receive(self, array: np.ndarray, node: int) -> None:
        """Receive an array from one node."""
        self._complete(self._comm.Irecv([array, self._mpi.BYTE], source=node))

    def all_gather(self, mine: bytes, heads: Sequence[Head]) -> list[bytes]:
        """Return the bytes of all nodes, whose heads have said how many they are."""
        self.meter.values_sent += len(mine) * (self.size - 1)
        if all(each.length <= INLINE for each in heads):
            return [each.inline[: each.length] for each in heads]
        lengths = [each.length for each in heads]
        whole = bytearray(sum(lengths))
        byte = self._mpi.BYTE
        into = [whole, (lengths, None), byte]
        given = [mine, len(mine), byte]
        self._run("all-gather", len(mine), self._comm.Iallgatherv, given, into)
        return _cut(whole, lengths)

    def gather(self, mine: bytes, heads: Sequence[Head]) -> list[bytes]:
        """Return the bytes of all nodes on node 0, and none on others."""
        if all(each.length <= INLINE for each in heads):
            return [each.inline[: each.length] for each in heads]
        lengths = [each.length for each in heads]
        byte, into = self._mpi.BYTE, None
        whole = bytearray(sum(lengths) if self.node == 0 else 0)
        if self.node == 0:
            into = [whole, (lengths, None), byte]
        given = [mine, len(mine), byte]
        self._run("replies", len(mine), self._comm.Igatherv, given, into, 0)
        return _cut(whole, lengths) if self.node == 0 else []

    def all_to_all(
        self, values: np.ndarray, stops: Sequence[int], into: np.ndarray
    ) -> None:
        """Send part i of this node's values to node i, and receive one's own of all.

        Parameters
        ----------
        values : numpy.ndarray, shape (elements,)
        stops : sequence of int
            Where each node's part of the elements ends.
        into : numpy.ndarray, shape (nodes, elements of this node's part)
        """
        counts, starts = _parts(stops, values.itemsize)
        mine = into.shape[1] * into.itemsize
        received = [into, ([mine] * self.size, None), self._mpi.BYTE]
        given = [values, (counts, starts), self._mpi.BYTE]
        sent = values.nbytes - mine
        self.meter.values_sent += sent
        self._run("all-to-all", sent, self._comm.Ialltoallv, given, received)

    def gather_parts(self, part: np.ndarray, stops: Sequence[int], into: np.ndarray):
        """Have all nodes have the parts of all, side by side."""
        counts, starts = _parts(stops, into.itemsize)
        received = [into, (counts, starts), self._mpi.BYTE]
        sent = part.nbytes * (self.size - 1)
        self.meter.values_sent += sent
        given = [part, self._mpi.BYTE]
        self._run("all-gather", sent, self._comm.Iallgatherv, given, received)


def _parts(stops: Sequence[int], itemsize: int) -> tuple[list[int], list[int]]:
    """Return bytes and first byte of parts."""
    starts = [0, *stops[:-1]]
    counts = [
        (stop - start) * itemsize for start, stop in zip(starts, stops, strict=True)
    ]
    return counts, [start * itemsize for start in starts]


def _cut(whole: bytearray, lengths: Sequence[int]) -> list[bytes]:
    found, start = [], 0
    for length in lengths:
        found.append(bytes(whole[start : start + length]))
        start += length
    return found


nothing: Look = partial(int)
"""Looks about nowhere."""
