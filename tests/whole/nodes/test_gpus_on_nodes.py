"""Ranks on GPUs of several nodes, with stand-ins for NVML and NCCL on the CPU.

NCCL itself needs GPUs of several machines.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import launcher

SCRIPT = """
import os, sys, time
import numpy as np, pytensor, pytensor.tensor as pt
import synk

n = synk.fork(int(sys.argv[1]))
assert [node.gpus for node in synk.nodes()] == [int(sys.argv[1])] * 2, synk.nodes()
x, y = pt.matrix("x"), pt.vector("y")
w, v = (pytensor.shared(np.zeros(5), "w") for _ in range(2))

def graph(w):
    loss = ((x @ w - y) ** 2).mean()
    return loss, [(w, w - 0.05 * pytensor.grad(loss, w))]

loss, updates = graph(w)
f = synk.function([x, y], loss, updates=updates)
loss, updates = graph(v)
g = pytensor.function([x, y], loss, updates=updates, mode="FAST_COMPILE")
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(31, 5)), rng.normal(size=31)
same = dict(rtol=1e-5, atol=1e-7)
for stop in (31, 7, 1, 31):
    np.testing.assert_allclose(f(X[:stop], Y[:stop]), g(X[:stop], Y[:stop]), **same)
    np.testing.assert_allclose(w.get_value(), v.get_value(), **same)

# What the transport does not know goes by the masters: complex numbers.
for dtype in ("float32", "complex64"):
    of_ranks = pytensor.shared(np.zeros(3, dtype), "of_ranks")
    for rank in range(n):
        synk.set_value(rank, [of_ranks], [np.full(3, rank + 1, dtype)])
    gathered = synk.all_gather(of_ranks)
    assert (gathered == np.repeat(np.arange(n) + 1, 3)).all(), gathered
    for rank in range(n):
        synk.set_value(rank, [of_ranks], [np.full(3, rank + 1, dtype)])
    synk.broadcast(of_ranks)
    for rank in range(n):
        assert (synk.get_value(rank, [of_ranks])[0] == 1).all()

for _ in range(3):
    open(os.environ["STUCK"], "w").close()
    start, before = time.monotonic(), w.get_value()
    try:
        f(X, Y)
        raise SystemExit("nothing was raised")
    except ZeroDivisionError as error:
        assert f"on rank {n - 1} of {n}" in str(error.__notes__), error.__notes__
    assert time.monotonic() - start < 5
    os.remove(os.environ["STUCK"])
    np.testing.assert_array_equal(w.get_value(), before)
    np.testing.assert_allclose(f(X, Y), g(X, Y), **same)
print("done")
"""


def on_fake_gpus(script: str, folder: Path, *args: object, gpus: str = "2"):
    """Run a script on two nodes that seem to have GPUs."""
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    words, environment = launcher("openmpi", 2)
    environment |= {"STUCK": str(folder / "stuck"), "GPUS": gpus}
    (folder / "script.py").write_text(script)
    mine = [sys.executable, str(Path(__file__).parent / "with_fake_gpus.py")]
    process = subprocess.Popen(
        [*words, *mine, str(folder / "script.py"), *map(str, args)],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, error = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGTERM)  # mpirun ends what it has started
        out, error = process.communicate(timeout=20)
    return process.returncode, out, error


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_functions_and_variables_and_a_rank_that_fails_in_nccl(ranks, tmp_path):
    status, out, error = on_fake_gpus(SCRIPT, tmp_path, ranks)
    assert (status, out) == (0, "done\n"), error


def test_nodes_with_gpus_and_without_are_not_mixed(tmp_path):
    script = (
        "import synk\ntry:\n    synk.fork(1)\nexcept synk.StateError as error:\n"
        "    print(error)\n"
    )
    # What the launcher tells a process: only node 0 is to have GPUs.
    rank = "OMPI_COMM_WORLD_RANK"
    start = Path(__file__).parent / "with_fake_gpus.py"
    text = start.read_text().replace(
        'int(os.environ["GPUS"])', f'(2 if os.environ["{rank}"] == "0" else 0)'
    )
    other = tmp_path / "with_fake_gpus.py"
    other.write_text(text.replace("parents[1]", "parent"))
    for name in ("fake_nvml.py", "fake_nccl.py"):
        (tmp_path / name).write_text((start.parents[1] / name).read_text())
    words, environment = launcher("openmpi", 2)
    environment |= {"STUCK": str(tmp_path / "stuck")}
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [*words, sys.executable, str(other), "script.py"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert "have GPUs" in done.stdout, done.stdout + done.stderr
