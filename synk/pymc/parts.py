"""A log-density and its gradient by ranks, a function for each dimension of data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from ..call.make import function
from ..call.uses import why_refused
from ..errors import SplitError, SplitWarning
from ..variables.data import Data, data
from .axes import Axis
from .checks import written_out
from .dimensions import Dimensions
from .substitution import NoRows, NotByRows, RowInput, Substituted, Way, by_rows
from .terms import Sources
from .words import shown


class Point:
    """Free variables with their shapes, side by side in a vector of a dtype."""

    def __init__(self, shapes: Mapping[Variable, tuple[int, ...]], dtype: str) -> None:
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


class DensitySettings(NamedTuple):
    """How the functions of a density are made.

    Attributes
    ----------
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
    """

    point: Point
    others: Mapping[Variable, Variable]
    check: type
    bounds: bool
    mode: Any
    name: str


class SharedTerms:
    """Terms of a density by rows along one dimension, on all ranks.

    `exchanged` says for what ranks need rows of others. It is an error, NotByRows or
    SplitError, if ranks cannot share this.
    """

    def __init__(
        self,
        dimensions: Dimensions,
        dimension: Axis,
        terms: Sequence[int],
        how: DensitySettings,
        way: Way,
    ) -> None:
        point, others = how.point, how.others
        scatters, exchanges, opens = way
        n = dimensions.lengths[dimension]
        along = [v for v in point.shapes if dimensions.along(v, dimension)]
        twice = [v for v in along if len(dimensions.along(v, dimension)) > 1]
        if scatters and twice:
            raise NotByRows(f"{shown(twice[0])} has all rows beside all rows")
        if not scatters:  # it may meet rows by an Op that joins no dimensions
            along = [v for v, shape in point.shapes.items() if v in along or n in shape]
        if opens:
            along = []
        makers = dimensions.makers(dimension) if exchanges and not opens else []
        along += [v for v in makers if v in point.shapes and v not in along]
        self._point, self._others = point, others
        rest, self._entries = point.without(along)
        vector = pt.vector("point", dtype=point.dtype, shape=(rest.size,))
        whole = rest.parts(vector)
        # Of types that do not fix the rows' number, as they meet rows.
        aside = {} if scatters else {v: _open(v, point.shapes[v], n) for v in along}
        aside |= {v: _open(v, point.shapes[v]) for v in along if v in makers}
        self._aside = list(aside)
        stands = {**others, **whole, **(aside or {var: var for var in along})}
        made = by_rows(dimensions, dimension, terms, stands, way)
        if not made.data:
            raise NoRows("data are alike in all rows")
        self._by = [given for given in made.free if given.source in point.shapes]
        of_rows = [given.variable for given in self._by]
        outputs = _with_gradients(
            made, list(whole.values()), [*of_rows, *aside.values()]
        )
        self.outputs, checks_rows = written_out(
            outputs, made.row_axis, how.check, how.bounds
        )
        # With whole conditions, and the function of them, which is made when needed.
        self._whole: list[Variable] = []
        if checks_rows:
            self._whole, _ = written_out(outputs, {}, how.check, how.bounds)
        self._exact: Any = None
        self._taken = [g.variable for g in (*made.data, *made.free)]
        self._taken_whole = [vector, *aside.values()]
        self._mode, self._name = how.mode, how.name
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", SplitWarning)
            self.function = self._compiled(self.outputs, how.name, strict=not exchanges)
        refused = why_refused(self.function)
        if refused:  # with exchanges it is an error of a call
            raise SplitError(refused)
        self.exchanged = [str(each.message) for each in told]
        self._made = made
        self._data: list[Data] = []

    def _compiled(self, outputs: list[Variable], name: str, strict: bool) -> Any:
        return function(
            self._taken,
            outputs,
            self._taken_whole,
            mode=self._mode,
            name=name,
            strict=strict,
            on_unused_input="ignore",
        )

    def _by_whole_conditions(self, *arguments: Any) -> Any:
        """Compute what `function` does, with conditions reduced before the density."""
        if self._exact is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SplitWarning)
                name = f"{self._name}_of_whole_conditions"
                self._exact = self._compiled(self._whole, name, strict=False)
        return self._exact(*arguments)

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
                data(array, var=var)
                for array, var in zip(arrays, variables, strict=True)
            ]
        else:
            for held, array in zip(self._data, arrays, strict=True):
                held.set_value(array)
        for var, holder in self._made.held.items():
            holder.set_value(sources.values[var])

    def arguments(self, values: np.ndarray) -> list[Any]:
        """Return what the function takes at a point."""
        free = [
            _rows_of(self._value(given.source, values), given)
            for given in self._made.free
        ]
        aside = [self._value(var, values) for var in self._aside]
        return [*self._data, *free, values[self._entries], *aside]

    def _value(self, var: Variable, values: np.ndarray) -> np.ndarray:
        """Return a free variable at a point; one that is in none, as it was set."""
        if var in self._point.shapes:
            return values[self._point.places[var]].reshape(self._point.shapes[var])
        holder: Any = self._others[var]
        return holder.get_value(borrow=True)

    def add(self, values: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the log-density at a point, and add its gradient to an array."""
        arguments = self.arguments(values)
        logp, of_rest, *of_rows = self.function(*arguments)
        if self._whole and logp != logp:  # NaN: see checks.py
            logp, of_rest, *of_rows = self._by_whole_conditions(*arguments)
        gradient[self._entries] += of_rest
        n = len(self._by)
        for given, rows in zip(self._by, of_rows[:n], strict=True):
            back = np.moveaxis(rows, 0, given.axis)
            gradient[self._point.places[given.source]] += back.ravel()
        for var, of_var in zip(self._aside, of_rows[n:], strict=True):
            gradient[self._point.places[var]] += of_var.ravel()
        return logp


class SerialTerms:
    """Terms of a density that the master computes by itself."""

    def __init__(
        self, dimensions: Dimensions, terms: Sequence[int], how: DensitySettings
    ) -> None:
        point = how.point
        vector = pt.vector("point", dtype=point.dtype, shape=(point.size,))
        whole = point.parts(vector)
        self._made = by_rows(dimensions, None, terms, {**how.others, **whole})
        outputs = _with_gradients(self._made, list(whole.values()))
        outputs, _ = written_out(outputs, {}, how.check, how.bounds)
        self._function = pytensor.function(
            [vector], outputs, mode=how.mode, on_unused_input="ignore"
        )

    def take(self, sources: Sources) -> None:
        """Compute with the data as they are now."""
        for var, holder in self._made.held.items():
            holder.set_value(sources.values[var])

    def add(self, values: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the log-density at a point, and add its gradient to an array."""
        logp, of_point = self._function(values)
        gradient += of_point
        return logp


def _open(var: Variable, shape: Sequence[int], n: int | None = None) -> Variable:
    """Return a variable in the place of another, that fixes no length that is n.

    Without n it fixes none. An axis of length 1 stays such, as it is broadcast.
    """
    kind: Any = var.type
    is_open = [length > 1 if n is None else length == n for length in shape]
    lengths = [None if o else k for o, k in zip(is_open, shape, strict=True)]
    return kind.clone(shape=tuple(lengths))(var.name)  # pt.tensor refuses some


def _rows_of(array: np.ndarray, given: RowInput) -> np.ndarray:
    dtype = given.variable.type.dtype  # type: ignore[attr-defined]
    return np.ascontiguousarray(np.moveaxis(array, given.axis, 0), dtype)


def _with_gradients(
    made: Substituted, whole: list[Variable], others: Sequence[Variable] = ()
) -> list[Variable]:
    """Return the sum of terms, its gradient by what is whole, and by the others."""
    total: Any = made.sums[0]
    for each in made.sums[1:]:
        total = total + each
    gradients: Any = pytensor.grad(
        total, [*whole, *others], disconnected_inputs="ignore"
    )
    n = len(whole)
    flat = [gradient.ravel() for gradient in gradients[:n]]
    vector = pt.concatenate(flat) if flat else pt.zeros((0,), dtype=total.dtype)
    return [total, vector, *gradients[n:]]
