"""Nothing is printed that the user did not cause, on any rank, with empty caches."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NETWORK = """
import numpy as np, pytensor, pytensor.tensor as pt, synk
x, y = pt.matrix("x"), pt.lvector("y")
w, v = (pytensor.shared(np.full(shape, 0.1)) for shape in [(6, 4), (4, 3)])
p = synk.nn.log_softmax(pt.tanh(x @ w) @ v)
loss = -p[pt.arange(y.shape[0]), y].mean()
updates = synk.updates.sgd(synk.grad(loss, [w, v]), [w, v], 0.1)
step = synk.function([x, y], loss, updates=updates, mode="MODE")
synk.fork(2)
rng = np.random.default_rng(0)
print(step(rng.normal(size=(8, 6)), rng.integers(0, 3, 8)) > 0)
synk.close()
"""


@pytest.mark.parametrize("mode", [pytest.param("NUMBA", marks=pytest.mark.slow), "JAX"])
def test_a_step_of_a_network_prints_nothing(mode, tmp_path):
    if mode == "JAX":
        pytest.importorskip("jax")
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path}/code"
    done = subprocess.run(
        [sys.executable, "-c", NETWORK.replace("MODE", mode)],
        env=os.environ | {"PYTENSOR_FLAGS": flags.lstrip(",")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("True\n", "")
