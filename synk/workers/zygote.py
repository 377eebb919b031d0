"""The zygote: forks the ranks, says when one dies, and ends them with the master.

It is made before anything else and does nothing but wait, so that it stays a clean
copy: no threads, no device, no half-held locks. This is the master's end; what the
zygote does is in `zygote_loop`.
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
_NEWS = 0.2
"""Seconds to wait for the zygote's report of how a rank ended whose end was seen."""


class Zygote:
    """The master's handle of its zygote; `pids` are those of the ranks that run."""

    def __init__(self) -> None:
        self.pid = -1
        # Owned by objects, so that whatever an interrupt leaves open is closed with
        # them: the pipes' ends, and a pidfd.
        self._requests: FileIO | None = None
        self._reports: FileIO | None = None
        self._pidfd: FileIO | None = None
        self._status: int | None = None
        self._is_closed = False
        self._request, self._written = memoryview(b""), 0
        self._is_ready = False
        self._have_ended = False
        self._poll = select.poll()
        self._ranks: dict[int, tuple[int, FileIO]] = {}  # pidfd's number -> rank, pidfd
        self.pids: dict[int, int] = {}

    # -- making it

    def fork(self, serve: Serve) -> None:
        """Fork the zygote from this process; `serve` is what its ranks do."""
        # A signal handler of the script must not raise in the child, which would then
        # go on with the script, nor here while the zygote is half known.
        with_signals_held_back(self._fork, serve)

    def _fork(self, serve: Serve) -> None:
        requests, reports = self._open_pipes()
        master = os.getpid()

        def be_zygote() -> None:
            self.abandon()  # the master's ends: a pipe ends with the last of them
            ends = requests.fileno(), reports.fileno()
            zygote_loop.be_zygote(master, *ends, serve)

        with requests, reports:
            with forking_quietly():
                # Known as soon as it is forked: see `memory.descriptors`.
                (self.pid,) = itertools.starmap(os.fork, [()])
            if self.pid == 0:
                run_to_end(be_zygote)
            self._watch_over()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a new interpreter that becomes the zygote."""
        # To its `arguments` are added the numbers of this process and of the pipes'
        # ends.
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
                    *((os.POSIX_SPAWN_DUP2, end, end) for end in ends),  # is inherited
                ],
                setpgroup=0,  # Ctrl-C is for the master alone
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
                setsigmask=[],
            )
            command = [sys.executable, *arguments, *numbers]
            # Known as soon as it is started. `subprocess` loses it to an interrupt
            # that another thread has taken.
            (self.pid,) = itertools.starmap(
                spawn, [(sys.executable, command, dict(environment))]
            )
            self._watch_over()

    def _open_pipes(self) -> tuple[FileIO, FileIO]:
        """Open both pipes; return the zygote's ends."""
        theirs, self._requests = open_pipe()
        self._reports, reports = open_pipe()
        # The master looks here in every wait. It must not hang in a read, nor in a
        # write, if the zygote is stopped.
        os.set_blocking(self._reports.fileno(), False)
        os.set_blocking(self._requests.fileno(), False)
        return theirs, reports

    def _watch_over(self) -> None:
        # The pid cannot be another process's by now: signals are held back, so no
        # handler of the script has reaped the zygote.
        self._pidfd = open_pidfd(self.pid)
        assert self._reports is not None
        self._poll.register(self._reports, select.POLLIN)
        self._poll.register(self._pidfd, select.POLLIN)

    # -- what it is asked for

    def await_ready(self) -> None:
        """Wait until the zygote can be asked for something."""
        self._wait_for(lambda: self._is_ready, "the zygote was not ready")

    def begin(self, told: bytes) -> None:
        """Say what the ranks that are forked from now on are told."""
        self._ask(zygote_loop.BEGIN, told)

    def fork_rank(self, rank: int) -> None:
        """Have `rank` forked; return when it runs."""
        self._ask(rank)
        self._wait_for(lambda: rank in self.pids, f"rank {rank} was not forked")

    def end_ranks(self) -> bool:
        """End all ranks, and have the zygote stay; return whether it can be used on."""
        is_half_told = 0 < self._written < len(self._request)
        if self._is_closed or is_half_told or not self._is_ready:
            return False
        self._have_ended = False
        try:
            self._ask(zygote_loop.END_RANKS)
            while not self._have_ended:
                try:
                    self._wait_for(lambda: self._have_ended, "no end", _END_DEADLINE)
                except WorkerDied as death:
                    if death.rank < 0:
                        return False
        except (SynkError, ValueError):  # or a signal handler has closed it
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

    def _ask(self, what: int, told: bytes = b"") -> None:
        if self._is_closed or self._requests is None:
            raise StateError(_CLOSED)
        self._written = 0
        self._request = memoryview(REQUEST.pack(what, len(told)) + told)
        deadline = time.monotonic() + _START_DEADLINE
        try:
            while self._written < len(self._request):
                before = self._written
                with_signals_held_back(self._write)
                if self._written > before:
                    continue
                # The pipe is full: the zygote is stopped, say.
                if time.monotonic() > deadline:
                    raise SynkError("the zygote reads nothing of what it is told")
                time.sleep(0.001)
        except BrokenPipeError:
            raise WorkerDied(-1, self.pid, self._reap()) from None

    def _write(self) -> None:
        """Write what the pipe takes of a request; how much that is stays known."""
        # Half a request spoils all that come after it.
        assert self._requests is not None
        self._written += self._requests.write(self._request[self._written :]) or 0

    # -- what becomes of it and of the ranks

    def watch(self, patience: float = 0) -> None:
        """Raise WorkerDied if a rank or the zygote has died; wait for news of it."""
        if self._is_closed:
            raise StateError(_CLOSED)
        events = self._poll.poll(1000 * patience)
        if events:
            try:
                self._look_at({fd for fd, _ in events})
            except (OSError, ValueError):
                # A signal handler of the script has closed it in between.
                if self._is_closed:
                    raise StateError(_CLOSED) from None
                raise

    def _look_at(self, events: set[int]) -> None:
        assert self._reports is not None
        assert self._pidfd is not None
        self._take_reports()
        ended = [self._ranks[fd][0] for fd in events if fd in self._ranks]
        # The zygote tells how, unless it is stopped. Or it was killed, which ends the
        # ranks a moment before it can be seen of itself.
        poll = select.poll()
        poll.register(self._reports, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        deadline = time.monotonic() + _NEWS
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
        # A report is shorter than PIPE_BUF: it is in the pipe as a whole or not at all.
        data = self._reports.read(64 * REPORT.size) or b""
        for rank, pid, status in REPORT.iter_unpack(data):
            if status == zygote_loop.READY:
                self._is_ready = True
            elif status == zygote_loop.ENDED:
                for known in list(self.pids):
                    self._forget(known)
                self._have_ended = True
            elif status == zygote_loop.FAILED:
                errors.append(
                    SynkError(not_started(f"rank {rank} was not forked", pid))
                )
            elif status == zygote_loop.STARTED:
                # An interrupt would lose the number of a descriptor.
                with_signals_held_back(self._look_after, rank, pid)
            elif self.pids.get(rank) == pid:
                self._forget(rank)
                errors.append(WorkerDied(rank, pid, status))
        # All have been taken note of before one is raised: nothing reads them again.
        if errors:
            raise errors[0]

    def _look_after(self, rank: int, pid: int) -> None:
        self.pids[rank] = pid
        # The zygote says that a rank has ended before it reaps it. So the process is
        # the rank, or its end is to be read of next.
        with contextlib.suppress(ProcessLookupError):
            pidfd = open_pidfd(pid)
            self._ranks[pidfd.fileno()] = rank, pidfd
            self._poll.register(pidfd, select.POLLIN)

    def _forget(self, rank: int) -> int:
        """Close a rank's pidfd; return its process id."""
        for number, (known, pidfd) in list(self._ranks.items()):
            if known == rank:
                # An interrupt may have come behind this line, and this is another try.
                with contextlib.suppress(KeyError):
                    self._poll.unregister(number)
                del self._ranks[number]
                pidfd.close()
        return self.pids.pop(rank, -1)

    def interrupt(self, rank: int) -> None:
        """Send SIGINT to a rank, so that Python code there stops."""
        if rank in self.pids:
            # Dead, which the zygote is about to report; or of the user that this
            # process was before: it only hears that the command was aborted then.
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
        """End all ranks and the zygote; bounded, and fine if they are gone already."""
        # What an interrupt leaves undone, another call does.
        try:
            if not self._is_closed and self._pidfd is not None:
                # From here on `watch` says that synk was closed, whoever calls it: a
                # signal handler of the script, or a call that the handler interrupted.
                self._is_closed = True
                # What is not ready has no ranks to end, and is killed at once.
                if self._is_ready and self._requests is not None:
                    self._requests.write(REQUEST.pack(zygote_loop.CLOSE, 0))
                    self._has_ended(_END_DEADLINE)
        except (BrokenPipeError, ValueError):
            pass  # it has just ended, or a signal handler has closed it
        finally:  # after an interrupt too, and if `fork` failed
            with_signals_held_back(self._finish)

    def _finish(self) -> None:
        self._is_closed = True
        # Until it is reaped the process id is no other's.
        if self.pid > 0 and self._reap(os.WNOHANG) is None:
            # The ranks die with it. One of another user, see `interrupt`, may be
            # stopped for ever; it ends when it goes on.
            with contextlib.suppress(PermissionError):
                os.kill(self.pid, signal.SIGKILL)
                self._reap()
        self.abandon()

    def abandon(self) -> None:
        """Close what this process has open of it, and leave the zygote alone."""
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
            except ChildProcessError:  # reaped here before, or by somebody's wait()
                self._status = -signal.SIGKILL
        return self._status


_CLOSED = "synk was closed during a call"
