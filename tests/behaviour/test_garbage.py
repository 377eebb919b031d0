"""Python's collector waits while much is made, and goes on after that."""

from __future__ import annotations

import gc

import numpy as np
import pytensor.tensor as pt
import pytest
from children import in_a_child

import synk
from synk.garbage import without_collection


@pytest.mark.parametrize("was_on", [True, False])
def test_it_is_as_it_was_after_the_block(was_on):
    (gc.enable if was_on else gc.disable)()
    try:
        with without_collection():
            assert not gc.isenabled()
            with without_collection():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
        with pytest.raises(KeyError), without_collection():
            raise KeyError
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


@in_a_child
def test_nothing_is_collected_while_jax_compiles_and_loads():
    x = pt.matrix("x")
    is_on, begun = [], []

    def note(phase: str, info: dict) -> None:
        if phase == "start" and info["generation"] == 2:
            begun.append(info)

    with synk.session(1):
        f = synk.function([x], pt.tanh(x @ x.T).sum(), mode="JAX")
        gc.callbacks.append(note)
        try:
            for rows in (3, 4):  # compiled for each shape
                f(np.ones((rows, 2)))
                is_on.append(gc.isenabled())
        finally:
            gc.callbacks.remove(note)
    assert is_on == [True, True]
    assert not begun
