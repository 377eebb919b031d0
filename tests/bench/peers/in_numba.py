"""The likelihoods in numba, as one writes them: a parallel loop over blocks of rows.

And one read of X by the same threads, which no likelihood can be faster than that reads
X from memory.
"""

import math
from contextlib import contextmanager

import numba
import numpy as np
from bench import likelihoods
from bench.likelihoods import ALPHA, BINOMIAL, NU, STUDENT, WIDTH
from bench.work import questions, timed
from numba import njit, prange

BLOCKS = 64
PARALLEL = njit(parallel=True, fastmath=True, cache=True)
IN_LOOP = njit(inline="always")


@IN_LOOP
def part(values, block):
    """Return a block: counted from 0, numba need not look if an index is below that."""
    n = len(values)
    return values[n * block // BLOCKS : n * (block + 1) // BLOCKS]


@IN_LOOP
def product(row, beta):
    eta = 0.0
    for j in range(WIDTH):
        eta += row[j] * beta[j]
    return eta


@IN_LOOP
def add(sums, slope, row):
    for j in range(WIDTH):
        sums[j] += slope * row[j]


# A loop for each: numba keeps no function on disk that another one is handed to.


@PARALLEL
def logistic(x, y, beta):
    found = np.zeros((BLOCKS, 1 + WIDTH))
    for block in prange(BLOCKS):
        total, sums = 0.0, np.zeros(WIDTH)
        rows, of_rows = part(x, block), part(y, block)
        for i in range(len(rows)):
            eta = product(rows[i], beta)
            small = math.exp(-abs(eta))
            expit = (1.0 if eta >= 0 else small) / (1 + small)
            total += max(eta, 0.0) + math.log1p(small) - of_rows[i] * eta
            add(sums, expit - of_rows[i], rows[i])
        found[block, 0], found[block, 1:] = total, sums
    return found.sum(axis=0)


@PARALLEL
def poisson(x, y, beta):
    found = np.zeros((BLOCKS, 1 + WIDTH))
    for block in prange(BLOCKS):
        total, sums = 0.0, np.zeros(WIDTH)
        rows, of_rows = part(x, block), part(y, block)
        for i in range(len(rows)):
            eta = product(rows[i], beta)
            mu = math.exp(eta)
            total += mu - of_rows[i] * eta + math.lgamma(of_rows[i] + 1)
            add(sums, mu - of_rows[i], rows[i])
        found[block, 0], found[block, 1:] = total, sums
    return found.sum(axis=0)


@PARALLEL
def student(x, y, beta):
    found = np.zeros((BLOCKS, 1 + WIDTH))
    for block in prange(BLOCKS):
        total, sums = 0.0, np.zeros(WIDTH)
        rows, of_rows = part(x, block), part(y, block)
        for i in range(len(rows)):
            far = of_rows[i] - product(rows[i], beta)
            total += STUDENT + (NU + 1) / 2 * math.log1p(far * far / NU)
            add(sums, -(NU + 1) * far / (NU + far * far), rows[i])
        found[block, 0], found[block, 1:] = total, sums
    return found.sum(axis=0)


@PARALLEL
def negative_binomial(x, y, beta):
    found = np.zeros((BLOCKS, 1 + WIDTH))
    for block in prange(BLOCKS):
        total, sums = 0.0, np.zeros(WIDTH)
        rows, of_rows = part(x, block), part(y, block)
        for i in range(len(rows)):
            eta, more = product(rows[i], beta), of_rows[i] + ALPHA
            mu = math.exp(eta)
            total += math.lgamma(of_rows[i] + 1) - math.lgamma(more) + BINOMIAL
            total += more * math.log(ALPHA + mu) - of_rows[i] * eta
            add(sums, more * mu / (ALPHA + mu) - of_rows[i], rows[i])
        found[block, 0], found[block, 1:] = total, sums
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
        mine = part(values, block)
        for i in range(len(mine)):
            total += mine[i]
        sums[block] = total
    return sums.sum()


@contextmanager
def opened(options, place):
    numba.set_num_threads(options.cores)
    x, beta = likelihoods.rows(options), likelihoods.beta()

    def prepare(column):
        y = likelihoods.outcomes(column, x)

        def call():
            sums = LOOPS[column](x, y, beta)
            return sums[0], sums[1:]

        yield
        yield likelihoods.work(call)

    flat, right = x.ravel(), float(x.sum())

    def read_all():
        total = read(flat)
        if not math.isclose(total, right, abs_tol=1e-6):
            raise ArithmeticError(f"the sum of X is {total}, should be {right}")

    yield {**questions(likelihoods.COLUMNS, prepare), "time read": timed(read_all)}
