"""`theano.gpuarray`: there, and not activated, as in a Theano without pygpu.

Scripts ask `pygpu_activated` or ``dnn.dnn_present()``, or call `use` at their start.
The names of its modules can be imported, and raise when they are used.
"""

from __future__ import annotations

import warnings
from typing import Any

from .. import names_gpu, not_activated
from . import dnn, type
from .contexts import UNDEFINED, ContextNotDefined, get_context

__all__ = [
    "ContextNotDefined",
    "as_gpuarray_variable",
    "dnn",
    "get_context",
    "init_dev",
    "pygpu",
    "pygpu_activated",
    "type",
    "use",
]

pygpu = None
"""The package of Theano's GPU arrays, which is not used."""

pygpu_activated = False
"""Whether graphs run on a GPU through this package: never."""

theano_gpu_is_already_active = False


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


init_dev = use

_modules = not_activated.make_modules(
    __name__, names_gpu.GPUARRAY, ContextNotDefined, UNDEFINED
)
as_gpuarray_variable = _modules["basic_ops"].as_gpuarray_variable
globals().update(not_activated.names_in(type, names_gpu.GPUARRAY["type"]))

__getattr__, __dir__ = not_activated.give(__name__, "", ContextNotDefined, UNDEFINED)
