"""Names and behaviour that differ between PyTensor's versions, or are private there.

Written for PyTensor 2.38 and 3.0; ``test_theano_programs.py`` fails if a line here is
no longer true.

* 3.0 calls ``Lop`` and ``Rop`` `pullback` and `pushforward`.
* 3.0 warns of ``default_update``, of random variables that hide their generator, and of
  ``scan`` that returns updates, all of which Theano's scripts use.
* 3.0 moved ``debugmode``, ``nanguardmode`` and ``monitormode``, and dropped
  ``OrderedUpdates``.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytensor
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

DEBUGMODE, NANGUARDMODE, MONITORMODE = (
    (f"pytensor.compile.{name}", f"pytensor.compile.debug.{name}")
    for name in ("debugmode", "nanguardmode", "monitormode")
)

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


def first_of(names: tuple[str, ...], attribute: str) -> Any:
    """Return `attribute` of the first module in `names` that exists."""
    for name in names:
        try:
            return getattr(importlib.import_module(name), attribute)
        except ImportError:
            continue
    raise ImportError(f"PyTensor {pytensor.__version__} has no {attribute} in {names}")


OrderedUpdates: Any = dict
"""The class of updates that `scan` returns: PyTensor's, or dict in versions without."""

with suppress(ImportError):
    OrderedUpdates = importlib.import_module("pytensor.updates").OrderedUpdates


def draw(op: Callable, rng: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Draw from a random variable; return the sample, and the generator after it.

    Functions that use the sample update `rng`, by its default update.
    """
    with quiet():
        sample = op(*args, rng=rng, **kwargs)
        node = sample.owner
        while node.op.__class__.__name__ == "DimShuffle":
            node = node.inputs[0].owner
        update = node.outputs[0]
        rng.default_update = update
    return sample, update
