"""Kernels from numba's cache, which is loaded without all that numba can compile."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

import synk.compiled
from synk.comm.kernels import warm

LOADING = """
import sys
import numpy as np
from synk.comm.kernels import Reduction
values = np.arange(6.0).reshape(2, 3)
result = np.empty((1, 3))
Reduction("sum", values, result, 0).run(np.ones(2), 0, 3)
print(result[0].tolist(), "numba.typed.typeddict" in sys.modules)
"""


def test_a_kernel_is_loaded_without_all_that_numba_compiles():
    assert synk.compiled._is_known  # or there is another numba, to be looked at
    warm("sum", np.dtype("f8"))
    ran = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "[3.0, 5.0, 7.0] False\n", ran


def doubled(a):
    return 2 * a


@pytest.mark.parametrize("is_known", [True, False])
def test_a_kernel_is_compiled_where_there_is_none(is_known, monkeypatch):
    monkeypatch.setattr(synk.compiled, "_is_known", is_known)
    kernel = synk.compiled.compile_kernel(doubled)
    kernel._cache.flush()
    assert [kernel(2), kernel(2.5)] == [4, 5.0]
    again = synk.compiled.compile_kernel(doubled)
    assert [again(2), again(2.5)] == [4, 5.0]
    assert sum(again.stats.cache_hits.values()) == 2


def test_an_interrupt_comes_after_a_kernel_is_loaded(monkeypatch):
    kernel, came = synk.compiled.compile_kernel(doubled), []
    kernel(2)

    def load(self, *what):
        signal.raise_signal(signal.SIGINT)
        came.append(sum(range(1000)))
        return whole(self, *what)

    whole = synk.compiled._Cache._load_overload
    monkeypatch.setattr(synk.compiled._Cache, "_load_overload", load)
    again = synk.compiled.compile_kernel(doubled)
    with pytest.raises(KeyboardInterrupt):
        again(2)
    assert came == [499500]
    monkeypatch.undo()
    assert again(2) == 4
