"""Model classes of Theano-MPI on GPUs: each rank compiles for its own."""

from __future__ import annotations

import compat_models as models
import numpy as np
import pytest
from children import in_a_child
from compat_models import cost_of, serial, told, train, vector

from synk.compat import BSP, EASGD
from synk.workers.gpus import find_gpus


def names(n):
    """Return a GPU for each of n workers, which share those that there are."""
    count = len(find_gpus())
    return [f"cuda{worker % count}" for worker in range(n)]


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_bsp_on_gpus_is_the_serial_step_on_the_mean_gradient(n, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = train(BSP, models.InParts, devices=names(n))
    np.testing.assert_allclose(vector(rule), serial(n, 2)[-1], rtol=1e-9)
    assert [told(worker)["platform"] for worker in range(n)] == ["gpu"] * n


@in_a_child
def test_easgd_on_gpus_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = train(EASGD, models.Long, devices=names(2), every=2)
    assert cost_of(vector(rule)) < 0.01 * cost_of(np.zeros(4))
    assert [told(worker)["platform"] for worker in range(2)] == ["gpu"] * 2
