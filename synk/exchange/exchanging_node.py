"""A machine as one worker: its ranks make exact steps together, on all of its rows.

So all have the same parameters, and each takes what comes of an exchange. What the
worker gives is what the first rank has left. The centre of the machine is moved by all
ranks, each a part of it, as where all workers meet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ..rules.simulate import Exchange
from .exchanging import Exchanging


class ExchangingNode(Exchanging):
    """A rank of a machine that trains by a rule with a centre, as one worker."""

    is_node = True

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Do what is due after a step in a ``with`` block, in this machine's turn."""
        if self._rule.order != "turns":
            yield
            return
        with self.in_turn_of_node():
            yield

    def after_step(self, rows: Sequence[int]) -> None:
        """Exchange what is due after a step; see `Worker.after_step`."""
        of_machines = [sum(rows)]
        if self.over_nodes is not None:
            of_machines = self.over_nodes.by_node(rows)
        super().after_step(of_machines)

    def _exchange(self, k: int) -> None:
        """Give, and move the centre, in turn; take it now or later."""
        self._walks.go("give", self._courses[k], self._kept, 1 / self.n)
        self._meet()
        self._move(k)
        self._to_take.append((self.steps + self._rule.delay, k))

    def _note_move(self, move: int, k: int) -> None:
        """Take note of a move of this machine's centre."""
        if self._rule.order == "together":
            super()._note_move(move, k)
            return
        staleness, self._fetched[k] = move - self._fetched[k], move + 1
        self.note(move, Exchange(self.rank, self.steps, k, staleness))
