"""How an Op computes on numpy arrays outside JAX mode: by numpy, or by XLA.

XLA is JAX's compiler. On one core, in single precision, it takes for 3x3 convolutions
of large images half of numpy's time or all of it, for 1x1 ones and for depthwise ones
two to seven times as much; it compiles anew for every shape of a batch; and a process
in which it runs cannot fork ranks. So it is not the default. Where it is chosen, JAX is
imported when a value is first computed and not before.
"""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from typing import Any

import numpy as np

_CHOICES = ("numpy", "xla")
_chosen: list[str] = []


def set_kernels(name: str) -> None:
    """Choose what computes the Ops of this module outside JAX mode.

    Parameters
    ----------
    name : {"numpy", "xla"}
        "numpy" is the default. "xla" needs JAX, and no rank can be forked once it has
        computed something. The environment variable ``SYNK_NN`` gives the choice at the
        start.

    Raises
    ------
    ValueError
        If there is no such choice.
    ImportError
        If it is "xla", and JAX is not installed.

    Notes
    -----
    It holds for this process, and for ranks that it forks afterwards. JAX mode does not
    depend on it.
    """
    if name not in _CHOICES:
        raise ValueError(f"kernels must be one of {_CHOICES}, got {name!r}")
    if name == "xla" and importlib.util.find_spec("jax") is None:
        raise ImportError("the kernels 'xla' need JAX: pip install 'synk[jax]'")
    _chosen[:] = [name]


def kernels() -> str:
    """Return what computes the Ops outside JAX mode: one of the choices."""
    if not _chosen:
        set_kernels(os.environ.get("SYNK_NN") or "numpy")
    return _chosen[0]


def compute(op: Any, *arrays: np.ndarray) -> np.ndarray:
    """Return what an Op is of some arrays, as an array that may be written to."""
    if kernels() != "xla":
        return np.ascontiguousarray(op.numpy_kernel(*arrays))
    import jax

    # float64 in, float64 out, whatever precision the user's JAX works with; and on the
    # CPU, where the arrays are.
    with jax.enable_x64(True), jax.default_device(_cpu()):
        # What XLA returns must not be written to; compiled graphs work in place.
        return np.array(_jitted(op)(*arrays))


@lru_cache(maxsize=1)
def _cpu() -> Any:
    import jax

    return jax.local_devices(backend="cpu")[0]


@lru_cache(maxsize=1024)
def _jitted(op: Any) -> Any:
    import jax

    return jax.jit(op.jax_kernel)
