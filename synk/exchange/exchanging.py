"""A worker that exchanges parameters with a centre, after some of its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.locks import write
from ..reduce_ops import shares
from ..rules.rule import Rule
from ..rules.simulate import Exchange
from ..rules.staleness import may_come
from .centre import TURN, Block, Centre
from .walks import Walks
from .worker import Among, Worker


class Exchanging(Worker):
    """A rank that trains by a rule with a centre.

    Parameters
    ----------
    rule : Rule
    centre : Centre
    variables, place, looks
        See `Worker`.

    Attributes
    ----------
    rows : numpy.ndarray, shape (ranks, fragments)
        Of how many rows each rank's steps were since it has given last.
    """

    def __init__(
        self,
        rule: Rule,
        centre: Centre,
        variables: Sequence[SharedVariable],
        place: Among,
        looks: int,
    ) -> None:
        super().__init__(centre, rule, variables, place, looks)
        self._rule, self._functions, self._centre = rule, centre.functions, centre
        local = place.local
        # Of a machine as one worker all ranks give the same: the first one's counts.
        self._given = centre.given[:1] if self.is_node else centre.given
        summands = self._given if self.over_nodes is None else self._given[:1]
        how = centre, summands, self.parameters, self.locks, local.rank, self.n
        self._walks = Walks(*how, self.times.wait)
        if centre.moves_at_once:
            kinds = ["give", "move", "take"]
        else:
            kinds = ["send", "fetch"] if rule.delay else ["exchange"]
        self._courses = [self._walks.course(blocks) for blocks in centre.fragments]
        parts = (blocks[local.rank :: local.size] for blocks in centre.fragments)
        self._own_courses = [self._walks.course(blocks) for blocks in parts]
        self._walks.prepare(kinds, centre.functions.start(np.zeros(1))[0])
        self.begin()

    def begin(self) -> None:
        """Begin anew, with the centre's parameters."""
        w, fragments = self._centre.parameters, self._rule.fragments
        self.begin_with(w)
        self._kept = self._functions.start(w)[0]
        del self._kept["w"]  # which is in the variables
        self.rows = np.zeros((self.n, fragments))
        self._fetched, self._turn = [0] * fragments, self.rank
        self._to_take: list[tuple[int, int]] = []  # at which step, which fragment

    def state(self) -> dict[str, np.ndarray]:
        """Return all that the worker goes on with."""
        kept = {f"kept {name}": value for name, value in self._kept.items()}
        if self._to_take and self._rule.order == "together":
            kept["given"] = self._own_given  # by which the centre has not moved yet
        return {
            **super().state(),
            **kept,
            "rows": self.rows,
            "fetched": np.array(self._fetched),
            "turn": np.array(self._turn),
            "to take": np.array(self._to_take, np.int64).reshape(-1, 2),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on with what `state` has returned."""
        super().restore(state)
        for name in self._kept:
            self._kept[name] = np.array(state[f"kept {name}"])
        self.rows = np.array(state["rows"])
        self._fetched, self._turn = state["fetched"].tolist(), int(state["turn"])
        self._to_take = [(int(step), int(k)) for step, k in state["to take"]]
        if "given" in state:
            self._own_given[:] = state["given"]

    @property
    def _own_given(self) -> np.ndarray:
        """Where this rank leaves what it gives: a view."""
        return self._centre.given[self.local.rank]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make steps in a ``with`` block; nobody waits for this rank after it."""
        finished = self._centre.finished(self.rank)
        write(self._centre.words, finished, 0)
        self.local.barrier()  # so that nobody takes another for finished that begins
        try:
            yield
        finally:
            write(self._centre.words, finished, 1)

    def after_step(self, rows: Sequence[int]) -> None:
        """Exchange what is due after a step; see `Worker.after_step`."""
        self.steps += 1
        self.rows += np.asarray(rows, float)[:, None]
        due = self._rule.due(self.steps)
        if not due and (not self._to_take or self._to_take[0][0] > self.steps):
            return
        with self.opened(*self._centre.locks), self._in_turn():
            for k in due:
                if self._rule.order == "together":
                    self._give_together(k)
                else:
                    self._exchange(k)
            while self._to_take and self._to_take[0][0] == self.steps:
                k = self._to_take.pop(0)[1]
                if self._rule.order == "together":
                    self._move_together(k)
                self._take(k)

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Do what is due after a step in a ``with`` block, when it is this rank's turn.

        The next rank may begin when this one is done, or if there is one exchange and
        nothing else, when it has begun that: then it comes behind it.
        """
        if self._rule.order != "turns":
            yield
            return
        with self.in_turn_of_node():
            with self.times.wait():
                self.locks.wait_for(TURN, self._turn)
            yield
            if not self._passes_early:
                self._pass_turn()

    @property
    def _passes_early(self) -> bool:
        return self._rule.fragments == 1 and not self._rule.delay

    def _pass_turn(self) -> None:
        write(self._centre.words, TURN, self._turn + 1)
        self._turn += self.n

    # -- where all meet

    def _give_together(self, k: int) -> None:
        """Leave what this rank gives where the others read it."""
        share = shares(self.rows[:, k].tolist())[self.rank]
        self._walks.go("give", self._courses[k], self._kept, share)
        self.rows[:, k] = 0
        self._to_take.append((self.steps + self._rule.delay, k))

    def _move_together(self, k: int) -> None:
        """Move the centre by what all have given."""
        self._meet()
        if self.over_nodes is not None:
            blocks = self._centre.fragments[k]
            with self.times.wait():
                self.over_nodes.add_up(self._given, blocks[0].start, blocks[-1].stop)
        self._move(k)

    def _move(self, k: int) -> None:
        """Move the centre of this machine, each rank a part of its blocks."""
        n, centre = self.n, self._centre
        self._walks.go("move", self._own_courses[k], self._kept, 1 / n)
        self._meet()
        # All or none: a rank that dies before has left the centre as it was.
        if self.local.rank == 0:
            move = int(centre.words[centre.moves(k)])
            write(centre.words, centre.moves(k), move + 1)
            self._note_move(move, k)
        else:
            self.times.count()
        self._meet()

    def _note_move(self, move: int, k: int) -> None:
        """Take note of a move of this machine's centre."""
        if self.rank == 0:
            self.note(move, Exchange(None, self.steps, k))
        else:
            self.times.count()

    def _take(self, k: int) -> None:
        """Have the rank take what has come of a fragment's exchange."""
        # Where all meet, all only read. Otherwise one who came twice meanwhile would
        # write what is read here.
        what = "take" if self._centre.moves_at_once else "fetch"
        self._walks.go(what, self._courses[k], self._kept, 1 / self.n)

    def _meet(self) -> None:
        with self.times.wait():
            self.local.barrier()

    # -- one after the other

    def _exchange(self, k: int) -> None:
        """Exchange a fragment, block by block, behind whoever came before."""
        what, course = "send" if self._rule.delay else "exchange", self._courses[k]
        self._come(k, course.blocks[0])
        self._walks.go(what, course, self._kept, 1 / self.n, is_locked=True)
        if self._rule.delay:
            self._to_take.append((self.steps + self._rule.delay, k))

    def _come(self, k: int, first: Block) -> None:
        """Begin an exchange, when it is this rank's turn."""
        centre, words, rank = self._centre, self._centre.words, self.rank
        with self.times.wait():
            self.locks.acquire_when(centre.lock(first), lambda: self._may_come(k))
        if self._rule.order == "turns" and self._passes_early:
            self._pass_turn()
        move = int(words[centre.moves(k)])
        write(words, centre.moves(k), move + 1)
        staleness = move - self._fetched[k]
        self._fetched[k] = move + 1
        write(words, centre.fetched(rank), move + 1)
        self.note(move, Exchange(rank, self.steps, k, staleness))

    def _may_come(self, k: int) -> bool:
        """Tell whether this exchange makes no other rank's next one too stale."""
        most, words = self._rule.max_staleness, self._centre.words
        if most is None or self._rule.order != "free":
            return True
        others = [
            int(words[self._centre.fetched(rank)])
            for rank in range(self.n)
            if rank != self.rank and not words[self._centre.finished(rank)]
        ]
        return may_come(int(words[self._centre.moves(k)]), others, most)
