"""A plugin of pytest: what tests call of plain PyTensor, three ranks compute as well.

``python -m pytest -p mirror FILES`` runs tests with ``pytensor.function`` replaced: of
each function that it makes some calls are computed by ranks, too, as programs in one
process. Inputs that are as long as most others are scattered, and the rest are
broadcast. Outputs and new values of shared variables are compared with those of the
plain function; to the tests these are returned. ``MIRROR_OUT`` names a file for the
counts and what differs.

Whoever wrote the tests did not think of ranks: that is what makes them a check.
"""

import functools
import json
import os
import sys
import warnings
from collections import Counter
from typing import Any

import in_process
import numpy as np
import pytensor
import theano  # which synk has registered: in_process imports it
from in_process import InProcess
from pytensor.compile import SharedVariable
from pytensor.compile.io import In, Out
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

import synk

MODE = Mode("py", "fast_run").excluding("ShapeOpt", "inplace", "fusion")
"""It stabilises what PyTensor does by default; nor need it be fast."""

MOST_CALLS = 3
"""Of one function that are compared; then those of others have their turn."""

COUNTS: Counter[str] = Counter()
WRONG: list[str] = []
_at: list[str] = [""]


class Mirrored:
    """A plain function, of which some calls are computed by ranks, too.

    Parameters
    ----------
    made : pytensor.compile.executor.Function
    inputs, outputs, options
        As ``pytensor.function`` was given them.
    """

    def __init__(self, made: Any, inputs: Any, outputs: Any, options: dict) -> None:
        self._made, self._left = made, MOST_CALLS
        self._given = inputs, outputs, options
        self._by_scattered: dict[tuple, InProcess] = {}
        self._shared, self._draws = _shared_of(outputs, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __getitem__(self, item: Any) -> Any:
        return self._made[item]

    def __setitem__(self, item: Any, value: Any) -> None:
        self._made[item] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, and compare."""
        if kwargs or not self._left:
            return self._made(*args, **kwargs)
        self._left -= 1
        given = [np.array(arg) for arg in map(_array, args) if arg is not None]
        if len(given) < len(args):
            COUNTS["arguments are no arrays"] += 1
            return self._made(*args)
        return self._compared(given, args)

    def _compared(self, given: list[np.ndarray], args: tuple) -> Any:
        before = {var: var.get_value() for var in self._shared}
        results = self._made(*args)
        after = {var: var.get_value() for var in self._shared}
        try:
            for var, value in before.items():
                var.set_value(value)
            self._compare(given, results, after)
        finally:
            for var, value in after.items():
                var.set_value(value)
        return results

    def _compare(self, given: list, results: Any, after: dict) -> None:
        """Compute a call by ranks, and note what comes of it."""
        if self._draws:
            COUNTS["it draws"] += 1
            return
        places = scattered(self._given[0], given)
        if not places:
            COUNTS["no rows"] += 1
            return
        try:
            ranks = self._ranks(places)
        except (TypeError, ValueError, NotImplementedError) as error:
            COUNTS[f"refused: {type(error).__name__} {str(error)[:60]}"] += 1
            return
        n = len(given[places[0]])
        values = [given[i] for i in (*places, *_others(places, given))]
        computed = ranks(3, *values, bounds=[0, (n + 1) // 2, (n + 1) // 2, n])
        COUNTS["compared"] += 1
        plain = zip(computed.outputs, _listed(results), strict=True)
        for i, (got, right) in enumerate(plain):
            self._note(f"output {i}", got, right)
        for rank, news in enumerate(computed.updates):
            for (var, _), got in zip(ranks.spec.updates, news, strict=True):
                if got is not None and var in after:
                    self._note(f"{var} on rank {rank}", got, after[var])

    def _ranks(self, places: tuple[int, ...]) -> InProcess:
        """Return the function with some inputs scattered."""
        if places not in self._by_scattered:
            inputs, outputs, options = self._given
            variables = [var_of(var) for var in inputs]
            options = {k: options[k] for k in ("updates", "givens") if k in options}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                f = synk.function(
                    [variables[i] for i in places],
                    _listed(outputs),
                    [variables[i] for i in _others(places, variables)],
                    on_unused_input="ignore",
                    **options,
                )
                self._by_scattered[places] = InProcess(f, MODE)
        return self._by_scattered[places]

    def _note(self, what: str, got: Any, right: Any) -> None:
        got, right = np.asarray(got), np.asarray(right)
        if got.shape == right.shape and got.dtype == right.dtype:
            if right.dtype.kind not in "fc":
                same = np.array_equal(got, right)
            else:
                bound = 100 * np.sqrt(np.finfo(right.dtype).eps) ** 1.5
                size = np.abs(np.nan_to_num(right)).max(initial=1)
                same = np.allclose(got, right, bound, bound * size, equal_nan=True)
            if same:
                return
        WRONG.append(f"{_at[0]}: {what}: {got!r:.200} and not {right!r:.200}")


def _array(value: Any) -> Any:
    """Return what can be an argument for ranks, or None."""
    plain = isinstance(value, (np.ndarray, np.generic, int, float, complex, list, bool))
    return value if plain and np.asarray(value).dtype.kind in "biufc" else None


def var_of(given: Any) -> Any:
    """Return the variable of an input or an output."""
    return given.variable if isinstance(given, (In, Out)) else given


def _others(places: tuple[int, ...], all_of_them: Any) -> list[int]:
    return [i for i in range(len(all_of_them)) if i not in places]


def scattered(inputs: Any, given: list[np.ndarray]) -> tuple[int, ...]:
    """Return which inputs are scattered: those that are as long as most others."""
    can_be = [
        i
        for i, var in enumerate(map(var_of, inputs))
        if isinstance(var.type, DenseTensorType)
        and var.type.ndim
        and var.type.shape[0] is None
    ]
    lengths = Counter(len(given[i]) for i in can_be)
    if not lengths:
        return ()
    most = max(lengths, key=lambda length: (lengths[length], length))
    return tuple(i for i in can_be if len(given[i]) == most)


def _shared_of(outputs: Any, options: dict) -> tuple[list[SharedVariable], bool]:
    """Return a function's shared variables, and whether it draws random numbers."""
    pairs = [
        pair
        for name in ("updates", "givens")
        for pair in _pairs(options.get(name) or [])
    ]
    graph = [*_listed(outputs), *(var for pair in pairs for var in pair)]
    found = list(ancestors([var for var in graph if hasattr(var, "owner")]))
    shared = [var for var in dict.fromkeys(found) if isinstance(var, SharedVariable)]
    return shared, any(isinstance(var.type, RandomType) for var in found)


def _pairs(given: Any) -> list[tuple]:
    return list(given.items()) if hasattr(given, "items") else list(given)


def _listed(outputs: Any) -> list:
    """Return outputs as a list, as a function is given them or returns them."""
    if outputs is None:
        return []
    if isinstance(outputs, dict):
        return list(map(var_of, outputs.values()))
    many = isinstance(outputs, (list, tuple))
    return list(map(var_of, outputs if many else [outputs]))


def _mirroring(function: Any) -> Any:
    """Return what makes functions in place of ``pytensor.function``, for tests."""

    @functools.wraps(function)  # whose arguments synk looks at
    def made(inputs: Any, outputs: Any = None, *args: Any, **options: Any) -> Any:
        plain = function(inputs, outputs, *args, **options)
        if sys._getframe(1).f_code.co_filename.startswith(INSIDE):
            return plain
        if args or any(isinstance(var, In) for var in inputs):
            COUNTS["not mirrored"] += 1
            return plain
        return Mirrored(plain, inputs, outputs, options)

    return made


INSIDE = os.path.dirname(synk.__file__), in_process.__file__
"""Where functions are made that are no test's."""


def pytest_configure() -> None:
    """Have tests make functions that are mirrored, by either name."""
    theano.function = _mirroring(theano.function)
    pytensor.function = _mirroring(pytensor.function)


def pytest_runtest_setup(item: Any) -> None:
    """Note which test makes calls from now on."""
    _at[0] = item.nodeid


def pytest_sessionfinish() -> None:
    """Write what was found."""
    if "MIRROR_OUT" in os.environ:
        with open(os.environ["MIRROR_OUT"], "w") as file:
            json.dump({"counts": COUNTS, "wrong": WRONG}, file)
