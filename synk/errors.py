"""The exceptions that synk defines; user mistakes are TypeError or ValueError."""

from __future__ import annotations

import signal as _signal

ORDINARY = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors that synk catches from code that it calls. A signal handler of the script
may raise another exception at any line, as for a timeout: synk lets that through."""


class SynkError(RuntimeError):
    """Base class of every exception that synk defines."""


class StateError(SynkError):
    """Called in the wrong state: not forked, already forked, closed, in a worker."""


class SharedMemoryFull(SynkError, MemoryError):
    """There is not enough memory for a segment; says how much is needed, and is free.

    The limit is the machine's memory, or that of a cgroup (a container).
    """


class ShapeMismatch(SynkError, ValueError):
    """A collective needs equal shapes, and the ranks have different ones."""


class CheckpointError(SynkError, ValueError):
    """A checkpoint is damaged, or does not contain all that should be loaded."""


class SplitError(SynkError, ValueError):
    """A value cannot be that of the serial run on more than one rank; says why.

    Raised by a call of the function, and with ``strict=True`` when it is made; also by
    collectives that would count a value of all rows once for each rank.
    """


class SerialMismatch(SynkError, AssertionError):
    """With ``check="serial"``: a result is not that of the serial run; see there."""


class NotFinite(SynkError, FloatingPointError):
    """With ``check="finite"``: a call gives NaN or infinity; see there."""


class SplitWarning(UserWarning):
    """Every rank repeats work, or values may differ from those of the serial run.

    Values may differ with ``local=True``, and if ranks come to have different values of
    a variable.
    """


class OversubscriptionWarning(UserWarning):
    """More ranks were forked than there are usable cores: calls are slow."""


class RankTimeout(SynkError, TimeoutError):
    """A rank did not answer in time; shows the Python stacks of the ranks.

    The time is the ``timeout`` of the call, or else of :func:`synk.fork`. The ranks
    have been killed.
    """


_SHOWN = 4
"""How many events the text of a `WorkerDied` has."""


class WorkerDied(SynkError):
    """A rank's process ended; see :func:`synk.recover`.

    Attributes
    ----------
    rank : int
        The rank that died; -1 for the zygote that forks the ranks.
    pid : int
        Its process id.
    doing : str
        What it was doing, as "computing function 'f'"; "" if that is not known.
    stack : str
        Its Python stack, if it died by a signal such as SIGSEGV; else "".
    out_of_memory : bool or None
        Whether the kernel's out-of-memory killer has killed a process of this control
        group since the ranks were forked; None if that is not known.
    given_up : str
        Why synk itself has killed it; "" if it has not.
    history : tuple of str
        What it had done before: up to 256 events, each with its time before the last.
    advice : str
        What to do.

    `signal` and `exitcode` are None if it is unknown how the process ended. Only the
    zygote knows that, and it may have been stopped.
    """

    advice = "call synk.recover() or synk.close()"

    def __init__(
        self,
        rank: int,
        pid: int,
        status: int | None,
        doing: str = "",
        stack: str = "",
        out_of_memory: bool | None = None,
        given_up: str = "",
        history: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.rank, self.pid, self.status = rank, pid, status
        self.doing, self.stack, self.history = doing, stack, history
        self.out_of_memory, self.given_up = out_of_memory, given_up

    @property
    def signal(self) -> int | None:
        """The signal that killed it, or None when it exited."""
        return None if self.status is None or self.status >= 0 else -self.status

    @property
    def exitcode(self) -> int | None:
        """Its exit status, or None when a signal killed it."""
        return None if self.status is None or self.status < 0 else self.status

    @property
    def what_happened(self) -> str:
        """One sentence about the death, without the stack and the history."""
        during = f" while {self.doing}" if self.doing else ""
        return f"{self.who} (pid {self.pid}) {self._how()}{during}{self._hint()}"

    def __str__(self) -> str:
        text = f"{self.what_happened}; {self.advice}"
        if self.history:
            last = "\n".join(self.history[-_SHOWN:])
            text += f"\n\nWhat it had done before (history has more):\n{last}\n"
        if self.stack:
            text += f"\n\nIts Python stack:\n{self.stack}"
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.what_happened!r})"

    def __reduce__(self) -> tuple:
        how = self.rank, self.pid, self.status
        why = self.doing, self.stack, self.out_of_memory, self.given_up
        return type(self), (*how, *why, self.history)

    def of_rank(self, rank: int) -> WorkerDied:
        """Return this error with another rank: the number over all nodes.

        Parameters
        ----------
        rank : int
            The rank's number among those of all nodes.

        Returns
        -------
        WorkerDied
        """
        _, (_, *others) = self.__reduce__()
        return type(self)(rank if self.rank >= 0 else -1, *others)

    @property
    def who(self) -> str:
        """The name of the process: "rank 1" or "the zygote"."""
        return "the zygote" if self.rank < 0 else f"rank {self.rank}"

    def _how(self) -> str:
        if self.given_up:
            return f"was killed by synk, as {self.given_up},"
        if self.status is None:
            return "ended, and the zygote does not say how,"
        if self.signal is None:
            return f"exited with code {self.exitcode}"
        how = f"was killed by {_signal_name(self.signal)}"
        if self.signal == _signal.SIGKILL and self.out_of_memory:
            how += ", by the kernel's out-of-memory killer,"
        return how

    def _hint(self) -> str:
        if self.signal != _signal.SIGKILL or self.given_up:
            return ""
        if self.out_of_memory:
            return " (use fewer ranks or num_slices)"
        if self.out_of_memory is None:
            return (
                " (SIGKILL nobody sent is often the kernel's out-of-memory killer:"
                " see `dmesg`, and use fewer ranks or num_slices)"
            )
        return " (not by the kernel's out-of-memory killer, which counts no kill here)"


class RemoteTraceback(Exception):
    """The traceback of another rank's error as text, the ``__cause__`` of the error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(SynkError):
    """An exception of a rank that cannot be pickled, as its text."""


class Aborted(BaseException):
    """Internal: this rank stopped because another rank failed first."""


class Expired(BaseException):
    """Internal: the master has waited for the other ranks for too long.

    Not a `RankTimeout`, which the user's code may raise as well.
    """


def _signal_name(number: int) -> str:
    try:
        return _signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
