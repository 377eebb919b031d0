"""`synk.pymc.nutpie_model`: nutpie samples with a log-density by ranks.

nutpie's chains are threads, each of which calls the log-density. `Density` has a lock,
so that one is computed at a time, on all ranks; what is recorded of a draw is computed
in the master, under a lock of its own, as PyTensor's functions are not to be called by
several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .density import Density
from .make import make
from .names import present

CALLS = 10_000
"""Calls of a density at least, for a chain."""

JITTER = 1.0
"""How far PyMC and nutpie begin from the initial point at most, in each coordinate."""


def nutpie_model(model: Any, mode: Any) -> Any:
    """Return what ``nutpie.sample`` takes; see `synk.pymc.nutpie_model`."""
    from nutpie.compiled_pyfunc import from_pyfunc

    model = present(model)
    if model.discrete_value_vars:
        names = ", ".join(var.name for var in model.discrete_value_vars)
        raise TypeError(f"nutpie has no steps for discrete variables: {names}")
    density = make(model, None, mode)
    density.foresee(CALLS)
    recorded = _Recorded(model, density)
    first = recorded(density.start)
    coords, dims = _labels(model, first)
    return from_pyfunc(
        len(density.start),
        lambda: _called(density),
        lambda *_: recorded,
        [value.dtype for value in first.values()],
        [value.shape for value in first.values()],
        list(first),
        coords=coords,
        dims=dims,
        make_initial_point_fn=lambda seed: _jittered(density.start, seed),
    )


def _called(density: Density) -> Callable[..., Any]:
    """Return the log-density as nutpie calls it."""

    def logp(point: np.ndarray, **_: Any) -> tuple[float, np.ndarray]:
        value, gradient = density(point)
        return float(value), gradient

    return logp


class _Recorded:
    """What is recorded of a draw: variables untransformed, and deterministics."""

    def __init__(self, model: Any, density: Density) -> None:
        variables = model.unobserved_RVs
        self._names = [var.name for var in variables]
        self._unravelled = density.unravelled
        self._computed = model.compile_fn(
            model.replace_rvs_by_values(variables),
            inputs=model.continuous_value_vars,
            on_unused_input="ignore",
        )
        self._lock = threading.Lock()

    def __call__(self, point: np.ndarray, **_: Any) -> dict[str, np.ndarray]:
        with self._lock:
            values = self._computed(self._unravelled(point))
        return {name: np.array(v) for name, v in zip(self._names, values, strict=True)}


def _labels(
    model: Any, values: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the coordinates of the dimensions that recorded values have, and these."""
    import pandas as pd  # nutpie needs it, and takes labels so

    dims = {
        name: tuple(map(str, model.named_vars_to_dims[name]))
        for name in values
        if name in model.named_vars_to_dims
    }
    coords: dict[str, Any] = {}
    for name, names in dims.items():
        for dim, length in zip(names, values[name].shape, strict=True):
            labels = model.coords.get(dim)
            coords[dim] = pd.Index(range(length) if labels is None else labels)
    return coords, dims


def _jittered(start: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return start + rng.uniform(-JITTER, JITTER, len(start))
