"""Models that are not graphs: arrays in, arrays out, by any library.

A `Model` computes with NumPy, torch or any other library. `step` puts it into a graph
as two Ops: one computes the gradient of a batch, a sum over rows, and the other moves
the parameters by the gradient of all rows. The sharding of both is registered, so the
compiler places them as any Op, and ranks, slices, checks, training rules and files
treat the step as any other.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from ..call.function import Function
from ..call.make import function
from ..compiler.own_ops.register import register_sharding
from ..compiler.own_ops.sharding import Sharding
from ..errors import StateError
from ..ranks.session import SESSION
from ..user_frames import entry
from ..workers import by_value
from ..workers.recorder import COMPUTING

Arrays = Sequence[np.ndarray]


class Model:
    """The base class of models that are not graphs.

    When the step is made, the model is pickled, and every rank gets a copy. Before synk
    calls `gradient`, `update` or `loss`, it sets `parameters`, `buffers` and `kept` to
    arrays with the present values.

    Attributes
    ----------
    parameters : sequence of numpy.ndarray
        The arrays that training moves, and rules exchange: of one float dtype.
    buffers : sequence of numpy.ndarray
        Other arrays that `gradient` changes, in place, such as running averages. Each
        rank changes its own. Then floats change by the mean of the ranks' changes,
        weighed by rows; other dtypes take the ranks' largest value.
    kept : sequence of numpy.ndarray
        Arrays that `update` keeps from step to step, such as velocities.
    settings : sequence of float
        Numbers that the script changes between calls, such as a learning rate. Ranks
        use the values at the time of the call.
    is_mean : bool
        Whether the loss is a mean over the rows; otherwise it is a sum.
    draw : Draw
        Random numbers for the rows that `gradient` is called with.

    Examples
    --------
    A linear model, trained by gradient descent:

    >>> import numpy as np, synk
    >>> class Linear(synk.train.Model):
    ...     def __init__(self, n):
    ...         self.parameters = [np.zeros(n), np.zeros(())]
    ...         self.settings = [0.1]
    ...     def gradient(self, x, y):
    ...         w, b = self.parameters
    ...         wrong = x @ w + b - y
    ...         return wrong @ wrong, [2 * wrong @ x, 2 * wrong.sum()], len(y)
    ...     def update(self, gradient):
    ...         (rate,) = self.settings
    ...         for parameter, slope in zip(self.parameters, gradient):
    ...             parameter -= rate * slope
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> y = x @ [1, 2] + 3
    >>> step = synk.train.step(Linear(2), [x, y])
    >>> with synk.session(2):
    ...     losses = [float(step(x, y)) for _ in range(50)]
    >>> losses[-1] < 1e-6, step.pull().parameters[0].round(2)
    (True, array([1., 2.]))
    """

    parameters: Arrays = ()
    buffers: Arrays = ()
    kept: Arrays = ()
    settings: Sequence[float] = ()
    is_mean = True
    draw: Draw
    _is_local = False

    def gradient(self, *rows: np.ndarray) -> tuple[float, Arrays, float]:
        """Return the loss of some rows of a batch, its gradient, and their weight.

        Parameters
        ----------
        *rows : numpy.ndarray
            The same rows of each input, at least one; read-only.

        Returns
        -------
        loss : float
            The sum over the rows. If `is_mean`, synk divides the sum over all ranks by
            the sum of their weights.
        gradient : sequence of array
            The gradient of this sum by each of `parameters`.
        weight : float
            The number of rows, or the sum of their weights.
        """
        raise NotImplementedError

    def update(self, gradient: Arrays) -> None:
        """Move `parameters`, in place, by the gradient of the loss of all rows.

        Parameters
        ----------
        gradient : sequence of numpy.ndarray
            For each of `parameters`; may be changed.
        """
        raise NotImplementedError

    def loss(self, *rows: np.ndarray) -> tuple[float, float]:
        """Return the loss of some rows for evaluation, as `gradient` returns it.

        Parameters
        ----------
        *rows : numpy.ndarray
            As for `gradient`.

        Returns
        -------
        loss, weight : float
            The sum over the rows, and their number or weight.
        """
        loss, _, weight = self.gradient(*rows)
        return loss, weight

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over all ranks, within `gradient`.

        Use it if a row's loss depends on all rows of the batch. Every rank must call it
        equally often. In a local step it returns a copy of `array`.

        Parameters
        ----------
        array : numpy.ndarray
            This rank's value; of the same shape on all ranks.

        Returns
        -------
        numpy.ndarray
            A new array, the same on all ranks.

        Raises
        ------
        ValueError
            If a rank has no rows, or rows are taken in slices.
        """
        task = None
        with contextlib.suppress(StateError):  # there are no ranks
            task = SESSION.context.task
        if self._is_local or task is None or task.kind == "uncut":
            return np.array(array)
        if task.kind == "slice" or not all(task.weights):
            raise ValueError(
                f"a sum over all ranks within a model, in a batch of"
                f" {sum(task.weights)} rows on {len(task.weights)} ranks: each must"
                " have some, and num_slices must be 1"
            )
        context = SESSION.context
        found = context.comm.exchange(np.ascontiguousarray(array))
        context.recorder.phase[0] = COMPUTING
        return np.asarray(functools.reduce(np.add, found))

    def before_step(self) -> None:
        """Prepare, in the script, for a step or several that ranks will make."""


class Draw:
    """Random numbers for rows: the same for a row, whichever rank has it.

    They are Philox's [1]_: the key has the seed and the number of the step, and the
    counter the row. See `numpy.random.Philox`.

    References
    ----------
    .. [1] J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """

    def __init__(
        self, seed: int, step: int, numbers: np.ndarray, rank: int = 0
    ) -> None:
        self._seed, self._step = seed + (rank << 32), step
        # The numbers of the rows in the batch follow each other.
        self._first, self._rows = int(numbers[0]), len(numbers)
        self._calls = itertools.count()
        self.place = self._first + (rank << 16)
        """A number that differs between ranks' rows; 0 for the first rows of rank 0."""

    @property
    def seed(self) -> int:
        """A seed for other random numbers of this step; it differs between ranks."""
        key = self._seed % 2**64, self._step, self.place
        return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])

    def uniform(self, shape: Sequence[int]) -> np.ndarray:
        """Return float32 numbers from [0, 1); a second call in a step returns others.

        Parameters
        ----------
        shape : sequence of int
            The length of the first axis is a multiple of the number of rows: entries of
            one row follow each other.
        """
        length, *rest = shape
        each, left = divmod(length, self._rows)
        first = self._first * (1 if left else each)  # left: the first axis is not rows
        size = math.prod(rest)
        blocks = -(-size // 8)  # a block of Philox has eight float32
        key = (self._seed << 64) + (self._step << 20) + next(self._calls)
        philox = np.random.Philox(key=key % 2**128, counter=first * blocks)
        found = np.random.Generator(philox).random((length, 8 * blocks), np.float32)
        return found[:, :size].reshape(shape)


# -- a model in a graph


class Packed:
    """The places of arrays in vectors, one vector for each dtype."""

    def __init__(self, arrays: Arrays) -> None:
        self.dtypes = sorted({array.dtype.name for array in arrays})
        sizes = dict.fromkeys(self.dtypes, 0)
        self._places: list[tuple[int, slice, tuple[int, ...]]] = []
        for array in arrays:
            name = array.dtype.name
            start, sizes[name] = sizes[name], sizes[name] + array.size
            part = slice(start, sizes[name])
            self._places.append((self.dtypes.index(name), part, array.shape))
        self._sizes = list(sizes.values())

    def vectors(self, arrays: Arrays) -> list[np.ndarray]:
        """Return new vectors with copies of arrays."""
        made: list[np.ndarray] = list(map(np.empty, self._sizes, self.dtypes))
        for view, array in zip(self.views(made), arrays, strict=True):
            view[...] = array
        return made

    def views(self, vectors: Arrays) -> list[np.ndarray]:
        """Return views of vectors as arrays."""
        return [vectors[i][part].reshape(shape) for i, part, shape in self._places]


NAMES = ("parameters", "buffers", "kept")
"""Attributes of a model that hold arrays."""


class _Copy:
    """A rank's copy of a model, whose arrays are set to given memory."""

    def __init__(self, model: Model) -> None:
        self._pickled = cloudpickle.dumps(model)
        self.packed = {name: Packed(getattr(model, name)) for name in NAMES}
        self._made: Model | None = None
        self._shown: dict[str, Arrays] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_made": None, "_shown": {}}

    def with_values(self, settings: np.ndarray, **vectors: Arrays) -> Model:
        """Return the model with these settings; `vectors` has the arrays' memory."""
        if self._made is None:
            self._made = by_value.loads_copy(self._pickled)
        model: Model = self._made
        for name, given in vectors.items():
            given = [v if v.flags.writeable else v.copy() for v in given]
            last = self._shown.get(name)
            # Views of the same memory as last time have the new values already.
            if last is None or list(map(id, last)) != list(map(id, given)):
                setattr(model, name, self.packed[name].views(given))
                self._shown[name] = given
        if settings.size:
            model.settings = settings.tolist()
        return model


class _OfRows(Op):
    """An Op on a model's parameters, buffers and settings, and on rows.

    No two are equal, as models cannot be compared.
    """

    def __init__(self, copy: _Copy) -> None:
        self._copy = copy
        self._whole = 2 + len(copy.packed["buffers"].dtypes)  # operands without rows

    def _split(self, inputs: Sequence) -> tuple[dict[str, Any], Sequence]:
        """Return the arguments of `_Copy.with_values`, and the operands after them."""
        parameters, *buffers, settings = inputs[: self._whole]
        shown = {"parameters": [parameters], "buffers": buffers, "settings": settings}
        return shown, inputs[self._whole :]


class ModelLoss(_OfRows):
    """An Op: the sum of the rows' losses, and their weight."""

    def make_node(self, *inputs: Variable) -> Apply:
        """Return an application of the Op."""
        return Apply(self, list(inputs), [pt.dscalar("loss"), pt.dscalar("weight")])

    def perform(self, node: Apply, inputs: Sequence, outputs: Any) -> None:
        """Compute the outputs."""
        shown, rows = self._split(inputs)
        found = self._copy.with_values(**shown).loss(*rows) if len(rows[0]) else (0, 0)
        for place, value in zip(outputs, found, strict=True):
            place[0] = np.asarray(value, float)


class ModelGradient(_OfRows):
    """An Op: the rows' loss (a sum), weight, number and gradient, and the new buffers.

    A buffer of floats is returned as its change, times the number of rows.
    """

    def __init__(self, copy: _Copy, seed: int, is_local: bool) -> None:
        super().__init__(copy)
        self._seed, self._is_local = seed, is_local

    def make_node(self, *inputs: Variable) -> Apply:
        """Return an application of the Op."""
        outputs: list[Any] = [pt.dscalar(name) for name in ("loss", "weight", "rows")]
        outputs += [var.type() for var in inputs[: self._whole - 1]]
        return Apply(self, list(inputs), outputs)

    def perform(self, node: Apply, inputs: Sequence, outputs: Any) -> None:
        """Compute the outputs."""
        shown, (step, numbers, *rows) = self._split(inputs)
        old = shown["buffers"]
        shown["buffers"] = new = [vector.copy() for vector in old]
        n, loss, weight = len(numbers), 0.0, 0.0
        if not n:
            gradient = np.zeros_like(inputs[0])
        else:
            model = self._copy.with_values(**shown)
            # In a local step `numbers` begin with 0 on every rank.
            rank = SESSION.rank if self._is_local else 0
            model.draw = Draw(self._seed, int(step), numbers, rank)
            model._is_local = self._is_local
            loss, found, weight = model.gradient(*rows)
            (gradient,) = self._copy.packed["parameters"].vectors(found)
        values: list[Any] = [np.asarray(value, float) for value in (loss, weight, n)]
        values.append(gradient)
        for before, after in zip(old, new, strict=True):
            is_float = after.dtype.kind == "f"
            values.append((after - before) * after.dtype.type(n) if is_float else after)
        for place, value in zip(outputs, values, strict=True):
            place[0] = value


class ModelUpdate(Op):
    """An Op: the parameters and kept arrays after `Model.update`.

    The gradient, a sum, is first divided by the weight of its rows.
    """

    def __init__(self, copy: _Copy) -> None:
        self._copy = copy
        self._mean = np.empty(0)  # memory for the divided gradient, used again

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_mean": np.empty(0)}

    def make_node(self, *inputs: Variable) -> Apply:
        """Return an application to settings, weight, gradient, parameters and kept."""
        operands = list(map(pt.as_tensor, inputs))
        return Apply(self, operands, [var.type() for var in operands[3:]])

    def perform(self, node: Apply, inputs: Sequence, outputs: Any) -> None:
        """Compute the outputs."""
        settings, weight, gradient, *old = inputs
        new = [vector.copy() for vector in old]
        if self._mean.shape != gradient.shape:
            self._mean = np.empty_like(gradient)
        np.divide(gradient, gradient.dtype.type(weight), out=self._mean)
        model = self._copy.with_values(settings, parameters=new[:1], kept=new[1:])
        model.update(self._copy.packed["parameters"].views([self._mean]))
        for place, value in zip(outputs, new, strict=True):
            place[0] = value


def _sharding_of(node: Apply) -> Sharding:
    """Return the sharding of a `ModelLoss` or a `ModelGradient`."""
    whole = node.op._whole
    if isinstance(node.op, ModelGradient):
        whole += 1  # the number of the step
    buffers: Any = node.outputs[4:]
    ops = ["sum" if var.type.numpy_dtype.kind == "f" else "max" for var in buffers]
    sums: list[Any] = ["sum"] * min(len(node.outputs), 4)
    return Sharding([None] * whole + [0] * (len(node.inputs) - whole), sums + ops)


register_sharding(ModelLoss, _sharding_of)
register_sharding(ModelGradient, _sharding_of)
register_sharding(ModelUpdate, None)


# -- a step


class Step(Function):
    """A training step of a model that is not a graph; made by :func:`synk.train.step`.

    Attributes
    ----------
    model : Model
        The script's own.
    parameters : SharedVariable
        A vector of all parameters of the model, one after the other.
    loss : Function
        The loss of rows, by `Model.loss`; over all ranks' rows, like the step's loss.
        For a local step each rank computes it with its own buffers.
    """

    def __init__(
        self,
        make: Callable,
        model: Model,
        loss: Function,
        packed: Mapping[str, Packed],
        variables: Mapping[str, Sequence[SharedVariable]],
        settings: SharedVariable,
    ) -> None:
        super().__init__(make)
        self.model, self.loss = model, loss
        self._packed, self._variables, self._settings = packed, variables, settings
        self.parameters: SharedVariable = variables["parameters"][0]

    def _before(self) -> None:
        new = np.asarray(self.model.settings, float)
        if not np.array_equal(new, self._settings.get_value(borrow=True)):
            self._settings.set_value(new)
        self.model.before_step()

    def pull(self) -> Model:
        """Return the script's model, set to the ranks' values."""
        for name, variables in self._variables.items():
            values = [var.get_value() for var in variables]
            setattr(self.model, name, self._packed[name].views(values))
        return self.model

    def push(self) -> None:
        """Set the ranks' values to those of the script's model."""
        for name, variables in self._variables.items():
            values = self._packed[name].vectors(getattr(self.model, name))
            for var, value in zip(variables, values, strict=True):
                var.set_value(value)


@entry
def step(
    model: Model,
    inputs: Sequence,
    *,
    seed: int = 0,
    local: bool = False,
    name: str | None = None,
) -> Step:
    """Make a training step of a model that is not a graph.

    Parameters
    ----------
    model : Model
        Pickled here, once for all ranks.
    inputs : sequence of array_like or TensorVariable
        The inputs of the step, or arrays of the same dtypes and numbers of axes. All
        have rows.
    seed : int
        The seed of the model's random numbers.
    local : bool
        Whether each rank makes steps by itself, for a training rule.
    name : str, optional
        The name of the step in messages.

    Returns
    -------
    Step
        A :class:`synk.Function` that returns the loss before the step, a float64.

    Raises
    ------
    TypeError, ValueError
        If the model's parameters are not of one float dtype; if there are no inputs.
    """
    copy = _Copy(model)
    dtypes = copy.packed["parameters"].dtypes
    if len(dtypes) != 1 or not dtypes[0].startswith("float"):
        shown = " and ".join(dtypes) or "none"
        raise TypeError(f"parameters must be arrays of one float dtype, got {shown}")
    rows = [_variable(each, i) for i, each in enumerate(inputs)]
    if not rows:
        raise ValueError("inputs must not be empty: name those of the step")
    variables: dict[str, list[SharedVariable]] = {}
    for each, packed in copy.packed.items():
        vectors = packed.vectors(getattr(model, each))
        variables[each] = [pytensor.shared(v, f"{each}_{v.dtype}") for v in vectors]
    settings = pytensor.shared(np.asarray(model.settings, float), "settings")
    steps = pytensor.shared(np.int64(0), "steps")
    parameters, buffers, kept = variables.values()
    own = [*parameters, *buffers, settings]

    def made(total: Any, weight: Any, **options: Any) -> Function:
        loss: Any = total / weight if model.is_mean else total
        if local:  # each rank's own
            loss = loss, "avg" if model.is_mean else "sum"
        # Compiling gains nothing: the Ops call Python.
        return function(rows, loss, local=local, mode="FAST_COMPILE", **options)

    evaluated: Any = ModelLoss(copy)(*own, *rows, return_list=True)
    loss = made(*evaluated, name=name and f"loss of {name}")
    numbers = pt.arange(rows[0].shape[0])
    gradient = ModelGradient(copy, seed, local)
    found: Any = gradient(*own, steps, numbers, *rows, return_list=True)
    total, weight, n, slope, *changed = found
    state = [*parameters, *kept]
    by = weight if model.is_mean else np.float64(1)
    moved: Any = ModelUpdate(copy)(settings, by, slope, *state, return_list=True)
    updates: list[tuple[Any, Any]] = [*zip(state, moved, strict=True)]
    for var, new in zip(buffers, changed, strict=True):
        if var.type.numpy_dtype.kind == "f":
            new = var + new / pt.cast(n, var.type.numpy_dtype)
        updates.append((var, new))
    updates.append((steps, steps + 1))
    of_rows = made(total, weight, updates=updates, name=name)
    return Step(of_rows._make, model, loss, copy.packed, variables, settings)


def _variable(given: Any, i: int) -> Any:
    if isinstance(given, Variable):
        return given
    array = np.asarray(given)
    return pt.tensor(f"input_{i}", dtype=array.dtype.name, shape=(None,) * array.ndim)
