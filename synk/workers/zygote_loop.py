"""What a zygote does with its life; the master's end is `zygote`.

::

    the master's pidfd    the master is gone       -> kill the ranks, exit
    the request pipe      begin, fork rank r, end the ranks, close
    each rank's pidfd     a rank is gone           -> report how it ended, reap it

It computes nothing and keeps what it is told as bytes, so that it stays a clean copy of
what it was when it was made, whatever the ranks of one session or another have done.
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
"""What is asked for: a rank to be forked, from 1, or one of those below; and a number,
with `BEGIN` of the bytes that follow."""

CLOSE, BEGIN, END_RANKS = -1, -2, -3
"""Exit; closing the pipe would not do, as a child that the user's script has forked may
hold it open too. What the ranks of a session are told follows. End the ranks, and
stay."""

REPORT = struct.Struct("iii")
"""A rank, its process id, and how it ended: an exit code, a negative signal number, or
one of those below, which no process can have."""

STARTED, FAILED, ENDED, READY = (1 << n for n in range(16, 20))
"""The rank is running. It could not be forked: an errno has the place of the process
id. All ranks have ended; there are no reports of each. The zygote has been made."""

Serve = Callable[[int, bytes, int], object]
"""``serve(rank, told, master)``: what a rank does with its life. It gets what the
session was begun with, and a pidfd of the master."""


def be_zygote(master: int, requests: int, reports: int, serve: Serve) -> None:
    """Serve the process `master`, a parent, until it closes this or is gone."""
    # A group of our own: Ctrl-C in a terminal then reaches the master alone, which
    # tells the ranks in its own time.
    os.setpgid(0, 0)
    forget_handlers()
    gc.freeze()  # the collector would otherwise touch, and so copy, every page
    # The master may have ended before the pidfd was opened; the number could be
    # another process's then.
    with open_pidfd(master) as master_fd:
        if os.getppid() == master:
            # The thread that has started us may end, and the master go on.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
            _Loop(master_fd.fileno(), requests, reports, serve).run()


class _Loop:
    """The zygote's loop, and the ranks that it has forked."""

    def __init__(self, master: int, requests: int, reports: int, serve: Serve) -> None:
        self._master, self._requests, self._reports = master, requests, reports
        self._serve = serve
        self._told = b""
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
                    if fd in self._ranks:  # and was not ended just now
                        self._report_end(fd)
        except BrokenPipeError:
            pass  # the master is gone or does not listen any more
        finally:
            self._end_ranks()

    def _do_request(self) -> bool:
        """Do what the master asks for; return whether to go on."""
        what, number = REQUEST.unpack(self._read(REQUEST.size))
        if what == CLOSE:
            return False
        if what == BEGIN:
            self._told = self._read(number)
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
        # Single-threaded, with no lock held: what is forked here is as clean as the
        # zygote, however late that is in the life of the master.
        pid, zygote = 0, os.getpid()
        try:
            with forking_quietly():
                pid = os.fork()
            if pid == 0:
                run_to_end(lambda: self._be_rank(zygote, rank))
            pidfd = open_pidfd(pid)
        except OSError as error:  # of processes, memory or descriptors
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self._report(rank, error.errno or 0, FAILED)
            return
        self._ranks[pidfd.fileno()] = pidfd, rank, pid
        self._poll.register(pidfd, select.POLLIN)
        self._report(rank, pid, STARTED)

    def _be_rank(self, zygote: int, rank: int) -> None:
        end_with_parent(zygote)  # by the kernel
        os.close(self._requests)
        os.close(self._reports)
        for pidfd, _, _ in self._ranks.values():
            pidfd.close()
        self._serve(rank, self._told, self._master)

    def _report_end(self, fd: int) -> None:
        pidfd, rank, pid = self._ranks.pop(fd)
        self._poll.unregister(fd)
        pidfd.close()
        # Reported before it is reaped: until the master has read of its end, the
        # process id is no other's, and a pidfd that it opens is the rank's. The rank
        # has ended, so nothing waits here.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        exited = ended.si_code == os.CLD_EXITED
        status = ended.si_status if exited else -ended.si_status
        try:
            self._report(rank, pid, status)
        finally:
            os.waitpid(pid, 0)

    def _end_ranks(self) -> None:
        # SIGKILL and not SIGTERM: a rank may be in compiled code, or stopped. All are
        # killed before one is waited for.
        for _, _, pid in self._ranks.values():
            os.kill(pid, signal.SIGKILL)
        for fd, (pidfd, _, pid) in self._ranks.items():
            os.waitpid(pid, 0)
            self._poll.unregister(fd)
            pidfd.close()
        self._ranks.clear()

    def _report(self, rank: int, pid: int, status: int) -> None:
        os.write(self._reports, REPORT.pack(rank, pid, status))
