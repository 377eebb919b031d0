"""Calls of Ray's tasks and actors; the rows lie in its object store."""

import os
from contextlib import contextmanager

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray

from bench import tasks


@ray.remote
class Actor:
    """What stays in a process between calls."""

    def nothing(self):
        pass

    def total_of_part(self, rows, start, stop):
        return tasks.total_of_part(rows, start, stop)


@contextmanager
def opened(options, place):
    # Twice the processors: actors and tasks have their own processes.
    ray.init(
        num_cpus=2 * options.ranks,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100_000_000,
    )
    rows = ray.put(tasks.array(options))
    nothing = ray.remote(tasks.nothing)
    total_of_part = ray.remote(tasks.total_of_part)
    actors = [Actor.remote() for _ in range(options.ranks)]

    def empty_tasks():
        ray.get([nothing.remote() for _ in actors])

    def empty_actors():
        ray.get([actor.nothing.remote() for actor in actors])

    def total_tasks():
        return sum(
            ray.get(
                [total_of_part.remote(rows, *part) for part in tasks.bounds(options)]
            )
        )

    def total_actors():
        return sum(
            ray.get(
                [
                    actor.total_of_part.remote(rows, *part)
                    for actor, part in zip(actors, tasks.bounds(options), strict=True)
                ]
            )
        )

    yield {
        **tasks.questions(empty_tasks, total_tasks, "tasks"),
        **tasks.questions(empty_actors, total_actors, "actors"),
    }
    ray.shutdown()
