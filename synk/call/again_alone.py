"""A call that rank 0 has made alone, to be made again as in `again`.

What ranks would have to be told is nothing here, and so what is left is to look whether
all is as it was, to find the values, and to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from ..compiler.spec import FunctionSpec
from ..ranks.replication import Replicas
from ..ranks.session import SESSION
from ..variables.data import Data
from .alone import Alone
from .engines import Engines
from .inputs import check_arguments
from .known_arguments import COMPARED, KnownArguments
from .outputs import Wanted
from .rows import Rows, take_share


def prepared_alone(
    spec: FunctionSpec,
    engines: Engines,
    replicas: Replicas,
    alone: Alone,
    wanted: Wanted,
    rows: Rows,
    args: Sequence[Any],
    batch: Any,
) -> AgainAlone | None:
    """Return a call that was just made, to be made again; None if it cannot.

    The arguments are those of `AgainAlone`.
    """
    if not (engines.is_waiting and engines.is_alone):
        return None  # but for this once, or maybe
    if spec.sliceable or spec.parts:
        return None
    data = args[: len(rows.sources)]
    if type(batch) not in COMPARED or any(type(value) is not Data for value in data):
        return None
    return AgainAlone(engines, replicas, alone, wanted, rows, args, batch)


class AgainAlone:
    """A call of one function that rank 0 makes alone, to be made again.

    Parameters
    ----------
    engines : Engines
    replicas : Replicas
        Of the engine that has made it.
    alone : Alone
    wanted : Wanted
        All outputs.
    rows : Rows
        The rows, of `Data` alone.
    args : sequence
        Data, then the values of the broadcast inputs.
    batch : int, slice or None
    """

    def __init__(
        self,
        engines: Engines,
        replicas: Replicas,
        alone: Alone,
        wanted: Wanted,
        rows: Rows,
        args: Sequence[Any],
        batch: Any,
    ) -> None:
        self._engines, self._replicas = engines, replicas
        self._alone, self._wanted = alone, wanted
        self._generation = SESSION.generation
        self._programs = replicas.local()
        self._arguments = KnownArguments(rows, args, batch)
        self._rows, n = rows.total, self._arguments.inputs
        whole = [0, rows.total]
        unsaid = [source._replace(array=None) for source in rows.sources]
        _, self._selections = take_share(0, _as_it_is, rows.selection, whole, unsaid)
        assert len(self._selections) == n

    def is_of(self, args: tuple, batch: Any) -> bool:
        """Tell whether a call with these arguments is this one."""
        return self._arguments.are(args, batch)

    @property
    def is_known(self) -> bool:
        """Whether what was found holds still."""
        engines = self._engines
        return (
            self._generation == SESSION.generation
            and engines.present is self._replicas
            and engines.is_waiting
            and engines.is_alone
            and self._alone.was_last
            and self._alone.is_possible
            and not self._alone.times.is_fresh
        )

    def call(self, what: object, args: Sequence[Any], start: float) -> Any:
        """Make the call, or none; return what it returns.

        Parameters
        ----------
        what : object
            What is called, for messages.
        args : sequence
        start : float
            When the script called.
        """
        programs, n = self._programs, self._arguments.inputs
        spec = programs.spec
        sources = [value._held() for value in args[:n]]
        constants = check_arguments(spec.bcast_inputs, args[n:], spec.options)
        results, made = self._alone.call_again(
            *(programs, self._wanted.subset, sources, self._selections),
            *(constants, self._rows),
        )
        has_compiled = self._alone.times.returned(start, made)
        if self._engines.is_trying:
            seconds = perf_counter() - start
            self._engines.note(seconds, self._rows, has_compiled=has_compiled)
        return self._wanted.arrange(results)


def _as_it_is(array: Any) -> Any:
    return array
