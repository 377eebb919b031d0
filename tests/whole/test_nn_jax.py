"""The tests of `synk.nn` again: in JAX mode, and with XLA behind ``perform``.

A process in which XLA runs cannot fork ranks any more, which most other tests do; so
these run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from places import ROOT, TESTS

SUBJECTS = {
    "JAX": ("conv", "graphs", "jax_fixes", "pool"),
    "xla": ("conv", "pool"),  # whose Ops have a ``perform`` with XLA behind it
}


@pytest.mark.slow
@pytest.mark.parametrize("where", SUBJECTS)
def test_all_is_the_same(where):
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    env = {**os.environ, "SYNK_TEST_NN": where, "JAX_PLATFORMS": "cpu"}
    if where == "xla":
        env["SYNK_NN"] = "xla"
    files = [
        TESTS / "behaviour" / f"test_nn_{subject}.py" for subject in SUBJECTS[where]
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
