"""The zygote: forks the ranks, says when one dies, and ends them with the master.

It is forked before anything else and does nothing but wait, so that it stays a clean
copy: no threads, no device, no half-held locks. Its loop sleeps on three things::

    the master's pidfd    the master is gone       -> kill the ranks, exit
    the request pipe      "fork rank r" or close   -> fork it, or end the ranks
    each rank's pidfd     a rank is gone           -> reap it, report how it ended
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

from ..errors import StateError, SynkError, WorkerDied
from .waiting import with_signals_held_back

_REQUEST = struct.Struct("i")
_REPORT = struct.Struct("iii")
_START_DEADLINE = 60.0
_END_DEADLINE = 5.0
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
        self._serve = serve
        self._pid = self._pidfd = self._requests = self._reports = -1
        self.pids: dict[int, int] = {}

    def start(self) -> None:
        """Fork the zygote."""
        # A signal handler of the script must not raise in the child, which would then
        # go on with the script, nor here while the zygote is half known.
        with_signals_held_back(self._fork)

    def _fork(self) -> None:
        with contextlib.ExitStack() as finally_:
            requests, self._requests = os.pipe()
            finally_.callback(os.close, requests)
            self._reports, reports = os.pipe()
            finally_.callback(os.close, reports)
            # The master looks here in every wait, and must never hang in a read.
            os.set_blocking(self._reports, False)
            master = os.getpid()
            self._pid = fork_quietly()
            if self._pid == 0:
                _run(lambda: self._be_zygote(master, requests, reports))
            # The pid cannot be another process's by now: signals are held back, so no
            # handler of the script has reaped the zygote.
            self._pidfd = open_pidfd(self._pid)
            self._poll = select.poll()
            self._poll.register(self._reports, select.POLLIN)
            self._poll.register(self._pidfd, select.POLLIN)

    def _be_zygote(self, master: int, requests: int, reports: int) -> None:
        os.close(self._requests)
        os.close(self._reports)
        _serve_zygote(master, requests, reports, self._serve)

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

    def watch(self, patience: float = 0) -> None:
        """Read what the zygote reports, waiting `patience` seconds for it.

        Raises
        ------
        WorkerDied
            If a rank, or the zygote itself, has died.
        """
        if self._requests < 0:
            raise StateError("synk was closed during a call")
        events = dict(self._poll.poll(1000 * patience))
        if not events:
            return
        for rank, pid, status in self._read_reports():
            if status == _STARTED:
                self.pids[rank] = pid
            else:
                self.pids.pop(rank, None)
                raise WorkerDied(rank, pid, status)
        if self._pidfd in events:
            raise WorkerDied(-1, self._pid, self._reap())

    def _read_reports(self) -> list[Report]:
        try:
            data = os.read(self._reports, 64 * _REPORT.size)
        except BlockingIOError:
            return []
        return list(_REPORT.iter_unpack(data))

    def interrupt(self, rank: int) -> None:
        """Send SIGINT to a rank, so that Python code there stops."""
        if rank in self.pids:
            try:
                os.kill(self.pids[rank], signal.SIGINT)
            except ProcessLookupError:
                pass  # dead, which the zygote is about to report

    def close(self) -> None:
        """End all ranks and the zygote; bounded, and fine if they are gone already."""
        if self._requests < 0:
            return
        # From here on `watch` says that synk was closed, whoever calls it: a signal
        # handler of the script, or a call that the handler interrupted.
        requests, self._requests = self._requests, -1
        try:
            if not self._has_ended(0):
                os.write(requests, _REQUEST.pack(_CLOSE))
                self._has_ended(_END_DEADLINE)
        except BrokenPipeError:
            pass  # it has just ended
        finally:  # after an interrupt too, and if `start` failed
            if self._pid > 0:
                if not self._has_ended(0):
                    os.kill(self._pid, signal.SIGKILL)  # the ranks die with it
                self._reap()
            for fd in (requests, self._reports, self._pidfd):
                if fd >= 0:
                    os.close(fd)

    def _has_ended(self, patience: float) -> bool:
        if self._pidfd < 0:
            return False
        poll = select.poll()  # not select(), which fails from descriptor 1024 on
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(1000 * patience))

    def _reap(self) -> int:
        """Return how the zygote ended, as an exit code or a negative signal number."""
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:  # reaped here before, or by somebody's wait()
            return -signal.SIGKILL
        return os.waitstatus_to_exitcode(status)


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
    _forget_handlers()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page
    master_fd = open_pidfd(master)
    poll = select.poll()
    poll.register(master_fd, select.POLLIN)
    poll.register(requests, select.POLLIN)
    ranks: dict[int, tuple[int, int]] = {}  # pidfd -> rank, pid
    # The master may have ended before the pidfd was opened; the number could be
    # another process's then.
    running = os.getppid() == master
    while running:
        for fd, _ in poll.poll():
            if fd == requests:
                data = os.read(requests, _REQUEST.size)
                (rank,) = _REQUEST.unpack(data) if data else (_CLOSE,)
                if rank == _CLOSE:
                    running = False
                else:
                    # Single-threaded, with no lock held: what is forked here is as
                    # clean as the zygote, however late that is in the life of the
                    # master.
                    pid = _fork_rank(rank, serve)
                    pidfd = open_pidfd(pid)
                    ranks[pidfd] = rank, pid
                    poll.register(pidfd, select.POLLIN)
                    os.write(reports, _REPORT.pack(rank, pid, _STARTED))
            elif fd == master_fd:
                running = False
            else:
                rank, pid = ranks.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                # The pidfd was readable, so the rank has ended and this does not wait.
                _, status = os.waitpid(pid, 0)
                code = os.waitstatus_to_exitcode(status)
                try:
                    os.write(reports, _REPORT.pack(rank, pid, code))
                except BrokenPipeError:
                    running = False  # the master is gone or does not listen any more
    # SIGKILL and not SIGTERM: a rank may be in compiled code, or stopped.
    for _, pid in ranks.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _forget_handlers() -> None:
    """Undo what the script has made of signals: none of its handlers must run here.

    Those for SIGCHLD would reap the ranks before the zygote sees how they ended.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


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
        flush_streams()
        os._exit(status)


def open_pidfd(pid: int) -> int:
    """``os.pidfd_open``, which a Python built with old kernel headers does not have.

    Conda's is such a one: it is made for kernels that lack the call, and runs on
    others.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    fd = ctypes.CDLL(None, use_errno=True).syscall(_SYS_PIDFD_OPEN, pid, 0)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"pidfd_open: {os.strerror(number)}")
    return fd


_SYS_PIDFD_OPEN = 434
"""The same on all architectures but Alpha."""


def fork_quietly() -> int:
    """``os.fork`` without the warnings for threads of a process that we leave alone."""
    flush_streams()
    with warnings.catch_warnings():
        # Python 3.12+ and JAX warn of threads. The child never touches what those
        # threads may hold: it computes with numpy and PyTensor, which are fork-safe.
        warnings.simplefilter("ignore")
        return os.fork()


def flush_streams() -> None:
    """Write out what this process has printed, as far as that can be done."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # closed or replaced by something that cannot flush
