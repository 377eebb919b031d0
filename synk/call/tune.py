"""`synk.tune`: the plan by which a function is fastest, measured."""

from __future__ import annotations

from typing import Any

from ..report.facts import PlanTimes
from ..report.words import plan_table
from ..user_frames import entry
from .bound import How
from .function import Function
from .measured import tuned


@entry
def tune(
    function: Function,
    *args: Any,
    batch: Any = None,
    batch_s: Any = None,
    **kwargs: Any,
) -> list[PlanTimes]:
    """Measure by which plan a function is computed fastest, and print the table.

    Otherwise the plan follows from the graph and the sizes, by rules. Here all plans
    that are possible make some calls, which are undone: each engine, in blocks of rows
    or at once, by all ranks or by rank 0 alone. A record of it is written, which
    decides from then on for calls of about as many rows, also in the next runs: beside
    what PyTensor has compiled, or in the file that ``SYNK_PLANS`` names, which can be
    kept beside the script. ``python -m synk tune`` lists records and clears them.

    Parameters
    ----------
    function : Function
    *args, batch, batch_s, **kwargs
        As in a call.

    Returns
    -------
    list of PlanTimes
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
    how = How(batch, batch_s)
    function._bound = None  # its plan may be another one afterwards
    variant, values = function._variant_for(args, kwargs, how)
    measured = tuned(variant, values, how)
    print(plan_table(repr(function), measured))
    return measured
