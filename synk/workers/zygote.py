"""The zygote: forks the ranks, says when one dies, and ends them with the master.

It is forked before anything else and does nothing but wait, so that it stays a clean
copy: no threads, no device, no half-held locks. Its loop sleeps on three things::

    the master's pidfd    the master is gone       -> kill the ranks, exit
    the request pipe      "fork rank r" or close   -> fork it, or end the ranks
    each rank's pidfd     a rank is gone           -> reap it, report how it ended
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

from ..errors import SynkError, WorkerDied

_REQUEST = struct.Struct("i")
_REPORT = struct.Struct("iii")
_START_DEADLINE = 60.0
_PR_SET_PDEATHSIG = 1

Report = tuple[int, int, int]


class Zygote:
    """The master's handle of its zygote.

    Parameters
    ----------
    serve : callable
        ``serve(rank)`` is what a rank does with its life; it need not return.
    """

    def __init__(self, serve: Callable[[int], object]) -> None:
        requests, self._requests = os.pipe()
        self._reports, reports = os.pipe()
        os.set_blocking(self._reports, False)
        self.pids: dict[int, int] = {}
        master = os.getpid()
        self._pid = fork_quietly()
        if self._pid == 0:
            os.close(self._requests)
            os.close(self._reports)
            _run(lambda: _serve_zygote(master, requests, reports, serve))
        os.close(requests)
        os.close(reports)
        self._pidfd = os.pidfd_open(self._pid)
        self._poll = select.poll()
        self._poll.register(self._reports, select.POLLIN)
        self._poll.register(self._pidfd, select.POLLIN)

    def fork_rank(self, rank: int) -> int:
        """Have `rank` forked; return its process id once it runs."""
        os.write(self._requests, _REQUEST.pack(rank))
        deadline = time.monotonic() + _START_DEADLINE
        while rank not in self.pids:
            if time.monotonic() > deadline:
                raise SynkError(f"rank {rank} was not forked in {_START_DEADLINE} s")
            self._poll.poll(100)
            self.watch()
        return self.pids[rank]

    def watch(self) -> None:
        """Read what the zygote reports.

        Raises
        ------
        WorkerDied
            If a rank, or the zygote itself, has died.
        """
        if not self._poll.poll(0):
            return
        for rank, pid, status in self._read_reports():
            if status == _STARTED:
                self.pids[rank] = pid
            else:
                self.pids.pop(rank, None)
                raise WorkerDied(rank, pid, status)
        if select.select([self._pidfd], [], [], 0)[0]:
            _, status = os.waitpid(self._pid, 0)
            raise WorkerDied(-1, self._pid, os.waitstatus_to_exitcode(status))

    def _read_reports(self) -> list[Report]:
        try:
            data = os.read(self._reports, 64 * _REPORT.size)
        except BlockingIOError:
            return []
        return list(_REPORT.iter_unpack(data))

    def interrupt(self, rank: int) -> None:
        """Send SIGINT to a rank, so that Python code there stops."""
        if rank in self.pids:
            os.kill(self.pids[rank], signal.SIGINT)

    def close(self) -> None:
        """End all ranks and the zygote; bounded, and fine if they are gone already."""
        if self._requests < 0:
            return
        try:
            os.write(self._requests, _REQUEST.pack(_CLOSE))
        except BrokenPipeError:
            pass  # it is gone
        os.close(self._requests)
        self._requests = -1
        if not select.select([self._pidfd], [], [], 5.0)[0]:
            os.kill(self._pid, signal.SIGKILL)  # ranks follow: their parent is gone
        try:
            os.waitpid(self._pid, 0)
        except ChildProcessError:
            pass  # reaped by watch(), or by somebody's wait()
        os.close(self._reports)
        os.close(self._pidfd)


_CLOSE = -1
"""A request to end the ranks and exit. Closing the pipe would not do: a child that the
user's script has forked may hold it open too."""

_STARTED = 1 << 16
"""A status that no process can have: the rank is running."""


def _serve_zygote(
    master: int, requests: int, reports: int, serve: Callable[[int], object]
) -> None:
    # A group of our own: Ctrl-C in a terminal then reaches the master alone, which
    # tells the ranks in its own time.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    gc.freeze()  # the collector would otherwise touch, and so copy, every page
    master_fd = os.pidfd_open(master)
    poll = select.poll()
    poll.register(master_fd, select.POLLIN)
    poll.register(requests, select.POLLIN)
    ranks: dict[int, tuple[int, int]] = {}  # pidfd -> rank, pid
    running = os.getppid() == master
    while running:
        for fd, _ in poll.poll():
            if fd == requests:
                data = os.read(requests, _REQUEST.size)
                (rank,) = _REQUEST.unpack(data) if data else (_CLOSE,)
                if rank == _CLOSE:
                    running = False
                else:
                    pid = _fork_rank(rank, serve)
                    pidfd = os.pidfd_open(pid)
                    ranks[pidfd] = rank, pid
                    poll.register(pidfd, select.POLLIN)
                    os.write(reports, _REPORT.pack(rank, pid, _STARTED))
            elif fd == master_fd:
                running = False
            else:
                rank, pid = ranks.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                _, status = os.waitpid(pid, 0)
                code = os.waitstatus_to_exitcode(status)
                os.write(reports, _REPORT.pack(rank, pid, code))
    for _, pid in ranks.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork_rank(rank: int, serve: Callable[[int], object]) -> int:
    zygote = os.getpid()
    pid = fork_quietly()
    if pid:
        return pid
    # The kernel kills this process when the zygote ends, and if it has ended already
    # the signal will not come.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:
        os._exit(1)
    _run(lambda: serve(rank))


def _run(body: Callable[[], object]) -> NoReturn:
    """Run a forked child to its end, without the parent's exit handlers."""
    status = 1
    try:
        body()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def fork_quietly() -> int:
    """``os.fork`` without the warnings for threads of a process that we leave alone."""
    _flush()
    with warnings.catch_warnings():
        # Python 3.12+ and JAX warn of threads. The child never touches what those
        # threads may hold: it computes with numpy and PyTensor, which are fork-safe.
        warnings.simplefilter("ignore")
        return os.fork()


def _flush() -> None:
    import sys

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # closed or replaced by something that cannot flush
