"""The exceptions synk raises of its own; user mistakes are TypeError or ValueError."""

from __future__ import annotations

import signal as _signal


class SynkError(RuntimeError):
    """Base class of every exception that synk defines."""


class StateError(SynkError):
    """Called in the wrong state: not forked, already forked, closed, in a worker."""


class SharedMemoryFull(SynkError, MemoryError):
    """There is no memory for a segment; says how much is needed, and is free of what.

    Of the machine's memory, or of what a cgroup (a container) may have.
    """


class ShapeMismatch(SynkError, ValueError):
    """A collective needs equal shapes and the ranks have different ones."""


class CheckpointError(SynkError, ValueError):
    """A checkpoint is damaged, or does not have what is to be loaded from it."""


class SplitError(SynkError, ValueError):
    """A value cannot be that of the serial run on more than one rank; says why.

    Raised by a call of the function, and with ``strict=True`` when it is made; also by
    collectives that would count a value of all rows once for each rank.
    """


class SerialMismatch(SynkError, AssertionError):
    """With ``check="serial"``: a result is not that of the serial run; see there."""


class SplitWarning(UserWarning):
    """Work that every rank repeats, or values that may not be the serial run's.

    The latter with ``local=True``, and of variables that come to differ between ranks.
    """


class OversubscriptionWarning(UserWarning):
    """More ranks were forked than there are usable cores: calls are slow."""


class RankTimeout(SynkError, TimeoutError):
    """A rank did not answer before the deadline given to :func:`synk.fork`."""


class WorkerDied(SynkError):
    """A rank's process ended; see :func:`synk.recover`.

    Attributes
    ----------
    rank : int
        The rank that died; -1 for the zygote that forks the ranks.
    pid : int
        Its process id.
    signal : int or None
        The signal that killed it, or None when it exited.
    exitcode : int or None
        Its exit status, or None when a signal killed it.
    what_happened : str
        All of this.
    advice : str
        What to do.

    Where it is not known how the process ended, as the zygote was stopped, which alone
    can tell, both are None.
    """

    advice = "call synk.recover() or synk.close()"

    def __init__(self, rank: int, pid: int, status: int | None) -> None:
        self.rank, self.pid, self.status = rank, pid, status
        self.signal = None if status is None or status >= 0 else -status
        self.exitcode = None if status is None or status < 0 else status
        self.what_happened = self._describe()
        super().__init__(self.what_happened)

    def __str__(self) -> str:
        return f"{self.what_happened}; {self.advice}"

    def __reduce__(self) -> tuple:
        return type(self), (self.rank, self.pid, self.status)

    @property
    def who(self) -> str:
        """Whose process it was."""
        return "the zygote" if self.rank < 0 else f"rank {self.rank}"

    def _describe(self) -> str:
        if self.status is None:
            how = "ended, and the zygote does not say how"
        elif self.signal is None:
            how = f"exited with code {self.exitcode}"
        else:
            how = f"was killed by {_signal_name(self.signal)}"
        hint = ""
        if self.signal == _signal.SIGKILL:
            hint = (
                " (SIGKILL nobody sent is often the kernel's out-of-memory killer:"
                " see `dmesg`, and use fewer ranks or num_slices)"
            )
        return f"{self.who} (pid {self.pid}) {how}{hint}"


class RemoteTraceback(Exception):
    """The traceback of an error on another rank, as text; its ``__cause__``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(SynkError):
    """Stands for a rank's exception that cannot be pickled; holds its text."""


class Aborted(BaseException):
    """Internal: this rank stopped because another rank failed first."""


def _signal_name(number: int) -> str:
    try:
        return _signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
