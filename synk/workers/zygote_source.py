"""Gets a session its zygote: forked, kept from a former session, or a new interpreter.

A process that runs an XLA backend or has a CUDA context cannot be forked. Until then,
each session forks a zygote of its own, which has the script's present state. If the
process cannot be forked when a session ends, its zygote is kept, and the next session's
ranks are forked from that. If none was kept, as JAX was used before the first session,
a new interpreter becomes the zygote, which takes seconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from ..errors import StateError, SynkError, WorkerDied
from ..memory import proc
from ..times.compile_notice import is_shown
from .affinity import THREAD_VARIABLES
from .zygote import Zygote
from .zygote_loop import Serve

_MODULES = (
    "jax",
    "jax.numpy",
    "pytensor.link.jax.dispatch",
    "pytensor.link.numba.dispatch",
)
"""Modules that a new interpreter imports once, if this process has, for all ranks."""


def why_no_fork() -> str | None:
    """Return why ranks cannot be forked from this process, or None if they can."""
    if _cuda_is_up():
        return "this process has a CUDA context, which a forked process cannot use"
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        return "this process speaks MPI, whose connections a fork does not copy"
    if _xla_is_up():
        return "this process runs an XLA backend, whose threads a fork does not copy"
    return None


def _cuda_is_up() -> bool:
    """Return whether this process has a CUDA context, of any library."""
    # CUDA keeps /dev/nvidia-uvm open from the first context on; NVML does not open it.
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia-uvm"):
                return True
        except OSError:
            continue  # the descriptor that listdir itself had open
    return False


def _xla_is_up() -> bool:
    """Return whether this process has threads of XLA, by their names."""
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                if comm.read().startswith(("tf_XLA", "XLA", "py_xla")):
                    return True
        except OSError:
            continue  # the thread has ended
    return False


class ZygoteSource:
    """The zygotes of one process; their ranks call `serve`.

    `main` names a module. A new interpreter becomes a zygote by calling that module's
    function ``main(master, requests, reports, modules)``.
    """

    def __init__(self, serve: Serve, main: str) -> None:
        self._serve, self._main = serve, main
        self._kept: Zygote | None = None
        self.current: Zygote | None = None
        self._user: tuple = ()

    def take(self, threads: int, note: Callable[[bool], object]) -> Zygote:
        """Return a zygote for a new session, and set `current`, which must be None."""
        # Libraries of a new interpreter use `threads` threads. If the zygote is a new
        # one, `note` is called before, with whether it is forked from this process.
        assert self.current is None
        why = why_no_fork()
        if (
            why is not None
            and (kept := self._kept) is not None
            and kept.is_alive
            and self._user == proc.user()  # it has the privileges of its making
        ):
            self.current, self._kept = kept, None
            return kept
        self.forget_kept()
        note(why is None)
        self._user = proc.user()
        # Set before the fork: after an interrupt in it, `give_back` ends the zygote.
        self.current = zygote = Zygote()
        if why is None:
            zygote.fork(self._serve)
        else:
            self._start(zygote, threads, why)
        return zygote

    def keep(self, threads: int, note: Callable[[bool], object]) -> None:
        """Make a zygote now, and keep it for a later session; see `take`."""
        self.take(threads, note)
        self._kept, self.current = self.current, None

    def _start(self, zygote: Zygote, threads: int, why: str) -> None:
        """Start a new interpreter as `zygote`; print `why` if a person waits for it."""
        if is_shown(sys.stderr):
            print(
                f"synk: {why}: starting a new Python to fork ranks from, which takes"
                " some seconds",
                file=sys.stderr,
                flush=True,
            )
        if not sys.executable:
            raise StateError(f"{why}, and Python does not know its own executable")
        modules = [name for name in _MODULES if name in sys.modules]
        # `sys.path` comes first, as the script may have added the path of synk to it.
        # Until synk is imported, nothing here watches the master, so the kernel kills
        # this interpreter if the master ends.
        code = (
            "import ctypes, os, sys;"
            " master, requests, reports = map(int, sys.argv[1:]);"
            " ctypes.CDLL(None).prctl(1, 9);"
            " os.getppid() == master or os._exit(1);"
            f" sys.path[:] = {sys.path!r};"
            f" from {self._main} import main;"
            f" main(master, requests, reports, {modules!r})"
        )
        flags = ["-" + "O" * sys.flags.optimize] * (sys.flags.optimize > 0)
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
        try:
            zygote.start([*flags, "-c", code], environment)
            zygote.await_ready()
        except PermissionError as error:
            raise SynkError(
                f"{why}, and this user may not start a new Python to fork ranks from:"
                f" {error}"
            ) from error
        except WorkerDied as death:
            raise SynkError(
                f"{why}, and a new Python, to fork ranks from, has ended with"
                f" {death.status}: what it printed says why"
            ) from None

    def give_back(self, for_good: bool = False) -> None:
        """End the ranks, and the zygote unless a later session will need it."""
        # After an interrupt, another call does the rest.
        zygote = self.current
        if zygote is None and not self.keeps:
            return
        keep = False
        if not for_good:
            # `why_no_fork` fails if no descriptor is free to look with.
            with contextlib.suppress(OSError):
                keep = why_no_fork() is not None
        if zygote is not None:
            if keep and zygote.end_ranks():
                self._kept = zygote
            else:
                zygote.close()
            self.current = None
        if not keep:
            self.forget_kept()

    @property
    def keeps(self) -> bool:
        """Whether a zygote is kept for another session."""
        return self._kept is not None

    def forget_kept(self) -> None:
        """End the kept zygote, if there is one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def forget_all(self) -> None:
        """Forget all zygotes, in a child of the process whose zygotes they are."""
        for zygote in (self._kept, self.current):
            if zygote is not None:
                zygote.abandon()
        self._kept = self.current = None
