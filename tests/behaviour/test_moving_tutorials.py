"""Theano's tutorial and the Deep Learning Tutorials by ranks, to the serial costs."""

import numpy as np
import pytensor
import pytest
from deep_learning import PROGRAMS, contrastive_divergence, mlp

import synk

SERIAL = {contrastive_divergence}
"""Draws within its scan need all rows of a batch at once."""

CHEAP = {"mode": "FAST_COMPILE", "floatX": "float64"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_program_has_the_serial_numbers_on_ranks(program):
    with pytensor.config.change_flags(**CHEAP):
        serial = program()
        for ranks in (2, 3) if program is mlp else (3,):
            with synk.parallel_functions(ranks, every=True) as parallel:
                found = program()
            synk.close()
            np.testing.assert_allclose(found, serial, rtol=1e-9, atol=1e-12)
            is_shared = not str(parallel).startswith("0 ")
            assert is_shared is (program not in SERIAL), parallel.explain()
    assert np.isfinite(serial).all()
    assert len(set(serial)) > 2
