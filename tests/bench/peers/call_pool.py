"""Calls through multiprocessing.Pool; the rows are sent with each call."""

import multiprocessing
from contextlib import contextmanager

from bench import tasks


@contextmanager
def opened(options, place):
    rows = tasks.array(options)
    with multiprocessing.Pool(options.ranks) as pool:

        def empty():
            pool.map(tasks.nothing, range(options.ranks), chunksize=1)

        def total():
            parts = [rows[start:stop] for start, stop in tasks.bounds(options)]
            return sum(pool.map(tasks.total, parts, chunksize=1))

        yield tasks.questions(empty, total)
