"""`theano.raise_op`: an Op that raises."""

from __future__ import annotations

from typing import Any

from pytensor.raise_op import CheckAndRaise

from .forwarding import forward

__all__ = ["Raise"]


class Raise(CheckAndRaise):
    """Return a variable as it is, and raise when it is computed.

    Parameters
    ----------
    msg : str
        What the error says.
    exc : type of Exception
        Its class.
    """

    def __init__(self, msg: str = "", exc: type[Exception] = NotImplementedError):
        super().__init__(exc, msg)

    def make_node(self, *inputs: Any) -> Any:
        """Apply the Op to a variable."""
        never: Any = False
        return super().make_node(inputs[0], never)


__getattr__, __dir__ = forward(__name__, "pytensor.raise_op")
