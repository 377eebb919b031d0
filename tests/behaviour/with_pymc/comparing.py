"""Log-densities by ranks beside PyMC's own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pymc as pm

from synk.pymc.density import Density

MODE = "FAST_COMPILE"


def density(model: pm.Model, **kwargs) -> Density:
    """Return a model's density by ranks; all dimensions of some length are shared."""
    kwargs = {"least": 400, "mode": MODE} | kwargs
    return Density(model, model.continuous_value_vars, model.initial_point(0), **kwargs)


def plain(model: pm.Model, others: Mapping[str, np.ndarray] | None = None):
    """Return PyMC's function of the ravelled point; `others` are discrete values."""
    with model:
        made = model.logp_dlogp_function(ravel_inputs=True, mode=MODE)
    return lambda point: made([point], extra_vars=dict(others or {}))


def groups_of(idata) -> list[str]:
    """Return the groups of what was sampled, of any ArviZ."""
    groups = idata.groups
    return sorted(groups() if callable(groups) else groups)


def points(start: np.ndarray, many: int = 20) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [start, *(start + 0.4 * rng.normal(size=(many - 1, len(start))))]


def assert_equal(by_ranks, by_pymc, at, rtol: float = 1e-12) -> None:
    """Compare log-densities and gradients at points; some of them must be finite."""
    finite = 0
    for point in at:
        (logp, gradient), (expected, serial) = by_ranks(point), by_pymc(point)
        if not np.isfinite(expected):
            np.testing.assert_array_equal(logp, expected)
            continue
        finite += 1
        np.testing.assert_allclose(logp, expected, rtol=rtol)
        scale = np.abs(serial).max()
        np.testing.assert_allclose(gradient, serial, rtol=0, atol=rtol * scale)
    assert finite > len(at) / 2
