"""Rows to a GPU by CUDA's copies: the numbers, and what is pinned."""

import warnings

import numpy as np
import pytensor.tensor as pt
import pytest
import stand_ins
from children import in_a_child
from test_gpu_jax_mode import (  # noqa: F401  the same, with rows on a GPU
    test_what_outlives_a_call_is_not_in_memory_that_is_used_again,
)
from test_rows_to_device import (  # noqa: F401  the same, with CUDA's copies
    test_a_call_that_was_interrupted_keeps_the_rows_that_it_computes_with,
    test_calls_and_runs_have_the_numbers_of_the_serial_function,
    test_code_is_compiled_once_for_a_shape,
    test_rows_are_copied_in_few_pieces_to_memory_that_is_used_again,
    test_rows_of_shared_variables_are_taken_where_they_lie,
    test_rows_on_the_device_are_those_of_numpy,
    test_segments_are_pinned_as_long_as_they_are_mapped,
)

import synk
from synk.memory.cuda import CudaCopier
from synk.ranks.session import SESSION


class WatchedCopier(CudaCopier):
    """Notes what it is asked, as the stand-in does."""

    def __init__(self):
        import jax

        jax.config.update("jax_enable_x64", True)
        super().__init__()
        self.registered: dict[int, int] = {}
        self.log: list[str] = []

    def register(self, start, nbytes):
        super().register(start, nbytes)
        self.registered[start] = nbytes
        self.log.append("register")

    def unregister(self, start):
        super().unregister(start)
        del self.registered[start]
        self.log.append("unregister")

    def writing(self, array):
        writing = super().writing(array)
        copy = writing.copy

        def noted(pieces):
            self.log.extend(f"copy {piece.nbytes}" for piece in pieces)
            copy(pieces)

        writing.copy = noted
        return writing


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    """Have the tests that were written for a stand-in watch CUDA, one GPU for all."""
    stand_ins.copier(monkeypatch, WatchedCopier)
    monkeypatch.setattr("test_rows_to_device.LateCopier", WatchedCopier)
    for module in ("test_gpu_jax_mode", "test_rows_to_device"):
        monkeypatch.setattr(
            f"{module}.session_of", lambda n: synk.session(devices=[0] * n)
        )
    stand_ins.small_copies(monkeypatch)


@in_a_child
def test_functions_read_rows_that_have_arrived(monkeypatch):
    monkeypatch.undo()
    x = pt.fmatrix("x")
    rows = np.repeat(np.arange(8, dtype="float32"), 16)[:, None] * np.ones(1 << 16, "f")
    expected = np.tile(np.arange(8.0), 2)
    runs = [slice(16 * k, 16 * k + 16) for k in range(8)]
    mixed = [
        np.random.default_rng(k).permutation(range(16 * k, 16 * k + 16))
        for k in range(8)
    ]
    with warnings.catch_warnings(), synk.session(1, devices=[0]):
        warnings.simplefilter("error")
        f = synk.function([x], [x.min(), x.max()])
        data = synk.data(rows)
        for argument in (data, rows):
            found = [f(argument, batch=batch) for batch in runs + mixed]
            np.testing.assert_array_equal(np.transpose(found), [expected, expected])
            found = f.run(runs + mixed, argument)
            np.testing.assert_array_equal(found, [expected, expected])
        assert SESSION.context.to_device is not None
        assert SESSION.context.to_device.is_pinned(data.data)
