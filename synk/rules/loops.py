"""A rule's functions in place: what is new is written to where it is to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from .graphs import Arrays, Functions
from .kernels import make_loop


class Loops:
    """What a rule computes, in loops where it can be written so.

    Parameters
    ----------
    functions : Functions
        The same, with results of their own.
    are_compiled : bool
        Whether there are loops at all: otherwise PyTensor computes everything.
    """

    def __init__(self, functions: Functions, are_compiled: bool = True) -> None:
        self._functions, self._are_compiled = functions, are_compiled
        self._told: tuple[Any, list[np.ndarray]] = (None, [])

    def exchange(
        self, worker: Arrays, centre: Arrays, out: Arrays, n: int, share: float
    ) -> None:
        """Make one worker's exchange: in `worker`, and from `centre` in `out`."""
        loop, moves = self._exchange
        if loop is None:
            new, moved = self._functions.exchange(worker, centre, n, share)
            _write(worker, new)
            _write(out, centre | moved)
            return
        loop(
            *self._group(n, share),
            *self._functions.in_order(worker, centre),
            *[out[name] for name in moves],
        )
        self._copy_others(centre, out, moves)

    def give(
        self, worker: Arrays, centre: Arrays, given: np.ndarray, n: int, share: float
    ) -> None:
        """Write what a worker gives to `given`, and new values in `worker`."""
        loop = self._give
        if loop is None:
            new, given[:] = self._functions.give(worker, centre, n, share)
            _write(worker, new)
            return
        arrays = self._functions.in_order(worker, centre)
        loop(*self._group(n, share), *arrays, given)

    def move(self, centre: Arrays, given: np.ndarray, out: Arrays) -> None:
        """Write to `out` what becomes of `centre`."""
        loop, moves = self._move
        if loop is None:
            _write(out, centre | self._functions.move(centre, given))
            return
        arrays = [centre[name] for name in self._functions.of_centre]
        loop(given, *arrays, *[out[name] for name in moves])
        self._copy_others(centre, out, moves)

    def _copy_others(self, centre: Arrays, out: Arrays, moves: list[str]) -> None:
        """Copy what does not move: all of `out` counts afterwards."""
        if len(moves) < len(centre):
            others = centre.keys() - set(moves)
            _write(out, {name: centre[name] for name in others})

    def take(self, worker: Arrays, centre: Arrays) -> None:
        """Make new values in `worker`, of what the centre is now."""
        if self._take is None:
            _write(worker, self._functions.take(worker, centre))
        else:
            self._take(*self._functions.in_order(worker, centre))

    def _group(self, n: int, share: float) -> list[np.ndarray]:
        known, arrays = self._told
        if known != (n, share):
            arrays = self._functions.group(n, share)
            self._told = (n, share), arrays
        return arrays

    @cached_property
    def _exchange(self) -> tuple:
        """The loop, or None, and what it writes of the centre's."""
        of_worker, of_centre = self._functions.graph_of_exchange()
        outputs = {f"w{k}": v for k, v in of_worker.items()}
        outputs |= {f"c{k}": v for k, v in of_centre.items()}
        return self._loop(True, outputs), list(of_centre)

    @cached_property
    def _give(self) -> Any:
        new, given = self._functions.graph_of_give()
        outputs = {**{f"w{k}": v for k, v in new.items()}, "given": given}
        return self._loop(True, outputs)

    @cached_property
    def _move(self) -> tuple:
        new = self._functions.graph_of_move()
        inputs = self._functions.inputs_of_move
        outputs = {f"c{k}": v for k, v in new.items()}
        return self._made(inputs, outputs), list(new)

    @cached_property
    def _take(self) -> Any:
        new = self._functions.graph_of_take()
        return self._loop(False, {f"w{k}": v for k, v in new.items()})

    def _loop(self, has_group: bool, outputs: dict[str, Variable]) -> Any:
        inputs = self._functions.inputs_of_group if has_group else {}
        # A worker's are its own, and nobody reads them meanwhile.
        in_place = [name for name in outputs if name[0] == "w"]
        inputs |= self._functions.inputs_of_states
        return self._made(inputs, outputs, in_place)

    def _made(
        self,
        inputs: dict[str, Variable],
        outputs: dict[str, Variable],
        in_place: Sequence[str] = (),
    ) -> Callable[..., None] | None:
        """Return a loop, or None if it cannot be written as one."""
        if not outputs:
            return _nothing
        if not self._are_compiled:
            return None
        try:
            return make_loop(inputs, outputs, in_place)
        except (NotImplementedError, OSError):  # or there is no place for its file
            return None


def _nothing(*arrays: np.ndarray) -> None:
    """Write nothing."""


def _write(arrays: Arrays, new: Arrays) -> None:
    for name, value in new.items():
        arrays[name][...] = value
