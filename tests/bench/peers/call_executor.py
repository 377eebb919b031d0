"""Calls through concurrent.futures; the rows are sent with each call."""

from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from bench import tasks


@contextmanager
def opened(options, place):
    rows = tasks.array(options)
    with ProcessPoolExecutor(options.ranks) as executor:

        def empty():
            list(executor.map(tasks.nothing, range(options.ranks)))

        def total():
            parts = [rows[start:stop] for start, stop in tasks.bounds(options)]
            return sum(executor.map(tasks.total, parts))

        yield tasks.questions(empty, total)
