"""The zygote's end: a loop that serves the master's requests; see also `zygote`.

::

    the master's pidfd    the master is gone       -> kill the ranks, exit
    the request pipe      begin, fork rank r, end the ranks, close
    each rank's pidfd     a rank is gone           -> report how it ended, reap it

The zygote computes nothing, and keeps the ranks' start data as bytes. So every rank is
forked from the process as it was made, whatever the ranks of earlier sessions did.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import struct
from collections.abc import Callable
from io import FileIO

from ..memory.descriptors import open_pidfd
from .forks import (
    PR_SET_PDEATHSIG,
    end_with_parent,
    forget_handlers,
    forking_quietly,
    run_to_end,
)

REQUEST = struct.Struct("ii")
"""A request: the number of a rank to fork, from 1 on, or a constant below; and after
`BEGIN` the number of bytes that follow, otherwise 0."""

CLOSE, BEGIN, END_RANKS = -1, -2, -3
"""End ranks and zygote (a closed pipe cannot say so, as a child that the script has
forked may hold it open too); take what a session's ranks get, whose bytes follow; end
the ranks only."""

REPORT = struct.Struct("iii")
"""A report: a rank, its process id, and how it ended (an exit code or a negative signal
number), or a constant below, which is neither."""

STARTED, FAILED, ENDED, READY = (1 << n for n in range(16, 20))
"""The rank runs; it could not be forked (the report has an errno in place of a process
id); all ranks have ended (there is no report for each); the zygote takes requests."""

Serve = Callable[[int, bytes, int], object]
"""``serve(rank, start, master)``, which a forked rank calls: its number, the session's
pickled start, and a pidfd of the master."""


def be_zygote(master: int, requests: int, reports: int, serve: Serve) -> None:
    """Serve `master`, the parent, by two pipes, until it sends `CLOSE` or ends."""
    # In a process group of its own: Ctrl-C in a terminal reaches the master alone,
    # which then stops the ranks.
    os.setpgid(0, 0)
    forget_handlers()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page
    # If the master ended before this opens the pidfd, `master` may be another process.
    with open_pidfd(master) as master_fd:
        if os.getppid() == master:
            # The thread that has started this process may end before the master does.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
            _Loop(master_fd.fileno(), requests, reports, serve).run()


class _Loop:
    """The zygote's loop, and the ranks that it has forked."""

    def __init__(self, master: int, requests: int, reports: int, serve: Serve) -> None:
        self._master, self._requests, self._reports = master, requests, reports
        self._serve = serve
        self._start = b""  # what the next ranks get, pickled
        # By the number of the pidfd: the pidfd, rank and process id.
        self._ranks: dict[int, tuple[FileIO, int, int]] = {}
        self._poll = select.poll()
        self._poll.register(master, select.POLLIN)
        self._poll.register(requests, select.POLLIN)

    def run(self) -> None:
        try:
            self._report(0, os.getpid(), READY)
            while True:
                for fd, _ in self._poll.poll():
                    if fd == self._master or (
                        fd == self._requests and not self._do_request()
                    ):
                        return
                    if fd in self._ranks:  # not if END_RANKS was served just now
                        self._report_end(fd)
        except BrokenPipeError:
            pass  # the master has ended, or has closed its end of the pipe
        finally:
            self._end_ranks()

    def _do_request(self) -> bool:
        """Do what the master asks for; return whether to go on."""
        what, number = REQUEST.unpack(self._read(REQUEST.size))
        if what == CLOSE:
            return False
        if what == BEGIN:
            self._start = self._read(number)
        elif what == END_RANKS:
            self._end_ranks()
            self._report(0, 0, ENDED)
        else:
            self._fork(what)
        return True

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = os.read(self._requests, length - len(data))
            if not piece:
                raise BrokenPipeError
            data += piece
        return data

    def _fork(self, rank: int) -> None:
        # The zygote has one thread and holds no lock, and so has each rank forked here,
        # whatever threads and locks the master has by now.
        pid, zygote = 0, os.getpid()
        try:
            with forking_quietly():
                pid = os.fork()
            if pid == 0:
                run_to_end(lambda: self._be_rank(zygote, rank))
            pidfd = open_pidfd(pid)
        except OSError as error:  # no more processes, memory or descriptors
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self._report(rank, error.errno or 0, FAILED)
            return
        self._ranks[pidfd.fileno()] = pidfd, rank, pid
        self._poll.register(pidfd, select.POLLIN)
        self._report(rank, pid, STARTED)

    def _be_rank(self, zygote: int, rank: int) -> None:
        end_with_parent(zygote)
        os.close(self._requests)
        os.close(self._reports)
        for pidfd, _, _ in self._ranks.values():
            pidfd.close()
        self._serve(rank, self._start, self._master)

    def _report_end(self, fd: int) -> None:
        pidfd, rank, pid = self._ranks.pop(fd)
        self._poll.unregister(fd)
        pidfd.close()
        # The end is reported before the rank is reaped: until the master has read the
        # report, the process id is the rank's, and so is a pidfd opened by it. Nothing
        # blocks here, as the rank has ended.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        exited = ended.si_code == os.CLD_EXITED
        status = ended.si_status if exited else -ended.si_status
        try:
            self._report(rank, pid, status)
        finally:
            os.waitpid(pid, 0)

    def _end_ranks(self) -> None:
        # By SIGKILL and not SIGTERM, as a rank may be in compiled code, or stopped. All
        # are killed before this waits for the first.
        for _, _, pid in self._ranks.values():
            os.kill(pid, signal.SIGKILL)
        for fd, (pidfd, _, pid) in self._ranks.items():
            os.waitpid(pid, 0)
            self._poll.unregister(fd)
            pidfd.close()
        self._ranks.clear()

    def _report(self, rank: int, pid: int, status: int) -> None:
        os.write(self._reports, REPORT.pack(rank, pid, status))
