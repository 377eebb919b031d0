"""Lasagne's layers, objectives and the rest of Theano's networks, in JAX mode.

In a process of their own, as ``test_nn_jax.py``: where XLA runs, no rank can be forked.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from places import ROOT, TESTS

NAMES = (
    *("lasagne_functions", "nn_theano", "lasagne_layers"),
    *("lasagne_newer", "lasagne_newer_rules"),
)


@pytest.mark.slow
def test_all_is_the_same_in_jax_mode():
    files = [TESTS / "behaviour" / f"test_{name}.py" for name in NAMES]
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "SYNK_TEST_NN": "JAX", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
