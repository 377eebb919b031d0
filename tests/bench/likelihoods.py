"""The log-likelihoods that are compared: data, and what is right.

Each is the negative log-likelihood of `y` at ``eta = X @ beta``, and its gradient by
`beta`, in float64. Other parameters are fixed, so that what depends on them and on `y`
alone is the same in every call.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

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


STUDENT = math.lgamma(NU / 2) - math.lgamma((NU + 1) / 2) + math.log(NU * math.pi) / 2
BINOMIAL = math.lgamma(ALPHA) - ALPHA * math.log(ALPHA)
"""Constant terms."""


def terms_by(m: Any) -> dict[str, Callable]:
    """Return the terms of y and eta, by the functions of PyTensor, JAX or torch."""

    def student(y, eta):
        return STUDENT + (NU + 1) / 2 * m.log1p((y - eta) ** 2 / NU)

    def negative_binomial(y, eta):
        terms = m.gammaln(y + 1) - m.gammaln(y + ALPHA) + BINOMIAL
        return terms + (y + ALPHA) * m.log(ALPHA + m.exp(eta)) - y * eta

    return {
        "logistic": lambda y, eta: m.softplus(eta) - y * eta,
        "poisson": lambda y, eta: m.exp(eta) - y * eta + m.gammaln(y + 1),
        "student": student,
        "negative-binomial": negative_binomial,
    }


class _InNumPy:
    """Functions of numpy and SciPy."""

    exp, log, log1p, gammaln = np.exp, np.log, np.log1p, gammaln

    @staticmethod
    def softplus(eta: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, eta)


TERMS = terms_by(_InNumPy)
SLOPES = {
    "logistic": lambda y, eta: expit(eta) - y,
    "poisson": lambda y, eta: np.exp(eta) - y,
    "student": lambda y, eta: -(NU + 1) * (y - eta) / (NU + (y - eta) ** 2),
    "negative-binomial": lambda y, eta: (y + ALPHA) * expit(eta - np.log(ALPHA)) - y,
}
"""Of the terms by eta."""


@functools.cache
def reference(options: Options, column: str) -> list[float]:
    """Return the value and the gradient, by numpy and SciPy."""
    x = rows(options)
    y, eta = outcomes(column, x), x @ beta()
    gradient = x.T @ SLOPES[column](y, eta)
    return [float(TERMS[column](y, eta).sum()), *gradient.tolist()]


def work(
    call: Callable[[], tuple], tune: Callable[[], str | None] = lambda: None
) -> Work:
    """Return the work of an implementation, whose call returns value and gradient."""

    def check(_: int) -> list[float]:
        value, gradient = call()
        return [value, *gradient]

    return Work(call, check, tune)
