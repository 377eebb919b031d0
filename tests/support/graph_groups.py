"""Graphs compiled together, and compared with known values and with differences.

To compile one function of thirty small graphs takes a fraction of what thirty take. A
graph's loss depends on its own inputs and parameters alone, so that those of all graphs
may be moved at once to find every slope.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import theano  # synk's, whose functions have the fixes of JAX mode

H = 1e-6


class Graph(NamedTuple):
    """A graph, what its inputs are, and what it gives, if that is known.

    `build` takes a variable for each value. It returns the graph, and shared variables
    it is to be differentiated by, too.
    """

    build: Callable
    values: tuple
    expected: object = None


class Made(NamedTuple):
    """A graph's variables in the function of all."""

    inputs: list
    floats: list[int]
    params: list
    outputs: list


class Group:
    """Graphs by name, compiled as one function."""

    def __init__(self, graphs: dict[str, Graph], mode: str) -> None:
        self.graphs = graphs
        self.made = {name: _make(graph) for name, graph in graphs.items()}
        made = self.made.values()
        inputs = [var for one in made for var in one.inputs]
        outputs = [var for one in made for var in one.outputs]
        options = {"mode": mode, "on_unused_input": "ignore"}
        self._function = theano.function(inputs, outputs, **options)

    def __call__(self, step: float = 0.0) -> dict[str, list[np.ndarray]]:
        """Return each graph's result, loss and gradients, where all has been moved."""
        arguments, before = [], []
        for name, made in self.made.items():
            moves = _moves(self.graphs[name], made)
            values = [np.asarray(value) for value in self.graphs[name].values]
            for place, move in zip(made.floats, moves, strict=False):
                values[place] = values[place] + step * move
            arguments += values
            for param, move in zip(made.params, moves[len(made.floats) :], strict=True):
                before.append((param, param.get_value()))
                param.set_value(before[-1][1] + step * move)
        found = iter(self._function(*arguments))
        for param, value in before:
            param.set_value(value)
        return {
            name: [np.asarray(next(found)) for _ in made.outputs]
            for name, made in self.made.items()
        }

    def check(self) -> dict[str, list[np.ndarray]]:
        """Compare results with what is known, gradients with central differences."""
        at, above, below = self(), self(H), self(-H)
        for name, (result, loss, *gradients) in at.items():
            graph = self.graphs[name]
            if (right := graph.expected) is not None:
                assert result.shape == np.shape(right), name
                np.testing.assert_allclose(result, right, 1e-9, 1e-11, err_msg=name)
            assert np.isfinite(loss), name
            slope = (above[name][1] - below[name][1]) / (2 * H)
            moves = zip(gradients, _moves(graph, self.made[name]), strict=True)
            along, what = sum(np.vdot(*pair) for pair in moves), f"the slope of {name}"
            np.testing.assert_allclose(along, slope, 1e-4, 1e-6, err_msg=what)
        return at

    def check_in(self, mode: str, without: tuple[str, ...] = ()) -> None:
        """Assert that another mode gives the same results, losses and gradients."""
        some = {name: g for name, g in self.graphs.items() if name not in without}
        ours = self()
        for name, results in Group(some, mode)().items():
            for other, mine in zip(results, ours[name], strict=True):
                np.testing.assert_allclose(other, mine, 1e-8, 1e-10, err_msg=name)


def _make(graph: Graph) -> Made:
    values = [np.asarray(value) for value in graph.values]
    inputs = [pt.tensor(dtype=str(v.dtype), shape=(None,) * v.ndim) for v in values]
    built = graph.build(*inputs)
    output, params = built if isinstance(built, tuple) else (built, [])
    floats = [i for i, value in enumerate(values) if value.dtype.kind == "f"]
    weights = np.random.default_rng(1).uniform(0.5, 1.5, 5000)
    flat = output.flatten()
    loss = (flat * pt.constant(weights)[: flat.shape[0]]).sum()
    wrt = [*(inputs[i] for i in floats), *params]
    slopes = pytensor.grad(loss, wrt, disconnected_inputs="ignore") if wrt else []
    return Made(inputs, floats, params, [output, loss, *slopes])


def _moves(graph: Graph, made: Made) -> list[np.ndarray]:
    """Return the directions in which the floats and the parameters are moved."""
    random = np.random.default_rng(2)
    shapes = [np.shape(graph.values[i]) for i in made.floats]
    shapes += [param.get_value().shape for param in made.params]
    return [random.normal(size=shape) for shape in shapes]
