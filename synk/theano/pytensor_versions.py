"""What differs between PyTensor's versions, or is not public there.

Written against PyTensor 2.38 and 3.0; ``test_theano_programs.py`` tells when a line
here stops being true.

* 3.0 calls ``Lop`` and ``Rop`` `pullback` and `pushforward`.
* 3.0 warns of ``default_update``, of random variables that hide their generator, and of
  ``scan`` that returns updates: all of that is how Theano's scripts work.
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
"""Whether the gradient of ``log(softmax(x))[rows, columns]`` is rewritten to be finite
where a probability is 0; 2.38 knows it of sums along rows only."""

DEBUGMODE, NANGUARDMODE, MONITORMODE = (
    (f"pytensor.compile.{name}", f"pytensor.compile.debug.{name}")
    for name in ("debugmode", "nanguardmode", "monitormode")
)

ADVICE = (DeprecationWarning, FutureWarning, PendingDeprecationWarning)
"""What PyTensor's advice on newer ways of writing is."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence PyTensor's advice on newer ways of writing in a ``with`` block.

    The one who wrote ``theano.scan(...)`` in 2015 can't follow it.
    """
    with warnings.catch_warnings():
        for category in ADVICE:
            warnings.simplefilter("ignore", category)
        yield


def first_of(names: tuple[str, ...], attribute: str) -> Any:
    """Return `attribute` of the first of the modules `names` that exists."""
    for name in names:
        try:
            return getattr(importlib.import_module(name), attribute)
        except ImportError:
            continue
    raise ImportError(f"PyTensor {pytensor.__version__} has no {attribute} in {names}")


OrderedUpdates: Any = dict
"""What `scan` returns beside its outputs: PyTensor's class, or what took its place."""

with suppress(ImportError):
    OrderedUpdates = importlib.import_module("pytensor.updates").OrderedUpdates


def draw(op: Callable, rng: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Draw from a random variable; the sample, and the generator after it.

    `rng` moves on in every function that uses the sample.
    """
    with quiet():
        sample = op(*args, rng=rng, **kwargs)
        node = sample.owner
        while node.op.__class__.__name__ == "DimShuffle":
            node = node.inputs[0].owner
        update = node.outputs[0]
        rng.default_update = update
    return sample, update
