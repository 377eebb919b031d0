"""`synk.function`: compiled graphs that run on every rank.

What a call does (`Function.__call__`):

1. `inputs.bind` puts positional and keyword arguments in order.
2. `inputs.gather_rows` checks them, and resolves `batch` to a selection of rows; all
   inputs share it, and one cut of it into a part for each rank.
3. `Replicas.prepare` compiles, on rank 0 first, whatever has not been used before.
4. ``SESSION.run(calls.worker_call, ...)`` launches the ranks, does the master's own
   share and joins them. Every rank takes its rows (`programs`), computes, updates its
   shared variables, and leaves its outputs in its outbox.
5. `calls.combine_outputs` reduces the ranks' outputs, each by its op.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

from pytensor.compile import SharedVariable

from ..compiler.arguments import make_spec
from ..compiler.spec import FunctionSpec
from ..engines import engine_for
from ..engines.precision import check_engine, check_precision
from ..errors import SplitError, StateError
from ..programs.programs import kind_of_call
from ..ranks.replication import Replicas
from ..ranks.session import SESSION
from ..ranks.streams import master_states
from ..reduce_ops import OutputOp
from ..report.explain import explain
from ..report.explanation import Explanation
from ..user_frames import entry
from .inputs import (
    bind,
    build,
    check_arguments,
    check_num_slices,
    check_shared_rows,
)
from .outputs import Wanted, combine_outputs
from .progress import Bar, count_calls
from .rows import gather_rows, stage
from .runs import Plan, combine_runs, in_launches, stacked, worker_run
from .serial import SerialRun
from .share import worker_call

_numbers = itertools.count()


@entry
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
    strict: bool = False,
    precision: str | None = None,
    pad: bool = False,
    local: bool = False,
    statistics: str = "exact",
    **pytensor_kwargs: Any,
) -> Function:
    """Make a function that runs on every rank; like ``pytensor.function``.

    Outputs and updates are those of the plain function for all rows: where a value of
    all rows is needed, the ranks combine it on the way; see :doc:`reducing`.

    Nothing is compiled yet: that happens at the first call, or in
    :func:`synk.distribute`. Functions may be made at any time, before and after
    :func:`synk.fork`, and called while forked.

    Parameters
    ----------
    inputs : list of TensorVariable
        Scattered: each rank gets a part of the rows (axis 0) of every one.
    outputs : variable, (variable, op), or list or tuple of these, optional
        What a call returns. The op says how the ranks' values are combined:
        ``"avg"`` (weighted by the ranks' rows), ``"sum"``, ``"prod"``, ``"min"``,
        ``"max"``, ``"gather"`` (concatenated along axis 0, in the order of the rows) or
        None (rank 0's own value; with `num_slices` that of its last slice). Without an
        op it is the one that is shown to give the serial result: "avg" for a mean over
        the rows, "sum" for a sum, "gather" for a value for each row, and so on. Where
        there is none, values of all rows are combined in between. An output whose op
        is named is left as it is written.
    bcast_inputs : list of TensorVariable, optional
        Inputs that every rank gets as a whole. In calls they follow `inputs`.
    updates : dict, or list of (shared, new) or (shared, new, op), optional
        New values of shared variables, those of the serial run, stored by every rank:
        so gradients are plain ones of ``pytensor.grad``. With an op the new value is
        left as it is written, each rank's own, and the op says how the slices' values
        are combined in calls with `num_slices`.
    givens : dict or list of pairs, optional
        Substitutions in the graph.
    sliceable_shareds : list of shared variables, optional
        Variables of which calls can use some rows only; see `batch_s` there.
    mode : str or Mode, optional
        As in PyTensor.
    name : str, optional
        Shown in messages.
    strict : bool
        Raise at once what would be a :class:`SplitError` at a call, or a
        :class:`SplitWarning`, rows of other ranks without :func:`synk.ops.all_gather`,
        and collectives of the user's that are not shown to give the serial value.
    precision : {None, "float32", "tensorfloat32", "bfloat16", "float16"}
        In what products of float32, and convolutions, are computed; all else stays
        float32. In JAX mode; see :doc:`precision`. None leaves it to JAX's option
        ``jax_default_matmul_precision``, which is float32 on ranks.
    pad : bool
        In JAX mode, compute calls of fewer rows by code that was compiled for more of
        them, up to twice as many, rather than compile it anew: see :ref:`padding`. The
        results are the same but for the order of sums. Where that cannot be shown
        nothing is padded, and :meth:`Function.explain` says why.
    local : bool
        Combine nothing on the way: every rank runs the graph on its own rows, and its
        updates are its own. An output that has neither a name nor an op that is shown
        is averaged, with a :class:`SplitWarning`.
    statistics : {"exact", "local"}
        With "local", what is computed from the rows and meets them again, as the means
        of batch normalisation do, is of a rank's own rows, and no rank waits for it.
        Outputs and updates are combined as they are otherwise: the parameters stay
        alike on all ranks, their numbers are no longer the serial run's. See
        :func:`synk.ops.local` for one value of several.
    **pytensor_kwargs
        Further arguments of ``pytensor.function``.

    Returns
    -------
    Function

    Raises
    ------
    TypeError, ValueError
        If an argument is not what it should be.
    SplitError
        With `strict`; otherwise in calls on more than one rank.
    StateError
        In a worker.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synk
    >>> x = pt.matrix("x")
    >>> f = synk.function([x], [x.sum(), x.mean(), x.sum(axis=1), x.var()])
    >>> f.output_modes[:3]
    ['sum', 'avg', 'gather']
    >>> with synk.session(2):
    ...     total, mean, rows, variance = f(np.arange(6.0).reshape(3, 2))
    >>> float(total), float(mean), rows, float(variance.round(4))
    (15.0, 2.5, array([1., 5., 9.]), 2.9167)
    """
    if SESSION.state == "worker":
        raise StateError(f"this is rank {SESSION.rank}, a worker: no functions here")
    check_precision(precision)
    if mode is not None or SESSION.state == "running":
        # Otherwise the mode is settled when it is first used: ranks on GPUs have JAX's.
        check_engine(precision, engine_for(mode))
    given = inputs, outputs, bcast_inputs, updates, givens, sliceable_shareds
    options: Any = {"strict": strict, "precision": precision, "pad": pad}
    options |= {"local": local, "statistics": statistics}
    spec = make_spec(*given, mode, name, pytensor_kwargs, **options)
    return Function(spec)


class Function:
    """A graph that runs on every rank; made by :func:`synk.function`."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._number = next(_numbers)
        self._inputs = [*spec.inputs, *spec.bcast_inputs]
        self._all = Wanted(spec.returns, range(len(spec.outputs)))
        self._replicas = Replicas(self._number, spec)
        self._serial = SerialRun(spec, repr(self))

    @property
    def name(self) -> str | None:
        """The name given, if any."""
        return self._spec.name

    @property
    def output_modes(self) -> list[OutputOp]:
        """How each output is combined: the ops, in the order of the outputs."""
        return list(self._spec.output_ops)

    @property
    def update_modes(self) -> list[OutputOp]:
        """How each update is combined over slices, in the order of the updates."""
        return list(self._spec.update_ops[: len(self._spec.plain_updates)])

    @property
    def updated(self) -> list[SharedVariable]:
        """The shared variables that a call updates, in the order of the updates."""
        return [var for var, _ in self._spec.plain_updates]

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self._inputs))
        return f"<synk.Function {self.name or self._number}({inputs})>"

    # -- calling

    @entry
    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[int] | None = None,
        check: str | None = None,
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
            Which rows of its own sliceable shared variables each rank uses. A list of
            ints holds row numbers.
        num_slices : int
            Compute in so many slices, one after the other, each from the original
            values of the shared variables; results are accumulated and variables
            updated once. The same numbers with less memory.
        output_subset : list of int, optional
            Return these outputs only, in this order, and compute no other.
        check : {None, "serial"}
            Before that, run the plain function on all rows in the master as well,
            without a change to anything, and compare: the outputs, and on every rank
            the variables whose updates follow from what was reduced. Floats may differ
            by 1e-5 (float32) or 1e-9 (float64) of the largest value, more behind
            products of another `precision`, or by what rounding errors explain,
            integers not.
            Takes a compilation at the first time, and all cores.

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
        SplitError
            If an output cannot be that of the serial run on more than one rank.
        SerialMismatch
            With `check`, if a result differs; the updates have been made.
        WorkerDied
            If a rank's process ended.
        """
        start = perf_counter()
        self._check_ranks()
        spec = self._spec
        values = bind(self, self._inputs, args, kwargs)
        n = len(spec.inputs)
        rows = gather_rows(spec.inputs, values[:n], batch, SESSION.size, spec.options)
        constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
        num_slices = check_num_slices(num_slices, bool(spec.row_inputs))
        batch_s = check_shared_rows(batch_s, spec.sliceable, SESSION.size)
        wanted = self._all.of(output_subset)
        subset = wanted.subset
        if check is not None:
            expected = self._serial.expect(check, values, batch, subset)
            start = perf_counter()  # that was no part of the call
        with self._replicas.notice:
            kind = kind_of_call(num_slices, SESSION.size)
            programs = self._replicas.prepare(kind, subset)
            if 0 < rows.total < SESSION.size:
                self._replicas.prepare("idle", subset)
            with master_states(programs.streams(kind)) as states:
                how = batch_s, num_slices, states
                mine = self._number, subset, tuple(rows), constants, *how
                whole = programs.cut(kind, subset).inputs_read
                staged = stage(rows, values, constants, SESSION.stage, whole)
                theirs = self._number, subset, *staged, *how
                replies = SESSION.run(worker_call, *theirs, mine=mine)
        joined = perf_counter()
        results = combine_outputs(spec, subset, replies, SESSION.context, self)
        returned = wanted.arrange(results)
        programs.times.returned(start, joined)
        if check is not None:
            self._serial.compare(subset, results, expected)
        return returned

    @entry
    def run(
        self,
        batches: Iterable,
        *args: Any,
        progress: bool | Callable[[int], object] = False,
        batch_s: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run many calls in one launch: an epoch of training, say.

        The ranks go through the batches by themselves, and wait for each other only
        where the graph reduces something. A rank that has more than one core takes
        the rows of the next call while it computes.

        Parameters
        ----------
        batches : iterable
            For each call, what `batch` is in a call; in a function without scattered
            inputs what `batch_s` is, or None. Of a generator, which need not end,
            up to 64 are taken ahead for a launch.
        *args, **kwargs : Data or array_like
            The inputs, as in a call; the same for all calls.
        progress : bool or callable
            True shows a progress bar, for which tqdm must be installed; it begins
            when everything has been compiled, after the first call. Something to
            call is called in the master after each of its calls, with their number.
        batch_s, num_slices, output_subset
            As in a call; the same for all calls.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
            As a call returns, with a first axis for the calls: shape (calls, ...). An
            output whose shape changes from call to call is a list of arrays.

        Raises
        ------
        StateError
            If not forked.
        TypeError, ValueError, IndexError
            If an argument does not fit; no rank has been told anything then. (A
            generator's batches are checked launch by launch.)
        ImportError
            If a progress bar is asked for and tqdm is missing.
        WorkerDied
            If a rank's process ended.

        Notes
        -----
        An error or an interrupt ends the run as it ends a call. Updates of the calls
        before it have been made, and ranks may be one call apart: to go on,
        :func:`synk.broadcast` the variables.

        Examples
        --------
        >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
        >>> x, w = pt.vector("x"), pytensor.shared(0.0, name="w")
        >>> loss = ((x - w) ** 2).mean()
        >>> step = synk.function([x], loss, updates={w: w - pt.grad(loss, w) / 4})
        >>> with synk.session(2):
        ...     losses = step.run([slice(0, 2), slice(2, 4)], np.array([1.0, 1, 2, 2]))
        >>> losses, w.get_value()
        (array([1.  , 2.25]), array(1.25))
        """
        self._check_ranks()
        spec = self._spec
        values = bind(self, self._inputs, args, kwargs)
        constants = check_arguments(
            spec.bcast_inputs, values[len(spec.inputs) :], spec.options
        )
        num_slices = check_num_slices(num_slices, bool(spec.row_inputs))
        wanted = self._all.of(output_subset)
        subset = wanted.subset
        what, kind = (self._number, subset), kind_of_call(num_slices, SESSION.size)
        plan = Plan(spec, values, constants, batch_s, SESSION.size, SESSION.stage)
        made: list[list] = [[] for _ in subset]
        with count_calls(progress, batches) as report, self._replicas.notice:
            for some in in_launches(batches):
                start = perf_counter()
                calls = [plan.call(batch) for batch in some]
                programs = self._replicas.prepare(kind, subset)
                if any(0 < call.bounds[-1] < SESSION.size for call in calls):
                    self._replicas.prepare("idle", subset)
                if isinstance(report, Bar) and not programs.times.is_fresh:
                    report.show()
                with master_states(programs.streams(kind)) as states:
                    told = constants, num_slices, states
                    mine = *what, calls, plan.sources, *told, report
                    theirs = *what, *plan.describe(calls), num_slices, states, None
                    replies = SESSION.run(worker_run, *theirs, mine=mine)
                joined = perf_counter()
                launch = combine_runs(spec, subset, replies, SESSION.context, self)
                for of_output, more in zip(made, launch, strict=True):
                    of_output.extend(more)
                programs.times.returned(start, joined, "Function run", len(calls))
        return wanted.arrange([stacked(of_output) for of_output in made])

    def _check_ranks(self) -> None:
        """Raise unless there are ranks that can compute this."""
        SESSION.check_running()
        if self._spec.refused is not None and SESSION.size > 1:
            raise SplitError(self._spec.refused)

    @entry
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
        values = bind(self, self._inputs, args, kwargs)
        programs = self._replicas.local()
        return self._all.arrange(self._serial.run_programs(programs, values))

    @entry
    def explain(
        self,
        *args: Any,
        measure: bool = False,
        batch: Any = None,
        graph: bool = False,
        **kwargs: Any,
    ) -> Explanation:
        """Tell what a call does and, after calls, where its time goes.

        Parameters
        ----------
        measure : bool
            Run the plain function as well, some times, and compare. This changes
            nothing, and takes a compilation.
        *args, batch, **kwargs
            With `measure`, the inputs and the batch, as in a call.
        graph : bool
            Draw the stages of a call, and where ranks meet, in place of the times.

        Returns
        -------
        Explanation
        """
        if SESSION.state == "worker":
            SESSION.check_running()
        if measure:
            values = bind(self, self._inputs, args, kwargs)
            self._serial.measure(values, batch)
        elif args or kwargs or batch is not None:
            raise TypeError("explain takes the arguments of a call with measure=True")
        title = self.name or f"function {self._number}"
        known = self._replicas.local(), self._replicas.are_there, self._serial.timed
        return explain(title, self._spec, *known, graph)

    @entry
    def build_inputs(
        self,
        *args: Any,
        minibatch: bool | Sequence[bool] = False,
        force_cast: bool | Sequence[bool] = False,
        oversize: float | Sequence[float] = 1,
        **kwargs: Any,
    ) -> Any:
        """Put arrays into new :class:`~synk.Data` of the inputs' types.

        Parameters
        ----------
        *args, **kwargs : array_like
            A value for every input, broadcast ones too, as in a call. Broadcast inputs
            may be left out, all of them.
        minibatch, force_cast, oversize
            As for :func:`synk.data`: one value for all inputs, or a list of one for
            each. Of broadcast inputs `minibatch` means nothing.

        Returns
        -------
        Data or tuple of Data
            One for each value; by itself if there is one only.

        Raises
        ------
        TypeError, ValueError
            If a value does not fit its input, or a list has another length.
        """
        spec = self._spec
        broadcast = {var.name for var in spec.bcast_inputs}
        more = len(args) + len(kwargs) > len(spec.inputs)
        inputs = self._inputs if more or broadcast & kwargs.keys() else spec.inputs
        values = bind(self, inputs, args, kwargs)
        return build(inputs, values, minibatch, force_cast, oversize)
