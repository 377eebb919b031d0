"""`theano.Variable`: PyTensor's, which here may be made of a type alone."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable as _Variable

__all__ = ["Variable"]


class Variable(_Variable):
    """A variable in a graph; PyTensor's, with an owner that may be left out.

    Every variable of PyTensor's is an instance of this class.

    Parameters
    ----------
    type : Type
        What values it has.
    owner : Apply, optional
        The node that computes it.
    index : int, optional
        Which output of that node it is.
    name : str, optional
        For printing.
    """

    def __init__(
        self, type: Any, owner: Any = None, index: int | None = None, name: Any = None
    ) -> None:
        super().__init__(type, owner, index, name)

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        if cls is Variable:
            # issubclass would ask the subclasses of PyTensor's, this one among them.
            return _Variable in other.__mro__
        return NotImplemented
