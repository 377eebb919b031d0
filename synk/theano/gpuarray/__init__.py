"""`theano.gpuarray`: there, and not activated, as in a Theano without pygpu.

Scripts ask `pygpu_activated`, or call `use` at their start. Its modules
(``theano.gpuarray.dnn``) cannot be imported.
"""

from __future__ import annotations

import warnings
from typing import Any

from ..forwarding import forward

__all__ = ["pygpu", "pygpu_activated", "use"]

pygpu = None
"""The package of Theano's GPU arrays, which is not used."""

pygpu_activated = False
"""Whether graphs run on a GPU through this package: never."""


def use(device: str, *_: Any, **__: Any) -> None:
    """Warn that `device` is not used, unless it is the CPU.

    Parameters
    ----------
    device : str
        As in Theano: ``"cuda"``, ``"cuda0"``, ``"cpu"`` ...
    *_, **__
        Theano's further arguments, such as `preallocate`.

    Warns
    -----
    UserWarning
        If it is a GPU. The script goes on where PyTensor's mode computes.
    """
    if device != "cpu":
        warnings.warn(
            f"use({device!r}): Theano's GPU backend is not here, and the script goes on"
            " without it. Graphs run on GPUs in JAX mode: THEANO_FLAGS=mode=JAX, or"
            ' mode="JAX" in a function',
            stacklevel=2,
        )


__getattr__, __dir__ = forward(__name__)
