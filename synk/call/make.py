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

    Outputs and updates are those of the plain function for all rows: where a value of
    all rows is needed, the ranks combine it on the way; see :doc:`reducing`.

    Nothing is compiled yet: that happens at the first call, or in
    :func:`synk.distribute`. Functions may be made at any time, before and after
    :func:`synk.fork`, and called while forked.

    Parameters
    ----------
    inputs : list of TensorVariable
        Scattered: each rank gets a part of the rows (axis 0) of every one. Scalars have
        no rows: every rank gets them. If there are no rows but slices of shared data
        that the inputs choose, such as the number of a batch, each rank gets a part of
        these: see :ref:`chosen-rows`.
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
        are combined in calls with `num_slices`: as for outputs, None meaning that of
        the last slice.
    givens : dict or list of pairs, optional
        Substitutions in the graph.
    sliceable_shareds : list of shared variables, optional
        Variables of which calls can use some rows only; see `batch_s` there.
    mode : str or Mode, optional
        As in PyTensor. Without one, and where PyTensor's settings are as they come, the
        engine that is fastest: see :ref:`engines`.
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
    bits : {None, "any"}
        With "any" all outputs and updates have the same bits on any number of ranks:
        what would not goes in blocks all the same, by numba, at its cost. See
        :doc:`same_numbers`.
    streams : {"serial", "own"}
        Where random numbers for rows are drawn from. With "serial" they are those that
        the plain function draws, on any number of ranks: each rank passes over what is
        drawn for the others' rows, which takes as long as to draw it where a draw takes
        several numbers of the generator, as the normal's does. With "own" each rank has
        a stream of its own, derived from the variable's, and draws for its rows alone.
        What is not drawn for rows, all ranks draw alike in any case.
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
        # Otherwise the mode is settled when it is first used: ranks on GPUs have JAX's.
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
