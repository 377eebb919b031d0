"""`synk.tune`: which engine is fastest for a function, found now and not in passing."""

from __future__ import annotations

from typing import Any

from ..report.facts import EngineTimes
from ..report.words import engine_table
from ..user_frames import entry
from .function import Function


@entry
def tune(
    function: Function,
    *args: Any,
    batch: Any = None,
    batch_s: Any = None,
    **kwargs: Any,
) -> list[EngineTimes]:
    """Find now by which engine a function is computed fastest, and print the table.

    Otherwise engines are tried on the calls of the script, as far as that costs a small
    share of their time. Each engine compiles the function, and makes some calls of it,
    all of which are undone. Terms of the data alone are kept from then on, if the calls
    that follow are of the same data. The choice holds for calls of about as many rows,
    and for the next runs of the script.

    Parameters
    ----------
    function : Function
    *args, batch, batch_s, **kwargs
        As in a call.

    Returns
    -------
    list of EngineTimes
        The rows of the table. Of a function whose `mode` is named, or that draws
        random numbers, there are none, and nothing is done.

    Raises
    ------
    StateError
        If not forked.
    TypeError, ValueError, IndexError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synk
    >>> x = pt.matrix("x")
    >>> f = synk.function([x], pt.log1p(x).sum())
    >>> with synk.session(2):
    ...     table = synk.tune(f, np.ones((1000, 20)))  # doctest: +SKIP
    """
    facts = function.time_engines(args, batch, batch_s, kwargs)
    print(engine_table(repr(function), facts))
    return facts
