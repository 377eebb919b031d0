"""A log-density and its gradient by ranks: a function for each dimension of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from ..call.make import function
from ..variables.data import Data, data
from .axes import Axis
from .checks import written_out
from .dimensions import Dimensions
from .sources import Sources
from .substitution import RowInput, Substituted, by_rows


class Point:
    """Free variables, side by side in a vector.

    Parameters
    ----------
    shapes : mapping of Variable to tuple of int
        In the order of the vector.
    dtype : str
        The vector's.
    """

    def __init__(
        self, shapes: Mapping[Variable, tuple[int, ...]], dtype: str
    ) -> None:
        self.dtype = dtype
        self.shapes = dict(shapes)
        self.places: dict[Variable, slice] = {}
        end = 0
        for var, shape in self.shapes.items():
            start, end = end, end + int(np.prod(shape, dtype=int))
            self.places[var] = slice(start, end)
        self.size = end

    def parts(self, vector: Variable) -> dict[Variable, Variable]:
        """Return the variables as parts of a vector."""
        found = {}
        for var, place in self.places.items():
            part: Any = vector[place].reshape(self.shapes[var])  # type: ignore[index]
            found[var] = part.astype(var.type.dtype)  # type: ignore[attr-defined]
            found[var].name = var.name
        return found

    def without(self, variables: Sequence[Variable]) -> tuple[Point, Any]:
        """Return the point of the other variables, and which entries those are."""
        shapes = {v: s for v, s in self.shapes.items() if v not in variables}
        if len(shapes) == len(self.shapes):
            return self, slice(None)
        entries = [np.arange(self.size)[self.places[var]] for var in shapes]
        return Point(shapes, self.dtype), np.concatenate([[], *entries]).astype(int)


class Part:
    """Terms of a density by rows along one dimension, on all ranks.

    Parameters
    ----------
    dimensions : Dimensions
    dimension : Axis
    terms : sequence of int
    point : Point
        What the gradient is by.
    others : mapping of Variable to Variable
        The other free variables, and what takes their place.
    check : type
        PyMC's Op that checks parameters.
    bounds : bool
        Whether parameters are checked.
    mode, name
        As for `synk.function`.
    scatters : bool
        Whether free variables along the dimension go by rows.

    Raises
    ------
    NotByRows, SplitError
        If ranks cannot share this.
    """

    def __init__(
        self,
        dimensions: Dimensions,
        dimension: Axis,
        terms: Sequence[int],
        point: Point,
        others: Mapping[Variable, Variable],
        check: type,
        bounds: bool,
        mode: Any,
        name: str,
        scatters: bool = True,
    ) -> None:
        along = [
            var
            for var in point.shapes
            if scatters and len(dimensions.along(var, dimension)) == 1
        ]
        self._point = point
        rest, self._entries = point.without(along)
        vector = pt.vector("point", dtype=point.dtype, shape=(rest.size,))
        whole = rest.parts(vector)
        stands = {**others, **whole, **{var: var for var in along}}
        made = by_rows(dimensions, dimension, terms, stands, scatters)
        outputs = _with_gradients(made, list(whole.values()))
        self.outputs = written_out(outputs, made.row_axis, check, bounds)
        self.function = function(
            [given.variable for given in (*made.data, *made.free)],
            self.outputs,
            [vector],
            mode=mode,
            name=name,
            strict=True,
        )
        self._made, self._dimensions = made, dimensions
        self._data: list[Data] = []

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._data[0])

    def take(self, sources: Sources) -> None:
        """Have the ranks compute with the data as they are now."""
        arrays = [_rows_of(sources.values[g.source], g) for g in self._made.data]
        if not self._data:
            variables = [given.variable for given in self._made.data]
            self._data = [
                data(array, var=var) for array, var in zip(arrays, variables, strict=True)
            ]
        else:
            for held, array in zip(self._data, arrays, strict=True):
                held.set_value(array)
        for var, holder in self._made.held.items():
            holder.set_value(sources.values[var])

    def arguments(self, values: np.ndarray) -> list[Any]:
        """Return what the function takes at a point."""
        free = []
        for given in self._made.free:
            flat = values[self._point.places[given.source]]
            free.append(_rows_of(flat.reshape(self._point.shapes[given.source]), given))
        return [*self._data, *free, values[self._entries]]

    def add(self, values: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the log-density at a point, and add its gradient to an array."""
        logp, of_rest, *of_rows = self.function(*self.arguments(values))
        gradient[self._entries] += of_rest
        for given, rows in zip(self._made.free, of_rows, strict=True):
            back = np.moveaxis(rows, 0, given.axis)
            gradient[self._point.places[given.source]] += back.ravel()
        return logp


def _rows_of(array: np.ndarray, given: RowInput) -> np.ndarray:
    dtype = given.variable.type.dtype  # type: ignore[attr-defined]
    return np.ascontiguousarray(np.moveaxis(array, given.axis, 0), dtype)


def _with_gradients(made: Substituted, whole: list[Variable]) -> list[Variable]:
    """Return the sum of terms, its gradient by what is whole, and by that of each row."""
    total: Any = made.sums[0]
    for each in made.sums[1:]:
        total = total + each
    of_rows = [given.variable for given in made.free]
    gradients: list[Any] = pytensor.grad(
        total, [*whole, *of_rows], disconnected_inputs="ignore"
    )
    n = len(whole)
    flat = [gradient.ravel() for gradient in gradients[:n]]
    vector = pt.concatenate(flat) if flat else pt.zeros((0,), dtype=total.dtype)
    return [total, vector, *gradients[n:]]
