"""Calls through joblib on loky; the rows lie in a memory-mapped file in /dev/shm."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import joblib
from joblib import Parallel, delayed

from bench import tasks


@contextmanager
def opened(options, place):
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        Parallel(n_jobs=options.ranks, backend="loky") as parallel,
    ):
        path = str(Path(folder, "rows"))
        joblib.dump(tasks.array(options), path)
        rows = joblib.load(path, mmap_mode="r")

        def empty():
            parallel(delayed(tasks.nothing)() for _ in range(options.ranks))

        def total():
            return sum(
                parallel(
                    delayed(tasks.total_of_part)(rows, start, stop)
                    for start, stop in tasks.bounds(options)
                )
            )

        yield tasks.questions(empty, total)
