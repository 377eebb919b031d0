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
from typing import Any

import numpy as np

from ..errors import StateError, SynkError
from .heads import INLINE, NAMES, NBYTES, Head, Rounds
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
        # The round that was begun last, until its end was seen; there is one at most.
        self._begun: list[Any] = []
        self._then: Callable[[list[Head]], object] | None = None
        self._then_is_short = False
        self._mine = np.zeros(NBYTES, np.uint8)
        self._all = np.zeros((self.size, NBYTES), np.uint8)
        self._heads: list[Head] = []
        self.rounds = self.rows_sent = 0

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
        is_short: bool = False,
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
        is_short : bool
            Whether there are none where the heads say all, and then it does no harm to
            call it again after an interrupt.
        """
        self.finish(look_about)
        heads: list[Head] = []
        own = next(rounds)
        while True:
            self._begin(own, then, is_short)
            begun = self.rounds
            heads = self.finish(look_about)
            if self.rounds != begun:  # a signal handler of the script has closed synk
                raise StateError("synk was closed during a call")
            try:
                own = rounds.send(heads)
            except StopIteration as end:
                return list(end.value)

    def _begin(self, own: Head, then: Callable | None, is_short: bool) -> None:
        self._mine[:] = np.frombuffer(own.packed(), np.uint8)
        byte = self._mpi.BYTE
        mine, every = [self._mine, byte], [self._all, byte]
        self._then, self._then_is_short = then, is_short
        self.rounds += 1
        # One call, of compiled code alone: a signal handler comes before or after it.
        self._begun.extend(map(self._comm.Iallgather, (mine,), (every,)))

    def finish(self, look_about: Look) -> list[Head]:
        """Wait for the round that was begun last, and for what follows from it."""
        if self._begun:
            then, is_short = self._then, self._then_is_short
            self._wait(self._begun[0], look_about)
            heads = self._heads = list(map(Head.unpacked, self._all))
            if any(each.number != heads[0].number for each in heads):
                self.fall_apart()
            says_all = all(each.length <= INLINE for each in heads)
            if then is None or (is_short and says_all):
                if then is not None:
                    then(heads)  # from the beginning, after an interrupt in it
                self._begun.clear()
            else:
                undisturbed(self._follow)
        return self._heads

    def _follow(self) -> None:
        """Begin and end the collectives that follow from a round."""
        if self._begun and self._then is not None:
            self._begun.clear()
            self._then(self._heads)

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

    def broadcast(self, data: Any, node: int = 0) -> None:
        """Send a buffer's bytes from one node, or receive them."""
        self._complete(self._comm.Ibcast([data, self._mpi.BYTE], root=node))

    def from_one(self, mine: bytes, heads: Sequence[Head], node: int) -> bytes:
        """Return the bytes of one node, whose head has said how many they are."""
        given = heads[node].data
        if given is not None:
            return given
        if node == self.node:
            self.broadcast(mine, node)
            return mine
        room = bytearray(heads[node].length)
        self.broadcast(room, node)
        return bytes(room)

    def send_rows(self, to_nodes: Sequence[Sequence[np.ndarray]]) -> None:
        """Send arrays from node 0 to each other node, its own to each."""
        self.rows_sent += sum(each.nbytes for some in to_nodes for each in some)
        for request in [
            self._comm.Isend([array, self._mpi.BYTE], dest=node)
            for node, arrays in enumerate(to_nodes)
            for array in arrays
        ]:
            self._complete(request)

    def receive_rows(self, arrays: Sequence[np.ndarray]) -> None:
        """Receive arrays from node 0, in their order."""
        byte = self._mpi.BYTE
        for request in [self._comm.Irecv([each, byte], source=0) for each in arrays]:
            self._complete(request)

    def all_gather(self, mine: bytes, heads: Sequence[Head]) -> list[bytes]:
        """Return the bytes of all nodes, whose heads have said how many they are."""
        if all(each.length <= INLINE for each in heads):
            return [each.inline[: each.length] for each in heads]
        lengths = [each.length for each in heads]
        whole = bytearray(sum(lengths))
        byte = self._mpi.BYTE
        into = [whole, (lengths, None), byte]
        self._complete(self._comm.Iallgatherv([mine, len(mine), byte], into))
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
        self._complete(self._comm.Igatherv([mine, len(mine), byte], into, root=0))
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
        self._complete(self._comm.Ialltoallv(given, received))

    def gather_parts(self, part: np.ndarray, stops: Sequence[int], into: np.ndarray):
        """Have all nodes have the parts of all, side by side."""
        counts, starts = _parts(stops, into.itemsize)
        received = [into, (counts, starts), self._mpi.BYTE]
        self._complete(self._comm.Iallgatherv([part, self._mpi.BYTE], received))


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
