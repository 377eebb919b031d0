"""Workers that exchange parameters after some of their steps, with a centre or by mail.

A worker is a rank, or a machine. The ranks of a machine make exact steps together, on
all of its rows, so all have the same parameters, and each takes the result of an
exchange. The machine's first rank gives for it, and its ranks move the centre together,
each a part of the blocks, as if all workers meet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..comm.locks import write
from ..reduce_ops import shares
from ..rules.centre import Centre, may_come
from ..rules.gossip import Gossip, Mailboxes
from ..rules.simulate import Exchange
from ..rules.sweeps import Sweeper
from .worker import Worker, joined


class CentreWorker(Worker):
    """A rank that trains by a rule with a centre.

    ``rows[worker, fragment]`` is the number of rows of the worker's steps since it last
    gave that fragment.
    """

    medium: Centre

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        centre, local = self.medium, self.local
        # All ranks of a node worker would give the same: use the first row alone.
        self._given = centre.given[:1] if self.is_node else centre.given
        # With several machines, the first row has the sum.
        summands = self._given if self.over_nodes is None else self._given[:1]
        parameters = self.parameters
        how = (lambda: parameters.arrays), local.rank, self.n, self.acquire, summands
        self._sweeper = Sweeper(centre, parameters.sizes, *how)
        self._own_courses = [
            self._sweeper.course(blocks[local.rank :: local.size])
            for blocks in centre.fragments
        ]
        if centre.moves_at_once:
            kinds = ["give", "move", "take"]
        else:
            kinds = ["send", "fetch"] if self.rule.delay else ["exchange"]
        for kind in kinds:  # compile now, not in the first exchange
            self._sweeper.go(kind, self._sweeper.course([]))

    def begin(self, start: dict[str, np.ndarray] | None = None) -> None:
        """Restart, with the centre's parameters; see `Worker.begin`."""
        super().begin(start)
        self._sweeper.begin(self.medium.parameters)
        self.rows = np.zeros((self.n, self.rule.fragments))
        self._turn = self.rank

    def state(self) -> dict[str, np.ndarray]:
        """Return the worker's state, for a checkpoint."""
        side = self._sweeper
        kept = {f"kept {name}": value for name, value in side.kept.items()}
        if side.to_take and self.rule.order == "together":
            # Given, but the centre has not moved by it yet.
            kept["given"] = self.medium.given[self.local.rank]
        return {
            **super().state(),
            **kept,
            "rows": self.rows,
            "fetched": np.array(side.fetched),
            "turn": np.array(self._turn),
            "to take": np.array(side.to_take, np.int64).reshape(-1, 2),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a result of `state`."""
        super().restore(state)
        side = self._sweeper
        side.kept = {name: np.array(state[f"kept {name}"]) for name in side.kept}
        side.fetched = state["fetched"].tolist()
        side.to_take = [(int(step), int(k)) for step, k in state["to take"]]
        self.rows, self._turn = np.array(state["rows"]), int(state["turn"])
        if "given" in state:
            self.medium.given[self.local.rank] = state["given"]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make steps in a ``with`` block; after it no worker waits for this one."""
        finished = self.medium.finished + self.rank
        write(self.medium.words, finished, 0)
        self.local.barrier()  # before any rank reads another's `finished`
        try:
            yield
        finally:
            write(self.medium.words, finished, 1)

    def after_step(self, rows: Sequence[int]) -> None:
        """Exchange the fragments that are due; see `Worker.after_step`."""
        self.steps += 1
        self.rows += np.asarray(rows, float)[:, None]
        due, to_take = self.rule.due(self.steps), self._sweeper.to_take
        if not due and (not to_take or to_take[0][0] > self.steps):
            return
        are_together = self.rule.order == "together"
        with self.opened(), self.in_turn(self._turn):
            for k in due:
                if are_together:
                    self._give(k)
                else:
                    self._exchange(k)
            for k in self._sweeper.due(self.steps):
                if are_together:
                    self._move_together(k)
                # If all meet, nobody writes now. Otherwise a rank that comes twice
                # could write to the side that "take" reads, so "fetch" locks.
                what = "take" if self.medium.moves_at_once else "fetch"
                self._sweeper.go(what, self._sweeper.courses[k])
        self._turn += self.n

    # -- if all workers meet

    def _give(self, k: int) -> None:
        """Write this rank's vector for fragment `k` to shared memory."""
        share = shares(self.rows[:, k].tolist())[self.rank]
        self._sweeper.go("give", self._sweeper.courses[k], share)
        self.rows[:, k] = 0
        self._sweeper.to_take.append((self.steps + self.rule.delay, k))

    def _move_together(self, k: int) -> None:
        """Move the centre's fragment `k` by the vectors that all have given."""
        self._meet()
        if self.over_nodes is not None:
            blocks = self.medium.fragments[k]
            with self.times.wait():
                self.over_nodes.add_up(self._given, blocks[0].start, blocks[-1].stop)
        self._move(k)

    def _move(self, k: int) -> None:
        """Move fragment `k` of this machine's centre, each rank some of its blocks."""
        self._sweeper.go("move", self._own_courses[k])
        self._meet()
        is_of_all = self.rule.order == "together"
        if self.local.rank == 0:
            # One store makes all blocks valid. If a rank dies before, none is moved.
            move, staleness = self._sweeper.count_move(k)
            rank = None if is_of_all else self.rank
            exchange = Exchange(rank, self.steps, k, staleness)
        if self.local.rank or (is_of_all and self.rank):
            self.times.count()
        else:
            self.note(move, exchange)
        self._meet()

    def _meet(self) -> None:
        with self.times.wait():
            self.local.barrier()

    # -- if workers exchange one after the other

    def _exchange(self, k: int) -> None:
        """Exchange fragment `k`, block by block, behind the rank that came before."""
        course, centre, delay = self._sweeper.courses[k], self.medium, self.rule.delay
        lock = centre.locks + course.blocks[0].number
        with self.times.wait():
            self.locks.acquire_when(lock, lambda: self._may_come(k))
        is_all = self.rule.fragments == 1 and not delay
        if self.rule.order == "turns" and is_all:  # the next rank may follow now
            self.pass_turn(self._turn)
        # Under the lock, so that moves are counted in the order of the sweeps.
        move, staleness = self._sweeper.count_move(k)
        write(centre.words, centre.fetched + self.rank, move + 1)
        self.note(move, Exchange(self.rank, self.steps, k, staleness))
        self._sweeper.go("send" if delay else "exchange", course, is_locked=True)
        if delay:
            self._sweeper.to_take.append((self.steps + delay, k))

    def _may_come(self, k: int) -> bool:
        """Return whether all other ranks can still come in time after this exchange."""
        most, words = self.rule.max_staleness, self.medium.words
        if most is None or self.rule.order != "free":
            return True
        others = [
            int(words[self.medium.fetched + rank])
            for rank in range(self.n)
            if rank != self.rank and not words[self.medium.finished + rank]
        ]
        return may_come(int(words[self.medium.moves + k]), others, most)


class NodeWorker(CentreWorker):
    """A rank of a machine that is one worker of a rule with a centre."""

    is_node = True

    def after_step(self, rows: Sequence[int]) -> None:
        """Exchange the fragments that are due; see `Worker.after_step`."""
        of_machines = [sum(rows)]
        if self.over_nodes is not None:
            of_machines = self.over_nodes.by_node(rows)
        super().after_step(of_machines)

    def _exchange(self, k: int) -> None:
        """Give fragment `k` and move the centre; the result is taken now or later."""
        self._sweeper.go("give", self._sweeper.courses[k])
        self._meet()
        self._move(k)
        self._sweeper.to_take.append((self.steps + self.rule.delay, k))


class GossipWorker(Worker):
    """A rank that trains by gossip."""

    rule: Gossip
    medium: Mailboxes

    def begin(self, start: dict[str, np.ndarray] | None = None) -> None:
        """Restart; see `Worker.begin`."""
        super().begin(start)
        self._to = self.rule.destinations(self.rank, self.n)

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a result of `state`."""
        super().restore(state)
        self._to = self.rule.destinations(self.rank, self.n)
        for _ in range(self.steps):
            next(self._to)

    def after_step(self, rows: Sequence[int]) -> None:
        """Read the mail, and send some if it is due; see `Worker.after_step`."""
        self.steps += 1
        with self.in_turn((self.steps - 1) * self.n + self.rank):
            to = next(self._to)
            if to is not None or self.medium.mail(self.rank)[1]:
                with self.opened():
                    self._read()
                    if to is not None:
                        self._send(to)

    def _read(self) -> None:
        boxes, arrays = self.medium, self.parameters.arrays
        self.acquire(boxes.locks + self.rank)
        if boxes.mail(self.rank)[1]:
            merged = self.parameters.cut(boxes.read(self.rank, joined(arrays)))
            for array, piece in zip(arrays, merged, strict=True):
                array[...] = piece
        self.locks.release(boxes.locks + self.rank)

    def _send(self, to: int) -> None:
        boxes = self.medium
        self.acquire(boxes.locks + to)
        boxes.send(self.rank, to, joined(self.parameters.arrays))
        self.locks.release(boxes.locks + to)
        self.note(len(self._exchanges), Exchange(self.rank, self.steps))
