"""A session and its model side by side: whatever is done to one is done to both."""

import contextlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
from processes import rank_pids
from pytensor.compile import SharedVariable
from pytensor.compile.mode import Mode
from reference import assert_same
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
from state_model import Misfit, Model, Refused

import synk

IN_PLACE = Mode("py", "fast_run")
"""Plain functions of this mode write new values over old ones."""

ANNOUNCED = {Refused: synk.SplitError, Misfit: synk.ShapeMismatch}


class World:
    """The session, the model, and what the next step may use.

    Functions are of some modes in turn. What `saved` says is in the checkpoint at
    `path`. If `breaks_off` is set, what is done next is interrupted after so many
    seconds, or a rank is killed then.
    """

    def __init__(self, folder: Path, modes: Sequence[Any]) -> None:
        self._modes = modes
        self.model = Model(1, {var: var.get_value() for var in VARIABLES.values()})
        self.path = folder / "checkpoint.npz"
        self.saved: dict[SharedVariable, Any] = {}
        self._functions: dict[Graph, Iterator[synk.Function]] = {}
        self.pids: dict[int, int] = {}
        self.outcomes: Counter = Counter()
        self.breaks_off: tuple[float, int | None] | None = None

    def start(self, size: int) -> None:
        self.breaks_off = None
        synk.fork(size, timeout=60)
        self.pids = rank_pids()
        self.model.start(size)

    def function(self, graph: Graph) -> synk.Function:
        """Return a graph's function: those of all modes in turn."""
        if graph not in self._functions:
            self.make_anew(graph)
        return next(self._functions[graph])

    def make_anew(self, graph: Graph) -> None:
        made = [graph.make(mode) for mode in self._modes]
        self._functions[graph] = itertools.cycle(made)

    def collective(
        self, name: str, *given: Any, of_twins: bool = False, **options: Any
    ) -> None:
        """Call a function of synk's, or on variables' twins, and the model's."""
        synks = given
        if of_twins:
            synks = [TWINS.get(var, var) for var in given[0]], *given[1:]
        self.both(
            lambda: getattr(synk, name)(*synks, **options),
            lambda: getattr(self.model, name)(*given, **options),
        )

    def give(self, name: str, *given: Any) -> None:
        """Do the same, which nothing breaks off."""
        getattr(synk, name)(*given)
        getattr(self.model, name)(*given)

    def both(self, do: Callable, expected: Callable, may_refuse: bool = False) -> None:
        """Do it, and compare: results, or how it fails.

        What `may_refuse` to be done leaves all as it was then.
        """
        if self.breaks_off is not None:
            how, self.breaks_off = self.breaks_off, None
            return self.broken_off(do, expected, *how)
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

    def broken_off(
        self, do: Callable, expected: Callable, seconds: float, victim: int | None
    ) -> None:
        """Do it, until it is interrupted or a rank is killed.

        Ranks hold what they held before, or after some of its calls, all the same.
        """
        self.model.states = [dict(self.model.held)]
        with contextlib.suppress(Refused, Misfit, ValueError, IndexError):
            expected()
        states = [*self.model.states, dict(self.model.held)]

        def strike(*_: Any) -> None:
            if victim is None:
                raise KeyboardInterrupt
            os.kill(self.pids[victim], signal.SIGKILL)

        self.outcomes["to be interrupted" if victim is None else "to be killed"] += 1
        errors = synk.SplitError, synk.ShapeMismatch, ValueError, IndexError
        struck: BaseException | None = None
        try:
            with after(seconds, strike), contextlib.suppress(*errors):
                do()
        except (KeyboardInterrupt, synk.WorkerDied) as error:
            struck = error
        if victim is None:
            if struck is not None:
                self.find(states, self.look_at_ranks)
            return
        if isinstance(struck, synk.WorkerDied):
            assert (struck.rank, struck.signal) == (victim, signal.SIGKILL), struck
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

        def changed(value: Any) -> Any:
            return (value / 2 + 1).astype(value.dtype) if in_place else value * 0 + 1

        key = var, in_place
        if key not in _plain:
            mode = IN_PLACE if in_place else MODE
            updates = [(var, changed(var))]
            _plain[key] = pytensor.function([], updates=updates, mode=mode)
        value = self.model.of_script(var)
        if np.array_equal(changed(value), value):
            return  # nobody would notice
        self.model.set(var, np.asarray(changed(value), value.dtype))
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

    # -- calls of functions

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
        rows = graph.with_forbidden(rows, forbidden)
        num_slices = num_slices if graph.in_slices else 1
        options: dict[str, Any] = {"num_slices": num_slices} if graph.inputs else {}
        wanted = list(range(len(graph.outputs)))
        if how == "some outputs" and graph.outputs:
            wanted = options["output_subset"] = [seed % len(graph.outputs)]
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
        f, model = self.function(graph), self.model

        def expected() -> list:
            made = model.call(graph, rows, given)
            return [made[i] for i in wanted]

        may_refuse = graph.local and num_slices > 1
        self.both(lambda: f(*passed, *given, **options), expected, may_refuse)

    def run(
        self, graph: Graph, sizes: list, seed: int, num_slices: int, forbidden: Any
    ) -> None:
        """Make calls of so many rows each in one launch."""
        if self._lengths_differ(graph):
            return
        held = self.model.held
        are_parts = any(held[var].kind == "parts" for var in graph.taken)
        if are_parts and set(graph.updated) & graph.taken - set(graph.keeps_rows):
            sizes = sizes[:1]  # open: the second call finds it equal
        sizes = [self._rows_to_meet(graph, max(n, graph.least_rows)) for n in sizes]
        rows, given = self._arguments(graph, sum(sizes), seed, least=0)
        rows = graph.with_forbidden(rows, forbidden)
        pairs = zip(sizes, np.cumsum(sizes).tolist(), strict=True)
        batches = [slice(stop - n, stop) for n, stop in pairs]
        batches = batches if graph.inputs else [None] * len(batches)
        can_be_sliced = graph.inputs and graph.in_slices and not graph.local
        options = {"num_slices": num_slices} if can_be_sliced else {}
        f = self.function(graph)

        def do() -> Any:
            return f.run(batches, *rows, *given, **options)

        if batches:
            self.both(do, lambda: self._expected(graph, rows, given, batches))
        else:
            with contextlib.suppress(synk.SplitError):
                do()

    def _expected(self, graph: Graph, rows: list, given: list, batches: list) -> Any:
        made = []
        for batch in batches:
            some = [value[batch] for value in rows]
            made.append(self.model.call(graph, some, given))
            self.model.states.append(dict(self.model.held))
        return [stacked(values) for values in zip(*made, strict=True)]

    def call_on_some_rows(
        self, graph: Graph, seed: int, num_slices: int, how: str
    ) -> None:
        """Call a function of some rows of each rank's own variables."""
        held, size = self.model.held, self.model.size
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
            batch_s = np.unique(rng.integers(0, most, size=2))
            chosen = [batch_s] * size
        f, model = self.function(graph), self.model
        with contextlib.suppress(IndexError):
            pairs = zip(lengths[0], chosen, strict=True)
            if sum(len(np.arange(n)[some]) for n, some in pairs) < graph.least_rows:
                return
        self.both(
            lambda: f(batch_s=batch_s, num_slices=num_slices),
            lambda: model.call_on_some_rows(graph, chosen),
        )

    def call_in_master(self, graph: Graph, n: int, seed: int) -> None:
        """Call the plain function, which changes the script's variables."""
        model = self.model
        lengths = {len(model.of_script(var)) for var in graph.keeps_rows}
        if len(lengths) > 1 or graph.name == "count rows":
            return  # open: see `_lengths_differ`; as_theano takes all rows for one
        n = max(lengths, default=n)
        rows, given = self._arguments(graph, n, seed)
        f = self.function(graph)
        self.both(
            lambda: f.as_theano(*rows, *given),
            lambda: model.call_in_master(graph, rows, given),
            # The master has a part only of what was scattered.
            may_refuse=any(held.kind == "parts" for held in model.held.values()),
        )

    def _arguments(
        self, graph: Graph, n: int, seed: int, least: int | None = None
    ) -> tuple[list, list]:
        least = graph.least_rows if least is None else least
        values = some_rows(max(n, least), seed)
        given = np.asarray(np.random.default_rng(seed).normal())
        return [values[var] for var in graph.inputs], [given] * len(graph.bcast)

    def _whole_lengths(self, graph: Graph) -> list[int]:
        """Return how many rows there are of what meets rows."""
        held = [self.model.held[var] for var in graph.keeps_rows]
        wholes = [h.values if h.kind == "parts" else h.values[:1] for h in held]
        return [sum(map(len, parts)) for parts in wholes]

    def _rows_to_meet(self, graph: Graph, n: int) -> int:
        lengths = self._whole_lengths(graph) if graph.inputs else []
        return lengths[0] if lengths else n

    def _lengths_differ(self, graph: Graph) -> bool:
        """Tell whether plain PyTensor would raise; open: ranks take the first rows."""
        return len(set(self._whole_lengths(graph))) > 1

    def _can_be_checked(self, graph: Graph) -> bool:
        held = self.model.held
        are_equal = all(held[var].kind == "equal" for var in graph.taken)
        return are_equal and not graph.local and not any(graph.left)


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
    kinds = [(array.dtype, array.shape) for array in (got, right)]
    if kinds[0] == kinds[1] and got.tobytes() == right.tobytes():
        return
    is_float = right.dtype.kind == "f"
    size = max(1, np.abs(right).max(initial=0)) if is_float else 1
    ulps = 800 if right.dtype == np.float32 else 4e6
    assert_same(got, right, ulps, size, str(what))


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


def stacked(values: tuple) -> Any:
    """Return the values of all calls of a run as that does."""
    if len({np.shape(value) for value in values}) == 1:
        return np.stack(values)
    return list(values)
