"""Log-densities by ranks beside PyMC's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pymc as pm

import synk

MODE = "FAST_COMPILE"


def density(model: pm.Model):
    """Return a model's density by ranks, of which none is computed serially."""
    made = synk.pymc.logp_dlogp(model, mode=MODE)
    assert made.rows
    assert not made.refused
    return made


def plain(model: pm.Model, others: Mapping[str, np.ndarray] | None = None) -> Callable:
    """Return PyMC's function of the ravelled point; `others` are discrete values."""
    with model:
        made = model.logp_dlogp_function(ravel_inputs=True, mode=MODE)
    return lambda point: made([point], extra_vars=dict(others or {}))


def groups_of(idata) -> list[str]:
    """Return the groups of what was sampled, of any ArviZ."""
    groups = idata.groups
    return sorted(groups() if callable(groups) else groups)


def points(start: np.ndarray, many: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [start, *(start + 0.4 * rng.normal(size=(many - 1, len(start))))]


def assert_equal(
    by_ranks: Callable,
    by_pymc: Callable,
    at: Sequence[np.ndarray],
    rtol: float = 1e-12,
) -> None:
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


def assert_equal_on_ranks(
    pairs: Sequence[tuple], ranks: Sequence[int] = (1, 3), rtol: float = 1e-11
) -> None:
    """Compare densities with PyMC's, all of them in one session of each size."""
    for size in ranks:
        with synk.session(size):
            for by_ranks, by_pymc in pairs:
                assert_equal(by_ranks, by_pymc, points(by_ranks.start), rtol)
