"""One rank as a worker of a training rule: its parameters, and what it reports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.locks import Locks, write
from ..engines import host
from ..ranks.context import RankContext
from ..rules.centre import TURN
from ..rules.rule import Rule
from ..rules.simulate import Exchange
from ..times.timing import ExchangeTimes


class Parameters:
    """Shared variables of one dtype, one after the other, as one vector.

    Between `open` and `close` the variables' own `arrays` can be written to, where
    these are numpy's; a rank that is elsewhere in between holds no array.
    """

    def __init__(self, variables: Sequence[SharedVariable]) -> None:
        self._variables = list(variables)
        values = [host.get_value(var) for var in variables]
        self._shapes = [value.shape for value in values]
        self.sizes = [value.size for value in values]
        self.nbytes = sum(value.nbytes for value in values)
        self.arrays: list[np.ndarray] = []
        self._moved: list[tuple[SharedVariable, np.ndarray]] = []

    def vector(self) -> np.ndarray:
        """Return a copy of all of it."""
        return joined([host.get_value(var) for var in self._variables])

    def set(self, vector: np.ndarray) -> list[np.ndarray]:
        """Give the variables the values of a vector; return what they had."""
        former = [host.get_value(var) for var in self._variables]
        pieces = zip(self._variables, self.cut(vector), strict=True)
        for var, piece in pieces:
            host.set_value(var, np.array(piece))
        return former

    def cut(self, vector: np.ndarray) -> list[np.ndarray]:
        """Return the pieces of a vector that are the variables', in their shapes."""
        pieces = np.split(vector, np.cumsum(self.sizes)[:-1])
        both = zip(pieces, self._shapes, strict=True)
        return [piece.reshape(shape) for piece, shape in both]

    def put_back(self, values: Sequence[np.ndarray]) -> None:
        """Give the variables arrays that they had."""
        for var, value in zip(self._variables, values, strict=True):
            host.set_value(var, value)

    def open(self) -> None:
        """Find the variables' arrays as they are now, so that they can be written to.

        It is a ValueError if one has another shape than at first.
        """
        self.arrays, self._moved = [], []
        for var, shape in zip(self._variables, self._shapes, strict=True):
            value = host.get_value(var)
            if value.shape != shape:
                raise ValueError(
                    f"{var} had the shape {shape} when training began, and has"
                    f" {value.shape} now"
                )
            if not value.flags.carray:  # JAX's, or a transpose
                value = np.array(value, order="C")
                self._moved.append((var, value))
            self.arrays.append(value)

    def close(self) -> None:
        """Give the variables the arrays that were written in place of their own."""
        for var, value in self._moved:
            host.set_value(var, value)
        self.arrays, self._moved = [], []


def joined(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays one after the other, as one vector: a copy."""
    return np.concatenate([np.ravel(value) for value in values])


class Report(NamedTuple):
    """What a worker tells of the steps since it was asked last.

    Each exchange comes with the number of its move of the centre. They took `seconds`,
    and of these `waiting` for others.
    """

    exchanges: list[tuple[int, Exchange]]
    seconds: float
    waiting: float


class Worker:
    """A rank that trains by a rule: worker number `rank` of `n`.

    The `medium` is a `Centre`, or `Mailboxes`, in memory that all ranks of a machine
    share; there are `over_nodes` where there are several machines.
    """

    is_node = False
    """Whether all ranks of the machine are this worker, and have its parameters."""

    def __init__(
        self,
        rule: Rule,
        medium: Any,
        variables: Sequence[SharedVariable],
        rank: int,
        n: int,
        context: RankContext,
        over_nodes: Any = None,
    ) -> None:
        self.rule, self.medium, self.rank, self.n = rule, medium, rank, n
        self.local, self.over_nodes = context.local, over_nodes
        self._leads_other_node = context.local_rank == 0 and context.rank > 0
        looks, patience = context.control.looks, self.local.patience
        self.locks = Locks(medium.words, self.local.rank, looks, patience)
        self.parameters = Parameters(variables)
        self.steps = 0
        self.times = ExchangeTimes(repr(rule), self.parameters.nbytes)
        self._reported = Report([], 0.0, 0.0)
        self._exchanges: list[tuple[int, Exchange]] = []
        self._own: list[np.ndarray] | None = None  # while others are shown

    # -- what the master asks for

    def begin(self, start: dict[str, np.ndarray] | None = None) -> None:
        """Begin anew, with the parameters that all begin with, or with new ones."""
        if start is not None:
            self._change_medium(lambda: self.medium.fill(start["w"]))
        self._begin_with(self.medium.parameters)

    def _change_medium(self, change: Callable[[], object]) -> None:
        """Change what is shared on other nodes: on node 0 the script has done it."""
        if self._leads_other_node:
            change()
        self.local.barrier()

    def _begin_with(self, w: np.ndarray) -> None:
        self.parameters.set(w)
        self._own = None
        self.steps = 0
        self._exchanges = []

    def report(self) -> Report:
        """Return the exchanges, and what they took, since this was asked last."""
        exchanges, self._exchanges = self._exchanges, []
        last = self._reported
        now = self._reported = Report([], self.times.seconds, self.times.waiting)
        return Report(exchanges, now.seconds - last.seconds, now.waiting - last.waiting)

    def state(self) -> dict[str, np.ndarray]:
        """Return all that the worker goes on with."""
        return {"w": self._vector(), "steps": np.array(self.steps)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on with what `state` has returned."""
        self._begin_with(state["w"])
        self.steps = int(state["steps"])

    def restore_medium(self, state: dict[str, np.ndarray]) -> None:
        """Have what is shared go on with a state."""
        self._change_medium(lambda: self.medium.restore(state))

    def own_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of this worker's: of a machine that is one, of one rank."""
        vector = self._vector()
        return {"w": vector[:0] if self.is_node and self.local.rank else vector}

    def _vector(self) -> np.ndarray:
        return self.parameters.vector() if self._own is None else joined(self._own)

    def show(self, values: dict[str, np.ndarray]) -> None:
        """Have the variables show other values than this worker's own."""
        former = self.parameters.set(values["w"])
        self._own = former if self._own is None else self._own

    def hide(self) -> None:
        """Give the variables this worker's own values back."""
        if self._own is not None:
            self.parameters.put_back(self._own)
            self._own = None

    # -- between steps

    def after_step(self, rows: Sequence[int]) -> None:
        """Do what is due after a step, which was of so many rows on each rank."""
        raise NotImplementedError

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make steps in a ``with`` block; nobody waits for this rank after it."""
        yield

    @contextlib.contextmanager
    def in_turn(self, turn: int) -> Iterator[None]:
        """Do something in a ``with`` block when it is this rank's turn, by its number.

        In other orders than "turns" that is at once, and for ranks of a machine that is
        one worker it is when it is the machine's turn.
        """
        if self.rule.order != "turns":
            yield
            return
        nodes = contextlib.nullcontext()
        if self.over_nodes is not None:
            nodes = self.over_nodes.in_turn(self.times.wait)
        with nodes:
            if self.is_node:
                yield
                return
            with self.times.wait():
                self.locks.wait_for(TURN, turn)
            yield
            self.pass_turn(turn)

    def pass_turn(self, turn: int) -> None:
        """Let the next rank begin, unless it was let before: then others count on."""
        if self.medium.words[TURN] == turn:
            write(self.medium.words, TURN, turn + 1)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Write to parameters and take locks in a ``with`` block, which is timed."""
        with self.times.exchanging(self.steps):
            self.parameters.open()
            try:
                yield
            except BaseException:  # otherwise all locks have been given back
                self.locks.release_all(self.medium.locks, self.medium.valid)
                raise
            finally:
                # What was written belongs to the variables, if this ends early, too.
                self.parameters.close()

    def acquire(self, lock: int) -> None:
        """Wait for a lock, which is timed, and take it."""
        with self.times.wait():
            self.locks.acquire(lock)

    def note(self, move: int, exchange: Exchange) -> None:
        """Take note of an exchange, and of the number of its move of the centre."""
        self._exchanges.append((move, exchange))
        self.times.count(exchange.staleness)
