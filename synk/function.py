"""`synk.function`: compiled graphs that run on every rank.

What a call does (`Function.__call__`):

1. `_bind` puts positional and keyword arguments in order.
2. `inputs.gather_rows` checks them, and resolves `batch` to a selection of rows; all
   inputs share it, and one cut of it into a part for each rank.
3. `_prepare` compiles, on rank 0 first, whatever variant has not been used before.
4. ``session.run(worker_call, ...)`` launches the ranks, does the master's own share and
   joins them. Every rank takes its rows (`programs`), computes, updates its shared
   variables, and leaves its outputs in its outbox.
5. `_combine` reduces the ranks' outputs, each by its op.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from .comm.flat import ALONE
from .comm.ops import combine
from .compiler.programs import Programs, Subset
from .compiler.spec import FunctionSpec, make_spec
from .data import data
from .engines import host
from .errors import ShapeMismatch, StateError
from .inputs import (
    check_arguments,
    check_num_slices,
    check_shared_rows,
    gather_rows,
    stage,
    take_share,
)
from .memory.partition import count, select
from .replication import master_replicate_function
from .session import SESSION, Session

_numbers = itertools.count()


def function(
    inputs: Sequence,
    outputs: Any = None,
    bcast_inputs: Sequence | None = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Sequence | None = None,
    *,
    mode: Any = None,
    name: str | None = None,
    **pytensor_kwargs: Any,
) -> Function:
    """Make a function that runs on every rank; like ``pytensor.function``.

    Nothing is compiled yet: that happens at the first call, or in
    :func:`synk.distribute`. Functions may be made at any time, before and after
    :func:`synk.fork`, and called while forked.

    Parameters
    ----------
    inputs : list of TensorVariable
        Scattered: each rank gets a part of the rows (axis 0) of every one.
    outputs : variable, (variable, op), or list of these, optional
        What a call returns. The op says how the ranks' values are combined:
        ``"avg"`` (weighted by the ranks' rows), ``"sum"``, ``"prod"``, ``"min"``,
        ``"max"``, ``"gather"`` (concatenated along axis 0, in the order of the rows) or
        None (rank 0's own value; with `num_slices` that of its last slice). Without an
        op it is ``"avg"`` if the output depends on the rows, and None if it does not.
    bcast_inputs : list of TensorVariable, optional
        Inputs that every rank gets as a whole. In calls they follow `inputs`.
    updates : dict, or list of (shared, new) or (shared, new, op), optional
        New values of shared variables, computed and stored by each rank for itself. The
        op (``"avg"`` unless named) says how the slices' values are combined in calls
        with `num_slices`.
    givens : dict or list of pairs, optional
        Substitutions in the graph.
    sliceable_shareds : list of shared variables, optional
        Variables of which calls can use some rows only; see `batch_s` there.
    mode : str or Mode, optional
        As in PyTensor.
    name : str, optional
        Shown in messages.
    **pytensor_kwargs
        Further arguments of ``pytensor.function``.

    Returns
    -------
    Function

    Raises
    ------
    TypeError, ValueError
        If an argument is not what it should be.
    StateError
        In a worker.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synk
    >>> x = pt.matrix("x")
    >>> f = synk.function([x], [(x.sum(), "sum"), x.mean(), (x.sum(axis=1), "gather")])
    >>> with synk.session(2):
    ...     total, mean, rows = f(np.arange(6.0).reshape(3, 2))
    >>> float(total), float(mean), rows
    (15.0, 2.5, array([1., 5., 9.]))
    """
    if SESSION.state == "worker":
        raise StateError(f"this is rank {SESSION.rank}, a worker: no functions here")
    return Function(
        make_spec(
            inputs,
            outputs,
            bcast_inputs,
            updates,
            givens,
            sliceable_shareds,
            mode,
            name,
            pytensor_kwargs,
        )
    )


class Function:
    """A graph that runs on every rank; made by :func:`synk.function`."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._number = next(_numbers)
        self._inputs = [*spec.inputs, *spec.bcast_inputs]
        names = [var.name for var in self._inputs]
        self._names = {
            name: i for i, name in enumerate(names) if name and names.count(name) == 1
        }
        self._all = tuple(range(len(spec.outputs)))
        self._generation = 0
        self._programs: Programs | None = None
        self._prepared: set[tuple[str, Subset]] = set()
        self._forget: weakref.finalize | None = None
        _functions.add(self)

    @property
    def name(self) -> str | None:
        """The name given, if any."""
        return self._spec.name

    @property
    def output_modes(self) -> list[str | None]:
        """How each output is combined: the ops, in the order of the outputs."""
        return list(self._spec.output_ops)

    @property
    def update_modes(self) -> list[str | None]:
        """How each update is combined over slices, in the order of the updates."""
        return list(self._spec.update_ops)

    @property
    def updated(self) -> list[SharedVariable]:
        """The shared variables that a call updates, in the order of the updates."""
        return [var for var, _ in self._spec.updates]

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self._inputs))
        return f"<synk.Function {self.name or self._number}({inputs})>"

    # -- calling

    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run on all ranks.

        Parameters
        ----------
        *args, **kwargs : Data or array_like
            The scattered inputs, then the broadcast ones, in order or by name. Arrays
            are copied to shared memory; :class:`~synk.Data` lies there already.
        batch : int, slice, array of int, or array of bool, optional
            Which rows of the scattered inputs to use: an int means the first so many.
            By default all.
        batch_s : slice, int, array, or list of one of these for each rank, optional
            Which rows of its own sliceable shared variables each rank uses.
        num_slices : int
            Compute in so many slices, one after the other, each from the original
            values of the shared variables; results are accumulated and variables
            updated once. The same numbers with less memory.
        output_subset : list of int, optional
            Return these outputs only, in this order, and compute no other.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
            As the outputs were given: one, a list, or none; with `output_subset` a
            list.

        Raises
        ------
        StateError
            If not forked.
        TypeError, ValueError, IndexError
            If an argument does not fit; no rank has been told anything then.
        WorkerDied
            If a rank's process ended.
        """
        SESSION.check_running()
        spec = self._spec
        values = self._bind(args, kwargs)
        n = len(spec.inputs)
        rows = gather_rows(spec.inputs, values[:n], batch, SESSION.size, spec.options)
        constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
        num_slices = check_num_slices(num_slices, bool(spec.row_inputs))
        batch_s = check_shared_rows(batch_s, spec.sliceable, SESSION.size)
        wanted = self._wanted(output_subset)
        subset = self._all if output_subset is None else tuple(sorted(set(wanted)))
        self._prepare("step" if num_slices == 1 else "slice", subset)
        if 0 < rows.total < SESSION.size:
            self._prepare("idle", subset)
        mine = self._number, subset, tuple(rows), constants, batch_s, num_slices
        call: tuple = mine
        if SESSION.size > 1:
            described = stage(rows, values, constants, SESSION.stage)
            call = self._number, subset, *described, batch_s, num_slices
        replies = SESSION.run(worker_call, *call, mine=mine)
        results = self._combine(subset, replies)
        wanted_results = [results[i] for i in wanted]
        return self._unpack(wanted_results) if output_subset is None else wanted_results

    def as_theano(self, *args: Any, **kwargs: Any) -> Any:
        """Run on rank 0 alone, on all rows: the plain function, for comparison.

        Its updates change rank 0's shared variables only.

        Parameters
        ----------
        *args, **kwargs : Data or array_like
            The inputs, as in a call.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
        """
        if SESSION.state == "worker":
            SESSION.check_running()
        values = check_arguments(
            self._inputs, self._bind(args, kwargs), self._spec.options
        )
        shared = [host.get_value(var) for var in self._spec.sliceable]
        n = len(self._spec.inputs)
        outputs = self._local_programs().run(
            1,
            self._all,
            [*values[:n], *shared],
            [slice(0, len(value)) for value in (*values[:n], *shared)],
            values[n:],
            ALONE,
            [1],
        )
        return self._unpack(outputs)

    def build_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """Put arrays into new :class:`~synk.Data` of the scattered inputs' types.

        Parameters
        ----------
        *args, **kwargs : array_like
            A value for each scattered input, in order or by name.

        Returns
        -------
        Data or tuple of Data
            One for each scattered input; by itself if there is one only.
        """
        values = self._bind(args, kwargs, self._spec.inputs)
        built = tuple(
            data(value, var)
            for var, value in zip(self._spec.inputs, values, strict=True)
        )
        return built[0] if len(built) == 1 else built

    # -- the steps of a call

    def _bind(self, args: tuple, kwargs: dict, inputs: list | None = None) -> list:
        inputs = self._inputs if inputs is None else inputs
        if not kwargs and len(args) == len(inputs):
            return list(args)
        if len(args) > len(inputs):
            raise TypeError(f"{self!r} takes {len(inputs)} arguments, got {len(args)}")
        values: list[Any] = [*args, *[_MISSING] * (len(inputs) - len(args))]
        for name, value in kwargs.items():
            place = self._names.get(name, len(inputs))
            if place >= len(inputs):
                many = [var.name for var in inputs].count(name) > 1
                raise TypeError(
                    f"{self!r} has {'several inputs' if many else 'no input'}"
                    f" named {name!r}"
                )
            if values[place] is not _MISSING:
                raise TypeError(f"{self!r} got two values for input {name!r}")
            values[place] = value
        missing = [
            str(var)
            for var, value in zip(inputs, values, strict=True)
            if value is _MISSING
        ]
        if missing:
            raise TypeError(f"{self!r} misses a value for {', '.join(missing)}")
        return values

    def _wanted(self, output_subset: Sequence[int] | None) -> Sequence[int]:
        if output_subset is None:
            return self._all
        wanted = []
        for i in output_subset:
            if not -len(self._all) <= operator.index(i) < len(self._all):
                raise IndexError(
                    f"output_subset has {i}, out of range for {len(self._all)} outputs"
                )
            wanted.append(i % len(self._all))
        return wanted

    def _local_programs(self) -> Programs:
        """Return what rank 0 has compiled; needs no session."""
        if self._programs is None:
            self._programs = Programs(self._number, self._spec)
        return self._programs

    def _prepare(self, kind: str, subset: Subset) -> None:
        """Make sure that every rank has a variant compiled."""
        if self._generation != SESSION.generation:
            self._replicate()
        if (kind, subset) in self._prepared:
            return
        # Rank 0 compiles first; the others then find the parts in PyTensor's cache.
        self._local_programs().compile(kind, subset)
        SESSION.run(worker_compile, self._number, kind, subset)
        self._prepared.add((kind, subset))

    def _replicate(self) -> None:
        """Make the function known to the ranks of the present session."""
        master_replicate_function(self._number, self._local_programs())
        self._generation = SESSION.generation
        self._prepared.clear()
        if self._forget is None:
            self._forget = weakref.finalize(
                self, SESSION.notify, "function", self._number
            )
            self._forget.atexit = False

    def _combine(self, subset: Subset, replies: list) -> dict[int, np.ndarray]:
        """Reduce the ranks' outputs; those of ranks that were idle are not there."""
        if not subset:
            return {}
        present = [reply for reply in replies if reply is not None]
        weights = [weight for _, weight in present]
        results = {}
        for position, i in enumerate(subset):
            op = self._spec.wire_ops[i]
            values = [
                outputs[position]
                if isinstance(outputs, list)
                else SESSION.array(outputs[i])
                for outputs, _ in (present if op is not None else present[:1])
            ]
            if op is not None:
                results[i] = self._reduce(i, op, values, weights)
            else:
                results[i] = values[0] if replies[0] is not None else values[0].copy()
        return results

    def _reduce(self, i: int, op: str, values: list, weights: list) -> np.ndarray:
        shapes = [value.shape for value in values]
        if op == "gather":
            shapes = [shape[1:] for shape in shapes]
        if any(shape != shapes[0] for shape in shapes):
            raise ShapeMismatch(
                f"output {i} ({self._spec.outputs[i]}) of {self!r} has different shapes"
                f" on the ranks, {[value.shape for value in values]}: it cannot be"
                f" combined by {op!r}; is it to be gathered?"
            )
        if op == "gather":
            return np.concatenate([np.atleast_1d(value) for value in values])
        return combine(op, values, weights)

    def _unpack(self, results: list) -> Any:
        returns = self._spec.returns
        return (
            results[0] if returns == "one" else None if returns == "none" else results
        )


def worker_call(
    session: Session,
    number: int,
    subset: Subset,
    rows: tuple,
    constants: list,
    batch_s: list | None,
    num_slices: int,
) -> tuple[Any, int] | None:
    """Do one rank's share of a call.

    The master gets arrays in `rows` and `constants`, the other ranks windows.

    Returns
    -------
    tuple or None
        The outputs (the master's own as a list, other ranks' as windows by position in
        the function) and the rows behind them; None from a rank that had no rows.
    """
    programs = session.registry.functions[number]
    spec = programs.spec
    session.activity = programs.label
    constants = list(map(session.array, constants))
    sources, selections = take_share(session, *rows)
    for var in spec.sliceable:  # each stands in for a further input
        value = host.get_value(var)
        chosen = None if batch_s is None else batch_s[session.rank]
        sources.append(value)
        selections.append(select(chosen, len(value)))
    shares = _rows_per_rank(session, spec, rows[1], selections)
    share = shares[session.rank]
    if not share and any(shares):
        if programs.takes_part(subset):
            programs.idle(subset, constants, session.flats, shares)
        session.registry.note_rows(programs, 0)
        return None
    outputs = programs.run(
        num_slices, subset, sources, selections, constants, session.flats, shares
    )
    session.registry.note_rows(programs, share)
    if session.rank == 0:
        return outputs, share
    ops = spec.wire_ops
    stands_in = not any(shares[: session.rank])  # for rank 0, where that is idle
    left = {
        i: output
        for i, output in zip(subset, outputs, strict=True)
        if ops[i] is not None or stands_in
    }
    return session.leave(left), share


def _rows_per_rank(
    session: Session, spec: FunctionSpec, bounds: list[int], selections: list
) -> list[int]:
    """Return how many rows each rank computes on, which says what its values weigh."""
    if spec.inputs:
        return [bounds[i + 1] - bounds[i] for i in range(session.size)]
    if not selections:
        return [1] * session.size
    # Rows of a sliceable variable: only its own rank knows how many there are.
    return session.comm.agree(count(selections[0]))


def worker_compile(session: Session, number: int, kind: str, subset: Subset) -> None:
    """Compile a variant on this rank."""
    session.registry.functions[number].compile(kind, subset)


_MISSING = object()


def distribute() -> None:
    """Replicate and compile now every function made so far, on all ranks.

    Optional: a function is otherwise replicated and compiled when it is first called.

    Raises
    ------
    StateError
        If not forked.
    """
    SESSION.check_running()
    for made in list(_functions):
        made._prepare("step", made._all)


_functions: weakref.WeakSet[Function] = weakref.WeakSet()
