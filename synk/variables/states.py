"""What the ranks hold of shared variables, in words."""

from __future__ import annotations

from typing import Any

from pytensor.compile import SharedVariable
from pytensor.tensor.random.type import RandomType

from ..also_named import also_named
from ..ranks.session import SESSION
from ..user_frames import entry
from .lists import Vars, as_given, check_variables


@entry
@also_named("shared_vars", "vars")
def state(vars: Vars) -> Any:
    """Say what the ranks hold of a shared variable, and since when.

    Parameters
    ----------
    vars : shared variable, or list of these

    Returns
    -------
    str, or list of str
        One of "replicated", "local to each rank", "sharded in 3, 2 rows" (after
        :func:`synk.scatter`, by rank) and "unknown" (after a failure that could not be
        its way), and what made it so; a list if `vars` is one.

    Raises
    ------
    StateError
        If not forked.

    Examples
    --------
    >>> import pytensor, synk
    >>> rate = pytensor.shared(0.1, "rate")
    >>> with synk.session(2):
    ...     synk.set_value(1, rate, 0.2)
    ...     print(synk.state(rate))
    ...     rate.set_value(0.01)
    ...     print(synk.state(rate))
    local to each rank, since synk.set_value on rank 1
    replicated, since it was set in the script
    """
    return as_given(vars, [_held(var) for var in check_variables(vars)])


def _held(var: SharedVariable) -> str:
    if isinstance(var.type, RandomType):
        return "a random stream, from which each rank derives its own"
    return str(SESSION.ledger.of(var))
