"""The likelihoods in numba, as one writes them: a parallel loop over blocks of rows.

And one read of X by the same threads, which no likelihood can be faster than that reads
X from memory.
"""

import math
from contextlib import contextmanager

import numba
import numpy as np
from numba import njit, prange

from bench import likelihoods
from bench.likelihoods import ALPHA, NU, WIDTH
from bench.timing import timed
from bench.work import questions

BLOCKS = 64
PARALLEL = njit(parallel=True, fastmath=True, cache=True)
IN_LOOP = njit(inline="always")


@IN_LOOP
def bounds(block, n):
    return n * block // BLOCKS, n * (block + 1) // BLOCKS


@IN_LOOP
def product(row, beta):
    eta = 0.0
    for j in range(WIDTH):
        eta += row[j] * beta[j]
    return eta


@IN_LOOP
def add(sums, value, slope, row):
    sums[0] += value
    for j in range(WIDTH):
        sums[1 + j] += slope * row[j]


# A loop for each: numba keeps no function on disk that another one is handed to.


@PARALLEL
def logistic(x, y, beta):
    found = np.zeros((BLOCKS, 1 + WIDTH))
    for block in prange(BLOCKS):
        sums = np.zeros(1 + WIDTH)
        start, stop = bounds(block, len(x))
        for i in range(start, stop):
            eta = product(x[i], beta)
            small = math.exp(-abs(eta))
            expit = (1.0 if eta >= 0 else small) / (1 + small)
            value = max(eta, 0.0) + math.log1p(small) - y[i] * eta
            add(sums, value, expit - y[i], x[i])
        found[block] = sums
    return found.sum(axis=0)


@PARALLEL
def poisson(x, y, beta):
    found = np.zeros((BLOCKS, 1 + WIDTH))
    for block in prange(BLOCKS):
        sums = np.zeros(1 + WIDTH)
        start, stop = bounds(block, len(x))
        for i in range(start, stop):
            eta = product(x[i], beta)
            mu = math.exp(eta)
            value = mu - y[i] * eta + math.lgamma(y[i] + 1)
            add(sums, value, mu - y[i], x[i])
        found[block] = sums
    return found.sum(axis=0)


STUDENT = math.lgamma(NU / 2) - math.lgamma((NU + 1) / 2) + math.log(NU * math.pi) / 2


@PARALLEL
def student(x, y, beta):
    found = np.zeros((BLOCKS, 1 + WIDTH))
    for block in prange(BLOCKS):
        sums = np.zeros(1 + WIDTH)
        start, stop = bounds(block, len(x))
        for i in range(start, stop):
            far = y[i] - product(x[i], beta)
            value = STUDENT + (NU + 1) / 2 * math.log1p(far * far / NU)
            add(sums, value, -(NU + 1) * far / (NU + far * far), x[i])
        found[block] = sums
    return found.sum(axis=0)


CONSTANT = math.lgamma(ALPHA) - ALPHA * math.log(ALPHA)


@PARALLEL
def negative_binomial(x, y, beta):
    found = np.zeros((BLOCKS, 1 + WIDTH))
    for block in prange(BLOCKS):
        sums = np.zeros(1 + WIDTH)
        start, stop = bounds(block, len(x))
        for i in range(start, stop):
            eta = product(x[i], beta)
            mu = math.exp(eta)
            value = math.lgamma(y[i] + 1) - math.lgamma(y[i] + ALPHA) + CONSTANT
            value += (y[i] + ALPHA) * math.log(ALPHA + mu) - y[i] * eta
            add(sums, value, (y[i] + ALPHA) * mu / (ALPHA + mu) - y[i], x[i])
        found[block] = sums
    return found.sum(axis=0)


LOOPS = {
    "logistic": logistic,
    "poisson": poisson,
    "student": student,
    "negative-binomial": negative_binomial,
}


@PARALLEL
def read(values):
    """Return the sum: a read of all values, and an addition that takes no time."""
    sums = np.zeros(BLOCKS)
    for block in prange(BLOCKS):
        total = 0.0
        start, stop = bounds(block, len(values))
        for i in range(start, stop):
            total += values[i]
        sums[block] = total
    return sums.sum()


@contextmanager
def opened(options, place):
    numba.set_num_threads(options.cores)
    x, beta = likelihoods.rows(options), likelihoods.beta()

    def prepare(column):
        y = likelihoods.outcomes(column, x)

        def build():
            loop = LOOPS[column]

            def call():
                sums = loop(x, y, beta)
                return sums[0], sums[1:]

            return likelihoods.work(call)

        return build

    flat, right = x.ravel(), float(x.sum())

    def read_all():
        total = read(flat)
        if not math.isclose(total, right, abs_tol=1e-6):
            raise ArithmeticError(f"the sum of X is {total}, should be {right}")

    yield {**questions(likelihoods.COLUMNS, prepare), "time read": timed(read_all)}
