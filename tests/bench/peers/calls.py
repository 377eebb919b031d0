"""Calls: of nothing, and of the sum of some rows; by synk and by what does the like.

Peers import their libraries when they are opened: no other process has them.
"""

import functools
import itertools
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
from bench.work import Options, Question, timed


def nothing(_: object = None) -> None:
    """Do nothing."""


def total(rows: np.ndarray) -> float:
    return float(rows.sum())


def total_of_part(rows: np.ndarray, start: int, stop: int) -> float:
    return float(rows[start:stop].sum())


def array(options: Options) -> np.ndarray:
    """Return small whole numbers, whose sum float32 has exactly."""
    size = options.shape[0] * options.shape[1]
    return (np.arange(size) % 5).astype("float32").reshape(options.shape)


def bounds(options: Options) -> list[tuple[int, int]]:
    """Return first and last row of each rank's part."""
    ends = [options.shape[0] * i // options.ranks for i in range(options.ranks + 1)]
    return list(itertools.pairwise(ends))


def questions(
    empty: Callable[[], object], add_up: Callable[[], float], name: str = "call"
) -> dict[str, Question]:
    """Return what every implementation of calls is asked."""
    return {
        f"check {name}": lambda _: [float(add_up())],
        f"{name} empty": timed(empty),
        f"{name} rows": timed(add_up),
    }


@contextmanager
def of_synk(options, place):
    """The rows lie in shared memory."""
    import pytensor.tensor as pt

    import synk

    x = pt.matrix("x", dtype="float32")
    with synk.session(options.ranks):
        empty = synk.function([], [])
        add_up = synk.function([x], (x.sum(), "sum"))
        rows = synk.data(array(options))
        yield questions(empty, lambda: add_up(rows))


@contextmanager
def of_pytensor(options, place):
    """For comparison: nothing is parallel."""
    import pytensor
    import pytensor.tensor as pt

    x = pt.matrix("x", dtype="float32")
    empty = pytensor.function([], [])
    add_up = pytensor.function([x], x.sum())
    rows = array(options)
    yield questions(empty, lambda: add_up(rows))


def by_map(options: Options, map_all: Callable) -> dict[str, Question]:
    """The rows are sent with each call."""
    rows = array(options)

    def add_up():
        parts = [rows[start:stop] for start, stop in bounds(options)]
        return sum(map_all(total, parts))

    return questions(lambda: map_all(nothing, range(options.ranks)), add_up)


@contextmanager
def of_pool(options, place):
    import multiprocessing

    with multiprocessing.Pool(options.ranks) as pool:
        yield by_map(options, functools.partial(pool.map, chunksize=1))


@contextmanager
def of_executor(options, place):
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(options.ranks) as executor:
        yield by_map(options, lambda *given: list(executor.map(*given)))


@contextmanager
def of_joblib(options, place):
    """On loky; the rows lie in a memory-mapped file in /dev/shm."""
    import tempfile

    import joblib
    from joblib import Parallel, delayed

    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        Parallel(n_jobs=options.ranks, backend="loky") as parallel,
    ):
        joblib.dump(array(options), f"{folder}/rows")
        rows = joblib.load(f"{folder}/rows", mmap_mode="r")

        def empty():
            parallel(delayed(nothing)() for _ in range(options.ranks))

        def add_up():
            calls = (delayed(total_of_part)(rows, *part) for part in bounds(options))
            return sum(parallel(calls))

        yield questions(empty, add_up)


class Actor:
    """What stays in a process of Ray's between calls."""

    def nothing(self):
        pass

    def total_of_part(self, rows, start, stop):
        return total_of_part(rows, start, stop)


@contextmanager
def of_ray(options, place):
    """Tasks and actors; the rows lie in its object store."""
    import os

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    # Twice the processors: actors and tasks have their own processes.
    ray.init(
        num_cpus=2 * options.ranks,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100_000_000,
    )
    rows = ray.put(array(options))
    task, task_of_part = ray.remote(nothing), ray.remote(total_of_part)
    actors = [ray.remote(Actor).remote() for _ in range(options.ranks)]

    def empty_tasks():
        ray.get([task.remote() for _ in actors])

    def empty_actors():
        ray.get([actor.nothing.remote() for actor in actors])

    def total_tasks():
        parts = bounds(options)
        return sum(ray.get([task_of_part.remote(rows, *part) for part in parts]))

    def total_actors():
        parts = zip(actors, bounds(options), strict=True)
        calls = [actor.total_of_part.remote(rows, *part) for actor, part in parts]
        return sum(ray.get(calls))

    yield {
        **questions(empty_tasks, total_tasks, "tasks"),
        **questions(empty_actors, total_actors, "actors"),
    }
    ray.shutdown()
