"""What goes wrong on some node: it is raised in the script, and nothing hangs."""

import contextlib
import os
import signal

import psutil
import pytest
from launching import APART, MPIS, STOPS, masters, run

BEGIN = """
import os, sys, time, random
import numpy as np, pytensor, pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
import synk

pytensor.config.mode, pytensor.config.cxx = "FAST_COMPILE", ""

class Bad(Op):
    '''Returns x, and on rank k raises an error, or ends the process for k < 0.'''
    __props__ = ()
    def make_node(self, x, k):
        return Apply(self, [x, k], [x.type()])
    def perform(self, node, inputs, output_storage):
        x, k = inputs
        if synk.rank() == k:
            raise KeyError(f"of rank {k}")
        if synk.rank() == -k:
            os.kill(os.getpid(), 9)
        output_storage[0][0] = x + 0
    def infer_shape(self, fgraph, node, shapes):
        return [shapes[0]]

n = synk.fork(2)
x, k = pt.dmatrix("x"), pt.lscalar("k")
X = np.arange(24.0).reshape(8, 3)
w = pytensor.shared(np.zeros(3), "w")
good = synk.function([x], x.mean())
"""

FAULTS = (
    BEGIN
    + STOPS
    + """
times = int(sys.argv[1])

# An error on any rank, in each kind of place.
bad = Bad()
usual = dict(updates=[(w, w + x.mean(0))])
places = [
    synk.function([x], bad(x, k).sum(0).mean(), [k], **usual),
    synk.function([x], bad(x.mean(0), k).sum(), [k], **usual),
    synk.function([x], x.sum(), [k], updates=[(w, w + bad(x.mean(0), k))]),
]
for f in places:
    f(X, 99)
before, generator = w.get_value(), random.Random(0)
for _ in range(times):
    rank, f = generator.randrange(n), generator.choice(places)
    start = time.monotonic()
    try:
        f(X, rank)
    except KeyError as error:
        notes = [note for note in error.__notes__ if "[synk] on rank" in note]
        where = f"on rank {rank} of {n} (node {rank // 2}, "
        assert any(where in note for note in notes), notes
    else:
        raise AssertionError("nothing was raised")
    assert time.monotonic() - start < 10  # nobody waits for who does not come
    if generator.random() < 0.3:
        assert good(X) == X.mean()
for rank in range(n):
    np.testing.assert_array_equal(synk.get_value(rank, w), before)
places[0](X, 99)
np.testing.assert_allclose(synk.get_value(n - 1, w), before + X.mean(0))

# A rank dies that is not its node's master.
f = synk.function([x], Bad()(x, k).sum(), [k])
f(X, 99)
for rank in (3, 1):
    start = time.monotonic()
    try:
        f(X, -rank)
    except synk.WorkerDied as death:
        assert death.rank == rank and death.signal == 9, death
    else:
        raise AssertionError("nothing was raised")
    assert time.monotonic() - start < 10
    synk.recover()
    assert good(X) == X.mean() and f(X, 99) == X.sum()

# A signal handler of the script's raises an exception at any point.
w.set_value(np.zeros(3))
v, change = pytensor.shared(np.zeros(9000), "v"), X.var(0)
f = synk.function([x], x.mean(), updates=[(w, w + (x - x.mean(0)).var(0))])

def often():
    for _ in range(20):
        f(X)
        synk.all_reduce([v])

often()
stops = 0
for _ in range(times):
    stops += is_stopped(generator.uniform(1e-5, 3e-3), often)
    found = [synk.get_value(rank, w) for rank in range(n)]
    calls = w.get_value() / change  # as often as calls were made, on all ranks alike
    np.testing.assert_allclose(calls, round(calls[0]), rtol=1e-9)
    for each in found:
        np.testing.assert_array_equal(each, w.get_value())
assert stops > 0.8 * times, stops
print("done")
"""
)

SLOW = """
class Sleeps(Bad):
    def perform(self, node, inputs, output_storage):
        if synk.rank() == n - 1:
            time.sleep(600)
        output_storage[0][0] = inputs[0] + 0

synk.function([x], Sleeps()(x, k).sum(), [k])(X, 0, timeout=1)
"""


@pytest.mark.parametrize("mpi", [APART, *MPIS[1:]])
def test_what_is_raised_on_any_rank_comes_and_the_next_call_works(tmp_path, mpi):
    """And a rank that takes too long ends the job, as masters would wait for it."""
    status, out, error = run(FAULTS + SLOW, tmp_path, 2, 25, mpi=mpi)
    assert out.split()[-1:] == ["done"], out + error
    assert "within 1 s (the timeout of this call)" in error, error
    assert status != 0


STOPPED = (
    BEGIN
    + """
import signal

def stop(number, _):
    print("stopped by", signal.Signals(number).name)
    sys.exit(7)

signal.signal(signal.SIGUSR1, stop)
good(X)
print("ready", flush=True)
while True:
    good(X)
"""
)


@pytest.mark.parametrize(
    ("mpi", "which"), [("openmpi", "launcher"), *((mpi, "master") for mpi in MPIS)]
)
def test_the_job_ends_with_a_nodes_master_and_with_its_launcher(tmp_path, which, mpi):
    def end(process, lines):
        if which == "launcher":
            os.kill(process.pid, signal.SIGINT)  # as a terminal does
        else:
            _, second = masters(process)
            second.kill()

    status, *_ = run(STOPPED, tmp_path, 2, mpi=mpi, then=end, timeout=30)
    assert status != 0


def test_a_signal_to_all_processes_is_the_scripts(tmp_path):
    def send(process, lines):
        for each in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # what ran for a moment
                if "python" in each.name():
                    each.send_signal(signal.SIGUSR1)

    status, out, error = run(STOPPED, tmp_path, 2, then=send)
    assert out.splitlines()[-1] == "stopped by SIGUSR1", error
    assert status == 7
