"""Helpers for tests of processes: Ops that misbehave, scripts, looks at the system.

Ranks are forked from the process that imports this module, so they share `_board`.
"""

import fcntl
import mmap
import os
import pty
import queue
import re
import signal
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytensor
import pytensor.tensor as pt
from own_ops import OfFunction
from pytensor.compile.mode import Mode

import synk

PY = Mode("py", None)
"""Compiles in a millisecond: the graph as it is, run by Python."""

_board = memoryview(mmap.mmap(-1, 4096)).cast("d")
"""Shared with every rank: when one died, how often one came somewhere."""

_DIED_AT, _ARRIVALS, _RELEASED = range(3)


def board(place: int) -> float:
    """Return what stands on the board that all ranks share."""
    return _board[place]


def note(place: int, value: float) -> None:
    """Write on the board."""
    _board[place] = value


# -- Ops that do something on one rank


class Act(OfFunction):
    """Returns its input, and on one rank (None: on all) does something first."""

    __props__ = ("rank", "action")

    def __init__(self, rank: int | None, action: Callable[[], object]) -> None:
        self.rank, self.action = rank, action

    def compute(self, x):
        if self.rank in (None, synk.rank()):
            self.action()
        return x.copy()


class Do:
    """A function with its arguments, to be pickled and compared."""

    def __init__(self, function: Callable, *args: object) -> None:
        self.call = function, args

    def __call__(self) -> object:
        function, args = self.call
        return function(*args)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Do) and self.call == other.call

    def __hash__(self) -> int:
        return hash(self.call)


def acting(rank: int | None, function: Callable, *args: object) -> synk.Function:
    """Return a synk function that sums a matrix, and acts on one rank."""
    x = pt.matrix("x", dtype="float64")
    y = Act(rank, Do(function, *args))(x)
    return synk.function([x], (y.sum(), "sum"), mode=PY, name="acting")


def summing() -> synk.Function:
    """Return a synk function that sums a matrix."""
    x = pt.matrix("x", dtype="float64")
    return synk.function([x], (x.sum(), "sum"), mode=PY, name="summing")


def reducing() -> synk.Function:
    """Return a function that sums a matrix over all ranks, within its graph."""
    x = pt.matrix("x", dtype="float64")
    total = synk.ops.all_reduce(x.sum(), "sum")
    return synk.function([x], (total, None), mode=PY, name="reducing")


ROWS = np.arange(24.0).reshape(12, 2)
TOTAL = ROWS.sum()


def nothing() -> None:
    """Do nothing."""


# -- ways to die


def die(how: str) -> None:
    """End this process: by a signal, or as by "exit 3"."""
    stamp()
    if how.startswith("exit"):
        os._exit(int(how.split()[1]))
    os.kill(os.getpid(), getattr(signal, how))
    signal.pause()  # until the signal is delivered


def stamp() -> None:
    """Note the time of the death that is about to happen."""
    _board[_DIED_AT] = time.monotonic()


def since_death() -> float:
    """Return the seconds since a rank called `stamp`."""
    return time.monotonic() - _board[_DIED_AT]


def assert_works(n: int) -> None:
    """Assert that the running session of `n` ranks computes the right numbers."""
    assert summing()(ROWS) == TOTAL
    assert reducing()(ROWS) == TOTAL
    values = pytensor.shared(np.ones(5), name="ones")
    synk.all_reduce(values, "sum")
    for rank in range(n):
        np.testing.assert_array_equal(synk.get_value(rank, values), np.full(5, n))


# -- places where ranks wait for each other and for the test


def arrive() -> None:
    """Say that a rank has come here; see `await_arrivals`."""
    _board[_ARRIVALS] += 1


def reset() -> None:
    """Forget arrivals and releases."""
    _board[_ARRIVALS] = _board[_RELEASED] = 0


def await_arrivals(count: int, seconds: float = 10) -> None:
    """Wait until `count` ranks have called `arrive`."""
    wait_until(lambda: _board[_ARRIVALS] >= count, seconds, f"{count} arrivals")


def arrive_and_stay(seconds: float = 60) -> None:
    """Say so, and stay in Python code until a signal raises."""
    arrive()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not _board[_RELEASED]:
        time.sleep(0.01)


def arrive_and_compute(seconds: float = 60) -> None:
    """Say so, and compute with numpy until a signal raises."""
    arrive()
    matrix = np.full((200, 200), 1e-3)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        matrix = matrix @ matrix


def arrive_and_ignore(seconds: float = 60) -> None:
    """Say so, and stay whatever is raised."""
    arrive()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            print("ignored", flush=True)


def release() -> None:
    """End `arrive_and_stay`."""
    _board[_RELEASED] = 1


# -- looks at the system


def wait_until(
    condition: Callable[[], object], seconds: float, what: str, pause: float = 0.005
) -> None:
    """Poll until `condition()` is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(pause)


def await_end(pids: list[int], seconds: float = 10) -> None:
    """Wait until none of some processes runs any more."""
    wait_until(lambda: not any(map(is_alive, pids)), seconds, f"end of {pids}")


def kill(rank: int = 1) -> None:
    """Kill a rank, or the zygote, which is -1, and wait for its end."""
    pid = all_pids()[max(rank, 0)]
    os.kill(pid, signal.SIGKILL)
    await_end([pid])


def call_for_a_second(call: Callable[[np.ndarray], object]) -> None:
    """Call until an error, as ranks may do one more call after their zygote's end."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        call(ROWS)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children(pid: int) -> list[int]:
    """Return the children of a process, oldest first, those yet to be reaped too."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue  # a thread that has ended
    return found


def all_pids() -> list[int]:
    """Return the process ids of the zygote and of the ranks that it forked.

    The zygote is the child that has children, or the newest one. It forks the ranks one
    after the other.
    """
    mine = children(os.getpid())
    for zygote in [*filter(children, mine), *mine[-1:]]:
        return [zygote, *children(zygote)]
    return []


def rank_pids() -> dict[int, int]:
    """Return the process ids of ranks 1 and up."""
    return dict(enumerate(all_pids()[1:], 1))


def segments_of(pids: list[int]) -> set[str]:
    """Return the names of segments that `pids` have made and that any process holds."""
    places = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps = (process / "maps").read_text().splitlines()
        except OSError:
            continue  # ended, or another user's
        places += [f"{process.name} maps {line}" for line in maps]
        places += [f"{process.name} has open {link}" for link in links(process.name)]
    names = re.findall(r"/memfd:(synk-(\d+)-\d+)", "\n".join(places))
    return {name for name, pid in names if int(pid) in pids}


def bytes_of_segments() -> int:
    """Return what memory the segments have that this process and its ranks hold."""
    found = {}
    for pid in (os.getpid(), *all_pids()):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            if os.path.lexists(path) and "memfd:synk-" in os.readlink(path):
                status = path.stat()
                found[status.st_ino] = 512 * status.st_blocks
    return sum(found.values())


def links(pid: int | str) -> list[str]:
    """Return what the open file descriptors of a process refer to."""
    found = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.append(os.readlink(link))
            except OSError:
                continue  # closed since: the descriptor of this very loop, for one
    except OSError:
        pass  # ended, or another user's
    return found


# -- a process that cannot be forked


@contextmanager
def with_xla(name: str = "tf_XLATfrtCpuClient") -> Iterator[None]:
    """Have a thread run in this process that looks like one of XLA's."""
    go, done = threading.Event(), threading.Event()

    def run() -> None:
        with open("/proc/thread-self/comm", "w") as comm:
            comm.write(name[:15])
        go.set()
        done.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert go.wait(10)
        yield
    finally:
        done.set()
        thread.join()
        # A thread is joined a moment before the kernel sees it end.
        task = Path(f"/proc/self/task/{thread.native_id}")
        wait_until(lambda: not task.exists(), 5, "end of the thread")


# -- scripts


HEADER = """
import os, signal, sys, time
import numpy as np, pytensor, pytensor.tensor as pt
import synk
import processes
from processes import PY, ROWS, TOTAL, Act, Do, acting, summing
import warnings
warnings.simplefilter("ignore", synk.OversubscriptionWarning)
"""


def run_script(
    body: str, path: Path, seconds: float = 60
) -> subprocess.CompletedProcess:
    """Run a script to its end; what it prints is text in the result."""
    return subprocess.run(
        [sys.executable, _write(body, path)],
        env=script_environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        start_new_session=True,
        check=False,
    )


class Script:
    """A running script whose output is read line by line."""

    def __init__(self, process: subprocess.Popen, output: int) -> None:
        self.process, self.pid = process, process.pid
        self.seen: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    def _read(self, output: int) -> None:
        with os.fdopen(output, errors="replace") as lines:
            try:
                for line in lines:
                    # A terminal echoes what is typed.
                    self._lines.put(line.rstrip("\r\n").removeprefix("^C"))
            except OSError:
                pass  # a terminal ends with EIO

    def expect(self, start: str, seconds: float = 20) -> str:
        """Read on to a line that starts so; return the rest of that line."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"no {start!r} within {seconds} s; got {self.seen}"
                ) from None
            self.seen.append(line)
            if line.startswith(start):
                return line.removeprefix(start).strip()

    def rest(self, seconds: float = 20) -> list[str]:
        """Return the lines from here to the end of the script."""
        self._reader.join(seconds)
        assert not self._reader.is_alive(), f"no end of {self.seen}"
        lines = [self._lines.get_nowait() for _ in range(self._lines.qsize())]
        self.seen += lines
        return lines

    def expect_pids(self) -> list[int]:
        """Read the line that `print_pids` has printed."""
        return [int(pid) for pid in self.expect("pids").split()]

    def wait(self, seconds: float = 10) -> int:
        """Return the exit status."""
        return self.process.wait(seconds)


@contextmanager
def running(
    body: str, path: Path, terminal: bool = False, **environment: str
) -> Iterator[Script]:
    """Run a script in a session of its own, on request with a terminal of its own.

    With a terminal, `Script.terminal` is its other end: what is written there is typed.
    """
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-u", _write(body, path)],
        env=script_environment() | environment,
        stdin=theirs if terminal else subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal if terminal else None,
    )
    os.close(theirs)
    script = Script(process, os.dup(ours))
    script.terminal = ours
    try:
        yield script
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if process.stdin is not None:
            process.stdin.close()
        os.close(ours)


def print_pids() -> None:
    """Print the processes of the session: master, zygote, ranks; for `expect_pids`."""
    print("pids", os.getpid(), *all_pids(), flush=True)


def print_on_arrival(count: int = 1) -> None:
    """Print "arrived" once so many ranks have arrived, from a thread."""

    def watch() -> None:
        await_arrivals(count, 20)
        print("arrived", flush=True)

    threading.Thread(target=watch, daemon=True).start()


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _write(body: str, path: Path) -> str:
    script = path / "script.py"
    script.write_text(HEADER + textwrap.dedent(body))
    return str(script)


def script_environment() -> dict[str, str]:
    """Return the environment of a script, which finds these helpers."""
    here = str(Path(__file__).parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
