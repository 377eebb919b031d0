"""A session and its model side by side: whatever is done to one is done to both."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from state_graphs import (
    MODE,
    RNG,
    TENSORS,
    TWINS,
    VARIABLES,
    Graph,
    some_rows,
    some_value,
)
from state_model import Held, Misfit, Model, Refused

import synk

TIMEOUT = 60
IN_PLACE = Mode("py", "fast_run")
"""Plain functions of this mode write new values over old ones."""

ANNOUNCED = {Refused: synk.SplitError, Misfit: synk.ShapeMismatch}


class Pid(Op):
    """Returns the number of the process that computes it."""

    __props__ = ()

    def make_node(self):
        return Apply(self, [], [pt.lscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(os.getpid())


PIDS = synk.function([], (Pid()(), "gather"), mode=MODE)


class World:
    """The session, the model, and what the next step may use.

    Parameters
    ----------
    folder : pathlib.Path
        For checkpoints.
    modes : sequence of modes
        Of functions: one after the other makes a call.

    Attributes
    ----------
    pids : list of int
        The ranks' processes.
    saved : dict of shared variable to value
        What the last checkpoint holds.
    breaks_off : (float, int or None) or None
        What is done next is interrupted after so many seconds, or a rank is killed.
    """

    def __init__(self, folder: Path, modes: Sequence[Any]) -> None:
        self._modes = modes
        self.model = Model(1, {var: var.get_value() for var in VARIABLES.values()})
        self.path = folder / "checkpoint.npz"
        self.saved: dict[SharedVariable, Any] = {}
        self._functions: dict[Graph, Iterator[synk.Function]] = {}
        self.pids: list[int] = []
        self.outcomes: Counter = Counter()
        self.breaks_off: tuple[float, int | None] | None = None

    # -- sessions

    def start(self, size: int) -> None:
        self.breaks_off = None
        synk.fork(size, timeout=TIMEOUT)
        self.pids = PIDS().tolist()
        self.model.start(size)

    def function(self, graph: Graph) -> synk.Function:
        """Return a graph's function: those of all modes in turn."""
        if graph not in self._functions:
            self.make_anew(graph)
        return next(self._functions[graph])

    def make_anew(self, graph: Graph) -> None:
        made = [graph.make(mode) for mode in self._modes]
        self._functions[graph] = itertools.cycle(made)

    # -- the same thing done to both

    def both(
        self,
        do: Callable[[], Any],
        expected: Callable[[], Any],
        may_refuse: bool = False,
    ) -> None:
        """Do it, and compare: results, or how it fails.

        What `may_refuse` to be done leaves all as it was then.
        """
        if self.breaks_off is not None:
            (seconds, victim), self.breaks_off = self.breaks_off, None
            self.broken_off(do, expected, seconds, victim)
            return
        self.model.states = [dict(self.model.held)]
        before = dict(self.model.held)
        try:
            right = expected()
        except Exception as error:
            kind = ANNOUNCED.get(type(error), type(error))
            try:
                got = do()
            except synk.SplitError:
                if kind is not synk.SplitError and not may_refuse:
                    raise
                self.outcomes["refused"] += 1
                if len(self.model.states) > 1:  # before the first call, or on the way
                    self.find([before, self.model.held], self.look_at_script)
                return
            except kind:
                self.outcomes[kind.__name__] += 1
                return
            raise AssertionError(f"{got!r} in place of {error!r}") from error
        try:
            got = do()
        except synk.SplitError:
            if not may_refuse:
                raise
            self.model.held = before
            self.outcomes["refused in slices"] += 1
            return
        compare(got, right, "what is returned")
        self.outcomes["made"] += 1

    # -- what is broken off

    def broken_off(
        self,
        do: Callable[[], Any],
        expected: Callable[[], Any],
        seconds: float,
        victim: int | None,
    ) -> None:
        """Do it, until it is interrupted or a rank is killed.

        Ranks hold what they held before, or after some of its calls, all the same.
        """
        self.model.states = [dict(self.model.held)]
        with contextlib.suppress(Refused, Misfit, ValueError, IndexError):
            expected()
        states = [*self.model.states, dict(self.model.held)]

        def tried() -> None:
            with contextlib.suppress(
                synk.SplitError, synk.ShapeMismatch, ValueError, IndexError
            ):
                do()

        self.outcomes["to be interrupted" if victim is None else "to be killed"] += 1
        if victim is None:
            if interrupted(tried, seconds):
                self.outcomes["interrupted"] += 1
                self.find(states, self.look_at_ranks)
        else:
            if death := killed(tried, seconds, self.pids[victim]):
                assert (death.rank, death.signal) == (victim, SIGKILL), death
                self.outcomes["killed"] += 1
            synk.close()
            self.find(states, self.look_at_script)
            self.start(self.model.size)

    def find(self, states: list, look: Callable[[], None]) -> None:
        """Find out which of some states there is; raise if it is none."""
        found = []
        for held in states:
            self.model.held = dict(held)
            try:
                return look()
            except AssertionError as error:
                found.append(error)
        raise ExceptionGroup("neither as before nor as after it", found)

    # -- what the script does by itself

    def set(self, var: SharedVariable, seed: int, how: str) -> None:
        value = some_value(var, seed)
        self.model.set(var, value)
        mine = np.array(value) if var is not RNG else some_value(var, seed)
        if how == "twin":
            var = TWINS.get(var, var)
        if how == "container":
            var.container.value = mine
        else:
            var.set_value(mine, borrow=how == "borrow")

    def set_by_plain(self, var: SharedVariable, in_place: bool) -> None:
        """Let a plain function change a variable of floats or ints."""
        key = var, in_place
        if key not in _plain:
            mode = IN_PLACE if in_place else MODE
            new = (var / 2 + 1).astype(var.dtype) if in_place else var * 0 + 1
            _plain[key] = pytensor.function([], updates=[(var, new)], mode=mode)
        value = self.model.of_script(var)
        new = (value / 2 + 1).astype(value.dtype) if in_place else value * 0 + 1
        if np.array_equal(new, value):
            return  # nobody would notice
        self.model.set(var, np.asarray(new, value.dtype))
        _plain[key]()

    # -- looking

    def look(self, ranks: bool) -> None:
        """Compare all variables: the script's, and those of all ranks if asked to."""
        self.look_at_script(corrects=not ranks)
        if ranks and synk.is_forked():
            self.look_at_ranks()

    def look_at_script(self, corrects: bool = False) -> None:
        for var in VARIABLES.values():
            value = var.get_value()
            compare(value, self.model.of_script(var), (var, "in the script"))
            if corrects and self.model.held[var].kind == "equal" and var is not RNG:
                self.model.held[var].values = [value] * self.model.size

    def look_at_ranks(self) -> None:
        by_rank = [synk.get_value(r, TENSORS) for r in range(self.model.size)]
        for var, values in zip(TENSORS, zip(*by_rank, strict=True), strict=True):
            held = self.model.held[var]
            said = synk.state(TWINS.get(var, var))
            assert self.model.size == 1 or said.startswith(held.in_words()), said
            for rank, value in enumerate(values):
                compare(value, held.values[rank], (var, "on rank", rank, held))
                if held.kind == "equal":
                    same = value.tobytes() == values[0].tobytes()
                    assert same, f"{var} differs: {values}"
            held.values = list(values)
        compare(synk.get_value(0, RNG), self.model.of_script(RNG), "rng on rank 0")


_plain: dict[Any, Callable] = {}


def compare(got: Any, right: Any, what: Any) -> None:
    """Raise unless two values, or lists of them, are the same but for rounding.

    What they are is not put into words but to raise, which would take most of the time.
    """
    if right is None or isinstance(right, np.random.Generator):
        state = getattr(got, "bit_generator", None)
        assert right is None or state.state == right.bit_generator.state, what
        assert right is not None or got is None, what
        return
    if isinstance(right, list):
        assert isinstance(got, list), (what, got)
        assert len(got) == len(right), (what, got)
        for i, pair in enumerate(zip(got, right, strict=True)):
            compare(*pair, (what, i))
        return
    got, right = np.asarray(got), np.asarray(right)
    assert got.dtype == right.dtype, f"{what}: {got.dtype} for {right.dtype}"
    assert got.shape == right.shape, f"{what}: {got} for {right}"
    if got.tobytes() == right.tobytes():
        return
    if got.dtype.kind == "f":
        rtol = 1e-4 if got.dtype == np.float32 else 1e-9
        size = max(1, np.abs(right).max(initial=0))
        tolerance = {"rtol": rtol, "atol": rtol * size, "err_msg": str(what)}
        np.testing.assert_allclose(got, right, **tolerance)
    else:
        np.testing.assert_array_equal(got, right, err_msg=str(what))


States = list[dict[SharedVariable, Held]]


@contextlib.contextmanager
def after(seconds: float, handler: Callable[..., object]) -> Iterator[None]:
    """Have a handler run once, if the ``with`` block takes as long as that."""
    former = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def interrupted(do: Callable[[], Any], seconds: float) -> bool:
    """Do something; tell whether it was interrupted."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        with after(seconds, interrupt):
            do()
    except KeyboardInterrupt:
        return True
    return False


def killed(do: Callable[[], Any], seconds: float, pid: int) -> synk.WorkerDied | None:
    """Do something while a rank is killed; return what it said of that, if it did."""

    def kill(*_: Any) -> None:
        os.kill(pid, signal.SIGKILL)

    try:
        with after(seconds, kill):
            do()
    except synk.WorkerDied as death:
        return death
    return None


class Calls:
    """Calls of functions of rows, in their many ways.

    Parameters
    ----------
    world : World
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def call(
        self,
        graph: Graph,
        n: int,
        seed: int,
        num_slices: int = 1,
        forbidden: int | None = None,
        in_data: bool = False,
        how: str = "all",
    ) -> None:
        """Call a function: in slices, with rows in `Data`, for some outputs only."""
        if self._lengths_differ(graph):
            return
        rows, given = self._arguments(graph, self._rows_to_meet(graph, n), seed)
        if forbidden is not None:
            rows = self._with_forbidden(graph, rows, forbidden)
        num_slices = num_slices if graph.in_slices else 1
        options: dict[str, Any] = {"num_slices": num_slices} if graph.inputs else {}
        wanted = None
        if how == "some outputs" and graph.output_list:
            wanted = options["output_subset"] = [seed % len(graph.output_list)]
        if how == "checked" and self._can_be_checked(graph):
            options["check"] = "serial"
        passed = rows
        if how == "a batch" and graph.inputs and not graph.keeps_rows:
            batch = np.random.default_rng(seed).permutation(len(rows[0]))
            batch = batch[: max(graph.least_rows, len(batch) // 2)]
            options["batch"] = batch
            rows = [value[batch] for value in rows]
        if in_data:
            pairs = zip(graph.inputs, passed, strict=True)
            passed = [synk.data(value, var=var) for var, value in pairs]
        f, model = self._world.function(graph), self._world.model
        self._world.both(
            lambda: f(*passed, *given, **options),
            lambda: returned(graph, model.call(graph, rows, given), wanted),
            may_refuse=graph.local and num_slices > 1,
        )

    def run(
        self,
        graph: Graph,
        sizes: list[int],
        seed: int,
        num_slices: int,
        forbidden: int | None,
    ) -> None:
        """Make calls of so many rows each in one launch."""
        if self._lengths_differ(graph):
            return
        held = self._world.model.held
        are_parts = any(held[var].kind == "parts" for var in graph.taken)
        if are_parts and set(graph.updated) & graph.taken - set(graph.keeps_rows):
            sizes = sizes[:1]  # open: the second call finds it equal
        sizes = [self._rows_to_meet(graph, max(n, graph.least_rows)) for n in sizes]
        rows, given = self._arguments(graph, sum(sizes), seed, least=0)
        if forbidden is not None:
            rows = self._with_forbidden(graph, rows, forbidden)
        ends = np.cumsum(sizes).tolist()
        batches = [
            slice(stop - n, stop) if graph.inputs else None
            for n, stop in zip(sizes, ends, strict=True)
        ]
        can_be_sliced = graph.inputs and graph.in_slices and not graph.local
        options = {"num_slices": num_slices} if can_be_sliced else {}
        f = self._world.function(graph)

        def do() -> Any:
            return f.run(batches, *rows, *given, **options)

        if batches:
            self._world.both(do, lambda: self._expected(graph, rows, given, batches))
        else:
            with contextlib.suppress(synk.SplitError):
                do()

    def _expected(self, graph: Graph, rows: list, given: list, batches: list) -> Any:
        model = self._world.model
        made = []
        for batch in batches:
            made.append(model.call(graph, [value[batch] for value in rows], given))
            model.states.append(dict(model.held))
        by_output = [stacked(values) for values in zip(*made, strict=True)]
        return returned(graph, by_output)

    def call_on_some_rows(
        self, graph: Graph, seed: int, num_slices: int, how: str
    ) -> None:
        """Call a function of some rows of each rank's own variables."""
        held, size = self._world.model.held, self._world.model.size
        lengths = [tuple(map(len, held[var].values)) for var in graph.sliceable]
        if any(of_one != lengths[0] for of_one in lengths):
            return
        rng = np.random.default_rng(seed)
        chosen: list[Any] = []
        for n in lengths[0]:
            some = rng.permutation(n)[: rng.integers(0, n + 1)]
            start, stop = sorted(rng.integers(0, n + 1, size=2).tolist())
            chosen.append(slice(start, stop) if how == "slices" else some)
        batch_s: Any = list(chosen)
        if how == "all":
            batch_s, chosen = None, [slice(None)] * size
        elif how == "one for all":
            most = max(1, min(lengths[0]) + seed % 2)
            batch_s = rng.integers(0, most, size=2)
            batch_s = np.unique(batch_s)
            chosen = [batch_s] * size
        f, model = self._world.function(graph), self._world.model
        try:
            rows = sum(
                len(np.arange(n)[some])
                for n, some in zip(lengths[0], chosen, strict=True)
            )
        except IndexError:
            rows = graph.least_rows
        if rows < graph.least_rows:
            return
        self._world.both(
            lambda: f(batch_s=batch_s, num_slices=num_slices),
            lambda: returned(graph, model.call_on_some_rows(graph, chosen)),
        )

    def call_in_master(self, graph: Graph, n: int, seed: int) -> None:
        """Call the plain function, which changes the script's variables."""
        model = self._world.model
        lengths = {len(model.of_script(var)) for var in graph.keeps_rows}
        if len(lengths) > 1 or graph.name in ("count rows", "write what is counted"):
            return  # open: see `_lengths_differ`; as_theano takes all rows for one
        n = max(lengths, default=n)
        rows, given = self._arguments(graph, n, seed)
        f = self._world.function(graph)
        self._world.both(
            lambda: f.as_theano(*rows, *given),
            lambda: returned(graph, model.call_in_master(graph, rows, given)),
            # The master has a part only of what was scattered.
            may_refuse=any(held.kind == "parts" for held in model.held.values()),
        )

    # -- arguments

    def _arguments(
        self, graph: Graph, n: int, seed: int, least: int | None = None
    ) -> tuple[list, list]:
        least = graph.least_rows if least is None else least
        values = some_rows(max(n, least), seed)
        given = np.asarray(np.random.default_rng(seed).normal())
        return [values[var] for var in graph.inputs], [given] * len(graph.bcast)

    def _with_forbidden(self, graph: Graph, rows: list, row: int) -> list:
        return graph.with_forbidden(rows, row) if graph.fails else rows

    def _whole_lengths(self, graph: Graph) -> list[int]:
        """Return how many rows there are of what meets rows."""
        held = [self._world.model.held[var] for var in graph.keeps_rows]
        wholes = [h.values if h.kind == "parts" else h.values[:1] for h in held]
        return [sum(map(len, parts)) for parts in wholes]

    def _rows_to_meet(self, graph: Graph, n: int) -> int:
        lengths = self._whole_lengths(graph) if graph.inputs else []
        return lengths[0] if lengths else n

    def _lengths_differ(self, graph: Graph) -> bool:
        """Tell whether plain PyTensor would raise; open: ranks take the first rows."""
        return len(set(self._whole_lengths(graph))) > 1

    def _can_be_checked(self, graph: Graph) -> bool:
        held = self._world.model.held
        are_equal = all(held[var].kind == "equal" for var in graph.taken)
        return are_equal and not graph.local and not any(graph.left)


def returned(graph: Graph, outputs: list, wanted: list[int] | None = None) -> Any:
    """Return outputs as a function does."""
    if wanted is not None:
        return [outputs[i] for i in wanted]
    return list(outputs) if isinstance(graph.outputs, list) else outputs[0]


def stacked(values: tuple) -> Any:
    """Return the values of all calls of a run as that does."""
    if len({np.shape(value) for value in values}) == 1:
        return np.stack(values)
    return list(values)
