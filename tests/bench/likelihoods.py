"""The log-likelihoods that are compared: data, and what is right.

Each is the negative log-likelihood of `y` at ``eta = X @ beta``, and its gradient by
`beta`, in float64. Other parameters are fixed, so that what depends on them and on `y`
alone is the same in every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from scipy.special import expit, gammaln

from .work import Options, Work

COLUMNS = {
    "logistic": "logistic",
    "poisson": "Poisson",
    "student": "Student's t",
    "negative-binomial": "neg. binomial",
}
WIDTH = 20
"""Columns of X."""

NU = 4.0
"""Degrees of freedom of Student's t; its scale is 1."""

ALPHA = 3.0
"""Of the negative binomial distribution, whose variance is mu + mu ** 2 / ALPHA."""


def rows(options: Options) -> np.ndarray:
    """Return X, shape (points, WIDTH)."""
    return np.random.default_rng(0).standard_normal((options.points, WIDTH))


def beta() -> np.ndarray:
    """Return the point where value and gradient are asked for."""
    return np.linspace(-0.2, 0.2, WIDTH)


def outcomes(column: str, x: np.ndarray) -> np.ndarray:
    """Return y, drawn at another point."""
    random = np.random.default_rng(1)
    eta = x @ (beta()[::-1] / 2)
    mu = np.exp(eta)
    drawn = {
        "logistic": lambda: random.random(len(x)) < expit(eta),
        "poisson": lambda: random.poisson(mu),
        "student": lambda: eta + random.standard_t(NU, len(x)),
        "negative-binomial": lambda: random.negative_binomial(
            ALPHA, ALPHA / (ALPHA + mu)
        ),
    }
    return drawn[column]().astype("float64")


@functools.cache
def reference(options: Options, column: str) -> list[float]:
    """Return the value and the gradient, by numpy and SciPy."""
    x = rows(options)
    y, eta = outcomes(column, x), x @ beta()
    terms, slopes = TERMS[column](y, eta)
    return [float(terms.sum()), *(x.T @ slopes).tolist()]


def _logistic(y, eta):
    return np.logaddexp(0, eta) - y * eta, expit(eta) - y


def _poisson(y, eta):
    mu = np.exp(eta)
    return mu - y * eta + gammaln(y + 1), mu - y


def _student(y, eta):
    far = y - eta
    constant = gammaln(NU / 2) - gammaln((NU + 1) / 2) + np.log(NU * np.pi) / 2
    terms = constant + (NU + 1) / 2 * np.log1p(far**2 / NU)
    return terms, -(NU + 1) * far / (NU + far**2)


def _negative_binomial(y, eta):
    mu = np.exp(eta)
    constant = gammaln(ALPHA) - ALPHA * np.log(ALPHA)
    terms = gammaln(y + 1) - gammaln(y + ALPHA) + constant
    return (
        terms + (y + ALPHA) * np.log(ALPHA + mu) - y * eta,
        (y + ALPHA) * mu / (ALPHA + mu) - y,
    )


TERMS = {
    "logistic": _logistic,
    "poisson": _poisson,
    "student": _student,
    "negative-binomial": _negative_binomial,
}


def work(
    call: Callable[[], tuple], tune: Callable[[], str | None] = lambda: None
) -> Work:
    """Return the work of an implementation, whose call returns value and gradient."""

    def check(_: int) -> list[float]:
        value, gradient = call()
        return [value, *gradient]

    return Work(call, check, tune)
