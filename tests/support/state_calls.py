"""Calls of functions, by the ranks and by the model."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from state_graphs import Graph, some_rows
from state_world import World

import synk


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
