"""PyMC models on ranks: one chain on all ranks, or several at once on groups of ranks.

PyMC is imported when one of these functions is called first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["logp_dlogp", "nutpie_model", "parallel", "tune"]


def logp_dlogp(
    model: Any = None, variables: Sequence[Any] | None = None, *, mode: Any = None
) -> Any:
    """Make a function of a model's log-density and its gradient, computed by the ranks.

    It is for samplers other than PyMC's; for those see :func:`synk.pymc.parallel`.
    Each rank computes the terms of its rows of the model's data. If ``pm.Data`` gets
    other values, or another number of rows, the next call uses these.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    variables : list, optional
        Free random variables that the gradient is by; all continuous ones by default.
    mode : str or Mode, optional
        As for :func:`synk.function`.

    Returns
    -------
    callable
        A function of a point: a vector of the transformed values of the free variables,
        in the order of ``model.continuous_value_vars``. It returns the log-density, and
        its gradient as a vector. Call it while forked; calls of several threads run one
        after the other.
        ``function.start`` is the model's initial point as such a vector, and
        ``function.unravelled(point)`` a dict of values by name. ``function.rows`` is
        the number of rows. ``function.refused`` has the terms that are computed
        serially, with the reason, and ``function.exchanged`` the computations for which
        ranks need rows of other ranks.

    Raises
    ------
    SplitError
        If ranks can share no term.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synk  # doctest: +SKIP
    >>> with pm.Model() as model:  # doctest: +SKIP
    ...     mu = pm.Normal("mu")
    ...     pm.Normal("y", mu, observed=np.arange(10.0))
    >>> f = synk.pymc.logp_dlogp(model)  # doctest: +SKIP
    >>> with synk.session(2):  # doctest: +SKIP
    ...     logp, gradient = f(f.start)
    """
    from .make import make

    return make(model, variables, mode)


def nutpie_model(model: Any = None, *, mode: Any = None) -> Any:
    """Compile a model for ``nutpie.sample``, with the log-density computed by ranks.

    Use it in place of ``nutpie.compile_pymc_model``: the same seed gives the same
    chains, with the same recorded variables. nutpie's chains are threads, of which one
    at a time computes, on all ranks: sample while forked, with ``cores=1``. In a block
    of :func:`parallel`, ``pm.sample`` with nutpie needs no call of this function.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    mode : str or Mode, optional
        As for :func:`synk.function`.

    Returns
    -------
    nutpie.CompiledModel
        A model for ``nutpie.sample``.

    Raises
    ------
    SplitError
        If ranks can share no term.
    TypeError
        If the model has discrete variables.

    Examples
    --------
    >>> with synk.session():  # doctest: +SKIP
    ...     compiled = synk.pymc.nutpie_model(model)
    ...     idata = nutpie.sample(compiled, cores=1)
    """
    from .nutpie import nutpie_model as made

    return made(model, mode)


@contextlib.contextmanager
def parallel(
    model: Any = None,
    *,
    serial: bool | None = None,
    mode: Any = None,
    quiet: bool = False,
) -> Iterator[Any]:
    """Make PyMC sample a model with its log-density computed by all ranks, in a block.

    ``pm.sample`` works as usual, with NUTS or another step method that takes gradients,
    or with nutpie. Chains run at once, each on a group of ranks, or one after the other
    on all ranks, whichever is predicted to be faster; the draws are the same.
    ``pm.find_MAP``, ``pm.fit`` and other functions that use the gradient get it from
    the ranks, too. The model is not changed. If there is no session, the block has one.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block around it.
    serial : bool, optional
        True: PyMC computes the log-density as outside of the block. None: PyMC computes
        it if ranks would be slower or there are few rows, and computes terms for which
        ranks raise an error. False: ranks compute it, and such errors are raised.
    mode : str or Mode, optional
        As for :func:`synk.function`.
    quiet : bool
        Do not print a line with the rows, the ranks and what they gain.

    Yields
    ------
    object
        Its attributes `rows`, `ranks`, `speed_up` and `is_serial` say how the
        log-density is computed; they are None until PyMC asks for it.

    Raises
    ------
    ValueError
        From ``pm.sample``, for numpyro or blackjax.

    Examples
    --------
    >>> with synk.pymc.parallel(model):  # doctest: +SKIP
    ...     idata = pm.sample()
    """
    from .context import Parallel

    with Parallel(model, serial, mode, quiet).entered() as made:
        yield made


def tune(model: Any = None, *, mode: Any = None) -> Any:
    """Measure by which plan a model's log-density is fastest, and print the tables.

    Without this, synk predicts from the model's graph and sizes whether ranks or PyMC
    itself are faster, and which plan. This function times all possible plans, and PyMC
    itself, in turns, at the initial point. It writes records, which decide from then
    on, in other runs too: see :func:`synk.tune`. If there is no session, it makes one.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    mode : str or Mode, optional
        As for :func:`synk.function`.

    Returns
    -------
    list of PlanTimes
        The last table: ranks, by their fastest plans, and PyMC itself.

    Raises
    ------
    SplitError
        If ranks can share no term.
    ValueError
        In a block of :func:`parallel`.

    Examples
    --------
    >>> with model:  # doctest: +SKIP
    ...     synk.pymc.tune()
    ...     with synk.pymc.parallel():
    ...         idata = pm.sample(cores=1)
    """
    from .make import tune as tuned

    return tuned(model, mode)
