"""Making functions: `synk.function`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..compiler.arguments import FunctionArguments, as_now, make_spec, pairs_now
from ..engines import engine_for
from ..engines.precision import check_engine, check_precision
from ..errors import StateError
from ..ranks.session import SESSION
from ..user_frames import callers_place, entry
from .function import Function


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
    bits: str | None = None,
    streams: str = "serial",
    **pytensor_kwargs: Any,
) -> Function:
    """Make a function that runs on every rank; like ``pytensor.function``.

    Outputs and updates are those of the plain function for all rows: where the graph
    needs a value of all rows, the ranks combine it during the call; see
    :doc:`reducing`. The graph is compiled at the first call, or in
    :func:`synk.distribute`. Functions may be made at any time, before and after
    :func:`synk.fork`, and called while forked.

    Parameters
    ----------
    inputs : list of TensorVariable
        Scattered inputs: each rank gets a part of the rows (axis 0) of every one.
        Scalars have no rows: every rank gets them. If the inputs only choose rows of
        shared data, such as the number of a batch, each rank gets a part of the chosen
        rows: see :ref:`chosen-rows`.
    outputs : variable, (variable, op), or list or tuple of these, optional
        The outputs of a call. The op says how the ranks' values are combined:
        ``"avg"`` (weighted by the ranks' rows), ``"sum"``, ``"prod"``, ``"min"``,
        ``"max"``, ``"gather"`` (concatenated along axis 0, in the order of the rows) or
        None (rank 0's own value; with `num_slices` that of its last slice). Without an
        op, synk uses the one that it proves to give the serial result: "avg" for a mean
        over the rows, "sum" for a sum, "gather" for a value for each row, and so on. If
        no op does, ranks combine values within the graph. synk does not change the
        graph of an output with an op.
    bcast_inputs : list of TensorVariable, optional
        Inputs that every rank gets as a whole. In calls they follow `inputs`.
    updates : dict, or list of (shared, new) or (shared, new, op), optional
        New values of shared variables, those of the serial run, stored by every rank:
        so gradients are plain ones of ``pytensor.grad``. With an op each rank stores
        its own value, of the graph as written, and the op says how values of slices are
        combined in calls with `num_slices`, as for outputs; None means the last
        slice's value.
    givens : dict or list of pairs, optional
        Substitutions in the graph.
    sliceable_shareds : list of shared variables, optional
        Variables of which a call can use some rows only, by its `batch_s`.
    mode : str or Mode, optional
        As in PyTensor. Without one, and with PyTensor's default settings, synk chooses
        the engine that is fastest: see :ref:`engines`.
    name : str, optional
        Shown in messages.
    strict : bool
        Raise already here a :class:`SplitError` that a call would raise, and instead of
        a :class:`SplitWarning`; also for rows of other ranks that are read without
        :func:`synk.ops.all_gather`, and for collectives of the user's that are not
        proven to give the serial value.
    precision : {None, "float32", "tensorfloat32", "bfloat16", "float16"}
        In JAX mode, the precision of products and convolutions of float32; all else
        stays float32. See :doc:`precision`. None leaves it to JAX's option
        ``jax_default_matmul_precision``, which is float32 on ranks.
    pad : bool
        In JAX mode, make calls of n rows by code that was compiled for up to 2 n, and
        do not compile anew: see :ref:`padding`. The results are the same but for the
        order of sums. If synk cannot prove that, it pads nothing, and
        :meth:`Function.explain` says why.
    local : bool
        Combine nothing during a call: every rank runs the graph on its own rows, and
        stores its own updates. An output without an op, for which none is proven, is
        averaged, with a :class:`SplitWarning`.
    statistics : {"exact", "local"}
        With "local", values that are computed from the rows and combined with them
        again, such as the means of batch normalisation, are of each rank's own rows,
        and ranks do not wait for each other. Outputs and updates are combined as
        always: parameters stay equal on all ranks, but differ from the serial run's.
        See :func:`synk.ops.local` to choose single values.
    bits : {None, "any"}
        With "any" all outputs and updates have the same bits on any number of ranks:
        all is computed in blocks, by numba, even if that is slower. See
        :doc:`same_numbers`.
    streams : {"serial", "own"}
        Where random numbers for rows are drawn from. With "serial" they are those of
        the plain function, on any number of ranks: each rank skips the numbers of the
        others' rows. It must draw these too if a draw takes several numbers of the
        generator, as the normal's does. With "own" each rank draws for its rows alone,
        from a stream of its own that is derived from the variable's. All ranks draw
        alike what is not for rows, in any case.
    **pytensor_kwargs
        Further arguments of ``pytensor.function``.

    Returns
    -------
    Function

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    SplitError
        With `strict`; otherwise in calls on more than one rank. With `bits`, in the
        first call, if a value cannot have the same bits on any number of ranks.
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
        # Otherwise wait for the first use: with ranks on GPUs the mode is JAX's.
        check_engine(precision, engine_for(mode))
    written = FunctionArguments(
        inputs=as_now(inputs),
        outputs=as_now(outputs),
        bcast_inputs=as_now(bcast_inputs),
        updates=pairs_now(updates),
        givens=pairs_now(givens),
        sliceable_shareds=as_now(sliceable_shareds),
        mode=mode,
        name=name,
        strict=strict,
        precision=precision,
        pad=pad,
        local=local,
        statistics=statistics,
        bits=bits,
        streams=streams,
        made=callers_place(),
        options=pytensor_kwargs,
    )
    return Function(partial(make_spec, written))
