"""Calls that rank 0 makes alone with JAX: as a whole, with all cores."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child

import synk
from synk.call import engines
from synk.choice.trial import Trial

CORES = os.sched_getaffinity(0)
VALUES = np.arange(24.0).reshape(8, 3) % 5, np.arange(8.0)


class JAXAlone(Trial):
    """A trial whose end is that rank 0 makes the calls with JAX."""

    is_over = True

    def __init__(self, candidates, *more):
        super().__init__(candidates, *more)
        (self.best,) = [c for c in candidates if c.name == "JAX, rank 0 alone"]


@pytest.fixture
def alone(auto, monkeypatch):
    monkeypatch.setattr(engines, "Trial", JAXAlone)


def cores_of_xla() -> list[set[int]]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        if task.joinpath("comm").read_text().startswith("tf_XLA"):
            found.append(os.sched_getaffinity(int(task.name)))
    return found


@in_a_child
def test_it_is_the_serial_run_on_all_cores(alone):
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w, calls = pytensor.shared(np.zeros(3), "w"), pytensor.shared(np.int64(0), "calls")
    loss = ((x @ w - y) ** 2).mean()
    updates = [(w, w - 0.01 * pytensor.grad(loss, w)), (calls, calls + 1)]
    step = synk.function([x, y], [loss, calls], updates=updates)
    total = synk.function([x, y], loss, mode="CVM")
    right, (values, targets) = np.zeros(3), VALUES
    with synk.session(2):
        for k in range(4):
            rest = values @ right - targets
            assert step(*VALUES)[0] == pytest.approx((rest**2).mean(), rel=1e-12)
            # It is the first to start XLA, which must keep all the cores.
            assert cores_of_xla()
            assert all(cores == CORES for cores in cores_of_xla()), k
            right = right - 0.02 * values.T @ rest / 8
        with pytest.raises(TypeError, match="shape"):
            step(np.ones((8, 4)), targets)
        np.testing.assert_allclose(w.get_value(), right, rtol=1e-12)
        assert calls.get_value() == 4
        rest = values @ right - targets
        assert total(*VALUES) == pytest.approx((rest**2).mean(), rel=1e-12)
        np.testing.assert_allclose(synk.get_value(1, w), right, rtol=1e-12)
        assert float(step(*VALUES)[1]) == 4
    programs = step._engines.present.local()
    kinds = {kind for kind, _ in programs._cuts}
    assert kinds >= {"uncut"}  # one executable, which updates what it computes
