"""The zygote: forks the ranks, reports when one dies, and ends them with the master.

A session's start makes it first, and it only waits for requests, so ranks forked from
it inherit no threads, no device and no held locks. This file is the master's end, and
`zygote_loop` the zygote's.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO

from ..errors import StateError, SynkError, WorkerDied
from ..memory.descriptors import open_pidfd, open_pipe
from ..memory.refusals import not_started
from ..signals import with_signals_held_back
from . import zygote_loop
from .forks import forking_quietly, has_ended, run_to_end
from .zygote_loop import REPORT, REQUEST, Serve

_START_DEADLINE = 60.0
_END_DEADLINE = 5.0
_REPORT_DEADLINE = 0.2
"""Seconds to wait for the report of how a rank ended, once its pidfd shows its end."""


class Zygote:
    """The master's handle of its zygote; `pids` has the running ranks' process ids."""

    def __init__(self) -> None:
        self.pid = -1
        # The pipes' ends and a pidfd, as objects: descriptors that an interrupt leaves
        # open are closed when the objects go.
        self._requests: FileIO | None = None
        self._reports: FileIO | None = None
        self._pidfd: FileIO | None = None
        self._status: int | None = None
        self._is_closed = False
        self._request, self._written = memoryview(b""), 0
        self._is_ready = False
        self._all_ended = False
        self._poll = select.poll()
        self._ranks: dict[int, tuple[int, FileIO]] = {}  # pidfd's number -> rank, pidfd
        self.pids: dict[int, int] = {}

    # -- making it

    def fork(self, serve: Serve) -> None:
        """Fork the zygote from this process; its ranks call `serve`."""
        # A signal handler of the script must not raise in the child, which would then
        # run the script's next lines, nor here before `pid` and pidfd are stored.
        with_signals_held_back(self._fork, serve)

    def _fork(self, serve: Serve) -> None:
        requests, reports = self._open_pipes()
        master = os.getpid()

        def be_zygote() -> None:
            self.abandon()  # closes the master's ends, so that the pipes can end
            ends = requests.fileno(), reports.fileno()
            zygote_loop.be_zygote(master, *ends, serve)

        with requests, reports:
            with forking_quietly():
                # Sets `pid` in one step with the fork: see `memory.descriptors`.
                (self.pid,) = itertools.starmap(os.fork, [()])
            if self.pid == 0:
                run_to_end(be_zygote)
            self._open_pidfd()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a new interpreter that becomes the zygote."""
        # After `arguments` it gets three more: the process id of this process, and the
        # descriptors of its ends of the pipes.
        with_signals_held_back(self._start, arguments, environment)

    def _start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        requests, reports = self._open_pipes()
        with requests, reports:
            ends = requests.fileno(), reports.fileno()
            numbers = map(str, (os.getpid(), *ends))
            spawn = functools.partial(
                os.posix_spawn,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    *((os.POSIX_SPAWN_DUP2, end, end) for end in ends),  # to inherit
                ],
                setpgroup=0,  # Ctrl-C is for the master alone
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
                setsigmask=[],
            )
            command = [sys.executable, *arguments, *numbers]
            # Sets `pid` in one step with the start. `subprocess` would lose the process
            # to an interrupt that another thread has taken.
            (self.pid,) = itertools.starmap(
                spawn, [(sys.executable, command, dict(environment))]
            )
            self._open_pidfd()

    def _open_pipes(self) -> tuple[FileIO, FileIO]:
        """Open both pipes; return the zygote's ends."""
        theirs, self._requests = open_pipe()
        self._reports, reports = open_pipe()
        # The master reads reports in every wait. Neither a read nor a write may block
        # if the zygote is stopped.
        os.set_blocking(self._reports.fileno(), False)
        os.set_blocking(self._requests.fileno(), False)
        return theirs, reports

    def _open_pidfd(self) -> None:
        # `pid` cannot be another process's by now: signals are held back, so no handler
        # of the script has reaped the zygote.
        self._pidfd = open_pidfd(self.pid)
        assert self._reports is not None
        self._poll.register(self._reports, select.POLLIN)
        self._poll.register(self._pidfd, select.POLLIN)

    # -- requests

    def await_ready(self) -> None:
        """Wait until the zygote takes requests."""
        self._wait_for(lambda: self._is_ready, "the zygote was not ready")

    def begin(self, start: bytes) -> None:
        """Send what ranks forked from now on get, pickled."""
        self._ask(zygote_loop.BEGIN, start)

    def fork_rank(self, rank: int) -> None:
        """Have the zygote fork `rank`; return when the rank runs."""
        self._ask(rank)
        self._wait_for(lambda: rank in self.pids, f"rank {rank} was not forked")

    def end_ranks(self) -> bool:
        """End all ranks, but not the zygote; return whether that can be used again."""
        is_half_written = 0 < self._written < len(self._request)
        if self._is_closed or is_half_written or not self._is_ready:
            return False
        self._all_ended = False
        try:
            self._ask(zygote_loop.END_RANKS)
            while not self._all_ended:
                try:
                    self._wait_for(lambda: self._all_ended, "no end", _END_DEADLINE)
                except WorkerDied as death:
                    if death.rank < 0:
                        return False
        except (SynkError, ValueError):  # ValueError: a signal handler has closed it
            return False
        return True

    def _wait_for(
        self,
        condition: Callable[[], bool],
        failed: str,
        seconds: float = _START_DEADLINE,
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise SynkError(f"{failed} in {seconds:g} s")
            self.watch(0.1)

    def _ask(self, what: int, data: bytes = b"") -> None:
        """Send a request (see `REQUEST`), followed by `data`."""
        if self._is_closed or self._requests is None:
            raise StateError(_CLOSED)
        self._written = 0
        self._request = memoryview(REQUEST.pack(what, len(data)) + data)
        deadline = time.monotonic() + _START_DEADLINE
        try:
            while self._written < len(self._request):
                before = self._written
                with_signals_held_back(self._write)
                if self._written > before:
                    continue
                # The pipe is full, perhaps as the zygote is stopped.
                if time.monotonic() > deadline:
                    raise SynkError("the zygote reads nothing of what it is told")
                time.sleep(0.001)
        except BrokenPipeError:
            raise WorkerDied(-1, self.pid, self._reap()) from None

    def _write(self) -> None:
        """Write as much of the request as the pipe takes, and count its bytes."""
        # After half a request the zygote cannot read another: see `end_ranks`.
        assert self._requests is not None
        self._written += self._requests.write(self._request[self._written :]) or 0

    # -- reports, and deaths

    def watch(self, patience: float = 0) -> None:
        """Raise WorkerDied if a rank or the zygote dies within `patience` seconds."""
        if self._is_closed:
            raise StateError(_CLOSED)
        events = self._poll.poll(1000 * patience)
        if events:
            try:
                self._handle({fd for fd, _ in events})
            except (OSError, ValueError):
                # A signal handler of the script may have closed it meanwhile.
                if self._is_closed:
                    raise StateError(_CLOSED) from None
                raise

    def _handle(self, events: set[int]) -> None:
        """Take reports, and raise for deaths that the descriptors in `events` show."""
        assert self._reports is not None
        assert self._pidfd is not None
        self._take_reports()
        ended = [self._ranks[fd][0] for fd in events if fd in self._ranks]
        # `_take_reports` raises when a report says how a rank ended. None comes if the
        # zygote is stopped, or was killed: ranks' ends show a moment before its own.
        poll = select.poll()
        poll.register(self._reports, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        deadline = time.monotonic() + _REPORT_DEADLINE
        while self._pidfd.fileno() not in events and ended:
            left = deadline - time.monotonic()
            if left < 0:
                raise WorkerDied(ended[0], self._forget(ended[0]), None)
            events = {fd for fd, _ in poll.poll(1000 * left)}
            self._take_reports()
        if self._pidfd.fileno() in events:
            raise WorkerDied(-1, self.pid, self._reap())

    def _take_reports(self) -> None:
        assert self._reports is not None
        errors: list[SynkError] = []
        # A report is shorter than PIPE_BUF, so the pipe never has a part of one.
        data = self._reports.read(64 * REPORT.size) or b""
        for rank, pid, status in REPORT.iter_unpack(data):
            if status == zygote_loop.READY:
                self._is_ready = True
            elif status == zygote_loop.ENDED:
                for known in list(self.pids):
                    self._forget(known)
                self._all_ended = True
            elif status == zygote_loop.FAILED:
                errors.append(
                    SynkError(not_started(f"rank {rank} was not forked", pid))
                )
            elif status == zygote_loop.STARTED:
                # An interrupt could come between `open_pidfd` and the table of ranks.
                with_signals_held_back(self._add_rank, rank, pid)
            elif self.pids.get(rank) == pid:
                self._forget(rank)
                errors.append(WorkerDied(rank, pid, status))
        # Only now, as the reports behind an error could not be read again.
        if errors:
            raise errors[0]

    def _add_rank(self, rank: int, pid: int) -> None:
        self.pids[rank] = pid
        # The zygote reports a rank's end before it reaps the rank. So `pid` is still
        # the rank's, or the report of its end follows.
        with contextlib.suppress(ProcessLookupError):
            pidfd = open_pidfd(pid)
            self._ranks[pidfd.fileno()] = rank, pidfd
            self._poll.register(pidfd, select.POLLIN)

    def _forget(self, rank: int) -> int:
        """Close a rank's pidfd; return its process id."""
        for number, (known, pidfd) in list(self._ranks.items()):
            if known == rank:
                # KeyError: an interrupt came behind this line, and this is a retry.
                with contextlib.suppress(KeyError):
                    self._poll.unregister(number)
                del self._ranks[number]
                pidfd.close()
        return self.pids.pop(rank, -1)

    def interrupt(self, rank: int) -> None:
        """Send SIGINT to a rank, which stops Python code there."""
        if rank in self.pids:
            # Fails if the rank is dead, which the zygote will report, or this process
            # has another user by now: then the rank only sees the aborted word.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pids[rank], signal.SIGINT)

    # -- its end

    @property
    def is_alive(self) -> bool:
        """Whether the zygote runs."""
        return (
            not self._is_closed and self._pidfd is not None and not self._has_ended(0)
        )

    def close(self) -> None:
        """End all ranks and the zygote, in bounded time, even if they are gone."""
        # After an interrupt, another call does the rest.
        try:
            if not self._is_closed and self._pidfd is not None:
                # From here on `watch` raises that synk was closed, in a signal handler
                # of the script, or in a call that the handler has interrupted.
                self._is_closed = True
                # A zygote that is not ready has no ranks, and is killed at once.
                if self._is_ready and self._requests is not None:
                    self._requests.write(REQUEST.pack(zygote_loop.CLOSE, 0))
                    self._has_ended(_END_DEADLINE)
        except (BrokenPipeError, ValueError):
            pass  # the zygote has just ended, or a signal handler has closed it
        finally:  # after an interrupt too, and if `fork` failed
            with_signals_held_back(self._finish)

    def _finish(self) -> None:
        self._is_closed = True
        # A zygote of another user (see `interrupt`) cannot be killed; if it is stopped,
        # it ends when it is continued.
        with contextlib.suppress(PermissionError):
            # The process id is the zygote's until the zygote is reaped.
            if self.pid > 0 and self._reap(os.WNOHANG) is None:
                os.kill(self.pid, signal.SIGKILL)
                self._reap()
            self._await_ranks()
        self.abandon()

    def _await_ranks(self) -> None:
        """Wait for the ranks, which the kernel kills with the zygote."""
        latest = time.monotonic() + _END_DEADLINE
        for _, pidfd in self._ranks.values():
            has_ended(pidfd, max(0.0, latest - time.monotonic()))

    def abandon(self) -> None:
        """Close this process's descriptors of the zygote, and do not end it."""
        self._is_closed = True
        self.pids.clear()
        while self._ranks:
            _, (_, pidfd) = self._ranks.popitem()
            pidfd.close()
        for end in (self._requests, self._reports, self._pidfd):
            if end is not None:
                end.close()

    def _has_ended(self, patience: float) -> bool:
        if self._pidfd is None or self._pidfd.closed:
            return self._status is not None
        return has_ended(self._pidfd, patience)

    def _reap(self, options: int = 0) -> int | None:
        """Return how the zygote ended, as an exit code or a negative signal number."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, options)
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
            except ChildProcessError:  # reaped already, as by a wait() of the script
                self._status = -signal.SIGKILL
        return self._status


_CLOSED = "synk was closed during a call"
