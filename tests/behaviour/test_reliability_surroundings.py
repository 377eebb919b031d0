"""What a session runs on: sandboxes, namespaces, limits, and other users.

More of it is in the fault table. Each test has a child of its own, which its limits
end with.
"""

import contextlib
import errno
import io
import itertools
import os
import resource
import stat
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytensor
import pytest
import sandbox
from children import run_python
from places import ROOT, SUPPORT
from processes import ROWS, TOTAL, acting, all_pids, links, summing, wait_until

import synk

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_a_child(work: Callable[[], Any]) -> Any:
    """Return what some work returns in a forked child."""
    ours, theirs = Pipe()
    pid = os.fork()
    if not pid:
        try:
            theirs.send(work())
        except BaseException:
            theirs.send(traceback.format_exc())
        os._exit(0)
    theirs.close()
    found = ours.recv()
    os.waitpid(pid, 0)
    return found


def said_of(*asked: Callable[[], Any]) -> list[str]:
    """Return the synk errors that some calls raise, in words."""
    found = []
    for ask in asked:
        try:
            ask()
            found.append("nothing")
        except synk.SynkError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# -- sandboxes that forbid system calls, by real filters

NEEDED = "memfd_create", "pidfd_open", "fallocate"
PINNING = "sched_setaffinity", "sched_getaffinity"

needs_numbers = pytest.mark.skipif(not sandbox.NUMBERS, reason="the calls' numbers")


def in_a_sandbox(calls: list[str], error: str, work: Callable[[], Any]) -> Any:
    """Return what a child that may not use some calls makes of some work."""

    def confined() -> Any:
        sandbox.forbid(calls, getattr(errno, error))
        return work()

    return in_a_child(confined)


@needs_numbers
@pytest.mark.parametrize(
    ("call", "error"), [*zip(NEEDED, ("EPERM", "ENOSYS", "EPERM"), strict=True)]
)
def test_what_is_needed_is_an_error_of_one_sentence(call, error, capfd):
    def refused() -> list[str]:
        return said_of(lambda: synk.fork(2), lambda: synk.data(ROWS))

    of_fork, of_data = in_a_sandbox([call], error, refused)
    if call == "pidfd_open":
        assert of_data == "nothing"  # it needs no process
        of_data = of_fork
    for told in (of_fork, of_data):
        assert f": the system call {call}, " in told
        assert error in told
        assert "seccomp" in told
        assert "\n" not in told
    assert "Traceback" not in capfd.readouterr().err  # of another process


@needs_numbers
@pytest.mark.parametrize("call", PINNING)
def test_ranks_that_cannot_be_pinned_compute_all_the_same(call):
    def fork_and_compute() -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with synk.session(2):
                right = [summing()(ROWS), summing()(synk.data(ROWS))] == [TOTAL] * 2
                started = subprocess.run(["true"], check=True), os.system("true")
        told = [warning for warning in caught if warning.category is RuntimeWarning]
        places = [(str(warning.message), warning.filename) for warning in told]
        return [bool(right and not started[1]), places]

    right, ((told, place),) = in_a_sandbox([call], "EPERM", fork_and_compute)
    assert right
    assert f"not pinned to cores, and may be slower: the system call {call}" in told
    assert "seccomp" in told
    assert place == __file__


@needs_numbers
def test_a_sandbox_that_begins_with_the_session():
    def close_the_door() -> list[Any]:
        with synk.session(2):
            f = summing()
            first = f(ROWS)
            sandbox.forbid([*NEEDED, *PINNING], errno.EPERM)
            told = said_of(lambda: synk.data(np.ones(10)))
            return [bool(first == f(ROWS) == TOTAL), *told]

    right, told = in_a_child(close_the_door)
    assert right
    assert ": the system call memfd_create" in told


@needs_numbers
@pytest.mark.parametrize(
    ("call", "status", "told"),
    [
        (NEEDED[0], 1, f"the system call {NEEDED[0]}, "),
        (PINNING[0], 0, f"not pinned: the system call {PINNING[0]}, by which"),
    ],
)
def test_info_says_what_a_sandbox_forbids(call, status, told):
    def info() -> list[Any]:
        done = run_python("-m", "synk", "info", "-n", 2, check=False, PYTHONPATH=ROOT)
        return [done.returncode, " ".join(done.stdout.split()), done.stderr]

    found = in_a_sandbox([call], "ENOSYS", info)
    assert found[0] == status, found
    assert told in found[1]


# -- a PID namespace whose /proc is that of another one, or is missing

IN_A_NAMESPACE = """
import os, subprocess, sys, threading
import numpy as np
from processes import acting, summing
import synk

assert os.readlink("/proc/self") != str(os.getpid())  # as it was not mounted anew
cores = os.sched_getaffinity(0)
done = threading.Event()
with synk.session(3):
    f, rows = summing(), synk.data(np.ones((20_000, 2)))
    assert f(rows) == rows.data.sum()
    try:
        acting(1, os._exit, 3)(rows)
    except synk.WorkerDied as death:
        print(death.rank)
    synk.recover()
    assert f(rows) == rows.data.sum()
    thread = threading.Thread(target=done.wait)
    thread.start()
    listed = subprocess.run([sys.executable, "-m", "synk", "ps"], capture_output=True)
    print(listed.returncode, listed.stdout.decode().strip())
assert os.sched_getaffinity(thread.native_id) == cores
done.set()
print("right")
"""


def test_a_namespace_without_a_proc_of_its_own_has_ranks():
    command = ["unshare", "--pid", "--fork"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    done = subprocess.run(
        [*command, sys.executable, "-c", IN_A_NAMESPACE],
        env={"PYTHONPATH": f"{SUPPORT}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Others of this user may run sessions beside; ours has other numbers there.
    assert lines[0] == "1"
    assert lines[1].startswith("0 ")
    assert lines[-1] == "right"


def test_a_process_that_is_not_in_proc_says_so(monkeypatch):
    def gone(path, *args, **kwargs):
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "readlink", gone)
    for told in said_of(lambda: synk.fork(2), lambda: synk.data([1.0])):
        assert "not in /proc" in told
        assert "mount -t proc" in told


# -- limits of a process


def limit(which: int, value: int) -> None:
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


def test_too_many_open_files_are_named_with_their_limit():
    def work() -> list[str]:
        call, used = summing(), len(os.listdir("/proc/self/fd"))
        limit(resource.RLIMIT_NOFILE, used + 60)
        with synk.session(2):
            data = synk.data(np.ones((10, 2)))
            told = said_of(lambda: [synk.data([1]) for _ in range(100)])
            assert call(data) == 20
        return [str(used + 60), *told]

    number, told = in_a_child(work)
    assert told.startswith("SynkError: ")
    assert f"many open files: ulimit -n is {number}. Each synk.Data takes two" in told


def test_limits_of_memory_are_named():
    def work() -> list[str]:
        data = synk.data([1, 2, 3])
        limit(resource.RLIMIT_AS, psutil.Process().memory_info().vms + (1 << 30))
        told = said_of(lambda: data.set_length(1 << 30))
        limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        limit(resource.RLIMIT_FSIZE, 1 << 20)
        told += said_of(lambda: data.set_length(1 << 20))
        assert list(data.data) == [1, 2, 3]
        return told

    of_space, of_size = in_a_child(work)
    what = "SharedMemoryFull: no room for {:,} bytes of shared memory: "
    assert of_space.startswith(what.format((8 << 30) - 4096))
    assert "ulimit -v is " in of_space
    assert of_size.startswith(what.format((8 << 20) - 4096))
    assert "ulimit -f is 1,048,576:" in of_size


# -- what other users of the machine can do to a session: nothing

NOBODY = 65534


def test_shared_memory_has_no_name_and_is_its_users_alone(two_ranks):
    rows, values = synk.data(ROWS), pytensor.shared(np.ones(5))
    synk.all_reduce(values, "sum")
    assert summing()(rows) == TOTAL
    everyone = [os.getpid(), *all_pids()]
    opened = [link for pid in everyone for link in links(pid)]
    assert not [link for link in opened if link.startswith("/dev/shm")]
    segments = [
        path
        for pid in everyone
        for path in Path(f"/proc/{pid}/fd").iterdir()
        # That of the folder itself is closed by now.
        if path.exists() and "memfd:synk-" in os.readlink(path)
    ]
    assert len(segments) > 3
    for path in segments:
        seen = path.stat()
        assert seen.st_nlink == 0
        assert seen.st_uid == os.geteuid()
        assert stat.S_IMODE(seen.st_mode) == 0o600
    if os.geteuid():
        return  # only root can become another user

    def open_as_nobody() -> int:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return sum(os.access(path, os.R_OK | os.W_OK) for path in segments)

    assert in_a_child(open_as_nobody) == 0


def test_no_process_has_a_socket():
    def sockets(pid: int) -> list[str]:
        return [link for link in links(pid) if link.startswith("socket:")]

    before = sockets(os.getpid())
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
        synk.all_reduce(pytensor.shared(np.ones(3)), "sum")
        for pid in (os.getpid(), *all_pids()):
            assert sockets(pid) == before


# -- standard streams that are closed


def shout() -> None:
    """Write to all three streams as C libraries do, which look at nothing."""
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.write(fd, b"X" * 64)


@pytest.mark.parametrize("closed", [(0,), (0, 1, 2)], ids=str)
def test_data_is_right_whichever_streams_are_closed(closed, tmp_path):
    """No descriptor of synk's becomes one of them, in any process."""

    def work() -> dict[str, Any]:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        with contextlib.suppress(ImportError):
            from pyarrow import csv  # which opens a pipe in each child from now on

            csv.read_csv(io.BytesIO(b"a\n1\n"))
        for fd in closed:
            os.close(fd)
        rows, sums = synk.data(np.arange(3e5).reshape(-1, 2)), []
        call = acting(None, shout)
        synk.fork(2)
        shout()
        more = synk.data(np.full((2000, 2), 7.0))
        pids = [os.getpid(), *all_pids()]

        def opened() -> list[str]:
            links = []
            for pid, fd in itertools.product(pids, closed):
                with contextlib.suppress(FileNotFoundError):
                    links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            return links

        # A rank that starts reads a folder of /proc, for a moment.
        wait_until(lambda: not opened(), 5, f"no open stream, as {opened()}")
        sums += [float(call(rows)), float(call(more))]
        os.kill(all_pids()[1], 9)
        try:
            call(more)
        except synk.WorkerDied:
            synk.recover()
        shout()
        sums.append(float(call(rows.data[:50_000].copy())))  # a large message
        values = pytensor.shared(np.ones(3))
        synk.save(tmp_path / "saved.npz", [values])
        same = bool((rows.data == np.arange(3e5).reshape(-1, 2)).all())
        synk.close()
        with synk.session(2, groups=2):
            sums.append(synk.groups()[1].run(np.sum, [1.0, 2.0]))
        return {"sums": sums, "same": same}

    found = in_a_child(work)
    right = [np.arange(3e5).sum(), 28_000.0, np.arange(1e5).sum(), 3.0]
    assert found == {"sums": right, "same": True}
