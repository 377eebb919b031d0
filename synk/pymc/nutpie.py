"""Models for nutpie, with the log-density computed by ranks.

`compiled` works like ``nutpie.compile_pymc_model``: chains begin at the same points,
and the same values of each draw are recorded. nutpie's chains are threads. Each calls
the log-density. Groups of ranks compute for several threads at once; or all ranks
compute for one thread at a time, as `Density` has a lock. The master computes the
recorded values, under another lock, as several threads must not call a function of
PyTensor at once.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pymc import modelcontext
from pymc.initial_point import make_initial_point_fn

from .density import Density, Plain
from .make import make


def nutpie_model(model: Any, mode: Any) -> Any:
    """Return a model for ``nutpie.sample``; see `synk.pymc.nutpie_model`."""
    model = modelcontext(model)
    if model.discrete_value_vars:
        names = ", ".join(var.name for var in model.discrete_value_vars)
        raise TypeError(f"nutpie has no steps for discrete variables: {names}")
    density = make(model, None, mode)
    return compiled(model, density, density)


def compiled(
    model: Any,
    density: Density,
    computed: Plain,
    var_names: Iterable[str] | None = None,
    initial_points: Mapping[Any, Any] | None = None,
    jitter_rvs: Any = None,
    default_initialization_strategy: str = "support_point",
) -> Any:
    """Return a model for ``nutpie.sample``, as ``nutpie.compile_pymc_model`` does.

    The gradient of `density` must be by all free variables. Threads call `computed`,
    which is `density`, or computes it by groups of ranks. For the other parameters see
    nutpie.
    """
    from nutpie.compiled_pyfunc import from_pyfunc

    if jitter_rvs is None and default_initialization_strategy == "support_point":
        jitter_rvs = set(model.free_RVs)
    initial_point = make_initial_point_fn(
        model=model,
        overrides=initial_points,
        default_strategy=default_initialization_strategy,
        jitter_rvs=jitter_rvs,
        return_transformed=True,
    )
    recorded = _Recorded(model, density, var_names)
    told = {"reparameterized_names": recorded.transformed}
    if told.keys() - inspect.signature(from_pyfunc).parameters.keys():
        told = {}  # before 0.16.10 nutpie has no such argument
    first = recorded(density.start)
    coords, dims = _labels(model, first)

    def logp(point: np.ndarray, **_: Any) -> tuple[float, np.ndarray]:
        value, gradient = computed(point)
        return float(value), gradient

    return from_pyfunc(
        len(density.start),
        lambda: logp,
        lambda *_: recorded,
        [value.dtype for value in first.values()],
        [value.shape for value in first.values()],
        list(first),
        coords=coords,
        dims=dims,
        make_initial_point_fn=lambda seed: density.ravelled(initial_point(seed)),
        **told,
    )


class _Recorded:
    """A function of a point: all values that nutpie records of a draw, by name.

    These are the free variables, transformed and not, and deterministics. `transformed`
    has the names of the transformed values. `var_names` limits the untransformed ones.
    """

    def __init__(
        self, model: Any, density: Density, var_names: Iterable[str] | None
    ) -> None:
        transforms = model.rvs_to_transforms
        of_values = {model.rvs_to_values[var].name: var for var in model.free_RVs}
        self.transformed = [n for n, var in of_values.items() if transforms[var]]
        kept = None if var_names is None else set(var_names)
        others = [
            var
            for var in model.unobserved_value_vars
            if var.name not in of_values and (kept is None or var.name in kept)
        ]
        self._names = [var.name for var in others]
        self._unravelled = density.unravelled
        self._computed = model.compile_fn(
            others, inputs=model.continuous_value_vars, on_unused_input="ignore"
        )
        self._lock = threading.Lock()

    def __call__(self, point: np.ndarray, **_: Any) -> dict[str, np.ndarray]:
        values = self._unravelled(point)
        with self._lock:
            others = self._computed(values)
        named = values | dict(zip(self._names, others, strict=True))
        return {name: np.array(value) for name, value in named.items()}


def _labels(
    model: Any, values: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the coordinates of dimensions, and the dimensions of recorded `values`."""
    import pandas as pd  # nutpie takes coordinates as an Index

    dims = {name: tuple(map(str, d)) for name, d in model.named_vars_to_dims.items()}
    for var, value in model.rvs_to_values.items():
        is_recorded = var.name in dims and {var.name, value.name} <= values.keys()
        if is_recorded and values[var.name].shape == values[value.name].shape:
            dims[value.name] = dims[var.name]
    lengths = model.dim_lengths
    coords = {
        str(dim): pd.Index(
            range(int(lengths[dim].eval())) if labels is None else labels
        )
        for dim, labels in model.coords.items()
    }
    return coords, {name: dims[name] for name in dims if name in values}
