"""One rank as a worker of a training rule: its parameters and its report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

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
    """Shared variables of one dtype, as one vector.

    Between `open` and `close`, `arrays` has the variables' arrays, to be written to. At
    other times it is empty, so that no array is held.
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
        """Return a copy of all variables, as one vector."""
        return joined([host.get_value(var) for var in self._variables])

    def set(self, vector: np.ndarray) -> list[np.ndarray]:
        """Set the variables to the values of a vector; return their former values."""
        former = [host.get_value(var) for var in self._variables]
        self.put_back([np.array(piece) for piece in self.cut(vector)])
        return former

    def cut(self, vector: np.ndarray) -> list[np.ndarray]:
        """Return the piece of a vector for each variable, in the variable's shape."""
        pieces = np.split(vector, np.cumsum(self.sizes)[:-1])
        both = zip(pieces, self._shapes, strict=True)
        return [piece.reshape(shape) for piece, shape in both]

    def put_back(self, values: Sequence[np.ndarray]) -> None:
        """Set the variables to arrays, without a copy."""
        for var, value in zip(self._variables, values, strict=True):
            host.set_value(var, value)

    def open(self) -> None:
        """Set `arrays`, for writing, to the variables' present arrays, or copies.

        Raise ValueError if one has another shape than at first.
        """
        self.arrays, self._moved = [], []
        for var, shape in zip(self._variables, self._shapes, strict=True):
            value = host.get_value(var)
            if value.shape != shape:
                raise ValueError(
                    f"{var} had the shape {shape} when training began, and has"
                    f" {value.shape} now"
                )
            if not value.flags.carray:  # an array of JAX, or a transpose: use a copy
                value = np.array(value, order="C")
                self._moved.append((var, value))
            self.arrays.append(value)

    def close(self) -> None:
        """Set variables to the copies, where `open` made some."""
        for var, value in self._moved:
            host.set_value(var, value)
        self.arrays, self._moved = [], []


def joined(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return a copy of arrays as one vector."""
    return np.concatenate([np.ravel(value) for value in values])


class Worker:
    """A rank that trains by a rule: worker number `rank` of `n`.

    `medium` is a `Centre` or `Mailboxes`, in shared memory of a machine's ranks.
    `over_nodes` is an `OverNodes`, or None on a single machine.
    """

    is_node = False
    """Whether all ranks of the machine are one worker, with equal parameters."""

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
        # It does not hold this worker, which would be a circle through its sweeper.
        self.acquire = partial(_acquire, self.times, self.locks)
        self._reported = np.zeros(2)
        self._exchanges: list[tuple[int, Exchange]] = []
        self._own: list[np.ndarray] | None = None  # own values, between show and hide

    # -- methods that the master calls

    def begin(self, start: dict[str, np.ndarray] | None = None) -> None:
        """Restart, with the parameters ``start["w"]``, by default the medium's."""
        if start is not None:
            self._change_medium(lambda: self.medium.fill(start["w"]))
        self._begin_with(self.medium.parameters)

    def _change_medium(self, change: Callable[[], object]) -> None:
        """Call `change` once on each other node; node 0's medium is changed already."""
        if self._leads_other_node:
            change()
        self.local.barrier()

    def _begin_with(self, w: np.ndarray) -> None:
        self.parameters.set(w)
        self._own = None
        self.steps = 0
        self._exchanges = []

    def report(self) -> tuple[list[tuple[int, Exchange]], np.ndarray]:
        """Return the exchanges since the last report, and their seconds.

        Each exchange is with the number of its move of the centre. The second of the
        two numbers of seconds is the part that was spent waiting for others.
        """
        exchanges, self._exchanges = self._exchanges, []
        before = self._reported
        self._reported = np.array([self.times.seconds, self.times.waiting])
        return exchanges, self._reported - before

    def state(self) -> dict[str, np.ndarray]:
        """Return the worker's state, for a checkpoint."""
        return {"w": self._vector(), "steps": np.array(self.steps)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a result of `state`."""
        self._begin_with(state["w"])
        self.steps = int(state["steps"])

    def restore_medium(self, state: dict[str, np.ndarray]) -> None:
        """Restore the medium on other nodes."""
        self._change_medium(lambda: self.medium.restore(state))

    def own_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of the parameters; if `is_node`, on one rank of the machine."""
        vector = self._vector()
        return {"w": vector[:0] if self.is_node and self.local.rank else vector}

    def _vector(self) -> np.ndarray:
        return self.parameters.vector() if self._own is None else joined(self._own)

    def show(self, values: dict[str, np.ndarray]) -> None:
        """Set the variables to other values, and keep this worker's own."""
        former = self.parameters.set(values["w"])
        self._own = former if self._own is None else self._own

    def hide(self) -> None:
        """Set the variables to this worker's own values again."""
        if self._own is not None:
            self.parameters.put_back(self._own)
            self._own = None

    # -- between steps

    def after_step(self, rows: Sequence[int]) -> None:
        """Make the exchanges that are due after a step; `rows` has each rank's rows."""
        raise NotImplementedError

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make steps in a ``with`` block; after it no worker waits for this one."""
        yield

    @contextlib.contextmanager
    def in_turn(self, turn: int) -> Iterator[None]:
        """Run a ``with`` block when the count of turns has come to `turn`.

        If the rule's order is not "turns", run it at once. If `is_node`, run it when it
        is the machine's turn.
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
        """Let the next rank begin, unless it has begun already."""
        if self.medium.words[TURN] == turn:
            write(self.medium.words, TURN, turn + 1)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Open the parameters in a ``with`` block, which counts as exchanging time."""
        with self.times.exchanging(self.steps):
            self.parameters.open()
            try:
                yield
            except BaseException:  # without an error all locks are released already
                self.locks.release_all(self.medium.locks, self.medium.valid)
                raise
            finally:
                # Also after an error: written values belong to the variables.
                self.parameters.close()

    def note(self, move: int, exchange: Exchange) -> None:
        """Record an exchange, with the number of its move of the centre."""
        self._exchanges.append((move, exchange))
        self.times.count(exchange.staleness)


def _acquire(times: ExchangeTimes, locks: Locks, lock: int) -> None:
    """Wait for a lock and take it; the time counts as waiting."""
    with times.wait():
        locks.acquire(lock)
