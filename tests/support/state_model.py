"""What ranks hold, as plain PyTensor and the words of the documentation have it.

The model of the state machine: for each shared variable a value for each rank, and
whether they are one value, each rank's own, or parts. Functions are computed serially
by plain PyTensor, and collectives, which have synk's names and arguments, by numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from reference import reduced
from state_graphs import Graph


class Refused(Exception):
    """Stands for a `synk.SplitError`: it is not what a function takes it for."""


class Misfit(Exception):
    """Stands for a `synk.ShapeMismatch`."""


@dataclass
class Held:
    """What the ranks hold of a variable: values that are "equal", "own" or "parts"."""

    values: list
    kind: str = "equal"
    rows: tuple[int, ...] | None = None
    """From how many rows each rank's own value was computed; or how many it has."""
    is_whole: bool = False
    """Whether a function has made it of all rows: to sum that up would count twice."""

    def in_words(self) -> str:
        """Return how `synk.state` begins."""
        rows = ", ".join(map(str, self.rows or ()))
        own = "local to each rank" + (f", from {rows} rows" if rows else ", since")
        parts = f"sharded in {rows} rows"
        return {"equal": "replicated", "own": own, "parts": parts}[self.kind]


Vars = Sequence[SharedVariable]
Values = dict[SharedVariable, Any]


class Model:
    """The state of all ranks, and what was held after the calls of a run."""

    def __init__(self, size: int, values: Values) -> None:
        self.size = size
        self.held: dict[SharedVariable, Held] = {}
        self.states: list[dict[SharedVariable, Held]] = []
        for var, value in values.items():
            self.set(var, value)

    def set(self, var: SharedVariable, value: Any) -> None:
        """The script gives a variable a value."""
        self.held[var] = Held([value] * self.size)

    def start(self, size: int) -> None:
        """A new session: all ranks have the script's values."""
        self.size = size
        for var in self.held:
            self.set(var, self.of_script(var))

    def of_script(self, var: SharedVariable) -> Any:
        return self.held[var].values[0]

    def of_rank(self, rank: int) -> Values:
        return {var: held.values[rank] for var, held in self.held.items()}

    def call(self, graph: Graph, rows: list, bcast: list) -> list:
        """Return the outputs of a call, and make its updates; or raise."""
        parts = self._parts(graph, rows)
        outputs: Any = None
        news: Any = None
        if not graph.local:
            wholes = {var: np.concatenate(self.held[var].values) for var in parts}
            outputs, news = graph.compute(rows, bcast, self.of_rank(0) | wholes)
        if graph.local or any(graph.left) or any(graph.ops):
            outputs, by_rank, counts = self._on_each_rank(graph, rows, bcast, outputs)
        made = {}
        for i, var in enumerate(graph.updated):
            if graph.left[i]:
                own = [of_rank[i] for of_rank in by_rank]
                made[var] = self._own(graph, i, own, counts)
            elif var in parts and var in graph.keeps_rows:
                made[var] = Held(self.cut(news[i]), "parts", self.held[var].rows)
            else:
                is_whole = graph.of_rows[i] or not graph.reads[i].isdisjoint(parts)
                made[var] = self._whole(news[i], is_whole)
        self.held.update(made)
        return outputs

    def _whole(self, value: Any, is_whole: bool = True) -> Held:
        return Held([value] * self.size, is_whole=is_whole and self.size > 1)

    def _parts(self, graph: Graph, rows: list) -> list[SharedVariable]:
        """Return what takes part as rows, as the inputs do; or raise."""
        if self.size == 1:
            return []
        taken = [var for var in graph.taken if self.held[var].kind != "equal"]
        if any(self.held[var].kind != "parts" for var in taken):
            raise Refused(taken)
        counts = {self.held[var].rows for var in taken}
        if taken and graph.inputs:
            counts.add(tuple(map(len, self.cut(rows[0]))))
        if len(counts) > 1:
            raise Refused(taken, counts)
        return taken

    def cut(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the parts of rows, by rank: the longer ones first."""
        return np.array_split(rows, self.size)

    def _on_each_rank(
        self, graph: Graph, rows: list, bcast: list, outputs: Any
    ) -> tuple[list, list[list], tuple[int, ...] | None]:
        """Compute what is left to each rank.

        It is the outputs, combined by their ops, new values by rank (None where there
        is no update), and how many rows the ranks have.
        """
        counts = None
        parts = [rows] * self.size
        if graph.inputs:
            parts = list(zip(*map(self.cut, rows), strict=True))
            counts = tuple(len(part[0]) for part in parts)
        made, news = [], []
        for rank, part in enumerate(parts):
            given = part, bcast, self.of_rank(rank)
            if counts is None or counts[rank] or not any(counts):
                some, of_rank = graph.compute(*given)
                made.append((some, 1 if counts is None else counts[rank]))
                news.append(of_rank)
            else:
                news.append(graph.compute_rowless(*given))
        combined = [
            combine(op, [some[i] for some, _ in made], [rows for _, rows in made])
            if op is not None
            else outputs[i]
            for i, op in enumerate(graph.ops)
        ]
        return combined, news, counts

    def _own(
        self, graph: Graph, i: int, news: list, counts: tuple[int, ...] | None
    ) -> Held:
        """Return what ranks hold of a variable that each updates by itself."""
        former = self.held[graph.updated[i]]
        if self.size == 1:
            return Held(news)
        if graph.of_rows[i]:
            pairs = zip(former.values, news, strict=True)
            values = [old if new is None else new for old, new in pairs]
            return Held(values, "own", counts)
        read = [self.held[var] for var in graph.reads[i]]
        if all(held.kind == "equal" for held in read):
            return Held(news)
        rows = {held.rows for held in read if held.kind == "own"}
        return Held(news, "own", rows.pop() if len(rows) == 1 else None)

    def call_on_some_rows(self, graph: Graph, chosen: Sequence[Any]) -> list:
        """Call a function of some rows of each rank's own variables."""
        others = [self.held[var] for var in graph.taken - set(graph.sliceable)]
        if self.size > 1 and any(held.kind != "equal" for held in others):
            raise Refused(others)
        wholes = {}
        for var in graph.sliceable:
            pairs = zip(self.held[var].values, chosen, strict=True)
            parts = [value[some] for value, some in pairs]
            wholes[var] = np.concatenate(parts)
            ends = np.cumsum(list(map(len, parts)))[:-1]
        outputs, news = graph.compute([], [], self.of_rank(0) | wholes)
        are_equal = all(self.held[var].kind == "equal" for var in graph.sliceable)
        alike = all(np.array_equal(some, chosen[0]) for some in chosen)
        made = {}
        for var, new in zip(graph.updated, news, strict=True):
            former = self.held[var]
            if var not in graph.sliceable:
                made[var] = self._whole(new)
                continue
            values = [value.copy() for value in former.values]
            parts = zip(values, chosen, np.split(new, ends), strict=True)
            for value, some, rows in parts:
                value[some] = rows
            stays = former.kind != "equal" or (are_equal and alike) or self.size == 1
            kind = (former.kind, former.rows) if stays else ("own",)
            made[var] = Held(values, *kind)
        self.held.update(made)
        return outputs

    def call_in_master(self, graph: Graph, rows: list, bcast: list) -> list:
        """The plain function, on the script's values, as if the script set others."""
        outputs, news = graph.compute(rows, bcast, self.of_rank(0))
        for var, new in zip(graph.updated, news, strict=True):
            self.set(var, new)
        return outputs

    def broadcast(self, variables: Vars, values: Sequence | None = None) -> None:
        for i, var in enumerate(variables):
            self.set(var, self.of_script(var) if values is None else values[i])

    def scatter(self, variables: Vars, values: Sequence) -> None:
        for var, value in zip(variables, values, strict=True):
            parts = self.cut(value)
            self.held[var] = Held(parts, "parts", tuple(map(len, parts)))

    def set_value(self, rank: int, variables: Vars, values: Sequence) -> None:
        for var, value in zip(variables, values, strict=True):
            by_rank = list(self.held[var].values)
            by_rank[rank] = value
            self.held[var] = Held(by_rank, "equal" if self.size == 1 else "own")

    def gather(self, var: SharedVariable, nd_up: int) -> np.ndarray:
        values = self.held[var].values
        if not nd_up:
            return np.concatenate(values)
        check_shapes(values)
        return np.stack(values)

    def all_gather(self, var: SharedVariable) -> np.ndarray:
        whole = self.gather(var, 0)
        self.set(var, whole)
        return whole

    def reduced(self, variables: Vars, op: str) -> list:
        """Return what a reduction gives."""
        for var in variables:
            if self.held[var].is_whole and op in ("sum", "prod"):
                raise Refused(var)
        for var in variables:
            check_shapes(self.held[var].values)
        results = []
        for var in variables:
            held = self.held[var]
            weights = held.rows if held.kind == "own" else None
            values = held.values
            if weights is None or not any(weights):
                weights = (1,) * self.size
            else:  # ranks without rows do not count, whatever the op
                values = [v for v, rows in zip(values, weights, strict=True) if rows]
                weights = tuple(filter(None, weights))
            result = combine(op, values, weights)
            dtype = held.values[0].dtype
            result = np.rint(result) if dtype.kind == "i" else result
            results.append(np.asarray(result, dtype))
        return results

    def all_reduce(self, variables: Vars, op: str) -> None:
        if self.size > 1:
            self.broadcast(variables, self.reduced(variables, op))

    def reduce(self, variables: Vars, op: str, in_place: bool) -> list:
        if self.size == 1:
            return [self.of_script(var) for var in variables]
        results = self.reduced(variables, op)
        if in_place:
            self.set_value(0, variables, results)
        return results


def check_shapes(values: list) -> None:
    if len({np.shape(value) for value in values}) > 1:
        raise Misfit


def combine(op: str, values: list, weights: Sequence[int]) -> np.ndarray:
    """Combine the ranks' values, as the documentation says."""
    if op == "gather":
        return np.concatenate(values)
    if op == "avg":
        return np.average(values, axis=0, weights=weights if any(weights) else None)
    return reduced(op, values)
