"""A log-density and its gradient by ranks: one function for each dimension of data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar import AND, Add, Cast, Mul
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All, Sum
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.type import DenseTensorType

from ..call.make import function
from ..call.uses import why_refused
from ..errors import SplitError, SplitWarning
from ..variables.data import data
from .axes import Axis
from .dimensions import Dimensions
from .names import Check
from .rebuilding import rebuilt
from .substitution import ByRows, NoRows, NotByRows, RowInput, Way
from .terms import shown


class Point:
    """The layout of free variables, with their shapes, in one vector of a dtype."""

    def __init__(self, shapes: Mapping[Variable, tuple[int, ...]], dtype: str) -> None:
        self.shapes, self.dtype = dict(shapes), dtype
        self.places: dict[Variable, slice] = {}
        self.size = 0
        for var, shape in self.shapes.items():
            end = self.size + int(np.prod(shape, dtype=int))
            self.places[var] = slice(self.size, end)
            self.size = end

    def symbolic(self) -> tuple[Variable, dict[Variable, Variable]]:
        """Return a symbolic vector, and each variable as a part of it."""
        vector = pt.vector("point", dtype=self.dtype, shape=(self.size,))
        found: dict[Variable, Variable] = {}
        for var, place in self.places.items():
            part: Any = vector[place].reshape(self.shapes[var])
            found[var] = part.astype(var.type.dtype)  # type: ignore[attr-defined]
            found[var].name = var.name
        return vector, found

    def without(self, variables: Sequence[Variable]) -> tuple[Point, Any]:
        """Return the layout without `variables`, and the index of its entries here."""
        shapes = {v: s for v, s in self.shapes.items() if v not in variables}
        if len(shapes) == len(self.shapes):
            return self, slice(None)
        entries = [np.arange(self.size)[self.places[var]] for var in shapes]
        return Point(shapes, self.dtype), np.concatenate([[], *entries]).astype(int)

    def value(self, var: Variable, values: np.ndarray) -> np.ndarray:
        """Return a variable's part of a vector, in its shape."""
        return values[self.places[var]].reshape(self.shapes[var])


class DensitySettings(NamedTuple):
    """How the functions of a density are made, and what happens on errors."""

    point: Point  # the variables of the gradient
    # A point at which to call each function once, on the session's ranks: terms for
    # which that raises are computed serially. None: without a first call.
    begin_at: np.ndarray | None
    shapes: Mapping[Variable, tuple[int, ...]]  # of all free variables
    # Free variables outside of the gradient, and shared variables with their values.
    others: Mapping[Variable, Any]
    bounds: bool  # whether parameters are checked
    mode: Any
    name: str
    # Whether ranks are to compute in any case, even `LITTLE`, and errors other than
    # refusals are raised, with a note.
    raises: bool


class SharedTerms:
    """Terms of a density that ranks share, by rows along one dimension.

    `terms` are indices of `dimensions.sums`. `exchanged` has the computations for which
    ranks need rows of other ranks. Raises NotByRows or SplitError if ranks cannot share
    the terms in this `way`.
    """

    def __init__(
        self,
        dimensions: Dimensions,
        dimension: Axis,
        terms: Sequence[int],
        settings: DensitySettings,
        way: Way,
    ) -> None:
        point, self._settings = settings.point, settings
        along = [v for v in point.shapes if dimensions.along(v, dimension)]
        aside: dict[Variable, Variable] = {}
        if not way.exchanges:
            if twice := [v for v in along if len(dimensions.along(v, dimension)) > 1]:
                raise NotByRows(f"{shown(twice[0])} has all rows beside all rows")
        elif way.replicates:
            along = []
        else:  # stand-ins whose types do not fix the number of rows, as they meet rows
            n, makers = dimensions.lengths[dimension], dimensions.makers(dimension)
            aside = {
                v: _open(v, shape, None if v in makers else n)
                for v, shape in point.shapes.items()
                # As long as the rows, a variable may meet them unnoticed.
                if v in along or n in shape or v in makers
            }
        rest, self._entries = point.without([*along, *aside])
        vector, whole = rest.symbolic()
        self._aside = list(aside)
        stands = {**settings.others, **whole, **(aside or {var: var for var in along})}
        made = ByRows(dimensions, dimension, terms, stands, way)
        if not made.data:
            raise NoRows("data are alike in all rows")  # nothing to scatter
        self._given, self._free = made.data, made.free
        self._by = [given for given in made.free if given.source in point.shapes]
        of_rows = [given.variable for given in self._by]
        outputs = with_gradients(
            made.sums, list(whole.values()), [*of_rows, *aside.values()]
        )
        written, checks_rows = _written_out(outputs, made.row_axis, settings.bounds)
        # The outputs with whole conditions, and their function, compiled at need.
        self._whole: list[Variable] = []
        if checks_rows:
            self._whole, _ = _written_out(outputs, {}, settings.bounds)
        self._exact: Any = None
        self._taken = [g.variable for g in (*made.data, *made.free)]
        self._taken_whole = [vector, *aside.values()]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", SplitWarning)
            self.function = self._compiled(
                written, settings.name, strict=not way.exchanges
            )
        refused = why_refused(self.function)
        if refused:  # if not, a call would raise it
            raise SplitError(refused)
        self.exchanged = [str(each.message) for each in told]
        self._sources = dimensions.sources
        self._data = [data(var=given.variable) for given in self._given]
        self.take()

    def _compiled(self, outputs: list[Variable], name: str, strict: bool) -> Any:
        return function(
            self._taken,
            outputs,
            self._taken_whole,
            mode=self._settings.mode,
            name=name,
            strict=strict,
            on_unused_input="ignore",
        )

    def _by_whole_conditions(self, *arguments: Any) -> Any:
        """Compute like `function`, with conditions reduced before the density."""
        if self._exact is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SplitWarning)
                name = f"{self._settings.name}_of_whole_conditions"
                self._exact = self._compiled(self._whole, name, strict=False)
        return self._exact(*arguments)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._data[0])

    def take(self) -> None:
        """Copy the data from the sources, as they are now, to the ranks' memory."""
        for held, given in zip(self._data, self._given, strict=True):
            held.set_value(_rows_of(self._sources.values[given.source], given))

    def arguments(self, values: np.ndarray) -> list[Any]:
        """Return the arguments of `function` at a point."""
        free = [
            _rows_of(self._value(given.source, values), given) for given in self._free
        ]
        aside = [self._value(var, values) for var in self._aside]
        return [*self._data, *free, values[self._entries], *aside]

    def _value(self, var: Variable, values: np.ndarray) -> np.ndarray:
        """Return a free variable's value at a point, or as set if not in the point."""
        if var in self._settings.point.shapes:
            return self._settings.point.value(var, values)
        return self._settings.others[var].get_value(borrow=True)

    def add(self, values: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the log-density at a point, and add its gradient to an array."""
        arguments = self.arguments(values)
        logp, of_rest, *of_rows = self.function(*arguments)
        if self._whole and logp != logp:  # NaN: see below
            logp, of_rest, *of_rows = self._by_whole_conditions(*arguments)
        gradient[self._entries] += of_rest
        axes = [(given.source, given.axis) for given in self._by]
        axes += [(var, 0) for var in self._aside]
        for (var, axis), part in zip(axes, of_rows, strict=True):
            back = np.moveaxis(part, 0, axis) if axis else part
            gradient[self._settings.point.places[var]] += back.ravel()
        return logp


class SerialTerms:
    """Terms of a density that the master computes, without ranks.

    `terms` are indices of `dimensions.sums`.
    """

    def __init__(
        self, dimensions: Dimensions, terms: Sequence[int], settings: DensitySettings
    ) -> None:
        vector, whole = settings.point.symbolic()
        stands = {**settings.others, **whole}
        used = (node.inputs[i] for node, i in dimensions.given.uses)
        for var in used:  # values computed from data alone become shared variables
            if var in dimensions.sources.values and not isinstance(
                var, (Constant, SharedVariable)
            ):
                shape = var.type.shape  # type: ignore[attr-defined]
                stands[var] = dimensions.sources.holder(var, shape)
        totals = [dimensions.sums[i] for i in terms]
        sums = rebuilt(totals, replace=stands)
        outputs = with_gradients(sums, list(whole.values()))
        outputs, _ = _written_out(outputs, {}, settings.bounds)
        self._function = pytensor.function(
            [vector], outputs, mode=settings.mode, on_unused_input="ignore"
        )

    def add(self, values: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the log-density at a point, and add its gradient to an array."""
        logp, of_point = self._function(values)
        gradient += of_point
        return logp


def _open(var: Variable, shape: Sequence[int], n: int | None = None) -> Variable:
    """Return a stand-in for `var`, whose type leaves lengths that are `n` open.

    Without `n`, all lengths but 1 are open.
    """
    kind: Any = var.type
    is_open = [length > 1 if n is None else length == n for length in shape]
    lengths = [None if o else k for o, k in zip(is_open, shape, strict=True)]
    return kind.clone(shape=tuple(lengths))(var.name)  # pt.tensor refuses some


def _rows_of(array: np.ndarray, given: RowInput) -> np.ndarray:
    dtype = given.variable.type.dtype  # type: ignore[attr-defined]
    return np.ascontiguousarray(np.moveaxis(array, given.axis, 0), dtype)


def with_gradients(
    sums: Sequence[Variable], whole: list[Variable], others: Sequence[Variable] = ()
) -> list[Variable]:
    """Return the sum of terms, its gradient by `whole` as a vector, and by `others`."""
    total: Any = sums[0]
    for each in sums[1:]:
        total = total + each
    gradients: Any = pytensor.grad(
        total, [*whole, *others], disconnected_inputs="ignore"
    )
    n = len(whole)
    flat = [gradient.ravel() for gradient in gradients[:n]]
    vector = pt.concatenate(flat) if flat else pt.zeros((0,), dtype=total.dtype)
    return [total, vector, *gradients[n:]]


# -- checks of parameters, row by row
#
# PyMC checks the parameters of all rows by one condition. If it is false, PyMC raises,
# or, in sampling, the density is minus infinity for all rows. On ranks this condition
# would be a reduction before the density. So each row checks its own parameters:
#
# 1. A density that is only summed, such as a plain likelihood, is minus infinity in bad
#    rows. The sum is then minus infinity, as in PyMC, or NaN if another row is NaN.
# 2. A density from which another one is made, such as a component of a mixture, would
#    be minus infinity for all rows in PyMC. Bad rows of it make the sum NaN.
#
# If the sum is NaN, it is computed again with whole conditions.


def _written_out(
    graph: Sequence[Variable], row_axis: Mapping[Variable, int], bounds: bool
) -> tuple[list[Variable], bool]:
    """Replace checks of parameters by conditions in the graph, as PyMC does to sample.

    The first output of `graph` is the log-density. `row_axis` has the axis of the rows,
    by variable, and `bounds` is whether the model checks parameters. Also returns
    whether some conditions are of single rows. If so, the density may wrongly be NaN.
    """
    rows = dict(row_axis)
    summed = _additive(graph[0])
    bad: list[Any] = []
    are_by_rows = False

    def visit(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        nonlocal are_by_rows
        op: Any = node.op
        for old, new in zip(node.inputs, inputs, strict=True):
            if old in rows:
                rows[new] = rows[old]
        if not isinstance(op, Check):
            return None
        if not bounds:
            return [inputs[0]]
        if not op.can_be_replaced_by_ninf:  # type: ignore[attr-defined]
            return None
        axis = rows.get(node.outputs[0], rows.get(node.inputs[0]))
        holds = [_of_rows(condition, axis, inputs[0], rows) for condition in inputs[1:]]
        of_rows = [each for each in holds if each.type.ndim]
        are_by_rows = are_by_rows or bool(of_rows)
        if of_rows and node.outputs[0] not in summed:
            bad.append(pt.switch(reduce(pt.and_, of_rows), 0.0, np.nan).sum())
            holds = [each for each in holds if not each.type.ndim]
        logp: Any = inputs[0]
        if holds:
            logp = pt.switch(reduce(pt.and_, holds), logp, -np.inf)
        return [logp.astype(node.outputs[0].type.dtype)]

    made: list[Any] = rebuilt(graph, visit)
    total, *others = made
    if bad:
        total = pt.add(total, *bad).astype(total.type.dtype)
    return [total, *others], are_by_rows


def _additive(total: Variable) -> set[Variable]:
    """Return the variables whose entries are only added up in `total`, or cast."""
    found: set[Variable] = set()
    left = [total]
    while left:
        var = left.pop()
        if var in found or var.owner is None:
            continue
        found.add(var)
        op: Any = var.owner.op
        if isinstance(op, (Sum, DimShuffle)) or _is(op, Add, Cast):
            left += var.owner.inputs
        elif isinstance(op, (Check, SpecifyShape)):
            left.append(var.owner.inputs[0])
    return found


def _of_rows(
    condition: Variable, axis: int | None, logp: Any, rows: Mapping[Variable, int]
) -> Any:
    """Return a condition that is of all rows as one for each row.

    The rows are along `axis` of `logp`; None if `logp` has no rows. Other conditions
    stay the same.
    """
    node = condition.owner
    op: Any = None if node is None or axis is None else node.op
    inputs: list[Any] = [] if node is None else node.inputs
    if isinstance(op, All) and condition.type.ndim == 0 and inputs[0] in rows:  # type: ignore[attr-defined]
        (array,) = inputs
        others = [a for a in range(array.type.ndim) if a != rows[array]]
        each = pt.all(array, axis=others) if others else array
        order: list[Any] = ["x"] * logp.type.ndim
        order[axis] = 0  # type: ignore[index]
        return each.dimshuffle(order)
    passes_on = isinstance(op, (ScalarFromTensor, TensorFromScalar, MakeVector))
    passes_on = passes_on or _is(op, AND, Mul)
    if isinstance(op, All) and condition.type.ndim == 0:  # type: ignore[attr-defined]
        array = inputs[0].owner
        passes_on = array is not None and isinstance(array.op, MakeVector)
    elif isinstance(op, DimShuffle):
        passes_on = inputs[0].type.ndim == 0
    if passes_on:
        return reduce(pt.and_, [_of_rows(var, axis, logp, rows) for var in inputs])
    if isinstance(condition.type, DenseTensorType):
        return condition
    return pt.tensor_from_scalar(condition)


def _is(op: Any, *scalar_ops: type) -> bool:
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, scalar_ops)
