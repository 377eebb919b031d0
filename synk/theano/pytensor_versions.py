"""Names and behaviour that differ between PyTensor's versions, or are private there.

Written for PyTensor 2.38 and 3.0; ``test_theano_programs.py`` fails if a line here is
no longer true.

* 3.0 calls ``Lop`` and ``Rop`` `pullback` and `pushforward`.
* 3.0 warns of ``default_update``, of random variables that hide their generator, and of
  ``scan`` that returns updates, all of which Theano's scripts use.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytensor.gradient

pullback: Callable = getattr(pytensor.gradient, "pullback", None) or (
    pytensor.gradient.Lop
)
pushforward: Callable = getattr(pytensor.gradient, "pushforward", None) or (
    pytensor.gradient.Rop
)

KNOWS_CHOSEN_COLUMNS = hasattr(pytensor.gradient, "pullback")
"""Whether PyTensor makes the gradient of ``log(softmax(x))[rows, columns]`` finite if a
probability is 0; 2.38 does so for sums along rows only."""

ADVICE = (DeprecationWarning, FutureWarning, PendingDeprecationWarning)
"""The classes of PyTensor's warnings about deprecated usage."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence PyTensor's warnings about deprecated usage in a ``with`` block.

    Scripts of Theano's time cannot follow their advice.
    """
    with warnings.catch_warnings():
        for category in ADVICE:
            warnings.simplefilter("ignore", category)
        yield
