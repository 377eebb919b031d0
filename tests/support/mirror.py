"""A plugin of pytest: what tests of networks compute, three ranks compute as well.

``SYNK_TEST_NN=ranks python -m pytest -p mirror FILES`` runs tests whose functions
`networks.compiled` makes: of each function some calls are computed by ranks, too, as
programs in one process. Inputs that are as long as most others are scattered, and the
rest are broadcast. ``MIRROR_OUT`` names a file for the counts and what differs.

Whoever wrote the tests did not think of ranks: that is what makes them a check.
"""

import json
import os
import warnings
from collections import Counter
from typing import Any

import networks
import numpy as np
from in_process import InProcess
from pytensor.compile.mode import Mode

import synk

MODE = Mode("py", "fast_run").excluding("ShapeOpt", "inplace", "fusion")
"""It stabilises what PyTensor does by default; nor need it be fast."""

MOST_CALLS = 3
"""Of one function that are compared; then those of others have their turn."""

COUNTS: Counter[str] = Counter()
WRONG: list[str] = []
_at: list[str] = [""]


class Mirrored:
    """A plain function, of which some calls are computed by ranks, too."""

    def __init__(self, inputs: list, outputs: Any) -> None:
        self._plain, self._left = PLAIN(inputs, outputs), MOST_CALLS
        self._inputs = inputs
        is_list = isinstance(outputs, (list, tuple))
        self._outputs = list(outputs) if is_list else [outputs]
        self._by_scattered: dict[tuple, InProcess] = {}

    def __call__(self, *values: Any) -> Any:
        """Call the plain function, and compare."""
        results = self._plain(*values)
        if self._left:
            self._left -= 1
            given = [np.asarray(value) for value in values]
            self._compare(given, results if isinstance(results, list) else [results])
        return results

    def _compare(self, given: list[np.ndarray], results: list) -> None:
        lengths = Counter(len(value) for value in given if value.ndim)
        n = max(lengths, key=lambda length: (lengths[length], length))
        rows = tuple(i for i, v in enumerate(given) if v.ndim and len(v) == n)
        others = [i for i in range(len(given)) if i not in rows]
        try:
            ranks = self._ranks(rows, others)
        except (TypeError, ValueError, NotImplementedError) as error:
            COUNTS[f"refused: {type(error).__name__} {str(error)[:60]}"] += 1
            return
        values = [given[i] for i in (*rows, *others)]
        computed = ranks(3, *values, bounds=[0, (n + 1) // 2, (n + 1) // 2, n])
        COUNTS["compared"] += 1
        for i, pair in enumerate(zip(computed.outputs, results, strict=True)):
            got, right = map(np.asarray, pair)
            if not is_same(got, right):
                what = f"output {i}: {got!r:.200} and not {right!r:.200}"
                WRONG.append(f"{_at[0]}: {what}")

    def _ranks(self, rows: tuple[int, ...], others: list[int]) -> InProcess:
        if rows not in self._by_scattered:
            scattered, whole = ([self._inputs[i] for i in of] for of in (rows, others))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                options = {"bcast_inputs": whole, "on_unused_input": "ignore"}
                f = synk.function(scattered, self._outputs, **options)
                self._by_scattered[rows] = InProcess(f, MODE)
        return self._by_scattered[rows]


def is_same(got: np.ndarray, right: np.ndarray) -> bool:
    """Tell whether ranks have an array's values, to rounding of its largest."""
    if got.shape != right.shape or got.dtype != right.dtype:
        return False
    if right.dtype.kind not in "fc":
        return np.array_equal(got, right)
    bound = 100 * np.sqrt(np.finfo(right.dtype).eps) ** 1.5
    size = np.abs(np.nan_to_num(right)).max(initial=1)
    return np.allclose(got, right, bound, bound * size, equal_nan=True)


PLAIN = networks.compiled


def pytest_configure() -> None:
    """Have tests make functions that are mirrored."""
    networks.compiled = Mirrored


def pytest_runtest_setup(item: Any) -> None:
    """Note which test makes calls from now on."""
    _at[0] = item.nodeid


def pytest_sessionfinish() -> None:
    """Write what was found."""
    with open(os.environ["MIRROR_OUT"], "w") as file:
        json.dump({"counts": COUNTS, "wrong": WRONG}, file)
