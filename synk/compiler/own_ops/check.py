"""Comparing the sharding that was registered for an Op with what the Op computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import io_toposort

from ...reduce_ops import combine
from ...user_frames import entry
from ..rules.base import op_name
from ..table import entry_of
from .register import own_op
from .sharding import Sharding, is_registered, shardings_of

_ROWS = 5
"""The least number of rows of operands, so that cuts differ."""

_SINGLE_ROWS = 16
"""The number of rows that are also computed one by one."""

Compiled = Callable[..., list[np.ndarray]]


@entry
def check_sharding(
    op: Any,
    *operands: Any,
    gradients: bool = True,
    cuts: int = 5,
    seed: int = 0,
    mode: Any = "FAST_COMPILE",
) -> None:
    """Check that an Op computes what its registered shardings say; for tests.

    The check computes the Op from all rows and from parts of them: from parts cut at
    random, and from single rows. The parts' results, combined as the sharding says,
    must equal the result for all rows. For operands registered as linear, sums and
    multiples of operands must give sums and multiples of results. Every sharding of the
    Op is checked.

    Parameters
    ----------
    op : Op
        The Op, as it is applied to the operands.
    *operands : array_like
        A value for each operand, with at least five rows, and without symmetries that
        could hide a mistake: random numbers are good. Operands without rows should have
        another length than those with rows.
    gradients : bool, optional
        Whether to check gradients as well, of sharded results and of sums, if the Op
        has a pullback, and whether synk knows the Ops of the gradient.
    cuts : int, optional
        The number of random cuts.
    seed : int, optional
        The seed of the cuts.
    mode : optional
        PyTensor's mode of the check.

    Raises
    ------
    AssertionError
        If a sharding is wrong; the text names the result, and by how much it differs.
    TypeError, ValueError
        If the Op is not registered, or the operands cannot be used for a check.

    Notes
    -----
    Only parts that have rows are tried: a rank without rows does not compute the Op.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synk
    >>> from pytensor.compile.ops import wrap_py
    >>> @wrap_py([pt.dvector], [pt.dvector])
    ... def centred(x):
    ...     return x - x.mean()
    >>> synk.register_sharding(centred, "rowwise")
    >>> synk.check_sharding(centred, np.arange(7.0))
    Traceback (most recent call last):
    AssertionError: FromFunctionOp{centred}, registered as Sharding([0], [0]): ...
    """
    if not isinstance(op, Op):
        raise TypeError(f"check_sharding: an Op, such as MyOp(); got {op!r}")
    if not is_registered(op):
        raise ValueError(f"check_sharding: {op} is not registered")
    values = [np.asarray(operand) for operand in operands]
    variables: list[Variable] = [
        pt.tensor(f"operand_{i}", dtype=value.dtype, shape=(None,) * value.ndim)
        for i, value in enumerate(values)
    ]
    node = op.make_node(*variables)
    rng = np.random.default_rng(seed)
    for way in shardings_of(node) or ():
        check = _Check(f"{op_name(op)}, registered as {way}", way, values, rng, cuts)
        compute = _compiled(variables, node.outputs, mode)
        whole = check.parts(compute, way.outputs, "result")
        for i in way.linear:
            check.linear(compute, i, whole)
        if gradients:
            _check_gradients(node, variables, check, mode)


def _compiled(inputs: list, outputs: list, mode: Any) -> Compiled:
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")


@dataclass
class _Check:
    """Compares one sharding with what the Op computes."""

    what: str  # the Op and its sharding, for messages
    way: Sharding
    values: list[np.ndarray]  # of the operands
    rng: np.random.Generator
    cuts: int  # the number of random cuts

    def __post_init__(self) -> None:
        axes = enumerate(self.way.inputs)
        lengths = {
            i: self.values[i].shape[axis] for i, axis in axes if axis is not None
        }
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"check_sharding: {self.what}: operands are to have equally many rows;"
                f" got {', '.join(f'{n} of operand {i}' for i, n in lengths.items())}."
                " An operand without rows is None among the inputs of a Sharding."
            )
        self.rows = min(lengths.values(), default=0)
        if lengths and self.rows < _ROWS:
            raise ValueError(
                f"check_sharding: wants {_ROWS} rows or more; got {self.rows}"
            )

    def parts(
        self, compute: Compiled, outputs: Sequence[Any], what: str
    ) -> list[np.ndarray]:
        """Compare the results of parts and of all rows; return the latter."""
        whole = compute(*self.values)
        if self.rows:
            for _ in range(self.cuts):  # parts at random, two or more, which have rows
                many = self.rng.integers(1, min(4, self.rows - 1) + 1)
                inner = self.rng.choice(np.arange(1, self.rows), many, replace=False)
                bounds = [0, *sorted(inner.tolist()), self.rows]
                self._compare(compute, outputs, bounds, whole, what)
            single = list(range(min(self.rows, _SINGLE_ROWS) + 1))
            of_these = compute(*self._cut(0, single[-1]))
            self._compare(compute, outputs, single, of_these, what)
        return whole

    def _cut(self, start: int, stop: int) -> list[np.ndarray]:
        return [
            value if axis is None else value.take(range(start, stop), axis)
            for value, axis in zip(self.values, self.way.inputs, strict=True)
        ]

    def _compare(
        self,
        compute: Compiled,
        outputs: Sequence[Any],
        bounds: list[int],
        whole: list[np.ndarray],
        what: str,
    ) -> None:
        """Compare the combined results of the parts between `bounds` with `whole`."""
        made = [compute(*self._cut(*pair)) for pair in itertools.pairwise(bounds)]
        counts = np.diff(bounds).tolist()
        for i, output in enumerate(outputs):
            where = f"{what} {i}, of parts of {_listed(counts)} rows,"
            values = [np.asarray(results[i]) for results in made]
            if output is None:  # all parts must give the same
                combined = values
            elif isinstance(output, int):
                self._check_lengths([whole[i]], output, [bounds[-1]], where)
                self._check_lengths(values, output, counts, where)
                combined = [np.concatenate(values, axis=output)]
            else:
                for value in values:
                    self._check_shape(value, whole[i], where)
                combined = [combine(output, values, counts)]
            for found in combined:
                self._assert_equal(found, whole[i], where)

    def _check_lengths(
        self, values: list, axis: int, counts: list[int], where: str
    ) -> None:
        for value in values:
            if np.ndim(value) <= axis:
                self._fail(f"{where} has shape {np.shape(value)}, without axis {axis}")
        lengths = [value.shape[axis] for value in values]
        if lengths != counts:
            self._fail(
                f"{where} has {_listed(lengths)} entries along axis {axis}, and not one"
                f" for each of {_listed(counts)} rows"
            )

    def _check_shape(self, value: Any, whole: Any, where: str) -> None:
        if np.shape(value) != np.shape(whole):
            shapes = f"{np.shape(value)}, and {np.shape(whole)} of all rows"
            self._fail(f"{where} has shape {shapes}")

    def linear(self, compute: Compiled, i: int, whole: list[np.ndarray]) -> None:
        """Check that results are linear in operand `i`; `whole` are for all rows."""
        value = self.values[i]
        if value.dtype.kind not in "fc":
            raise TypeError(f"check_sharding: linear in operand {i}, of {value.dtype}")
        other = self.rng.normal(size=value.shape).astype(value.dtype)

        def at(new: np.ndarray) -> list[np.ndarray]:
            new = new.astype(value.dtype)
            return compute(*self.values[:i], new, *self.values[i + 1 :])

        found = zip(whole, at(other), at(2 * value - 3 * other), strict=True)
        for k, (a, b, both) in enumerate(found):
            where = f"is not linear in operand {i}: result {k}"
            self._assert_equal(both, 2 * a - 3 * b, where)

    def _assert_equal(self, got: Any, right: Any, where: str) -> None:
        got, right = np.asarray(got), np.asarray(right)
        self._check_shape(got, right, where)
        if right.dtype.kind not in "fc":
            differs = got != right
        else:
            digits = np.finfo(right.dtype).eps ** 0.6  # 4e-10 in float64, 7e-5 in 32
            size = np.max(np.abs(right), initial=0, where=np.isfinite(right))
            differs = ~np.isclose(got, right, digits, digits * size, equal_nan=True)
        if differs.any():
            place = tuple(np.argwhere(differs)[0].tolist())
            numbers = f"{got[place]} at {list(place)}, and {right[place]} by all rows"
            self._fail(f"{where} is {numbers}")

    def _fail(self, why: str) -> NoReturn:
        raise AssertionError(f"{self.what}: {why}")


def _check_gradients(
    node: Apply, variables: list[Variable], check: _Check, mode: Any
) -> None:
    """Check the gradients of results and sums over rows, by all operands of floats.

    The cost takes each sharded result by a nonlinear function, so that its gradient
    differs between rows. It takes sums as they are: the rules know only linear
    functions of sums.
    """
    way = check.way
    costs: list[Any] = []
    for result, output in zip(node.outputs, way.outputs, strict=True):
        made: Any = result
        if _is_float(made) and output == "sum":
            costs.append(made.sum())
        elif _is_float(made) and isinstance(output, int):
            costs.append((made * pt.cos(made)).sum())
    if not costs:
        return
    pairs = zip(variables, way.inputs, strict=True)
    axes = {var: axis for var, axis in pairs if _is_float(var)}
    try:
        grads: Any = pytensor.grad(
            sum(costs[1:], costs[0]),
            list(axes),
            disconnected_inputs="ignore",
            null_gradients="return",
        )
    except NotImplementedError:
        return  # the Op has no pullback
    found = [
        (grad, "sum" if axis is None else axis)
        for grad, axis in zip(grads, axes.values(), strict=True)
        if _is_float(grad)
    ]
    graph, outputs = [grad for grad, _ in found], [output for _, output in found]
    _check_known(node, {variables[i] for i in way.rows}, graph)
    check.parts(_compiled(variables, graph, mode), outputs, "gradient")


def _is_float(var: Variable) -> bool:
    return str(getattr(var.type, "dtype", "")).startswith("float")


def _check_known(node: Apply, from_rows: set[Variable], graph: list[Variable]) -> None:
    """Raise if the gradient applies an Op to rows that synk knows nothing about."""
    for made in io_toposort([], graph):
        if from_rows.isdisjoint(made.inputs):
            continue
        from_rows.update(made.outputs)
        rule = entry_of(made.op).placement
        if rule is None or (rule is own_op and not is_registered(made.op)):
            raise AssertionError(
                f"the gradient of {op_name(node.op)} takes {op_name(made.op)}, which is"
                " not registered: every rank would compute it from all rows. Register"
                " it as well, or check with gradients=False"
            )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
