"""What XLA compiles is found by the next run of a script, with nothing said."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from synk.engines import jax_code

SCRIPT = """
import collections, json, sys
import jax, numpy as np, pytensor, pytensor.tensor as pt
import synk

heard = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: heard.update([event]))
x, y = pt.matrices("xy")
w = [pytensor.shared(0.1 * np.ones((20, 20)), name) for name in "uvst"]
z = x
for each in w:
    z = pt.tanh(z @ each) + pt.exp(-(z @ each) ** 2)
loss = ((z - y) ** 2).mean()
step = synk.function([x, y], loss, mode="JAX", updates=[
    (each, each - 0.1 * grad) for each, grad in zip(w, pytensor.grad(loss, w))
])
ranks = int(sys.argv[1])
values = np.random.default_rng(0).normal(size=(2, 8, 20))
with synk.session(ranks):
    losses = [float(step(*values)) for _ in range(3)]
print(json.dumps([losses, heard["/jax/compilation_cache/cache_hits"]]))
"""


@pytest.fixture
def run(tmp_path):
    jax = pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    if jax.__version_info__ < jax_code._READS_ITS_OWN:
        pytest.skip("this version of JAX prints errors as it reads its cache")

    def run(ranks=2, **environment):
        told = {key: value for key, value in os.environ.items() if key[:4] != "JAX_"}
        flags = os.environ.get("PYTENSOR_FLAGS", "")
        told["PYTENSOR_FLAGS"] = f"{flags},base_compiledir={tmp_path}".lstrip(",")
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(ranks)],
            env={**told, "JAX_PLATFORMS": "cpu", **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr  # XLA's complaints come here
        return json.loads(done.stdout)

    return run


def test_the_next_run_finds_the_code_of_every_rank(run, tmp_path):
    first, hits = run()
    assert not hits
    folders = {path.name for path in (tmp_path / "synk-xla").iterdir()}
    if len(os.sched_getaffinity(0)) == 2:
        # Rank 0 may compute alone, with all cores; code for one core runs on one.
        assert {name.rpartition("-")[2] for name in folders} == {"1", "2"}
    again, hits = run()
    assert hits
    assert again == first
    assert folders == {path.name for path in (tmp_path / "synk-xla").iterdir()}


def test_code_for_one_core_is_none_for_two(tmp_path):
    one, two = map(jax_code.folder_for, (1, 2))
    assert one != two
    assert one == jax_code.folder_for(1)


def test_what_a_script_says_of_jax_s_cache_counts(run, tmp_path):
    mine = tmp_path / "mine"
    run(JAX_COMPILATION_CACHE_DIR=str(mine))
    run(JAX_ENABLE_COMPILATION_CACHE="0")
    assert not (tmp_path / "synk-xla").exists()


def test_files_that_nothing_was_written_to_are_compiled_anew(run, tmp_path):
    first, _ = run(ranks=1)
    (path,) = (tmp_path / "synk-xla").glob("*/*-cache")
    path.write_bytes(b"")
    again, hits = run(ranks=1)
    assert (again, hits) == (first, 0)
    assert path.stat().st_size
    assert run(ranks=1)[1]


def test_where_no_folder_can_be_made_all_goes_on(run, tmp_path):
    (tmp_path / "synk-xla").write_text("")
    assert np.isfinite(run(ranks=1)[0]).all()
