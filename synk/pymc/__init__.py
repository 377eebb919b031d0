"""PyMC models on ranks: one chain on all cores, or several on groups of them.

PyMC is not imported before one of these is called.
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
    Ranks have the rows of the model's data, and priors are computed with them. Where
    ``pm.Data`` gets other values, or another number of rows, the next call takes these.

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
        Of a point, a vector of the values of the free variables, transformed, in the
        order of ``model.continuous_value_vars``. It returns the log-density, and its
        gradient as a vector, and is to be called while forked; of threads, one waits
        for the other.
        ``function.start`` is the model's initial point as such a vector, and
        ``function.unravelled(point)`` a dict of values by name. ``function.rows`` is
        how many rows there are, ``function.refused`` has the terms that are computed
        serially, with the reason, and ``function.exchanged`` tells for what ranks need
        rows of others.

    Raises
    ------
    SplitError
        If there is no term that ranks can share.

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
    """Make what ``nutpie.sample`` takes, with the log-density computed by the ranks.

    It stands in the place of ``nutpie.compile_pymc_model``: the same seed gives the
    same chains, and the same is recorded of them. nutpie's chains are threads, of which
    one computes at a time, on all ranks: sample while forked, with ``cores=1``. In a
    block of :func:`parallel` nutpie does so by itself.

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
        If there is no term that ranks can share.
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
    """Have PyMC sample a model with its log-density computed by all ranks.

    In the block ``pm.sample`` samples as ever, with NUTS or another step that takes
    gradients, or by nutpie where PyMC takes it. Chains are computed at once, each on a
    group of ranks, or one after the other on all, as it is predicted to be faster; the
    draws are the same. ``pm.find_MAP``, ``pm.fit`` and others that take the
    gradient get it so, too. Nothing of the model is changed. Where there is no session,
    there is one in the block.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block around it.
    serial : bool, optional
        Whether PyMC computes the log-density as it does outside of the block. By
        default that is so where ranks would be slower, for few rows, and for terms that
        ranks fail to compute; with False such errors are raised.
    mode : str or Mode, optional
        As for :func:`synk.function`.
    quiet : bool
        Do not print a line with the rows, the ranks and what they gain.

    Yields
    ------
    object
        With what was found in its attributes `rows`, `ranks`, `speed_up` (None before
        the first call of ``pm.sample``) and `is_serial`.

    Raises
    ------
    ValueError
        By ``pm.sample``, for numpyro or blackjax.

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

    Otherwise who computes it, ranks or PyMC by itself, and how ranks do, is predicted
    from the model's graph and its sizes. Here all plans that are possible compute it at
    the initial point, and PyMC by itself does, in turns. Records are written, which
    decide from then on, in other runs too: see :func:`synk.tune`. Where there is no
    session, there is one for this.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    mode : str or Mode, optional
        As for :func:`synk.function`.

    Returns
    -------
    list of PlanTimes
        The last table: by ranks, with the plans that are the fastest, and by PyMC.

    Raises
    ------
    SplitError
        If there is no term that ranks can share.
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
