"""`parallel_functions`: from its call on, a script's functions may run on ranks."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any

import pytensor
import pytensor.compile
from pytensor.compile import Mode
from pytensor.compile.mode import get_mode

from ..compiler.arguments import FunctionArguments, as_now, pairs_now
from ..engines import resolved_mode
from ..ranks.forking import fork
from ..ranks.session import SESSION
from ..ranks.starting import check_options
from ..report.words import count
from ..user_frames import callers_place, is_ours
from .function import NO_ROWS, NOT_CALLED, ParallelFunction, Ranks, Way, Ways

_COMPILING = (pytensor, pytensor.compile)
"""Modules whose ``function`` is replaced."""

_NOT_SCRIPTS = ("pytensor", "pymc", "pymc_extras", "nutpie")
"""Packages whose functions stay plain. (For likelihoods there is `synk.pymc`.)"""


_PAIRS = ("updates", "givens")
_ALSO_OURS = ("outputs", "mode", "name", *_PAIRS)
"""Arguments of ``pytensor.function`` that `synk.function` has, too."""


class ParallelFunctions(AbstractContextManager):
    """The functions that a script has made since `parallel_functions` was called.

    ``str`` of it says how many of them ran on ranks, and why others did not. At the end
    of a ``with`` block of it, new functions are plain again.

    Attributes
    ----------
    functions : list of Ways
        The functions that may have rows, with how their calls were made.
    """

    def __init__(self, n: int | None, every: bool) -> None:
        self._asked, self._every = n, every
        self.functions: list[Ways] = []
        self._without_rows = 0
        self._plain = pytensor.function
        self._modules = [each for each in _COMPILING if each.function is self._plain]
        self._ranks: Ranks | None = None
        self._set_function(self._replacing(self._plain), self._make)

    def _set_function(self, function: Any, theanos: Callable[..., Any] | None) -> None:
        """Set PyTensor's ``function``; Theano's makes it by `theanos`, or as usual."""
        from ..theano import functions

        for module in self._modules:
            module.function = function  # type: ignore[attr-defined]
        functions.make_by(theanos)

    def end(self) -> None:
        """Restore PyTensor's and Theano's ``function``; existing functions stay."""
        self._set_function(self._plain, None)

    def __exit__(self, *error: object) -> None:
        self.end()

    # -- making functions

    def _replacing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(plain)

        @wraps(plain)
        def function(*args: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            package = frame.f_globals.get("__name__", "").partition(".")[0]
            if is_ours(frame.f_code.co_filename) or package in _NOT_SCRIPTS:
                return plain(*args, **options)
            try:
                given = signature.bind(*args, **options).arguments
            except TypeError:
                return plain(*args, **options)  # raises PyTensor's error
            return self._make(plain, **given)

        return function

    def _make(self, plain: Callable[..., Any], **given: Any) -> Any:
        """Return a `ParallelFunction`, or the plain function if it cannot be one."""
        # Copied, as the script may change these before the function is compiled.
        given = {
            name: (pairs_now if name in _PAIRS else as_now)(value)
            for name, value in given.items()
        }
        given["mode"] = mode = resolved_mode(given.get("mode"))
        compile_it = partial(plain, **given)
        known: dict[str, Any] = {name: given.get(name) for name in _ALSO_OURS}
        options = {
            name: value
            for name, value in given.items()
            if name not in ("inputs", *_ALSO_OURS) and value is not None
        }
        try:
            # Other classes inspect values: DebugMode, NanGuardMode, MonitorMode.
            if type(get_mode(mode)) is not Mode or options.get("profile"):
                return compile_it()
            written = FunctionArguments(
                **known,
                inputs=[],
                bcast_inputs=list(given["inputs"]),
                made=callers_place(),
                options=options,
            )
            start = partial(fork, self._asked)
            ways = Ways(written, compile_it, self._present, start)
        except Exception:  # PyTensor compiles it, or raises its own error
            return compile_it()
        if not ways.may_have_rows:
            self._without_rows += 1
            return compile_it()
        self.functions.append(ways)
        return ParallelFunction(ways)

    def _present(self) -> Ranks:
        """Return the session's ranks, or those that would be forked."""
        if SESSION.state == "running":
            size = SESSION.size
            cores = len(SESSION.context.place.cores) * size
            return Ranks(size, cores, self._every)
        if self._ranks is None:
            places = check_options(self._asked, "auto", None, None, "report", 0).places
            cores = sum(len(place.cores) for place in places)
            self._ranks = Ranks(len(places), cores, self._every)
        return self._ranks

    # -- reports

    def __str__(self) -> str:
        made = len(self.functions) + self._without_rows
        if not made:
            return "no function was made"
        by_ranks = [way for ways in self.functions for way in ways.by_ranks]
        parallel = [ways for ways in self.functions if ways.by_ranks]
        text = f"{len(parallel)} of {count(made, 'function')} ran on ranks"
        if by_ranks:
            calls = sum(way.calls for way in by_ranks)
            text += f" ({count(calls, 'call')} on {count(self._present().size, 'rank')}"
            gain = _gain(by_ranks)
            if gain is not None:
                text += f", predicted {gain:.1f} times as fast as serial"
            text += ")"
        serial = Counter(w.reason for w in self.functions if not w.by_ranks)
        serial[NO_ROWS] += self._without_rows
        whys = [f"{n} {reason}" for reason, n in serial.most_common() if n]
        return text + (f"; serial: {', '.join(whys)}" if whys else "")

    def explain(self) -> str:
        """Return a text: for each function, how its calls were made, and why."""
        lines = []
        for ways in self.functions:
            lines.append(ways.label)
            lines += [f"  {line}" for line in ways.lines()] or [f"  {NOT_CALLED}"]
        if self._without_rows:
            lines.append(f"{count(self._without_rows, 'function')} {NO_ROWS}")
        return "\n".join(lines)


def _gain(ways: Iterable[Way]) -> float | None:
    """Return the predicted speed-up of all calls together; None if one is unknown."""
    by_ranks = serial = 0.0
    for way in ways:
        if way.predicted is None:
            return None
        by_ranks += way.calls * way.predicted.by_ranks
        serial += way.calls * way.predicted.serial
    return serial / by_ranks


def parallel_functions(
    n: int | None = None, *, every: bool = False
) -> ParallelFunctions:
    """Run the functions that a script makes on ranks, if ranks are faster.

    From this call on, ranks run functions of ``pytensor.function`` and
    ``theano.function`` data-parallel, with the numbers of the serial run. A call
    scatters the arguments whose first length, at least 2, is that of most arguments. If
    an argument chooses rows of shared data, such as the number of a batch, the call
    scatters these rows: see :ref:`chosen-rows`. The plain function makes a call if
    ranks are not predicted to be clearly faster. Ranks are forked for the first call
    that they make.

    ``python -m synk --parallel script.py`` does this for an unchanged script. Names
    that were imported before, as by ``from pytensor import function``, stay PyTensor's.
    Functions that PyTensor and PyMC make for themselves stay plain, as do those in
    modes that inspect values, such as ``DebugMode``.

    Parameters
    ----------
    n : int, optional
        The number of ranks, by default one for each device, as for :func:`synk.fork`.
    every : bool
        Make calls with rows on ranks, whatever is predicted.

    Returns
    -------
    ParallelFunctions
        Printed, it says how many functions ran on ranks, and why others did not. Its
        method ``explain()`` returns that for each function. After ``end()``, or the end
        of a ``with`` block, new functions are plain.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
    >>> with synk.parallel_functions(2, every=True) as parallel:
    ...     x = pt.vector("x")
    ...     f = pytensor.function([x], x.sum())
    ...     print(f(np.arange(4.0)))
    6.0
    >>> print(parallel)
    1 of 1 function ran on ranks (1 call on 2 ranks, predicted ... as fast as serial)
    >>> synk.close()
    """
    return ParallelFunctions(n, every)
