"""Walks through a centre's blocks: compiled ones have the bits of those in Python."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

import synk
from synk.exchange import centre, walks
from synk.exchange.group import Workers
from synk.ranks.session import SESSION
from synk.rules import ASGD, EASGD, GEM, DiLoCo, Downpour, LocalSGD

SHAPES = ((3, 5), (), (7,), (2, 2, 2), (0,), (61,))
"""Of the parameters: blocks of a few elements end in the middle of some."""


def trained(rule, dtype, monkeypatch, is_compiled):
    """Return the parameters and the centre of one worker after some exchanges."""
    made = []

    def make_walk(*args):
        made.append(args)
        if is_compiled:
            return original(*args)
        raise NotImplementedError

    original = walks.make_walk
    with monkeypatch.context() as patch:
        patch.setattr(walks, "make_walk", make_walk)
        patch.setattr(centre, "BLOCK", 100)
        random = np.random.default_rng(3)
        params = [
            pytensor.shared(np.asarray(random.normal(size=shape), dtype))
            for shape in SHAPES
        ]
        workers = Workers(rule, params)
        workers.ready()
        worker = SESSION.context.workers[workers.number]
        with worker.running():
            for _ in range(5):
                for param in params:
                    value = param.get_value()
                    moved = value - 0.1 * np.asarray(random.normal(size=value.shape))
                    param.set_value(np.asarray(moved, dtype))
                worker.after_step([3])
        state = workers.state()
    assert made
    return state


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        pytest.param(rule, dtype, id=f"{dtype}, {rule}")
        for rule, dtype in [
            (LocalSGD(2), "float64"),
            (EASGD(2, order="free"), "float32"),
            (ASGD(1, order="turns"), "float64"),
            (GEM(1, order="free"), "float32"),
            (DiLoCo(3), "float64"),
            (DiLoCo(4, fragments=2, delay=1, order="free"), "float64"),
            (Downpour(1, "adam"), "float64"),
            (Downpour(2, "adam", order="free"), "float32"),
        ]
    ],
)
def test_compiled_walks_have_the_bits_of_those_in_python(rule, dtype, monkeypatch):
    with synk.session(1):
        compiled = trained(rule, dtype, monkeypatch, True)
        plain = trained(rule, dtype, monkeypatch, False)
    flat = [{**shared, **own[0]} for shared, own in (compiled, plain)]
    assert flat[0].keys() == flat[1].keys()
    for name, value in flat[0].items():
        assert value.dtype == flat[1][name].dtype
        np.testing.assert_array_equal(value, flat[1][name], err_msg=name)
    assert not np.array_equal(flat[0]["w"], np.zeros_like(flat[0]["w"]))
