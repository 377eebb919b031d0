"""`Function`: what `synk.function` returns, a graph that runs on every rank.

A call chooses the `Variant` of the graph that fits how ranks hold the variables. A
`BoundCall` then makes the call; a `FunctionRun` makes many calls in one launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from time import perf_counter
from typing import Any

from pytensor.compile import SharedVariable
from pytensor.graph.traversal import ancestors, applys_between

from ..compiler.spec import FunctionSpec
from ..errors import SplitError
from ..ops import COLLECTIVES
from ..ranks.groups import INHERITED
from ..ranks.session import SESSION
from ..ranks.starting import check_timeout
from ..reduce_ops import OutputOp
from ..report.explain import explain
from ..report.explanation import Explanation
from ..user_frames import entry
from .arguments import bind, build
from .bound import BoundCall, Options
from .run_master import FunctionRun, RunTimes, run_one_by_one
from .variant import Variant

_numbers = itertools.count()


class Function:
    """A graph that runs on every rank; made by :func:`synk.function`."""

    def __init__(self, make: Callable[..., FunctionSpec]) -> None:
        self._make = make  # takes a key of `_variants`: parts, careful, may_cut
        self._number = next(_numbers)
        self._spec = spec = make()
        self._inputs = spec.arguments
        self._usual = Variant(spec, repr(self))
        self._variants: dict[tuple, Variant] = {((), False, True): self._usual}
        self._bound: BoundCall | None = None
        self.ran = RunTimes()  # where the time of the last `run` went

    @entry
    def __call__(
        self,
        /,
        *args: Any,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[int] | None = None,
        check: str | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call the function on all ranks.

        Parameters
        ----------
        *args, **kwargs : Data or array_like
            The scattered inputs, then the broadcast ones, in order or by name. Arrays
            are copied to shared memory; :class:`~synk.Data` lies there already.
        batch : int, slice, array of int, or array of bool, optional
            Which rows of the scattered inputs to use; an int n means the first n.
            By default all.
        batch_s : slice, int, array, or list of one of these for each rank, optional
            Which rows of its own sliceable shared variables each rank uses. A list of
            ints holds row numbers.
        num_slices : int
            Compute each rank's rows in this number of slices, one after the other, each
            from the original values of the shared variables; accumulate the results,
            and update variables once. The same numbers with less memory.
        output_subset : list of int, optional
            Return these outputs only, in this order, and compute no other.
        check : {None, "serial", "finite"}
            "serial": before the call, run the plain function on all rows in the master,
            which changes nothing; then compare the outputs, and on every rank the
            variables whose updates follow from reduced values. Floats may differ by
            1e-5 (float32) or 1e-9 (float64) of the largest value, or by what rounding
            errors explain, such as those of products in another `precision`; integers
            must be equal. The first such call compiles; each uses all cores.

            "finite": look for NaN and infinity in the outputs, and in the new values of
            variables on all ranks. If there is any, undo the call and raise an error
            that names the value, the first row that causes it, and that row's rank.
        timeout : float, optional
            Seconds that rank 0 waits for the other ranks at each reduction and at the
            end; by default as given to :func:`synk.fork`. (In a function with an input
            named ``timeout``, the value of that input.)

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
            As the outputs were given: one, a list, or None; with `output_subset` a
            list.

        Raises
        ------
        StateError
            If not forked.
        TypeError, ValueError, IndexError
            If an argument does not fit; then nothing was sent to any rank.
        SplitError
            If an output cannot be that of the serial run on more than one rank.
        SerialMismatch
            With ``check="serial"``, if a result differs; the updates have been made.
        NotFinite
            With ``check="finite"``, if a value is not finite; no update is made.
        WorkerDied
            If a rank's process ended.
        RankTimeout
            If a rank has taken longer than the timeout.
        """
        start = perf_counter()
        self._before()
        last, self._bound = self._bound, None  # stays None if this call fails
        is_bare = batch_s is output_subset is check is timeout is None and not kwargs
        is_bare = is_bare and num_slices == 1 and len(args) == len(self._inputs)
        again = None
        if last is not None and is_bare:
            again = last.variant.arrangement.arranged(args, batch)
        if last is not None and again is not None and last.fits(*again):
            bound, values = last, again[0]
        else:
            timeout = self._call_timeout(timeout, kwargs)
            how = Options(batch, batch_s, num_slices, output_subset, check, timeout)
            variant, values, how = self._variant_for(args, kwargs, how)
            bound = BoundCall(variant, values, how)
        results = bound.call(values, start)
        if bound.can_repeat:
            self._bound = bound
        return bound.wanted.arrange(results)

    @entry
    def run(
        self,
        /,
        batches: Iterable,
        *args: Any,
        progress: bool | Callable[[int], object] = False,
        batch_s: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[int] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run many calls in one launch: an epoch of training, say.

        The ranks go through the batches without the master, and wait for each other
        where the graph reduces something, or once in each call that makes updates. A
        rank with more than one core loads the next call's rows while it computes.

        Parameters
        ----------
        batches : iterable
            For each call its `batch`; in a function without scattered inputs its
            `batch_s`, or None. In a function whose arguments choose its rows, such as
            the number of a batch: that argument, or a tuple of such arguments. A
            launch takes up to 64 batches of a generator, which need not end.
        *args, **kwargs : Data or array_like
            The inputs, as in a call, without those that choose rows; the same for all
            calls.
        progress : bool or callable
            True shows a progress bar, for which tqdm must be installed; it begins
            when everything has been compiled, after the first call. The master calls
            a callable after each call, with the number of calls made so far.
        batch_s, num_slices, output_subset, timeout
            As in a call; the same for all calls.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
            As in a call, each output with a first axis for the calls: shape
            (calls, ...). An output whose shape differs between calls is a list.

        Raises
        ------
        StateError
            If not forked.
        TypeError, ValueError, IndexError
            If an argument does not fit; then nothing was sent to any rank. (The
            batches of a generator are checked launch by launch.)
        ImportError
            If a progress bar is asked for and tqdm is missing.
        WorkerDied
            If a rank's process ended.
        RankTimeout
            If a rank has taken longer than the timeout.

        Notes
        -----
        An error or an interrupt ends the run. The updates of those calls stay that all
        ranks have made.

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
        self._before()
        self._bound = None
        timeout = self._call_timeout(timeout, kwargs)
        how = Options(None, batch_s, num_slices, output_subset, None, timeout)
        self.ran = RunTimes()
        if self._usual.arrangement.choosing:
            return self._run_choosing(batches, progress, args, kwargs, how)
        variant, values, how = self._variant_for(args, kwargs, how)
        given = self._usual.arrangement.as_given(values)
        what = "batch" if variant.spec.inputs else "batch_s"
        options = self._options(how)

        def call(batch: Any) -> list:
            return self(*given, **{**options, what: batch})

        made = FunctionRun(variant, values, how, call, self.ran)
        return made.make(batches, progress)

    def _options(self, how: Options) -> dict[str, Any]:
        """Return the keyword arguments of one call of a run, which returns a list."""
        subset = self._usual.all.of(how.output_subset).subset
        return {**how._asdict(), "output_subset": subset}

    def _run_choosing(
        self, batches: Iterable, progress: Any, args: tuple, kwargs: dict, how: Options
    ) -> Any:
        """Run a function whose arguments choose its rows: batches are these arguments.

        If they choose other rows of one input than of another, make calls one by one.
        """
        arrangement = self._usual.arrangement
        inputs = dict(enumerate(self._inputs))
        others = [inputs[i] for i in inputs if i not in arrangement.choosing]
        fixed = bind(self, others, args, kwargs)
        options = self._options(how)

        def call(batch: Any) -> list:
            return self(*arrangement.with_choosing(batch, fixed), **options)

        batches = batches if isinstance(batches, Sized) else iter(batches)
        first = next(iter(batches), None)
        if not isinstance(batches, Sized):
            batches = itertools.chain([] if first is None else [first], batches)
        if first is not None:
            given = arrangement.with_choosing(first, fixed)
            variant, values, _ = self._variant_for(tuple(given), {}, how)
            if variant is self._usual and arrangement.is_of_one_set(values):
                rows = partial(arrangement.rows, fixed=fixed)
                made = FunctionRun(variant, values, how, call, self.ran, rows)
                return made.make(batches, progress)
        wanted = self._usual.all.of(how.output_subset)
        return run_one_by_one(batches, call, wanted, progress, self.ran)

    @entry
    def as_theano(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plain function on rank 0 alone, on all rows, for comparison.

        It updates the script's variables: all of them or, if it fails, none. The other
        ranks get the new values when they next need them, as after ``set_value``.

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
        self._before()
        given, variant = bind(self, self._inputs, args, kwargs), self._usual
        values = variant.arrangement.of_rows(given)
        if values is None:
            variant = self._variant((), may_cut=False)
            values = variant.arrangement.of_rows(given)
            assert values is not None
        programs = variant.plans.last.replicas.local()
        run = partial(variant.serial.run_programs, programs, values)
        return variant.all.arrange(variant.placement.in_master(run))

    @entry
    def explain(
        self,
        *args: Any,
        measure: bool = False,
        batch: Any = None,
        graph: bool = False,
        **kwargs: Any,
    ) -> Explanation:
        """Explain what a call does and, after calls, where its time goes.

        Parameters
        ----------
        measure : bool
            Also time the plain function and compare. This compiles it, and changes no
            variable.
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
        usual = self._usual
        if measure:
            given = bind(self, self._inputs, args, kwargs)
            arranged = usual.arrangement.arranged(given, batch)
            if arranged is not None:
                usual.serial.measure(*arranged)
        elif args or kwargs or batch is not None:
            raise TypeError("explain takes the arguments of a call with measure=True")
        title = self.name or f"function {self._number}"
        plan, present = usual.plans.last
        known = present.local(), present.is_sent, usual.serial.timed
        plans = plan, usual.plans.measured
        held, alone = usual.placement.facts(), usual.times_alone
        return explain(title, self._spec, *known, held, plans, alone, graph)

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
            A value for every input, as in a call. The broadcast inputs may be left
            out, if all of them are.
        minibatch, force_cast, oversize
            As for :func:`synk.data`: one value for all inputs, or a list with one for
            each. For broadcast inputs `minibatch` has no effect.

        Returns
        -------
        Data or tuple of Data
            A tuple with one for each value, or the only one itself.

        Raises
        ------
        TypeError, ValueError
            If a value does not fit its input, or a list has another length.
        """
        scattered = [var for var in self._inputs if var in self._spec.inputs]
        broadcast = {var.name for var in self._inputs if var not in scattered}
        more = len(args) + len(kwargs) > len(scattered)
        inputs = self._inputs if more or broadcast & kwargs.keys() else scattered
        values = bind(self, inputs, args, kwargs)
        options = {"minibatch": minibatch, "force_cast": force_cast}
        return build(inputs, values, oversize=oversize, **options)

    def _before(self) -> None:
        """Do what a subclass adds before each call and run."""

    # -- which variant makes a call

    def _variant_for(
        self, args: tuple, kwargs: dict[str, Any], how: Options
    ) -> tuple[Variant, list, Options]:
        """Return a call's variant, arguments in its order, and `how` with its rows."""
        variant = self._with_parts(self._usual, how)
        given = bind(self, self._inputs, args, kwargs)
        arranged = variant.arrangement.arranged(given, how.batch)
        if arranged is None:  # the arguments do not choose the same rows of all inputs
            whole = self._variant(tuple(variant.spec.parts), may_cut=False)
            variant = self._with_parts(whole, how)
            arranged = variant.arrangement.arranged(given, how.batch)
            assert arranged is not None
        values, batch = arranged
        if variant.may_split_groups(values, how.num_slices):
            may_cut = variant.spec.cut is not None
            parts = tuple(variant.spec.parts)
            variant = self._variant(parts, careful=True, may_cut=may_cut)
            variant.check_ranks()
        return variant, values, how._replace(batch=batch)

    def _with_parts(self, variant: Variant, how: Options) -> Variant:
        """Return a variant that takes sharded variables as rows; often `variant`."""
        while parts := variant.check_ranks():
            if how.num_slices == 1 and SESSION.size == 1:  # one rank has all the rows
                break
            if how.batch_s is not None:
                raise SplitError(
                    "batch_s chooses rows of sliceable variables, and"
                    f" {parts[0]} is none of them, and was scattered: name it in"
                    " sliceable_shareds"
                )
            variant = self._variant((*variant.spec.parts, *parts))
        return variant

    def _variant(
        self,
        parts: tuple[SharedVariable, ...],
        careful: bool = False,
        may_cut: bool = True,
    ) -> Variant:
        """Return the function placed anew, made at the first request.

        `parts` are the variables to take as rows. `careful` is for rows that do not
        fill the groups of a reshape. `may_cut`: the arguments may choose the rows.
        """
        key = parts, careful, may_cut
        if key not in self._variants:
            self._variants[key] = made = Variant(self._make(*key), repr(self))
            as_usual = self._usual.placement
            made.train_as(as_usual.workers, as_usual.are_nodes)
        return self._variants[key]

    def _call_timeout(self, timeout: Any, kwargs: dict) -> float | None:
        """Return the timeout; None if an input has that name, then `kwargs` gets it."""
        if timeout is None:
            return None
        if any(var.name == "timeout" for var in self._inputs):
            kwargs["timeout"] = timeout
            return None
        return check_timeout(timeout)

    def _train_as(self, workers: int | None, are_nodes: bool = False) -> None:
        """Make calls steps of a training rule's workers; None ends that."""
        for variant in self._variants.values():
            variant.train_as(workers, are_nodes)

    # -- properties

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

    def get_shared(self) -> list[SharedVariable]:
        """Return the shared variables that a call reads or updates.

        Returns
        -------
        list of SharedVariable
        """
        spec = self._spec
        graph = spec.plain_graph
        found = dict.fromkeys([*self.updated, *spec.sliceable, *ancestors(graph)])
        return [var for var in found if isinstance(var, SharedVariable)]

    @property
    def is_local(self) -> bool:
        """Whether the function was made with `local=True`: ranks combine nothing."""
        return self._spec.is_local

    @property
    def reduces(self) -> bool:
        """Whether ranks reduce values during a call."""
        nodes = applys_between([], self._spec.graph)
        return any(isinstance(node.op, COLLECTIVES) for node in nodes)

    @property
    def has_rows(self) -> bool:
        """Whether the function has scattered inputs."""
        return bool(self._spec.inputs)

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self._inputs))
        return f"<synk.Function {self.name or self._number}({inputs})>"


INHERITED.append(Function)
