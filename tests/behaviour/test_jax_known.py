"""JAX mode: what is known takes no program, and first values are not kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child

import synk
from synk.engines import jax_known

SCRIPT = """
import gc, json, sys
import jax, numpy as np, pytensor, pytensor.tensor as pt
if "synk" in sys.argv:
    import synk

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compiled.append(event)
)
x = pt.matrix("x")
w = pytensor.shared(np.ones((3, 1001)), "w")
z = (x @ w) * np.arange(1001.0)
if "sizes" in sys.argv:
    n = x.shape[0]
    z += pt.zeros((pt.maximum(n // 2 * 2, 1) + n - n % 4, 1001))[:n]
loss = (z / pt.cast(n, "float64")).mean() if "sizes" in sys.argv else z.sum() / 16016
given = [x], loss
updates = [(w, w - 0.1 * pytensor.grad(loss, w))]
if "synk" in sys.argv:
    function = synk.function(*given, updates=updates, mode="JAX")
    with synk.session(1):
        found = [float(function(np.ones((4, 3)))) for _ in range(3)]
else:
    function = pytensor.function(*given, updates=updates, mode="JAX")
    found = [float(function(np.ones((4, 3)))) for _ in range(3)]
programs = sum("backend_compile" in event for event in compiled)
gc.collect()
kept = sum(a.shape == (3, 1001) and bool((a == 1).all()) for a in jax.live_arrays())
print(json.dumps([programs, kept, found]))
"""


def run(*words):
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_sizes_and_constants_take_no_program_and_first_values_are_not_kept():
    plain_programs, plain_kept, right = run()
    assert plain_kept == 1, "what keeps no shared variables can go"
    assert plain_programs > 2, "what typifies constants can go"
    for words in (["synk"], ["synk", "sizes"]):
        programs, kept, found = run(*words)
        assert found == pytest.approx(right, rel=1e-12)
        assert not kept
        assert programs <= 2  # the graph, and a copy of what it returns


def sizes(x):
    n, m = x.shape[0], x.shape[1]
    yield pt.maximum(n // 2, 1) + 3 * m - n % 3
    yield pt.switch(pt.gt(n, m), n, m)
    yield pt.stack([n, m, n * m]).sum()
    yield pt.concatenate([x.shape, [5]])[1:].prod()
    yield pt.cast(pt.ceil(n / 7.0), "int64")
    yield pt.log(n) + pt.sqrt(pt.cast(m, "float32"))
    yield pt.true_div(n, m)
    yield pt.stack([[n, m], [m, n]]).T.max(axis=1)


@in_a_child
def test_what_is_computed_of_sizes_has_the_values_and_dtypes_of_other_modes():
    x = pt.dmatrix("x")
    graphs = list(sizes(x))
    graphs += [(x * graph.sum()).sum() for graph in sizes(x)]
    given = np.random.default_rng(0).normal(size=(9, 4))
    right = pytensor.function([x], graphs, mode="FAST_COMPILE")(given)
    function = synk.function([], graphs, mode="JAX", bcast_inputs=[x])
    with synk.session(1):
        found = function(given)
    for number, (mine, other) in enumerate(zip(found, right, strict=True)):
        np.testing.assert_allclose(mine, other, rtol=1e-12, err_msg=str(number))
        assert np.asarray(mine).dtype == other.dtype, number


@in_a_child
def test_constants_are_arrays_of_their_own():
    constant = np.arange(6.0, dtype="float32").reshape(2, 3)
    typify = jax_known.typified(lambda data, dtype, **_: data.item())
    mine = typify(constant, variable=pt.constant(constant))
    assert mine.shape == (2, 3)
    assert mine.dtype == "float32"
    constant[:] = 0
    np.testing.assert_array_equal(mine, np.arange(6.0).reshape(2, 3))
    assert typify(np.array(2.5)) == 2.5
    assert typify(constant, dtype="float64").dtype == "float64"
    assert typify(constant, variable=pytensor.shared(constant)) is None
